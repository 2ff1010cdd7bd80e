"""A file that has not the rows of its inputs is refused, whatever way its columns are compared."""

import io
from collections.abc import Sequence
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from compaction_platform.lake.parquet.stitch import verify
from compaction_platform.lake.parquet.stitch.errors import StitchUnsupported
from compaction_platform.lake.parquet.stitch.stitch_plan import footers_of, plan_stitch
from compaction_platform.lake.parquet.stitch.stitch_writer import write_stitched
from compaction_platform.lake.verification.fingerprint import ordered_fingerprint
from compaction_platform_tests.lake.stitch.material import by_pyarrow

pytestmark = pytest.mark.unit

ROWS = 800
WORDS = ["view", "click", "buy", "leave"]
SMALL_PAGES = {"data_page_size": 100, "write_batch_size": 50}


def column(kinds: int, nulls: int) -> list[str | None]:
    return [None if nulls and row % nulls == 0 else f"{WORDS[row % 4]} {row % kinds}" for row in range(ROWS)]


def table(number: int, kinds: int, nulls: int, **changed: Any) -> pyarrow.Table:
    """`kinds`: how many values there are."""
    words = column(kinds, nulls)
    rows = {"n": range(number * ROWS, number * ROWS + ROWS), "word": words}
    for place, value in changed.items():
        words[int(place.removeprefix("row_"))] = value
    return pyarrow.table(rows, pyarrow.schema([("n", pyarrow.int64()), ("word", pyarrow.string())]))


def made(tables: Sequence[pyarrow.Table], **options: Any) -> tuple[Any, Any, bytes]:
    files = [by_pyarrow(compression="zstd", write_statistics=False, **options)(rows) for rows in tables]
    plan = plan_stitch(files, footers_of(files), 1 << 30)
    sink = io.BytesIO()
    return plan, write_stitched(plan, {}, sink), sink.getvalue()


@pytest.mark.parametrize("options", [{}, SMALL_PAGES], ids=["one page", "several pages"])
@pytest.mark.parametrize("nulls", [0, 3], ids=["no nulls", "nulls"])
@pytest.mark.parametrize("kinds", [4, 12, 90, 500])
@pytest.mark.parametrize("change", ["another value", "a null", "a new value"])
def test_one_row_that_is_another_is_seen(kinds: int, nulls: int, change: str, options: dict[str, Any]) -> None:
    """Few values are compared as dictionaries, many by their bytes."""
    words = column(kinds, nulls)
    row = next(place for place in range(300, ROWS) if words[place] is not None)
    other = next(word for word in words if word not in (None, words[row]))
    value = {"another value": other, "a null": None, "a new value": "seen nowhere"}[change]
    good = [table(number, kinds, nulls) for number in range(3)]
    plan, stitched, output = made(good, **options)
    assert {each.column: each.strategy for each in stitched.choices}["word"] == "dictionary"
    found = verify.verify_stitched(plan, stitched.choices, output)
    assert found.rows == ordered_fingerprint(pyarrow.concat_tables(good))
    bad = [good[0], table(1, kinds, nulls, **{f"row_{row}": value}), good[2]]
    other_plan, _, _ = made(bad, **options)
    with pytest.raises(StitchUnsupported, match="what was written was not what was read: word"):
        verify.verify_stitched(other_plan, stitched.choices, output)


def test_few_values_are_compared_once_and_many_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    real = verify.decoded

    def noticed(*arguments: Any, by_dictionary: bool = False) -> Any:
        asked.append(by_dictionary)
        return real(*arguments, by_dictionary=by_dictionary)

    monkeypatch.setattr(verify, "decoded", noticed)
    for kinds in (12, 500):
        plan, stitched, output = made([table(number, kinds, 3) for number in range(3)])
        verify.verify_stitched(plan, stitched.choices, output)
    assert asked == [True, False]


def test_values_that_change_places_between_files_are_seen() -> None:
    """Each file has the same values as often as before, and so has the whole."""
    good = [table(number, 12, 3) for number in range(3)]
    _, stitched, output = made(good)
    words = [rows.column("word") for rows in good]
    rotated = [
        pyarrow.chunked_array([*words[number].slice(1).chunks, *words[number].slice(0, 1).chunks])
        for number in range(3)
    ]
    bad = [rows.set_column(1, "word", word) for rows, word in zip(good, rotated, strict=True)]
    other_plan, _, _ = made(bad)
    with pytest.raises(StitchUnsupported, match="what was written was not what was read: word"):
        verify.verify_stitched(other_plan, stitched.choices, output)


# ---------------------------------------------------------------- dictionaries that Arrow would misread


def with_entries(*entries: str, used: Sequence[int], become: dict[str, str]) -> bytes:
    """A file with just these entries in its dictionary, some of them changed after it was written."""
    indices = pyarrow.array([used[row % len(used)] for row in range(ROWS)], pyarrow.int32())
    words = pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array(entries))
    data = by_pyarrow(compression="none", store_schema=False)(pyarrow.table({"word": words}))
    for before, after in become.items():
        place = data.index(b"\x04\0\0\0" + before.encode()) + 4
        data = data[:place] + after.encode() + data[place + 4 :]
    return data


def proved(files: Sequence[bytes], output: bytes | None = None) -> Any:
    plan = plan_stitch(files, footers_of(files), 1 << 30)
    sink = io.BytesIO()
    stitched = write_stitched(plan, {}, sink)
    return verify.verify_stitched(plan, stitched.choices, output or sink.getvalue())


def rows_of(files: Sequence[bytes]) -> pyarrow.Table:
    return pyarrow.concat_tables([pyarrow.parquet.read_table(io.BytesIO(data)) for data in files])


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("used", [(0, 1, 2), (3, 2)], ids=["the first", "the last"])
def test_an_entry_that_is_there_twice_changes_no_value(count: int, used: Sequence[int]) -> None:
    doubled = with_entries("zzzz", "yyyy", "aaaa", "bbbb", used=used, become={"yyyy": "zzzz"})
    files = [doubled] * count
    assert rows_of(files).column(0).unique().to_pylist()[0] == ("zzzz" if used[0] == 0 else "bbbb")
    assert proved(files).rows == ordered_fingerprint(rows_of(files))


def test_an_output_with_what_arrow_makes_of_doubled_entries_is_refused() -> None:
    doubled = with_entries("zzzz", "yyyy", "aaaa", "bbbb", used=(0, 1, 2), become={"yyyy": "zzzz"})
    others = with_entries("zzzz", "yyyy", "aaaa", "bbbb", used=(0, 2, 3), become={"yyyy": "xxxx"})
    _, _, output = made([rows_of([others])] * 2)
    with pytest.raises(StitchUnsupported, match="what was written was not what was read: word"):
        proved([doubled, doubled], output)


def test_bounds_are_computed_from_rows_and_not_from_doubled_entries() -> None:
    doubled = with_entries("bbb1", "bbbb", "aaaa", "abab", used=(1, 2), become={"bbb1": "zzzz", "bbbb": "zzzz"})
    bounds = proved([doubled]).bounds
    assert {(page.low, page.high) for page in bounds[0, 0]} == {(b"aaaa", b"zzzz")}


def test_an_index_outside_of_its_dictionary_is_seen_though_plain_pages_follow() -> None:
    words = [f"v{row % 40:03}" for row in range(400)] + [f"p{row % 50:03}" for row in range(400)]
    overflow = {"compression": "none", "write_statistics": False, "dictionary_pagesize_limit": 300, **SMALL_PAGES}
    data = by_pyarrow(**overflow)(pyarrow.table({"word": words}))
    place = data.index(b"\x4c\x15") + 2  # how many entries the header of the dictionary says that there are
    with pytest.raises(StitchUnsupported, match="[Ii]ndex"):
        proved([data[:place] + bytes([data[place] - 6]) + data[place + 1 :]])


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_pages_behind_a_dictionary_may_be_encoded_in_any_way(encoding: str) -> None:
    few, unique = table(0, 4, 0), table(1, ROWS, 0)
    files = [
        by_pyarrow(compression="zstd")(few),
        by_pyarrow(compression="zstd", use_dictionary=["n"], column_encoding={"word": encoding})(unique),
    ]
    assert proved(files).rows == ordered_fingerprint(rows_of(files))
