"""Random tables, cut at random, by random writers; and files in which a byte has changed."""

import io
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction_platform.lake.parquet.footer import FooterReader, footer_bytes
from compaction_platform.lake.parquet.stitch.errors import StitchUnsupported
from compaction_platform.lake.parquet.stitch.stitch_plan import footers_of, plan_stitch
from compaction_platform.lake.parquet.stitch.stitch_writer import write_stitched
from compaction_platform.lake.parquet.stitch.verify import verify_stitched
from compaction_platform.lake.parquet.thrift_compact import I64, parse, serialize
from compaction_platform.lake.verification.fingerprint import ordered_fingerprint
from compaction_platform.settings import Settings
from compaction_platform_tests.compact.yard import Yard, local_yard
from compaction_platform_tests.lake.stitch.material import by_pyarrow, stitched, strategies

pytestmark = pytest.mark.unit

VALUES = {
    "number": (pyarrow.int64(), st.integers(-5, 5) | st.integers(-(1 << 63), (1 << 63) - 1)),
    "small": (pyarrow.uint8(), st.integers(0, 255)),
    "text": (pyarrow.string(), st.sampled_from(["", "a", "b", "ä"]) | st.text(max_size=8)),
    "real": (pyarrow.float64(), st.floats() | st.sampled_from([0.0, -0.0, 1.5])),
    "truth": (pyarrow.bool_(), st.booleans()),
    "fixed": (pyarrow.binary(3), st.binary(min_size=3, max_size=3)),
    "many": (pyarrow.list_(pyarrow.int32()), st.lists(st.none() | st.integers(0, 3), max_size=3)),
    "words": (
        pyarrow.struct([("w", pyarrow.list_(pyarrow.string())), ("n", pyarrow.int16())]),
        st.fixed_dictionaries(
            {"w": st.none() | st.lists(st.sampled_from("xyz"), max_size=2), "n": st.none() | st.integers(0, 9)}
        ),
    ),
}
OPTIONS = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(["zstd", "snappy", "none", "gzip"]),
        "use_dictionary": st.booleans() | st.just(True),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "data_page_size": st.sampled_from([20, 100, 1 << 20]),
        "write_batch_size": st.sampled_from([1, 7, 1024]),
        "dictionary_pagesize_limit": st.sampled_from([10, 100, 1 << 20]),
        "write_page_checksum": st.booleans(),
        "row_group_size": st.sampled_from([3, 20, 1000]),
        "write_statistics": st.booleans(),
    }
)


@st.composite
def tables(draw: st.DrawFn) -> list[pyarrow.Table]:
    """A table of some columns, in pieces."""
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4, unique=True))
    lengths = draw(st.lists(st.integers(0, 40), min_size=2, max_size=5))
    pieces = []
    for length in lengths:
        columns = {}
        for name in names:
            kind, values = VALUES[name]
            some = st.lists(st.none() | values, min_size=length, max_size=length)
            columns[name] = pyarrow.array(draw(some | st.just([None] * length)), kind)
        pieces.append(pyarrow.table(columns))
    return pieces


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(tables(), st.data(), st.sampled_from([1, 300, 1 << 30]), st.booleans())
def test_whatever_is_stitched_has_the_rows_of_its_inputs(
    pieces: list[pyarrow.Table], data: st.DataObject, row_group_bytes: int, alike: bool
) -> None:
    options = [data.draw(OPTIONS)] * len(pieces) if alike else [data.draw(OPTIONS) for _ in pieces]
    files = [by_pyarrow(**how)(rows) for how, rows in zip(options, pieces, strict=True)]
    expected = pyarrow.concat_tables(pieces)
    output, _ = stitched(files, row_group_bytes, fewest_rows=0)
    found = pyarrow.parquet.ParquetFile(io.BytesIO(output), page_checksum_verification=True).read()
    assert ordered_fingerprint(found).differences(ordered_fingerprint(expected)) == []


# ---------------------------------------------------------------- bytes that change


def events(number: int) -> pyarrow.Table:
    ids = numpy.arange(600) + number * 600
    return pyarrow.table(
        {
            "id": [f"event-{value:06d}" for value in ids],
            "kind": [f"k{value % 5}" for value in ids],
            "amount": ids * 1.5,
            "count": pyarrow.array([None if value % 7 == 0 else int(value % 50) for value in ids], pyarrow.int32()),
        }
    )


def positions(data: bytes, seed: int, count: int) -> list[int]:
    """Places all over the file, and most of them where no page checksum looks: in headers and in the footer."""
    chance = numpy.random.default_rng(seed)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    return [*chance.integers(4, footer, count).tolist(), *chance.integers(footer, len(data), count).tolist()]


@pytest.mark.parametrize("options", [{"use_dictionary": False}, {}, {"data_page_version": "2.0"}], ids=str)
@pytest.mark.parametrize("verify", ["full", "pages"])
def test_a_changed_byte_is_noticed_or_does_no_harm(options: dict[str, Any], verify: str, tmp_path: Path) -> None:
    """With checksums on pages. What is published is what was there before the change, or the file is left alone."""
    files = [by_pyarrow(compression="zstd", write_page_checksum=True, **options)(events(n)) for n in range(3)]
    expected = pyarrow.concat_tables([events(n) for n in range(3)]).to_pylist()
    rest = [row for n in (0, 2) for row in events(n).to_pylist()]
    caught = 0
    for turn, place in enumerate(positions(files[1], len(str(options)), 12)):
        changed = bytearray(files[1])
        changed[place] ^= 1 << (place % 8)
        yard = local_yard(tmp_path / str(turn), Settings(_env_file=None))
        for number, data in enumerate((files[0], bytes(changed), files[2])):
            (Path(yard.uri) / f"{number}.parquet").write_bytes(data)
        report = yard.compact(verify=verify)
        if "1.parquet" in report.set_aside:
            caught += 1
            assert (Path(yard.uri) / "1.parquet").read_bytes() == bytes(changed)
            assert same_values(published(yard, without="1.parquet"), rest)
            continue
        assert report.failed == {}
        rows = published(yard)
        assert same_values(rows, expected), (place, len(files[1]), {each.engine for each in report.made})
        assert found_by_filters(yard), (place, {each.engine for each in report.made})
    assert caught > 5


def published(yard: Yard, without: str | None = None) -> list[dict[str, Any]]:
    paths = sorted(path for path in Path(yard.uri).glob("*.parquet") if path.name != without)
    return [row for path in paths for row in pyarrow.parquet.read_table(path).to_pylist()]


def same_values(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    return repr(sorted(found, key=repr)) == repr(sorted(expected, key=repr))


def found_by_filters(yard: Yard) -> bool:
    """Whether a reader who trusts statistics finds rows of the file that was changed."""
    paths = [str(path) for path in Path(yard.uri).glob("*.parquet")]
    tests = (("id", "event-000600"), ("id", "event-001199"), ("kind", "k3"), ("amount", 900.0), ("count", 49))
    for name, value in tests:
        wanted = sum(1 for n in range(3) for row in events(n).column(name).to_pylist() if row == value)
        rows = pyarrow.parquet.read_table(paths, filters=pyarrow.compute.field(name) == value)
        if rows.num_rows != wanted:
            return False
    return True


def test_bounds_that_do_not_hold_are_not_published_again() -> None:
    """The footer bears no checksum: a file claims that its ids end early."""
    files = [by_pyarrow(compression="zstd")(events(n)) for n in range(3)]
    changed = files[1].replace(b"event-001199", b"event-000700")  # the bound, twice; values are compressed
    assert changed != files[1]
    output, choices = stitched([files[0], changed, files[2]])
    assert strategies(choices)["id"] == "identity"
    told = pyarrow.parquet.read_metadata(io.BytesIO(output)).row_group(0).column(0).statistics
    assert (told.min, told.max) == ("event-000000", "event-001799")


def test_bounds_inside_a_struct_are_computed_too() -> None:
    kind = pyarrow.struct([("a", pyarrow.string())])
    files = [
        by_pyarrow(compression="zstd")(
            pyarrow.table({"s": pyarrow.array([{"a": f"value-{n * 600 + i:05d}"} for i in range(600)], kind)})
        )
        for n in range(3)
    ]
    files[1] = files[1].replace(b"value-01199", b"value-00700")
    output, _ = stitched(files)
    told = pyarrow.parquet.read_metadata(io.BytesIO(output)).row_group(0).column(0).statistics
    assert (told.min, told.max) == ("value-00000", "value-01799")


def test_a_wrong_number_of_nulls_is_refused() -> None:
    """The order of pages relies on it: a chunk that claims to hold nothing but nulls needs no dictionary."""
    rows = pyarrow.table({"x": pyarrow.array([None if n % 3 else n for n in range(600)], pyarrow.int64())})
    good = by_pyarrow(compression="zstd", use_dictionary=False)(rows)
    footer, _ = parse(good, len(good) - 8 - int.from_bytes(good[-8:-4], "little"))
    footer.get_value(4).items[0].get_value(1).items[0].get_value(3).get_value(12).set_value(3, I64, 399)
    encoded = serialize(footer)
    lying = good[: -8 - int.from_bytes(good[-8:-4], "little")] + encoded + len(encoded).to_bytes(4, "little") + b"PAR1"
    with pytest.raises(StitchUnsupported, match="another number of nulls than there are in x"):
        stitched([good, lying])


TEXTS = [f"v{number:05}" for number in range(600)]
IN_OTHER_FORMS = {
    "dictionary": pyarrow.array(TEXTS).dictionary_encode(),
    "string view": pyarrow.array(TEXTS, pyarrow.string_view()),
    "binary view": pyarrow.array([text.encode() for text in TEXTS], pyarrow.binary_view()),
    "JSON": pyarrow.ExtensionArray.from_storage(pyarrow.json_(), pyarrow.array(TEXTS)),
    "dictionary in a struct": pyarrow.StructArray.from_arrays([pyarrow.array(TEXTS).dictionary_encode()], ["a"]),
    "duration": pyarrow.array(range(600), pyarrow.duration("ns")),
}


@pytest.mark.parametrize("form", IN_OTHER_FORMS)
@pytest.mark.parametrize("with_dictionary", [True, False])
def test_bounds_are_computed_in_whatever_form_arrow_holds_the_values(form: str, with_dictionary: bool) -> None:
    sound = by_pyarrow(use_dictionary=with_dictionary)(pyarrow.table({"x": IN_OTHER_FORMS[form]}))
    footer = FooterReader().read(sound)
    told = footer.row_groups[0].chunks[0].statistics
    told.high = told.low
    wrong = sound[: -8 - int.from_bytes(sound[-8:-4], "little")] + footer_bytes(footer)
    output, _ = stitched([sound, sound])
    right = FooterReader().read(output).row_groups[0].chunks[0].statistics
    assert right.high is not None
    assert right.high != told.high
    output, _ = stitched([sound, wrong])
    assert FooterReader().read(output).row_groups[0].chunks[0].statistics == right


def test_a_footer_that_hides_rows_sets_its_file_aside(tmp_path: Path) -> None:
    """The number of rows of a row group bears no checksum: rows would be left behind, and removed with the original."""
    yard = local_yard(tmp_path / "yard", Settings(_env_file=None))
    for number in range(3):
        data = by_pyarrow(compression="zstd", write_page_checksum=True)(events(number))
        if number == 1:
            footer, end = parse(data[-8 - int.from_bytes(data[-8:-4], "little") : -8])
            for group in footer.get_value(4).items:
                group.set_value(3, I64, 88)
            encoded = serialize(footer)
            data = data[: -8 - end] + encoded + len(encoded).to_bytes(4, "little") + b"PAR1"
        (Path(yard.uri) / f"{number}.parquet").write_bytes(data)
    report = yard.compact()
    assert "a row group claims 88 rows" in report.set_aside["1.parquet"]
    assert same_values(published(yard, without="1.parquet"), [row for n in (0, 2) for row in events(n).to_pylist()])


def test_lists_that_end_in_another_row_than_told_do_not_shift_those_of_others() -> None:
    """Pages of lists are not proved by their bytes alone: where rows begin is inside them."""
    tables = [pyarrow.table({"n": range(600), "l": [[n, i] for i in range(600)]}) for n in range(3)]
    files = [by_pyarrow(use_dictionary=False)(rows) for rows in tables]
    more = by_pyarrow(use_dictionary=False)(pyarrow.table({"n": range(610), "l": [[7, i] for i in range(610)]}))
    footer, _ = parse(more[-8 - int.from_bytes(more[-8:-4], "little") : -8])
    good, _ = parse(files[1][-8 - int.from_bytes(files[1][-8:-4], "little") : -8])
    group = footer.get_value(4).items[0]
    group.get_value(1).items[0] = good.get_value(4).items[0].get_value(1).items[0]
    body = files[1][: group.get_value(1).items[0].get_value(3).get_value(7) + 4]
    lists = group.get_value(1).items[1].get_value(3)
    start = lists.get_value(9)
    body += more[start : start + lists.get_value(7)]
    lists.set_value(9, I64, len(body) - lists.get_value(7))
    group.set_value(3, I64, 600)
    encoded = serialize(footer)
    files[1] = body + encoded + len(encoded).to_bytes(4, "little") + b"PAR1"
    assert pyarrow.parquet.read_table(io.BytesIO(files[1])).num_rows == 600, "Arrow does not notice"
    sink = io.BytesIO()
    plan = plan_stitch(files, footers_of(files), 1 << 30)
    made = write_stitched(plan, {}, sink)
    with pytest.raises(StitchUnsupported, match="what was written was not what was read: l"):
        verify_stitched(plan, made.choices, sink.getvalue())
