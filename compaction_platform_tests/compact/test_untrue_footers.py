"""Damaged values and untrue footers do not reach good rows, whoever reads them afterwards."""

from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow
import pyarrow.parquet
import pytest

from compaction_platform.compact.audit import OutputAudit
from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.lake.parquet.thrift_compact import (
    BINARY,
    I64,
    LIST,
    STRUCT,
    TRUE,
    ListOf,
    Struct,
    parse,
    serialize,
)
from compaction_platform.lake.parquet.writer import WriterOptions
from compaction_platform_tests.compact.yard import Yard, rows

pytestmark = pytest.mark.unit

ENGINES = {"stitch": {}, "re-encode": {"compression": "snappy", "row_group_size": 100}}


def text_damaged(data: bytes, word: bytes) -> bytes:
    """The same file with a byte of a text that begins no character. No page checksum covers it."""
    assert data.count(word) >= 1
    return data.replace(word, word[:-1] + b"\xa3")


def put_texts(yard: Yard, **options: Any) -> None:
    for number in range(3):
        texts = [f"event-{number}-{value:05}" for value in range(700)]
        data = pyarrow.table({"id": range(number * 700, number * 700 + 700), "text": texts})
        yard.put(f"{number}.parquet", data, **{"compression": "none", "write_page_checksum": False, **options})


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, {"row_group_size": 100}], ids=str)
@pytest.mark.parametrize("verify", ["full", "pages"])
def test_a_file_with_text_that_is_no_utf8_is_set_aside_and_the_others_stay_readable(
    yard: Yard, options: dict[str, Any], verify: Any
) -> None:
    put_texts(yard, write_statistics=False, **options)
    damaged = text_damaged(bytes(yard.store.read("1.parquet")), b"event-1-00300")
    yard.store.write("1.parquet", damaged)
    report = yard.compact(verify=verify)
    assert list(report.set_aside) == ["1.parquet"]
    assert "UTF-8" in report.set_aside["1.parquet"] or "string encoding" in report.set_aside["1.parquet"]
    assert bytes(yard.store.read("1.parquet")) == damaged
    (output,) = yard.outputs()
    path = f"{yard.uri}/{output}"
    assert duckdb.sql(f"SELECT count(text), count(DISTINCT text) FROM '{path}'").fetchall() == [(1400, 1400)]
    assert polars.read_parquet(path)["text"].n_unique() == 1400


def test_the_check_alone_finds_a_compacted_file_with_text_that_is_no_utf8(yard: Yard) -> None:
    put_texts(yard)
    yard.compact()
    (output,) = yard.outputs()
    yard.store.write(output, text_damaged(bytes(yard.store.read(output)), b"event-1-00300"))
    stored = yard.store.stat(output)
    assert stored is not None
    audited = OutputAudit(yard.store)(FileVersion(stored.key, stored.size, stored.etag, stored.last_modified))
    assert audited.problem is not None


# ---------------------------------------------------------------- what footers claim


def with_claims(data: bytes, claims: dict[int, dict[int, tuple[int, Any]]]) -> bytes:
    """The same file whose footer claims these fields for the first column of each row group: by field of the column's
    metadata, fields of that."""
    footer, _ = parse(data, len(data) - 8 - int.from_bytes(data[-8:-4], "little"))
    for group in footer.get_value(4).items:
        meta = group.get_value(1).items[0].get_value(3)
        for number, fields in claims.items():
            struct = meta.get_value(number) or Struct()
            for place, (kind, value) in fields.items():
                struct.set_value(place, kind, value)
            meta.set_value(number, STRUCT, Struct(dict(sorted(struct.items()))))
    encoded = serialize(footer)
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    return data[:end] + encoded + len(encoded).to_bytes(4, "little") + b"PAR1"


def number(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


LIES = {
    "a maximum that is too low": {12: {5: (BINARY, number(1300))}},
    "bounds that are wider than the values, and said to be exact": {
        12: {5: (BINARY, number(10**6)), 6: (BINARY, number(-5)), 7: (TRUE, True), 8: (TRUE, True)}
    },
    "how often each level occurs": {
        16: {3: (LIST, ListOf(I64, [7, 993]))},
    },
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize(
    ("row_group_bytes", "options"), [(64 << 20, {}), (1, {}), (64 << 20, {"row_group_size": 100})], ids=str
)
@pytest.mark.parametrize("verify", ["full", "pages"])
def test_what_an_untrue_footer_claims_is_not_published_again(
    yard: Yard, lie: str, row_group_bytes: int, options: dict[str, Any], verify: Any
) -> None:
    """Page checksums hold: only the footer, which has none, is wrong. Row groups are joined, copied or encoded."""
    for place in range(3):
        yard.put(f"{place}.parquet", rows(place * 1000, 1000), **options)
    yard.store.write("1.parquet", with_claims(bytes(yard.store.read("1.parquet")), LIES[lie]))
    report = yard.compact(encoding=WriterOptions(row_group_bytes=row_group_bytes), verify=verify)
    assert report.set_aside == {}
    (output,) = yard.outputs()
    path = str(Path(yard.uri) / output)
    found = duckdb.sql(f"SELECT min(id), max(id), count(*) FILTER (id = 1999), count(*) FROM '{path}'").fetchall()
    assert found == [(0, 2999, 1, 3000)]
    assert duckdb.sql(f"SELECT count(*) FROM '{path}' WHERE id BETWEEN 1900 AND 1999").fetchall() == [(100,)]
    assert polars.scan_parquet(path).filter(polars.col("id") >= 1950).collect().height == 1050
    data = Path(path).read_bytes()
    footer, _ = parse(data, len(data) - 8 - int.from_bytes(data[-8:-4], "little"))
    for group in footer.get_value(4).items:
        meta = group.get_value(1).items[0].get_value(3)
        sizes = meta.get_value(16)
        assert sizes is None or 3 not in sizes or 7 not in sizes.get_value(3).items
        told = meta.get_value(12)
        if told is not None and 5 in told:
            low, high = (int.from_bytes(told.get_value(place), "little", signed=True) for place in (6, 5))
            assert 0 <= low <= high <= 2999


@pytest.mark.parametrize("lie", [lie for lie in LIES if "level" not in lie])
def test_the_check_alone_finds_bounds_that_do_not_hold(yard: Yard, lie: str) -> None:
    """As an earlier version published them, or somebody else has changed them since: the rows are right."""
    for place in range(3):
        yard.put(f"{place}.parquet", rows(place * 1000, 1000))
    yard.compact()
    (output,) = yard.outputs()

    def audited() -> str | None:
        (stored,) = (each for each in yard.store.list() if each.key == output)
        return OutputAudit(yard.store)(FileVersion(output, stored.size, stored.etag)).problem

    assert audited() is None
    yard.store.write(output, with_claims(bytes(yard.store.read(output)), LIES[lie]))
    problem = audited()
    assert problem is not None and "bounds or nulls that its rows do not have: id" in problem


IMPOSSIBLE = {
    "time of day": pyarrow.array([1, 90_000_000_000, 2] * 100, pyarrow.int64()).view(pyarrow.time64("us")),
    "moment": pyarrow.array([1, 1 << 62, 2] * 100, pyarrow.int64()).view(pyarrow.timestamp("ms")),
    "decimal": pyarrow.array([1, 10**12, 2] * 100).cast(pyarrow.decimal128(38, 0)).view(pyarrow.decimal128(5, 2)),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
@pytest.mark.parametrize("options", [{}, {"row_group_size": 100}], ids=str)
def test_a_value_that_its_column_cannot_hold_sets_its_file_aside(
    yard: Yard, kind: str, options: dict[str, Any]
) -> None:
    sound = pyarrow.array([1, 2, 3] * 100, pyarrow.int64()) if kind != "decimal" else pyarrow.array([1, 2, 3] * 100)
    values = sound.cast(pyarrow.decimal128(38, 0)) if kind == "decimal" else sound
    for place in range(4):
        column = IMPOSSIBLE[kind] if place == 2 else values.view(IMPOSSIBLE[kind].type)
        yard.put(f"{place}.parquet", pyarrow.table({"id": range(300), "v": column}), store_schema=False, **options)
    report = yard.compact(second_reader="none")  # it, too, may come upon the value
    assert list(report.set_aside) == ["2.parquet"]
    assert "other readers refuse it" in report.set_aside["2.parquet"]
    (output,) = yard.outputs()
    assert duckdb.sql(f"SELECT count(v) FROM '{yard.uri}/{output}'").fetchall() == [(900,)]
    assert polars.read_parquet(f"{yard.uri}/{output}").height == 900


def test_levels_that_run_beyond_their_page_are_encoded_anew(yard: Yard) -> None:
    """pyarrow and DuckDB stop with the page; others read values that are not there, and the next page wrongly."""
    for place in range(3):
        ids = pyarrow.array(range(place * 700, place * 700 + 700), pyarrow.int64())
        options = {"data_page_version": "2.0", "use_dictionary": False, "compression": "none"}
        yard.put(f"{place}.parquet", pyarrow.table({"id": ids}), write_page_checksum=False, **options)
    levels, too_long = b"\xf8\x0a\x01", b"\xf8\x4a\x01"  # 700 and 4796 times a 1
    data = bytes(yard.store.read("1.parquet"))
    assert data.count(levels + (700).to_bytes(8, "little")) == 1
    yard.store.write("1.parquet", data.replace(levels, too_long))
    yard.compact()
    (output,) = yard.outputs()
    made = bytes(yard.store.read(output))
    assert too_long not in made
    assert sorted(pyarrow.parquet.read_table(pyarrow.BufferReader(made))["id"].to_pylist()) == list(range(2100))
