"""Columns whose writer made no dictionary although their values repeat: they get one where that pays."""

import io
from typing import Any

import duckdb
import numpy
import pyarrow
import pyarrow.parquet
import pytest

from compaction_platform_tests.lake.stitch.material import by_pyarrow, stitched, strategies

pytestmark = pytest.mark.unit

ROWS = 3000
PLAIN: dict[str, Any] = {"compression": "zstd", "use_dictionary": False}


def addresses(which: Any) -> Any:
    return [f"0x{value * 7919**9:040x}" for value in map(int, which)]


KINDS = {
    "text": addresses,
    "bytes": lambda which: [bytes.fromhex(text[2:]) for text in addresses(which)],
    "numbers": lambda which: numpy.random.default_rng(1).integers(0, 1 << 60, 40)[which // 4],
}


def picked(number: int) -> Any:
    """Which of forty values. Not in turn: what comes in turn is compressed as well without a dictionary."""
    return numpy.random.default_rng(number).integers(0, 40, ROWS)


def mask_of(nulls: bool) -> Any:
    return numpy.arange(ROWS) % 5 == 0 if nulls else None


def unique(number: int) -> dict[str, Any]:
    chance = numpy.random.default_rng(number)
    return {"unique": pyarrow.array([chance.bytes(4).hex() for _ in range(ROWS)])}


def same_in_duckdb(data: bytes, expected: pyarrow.Table, path: Any) -> bool:
    path.write_bytes(data)
    with duckdb.connect() as connection:
        found = connection.sql(f"SELECT * FROM read_parquet('{path}')").to_arrow_table()
    return bool(found.to_pylist() == expected.to_pylist())


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_values_that_repeat_get_a_dictionary_and_others_are_copied(kind: str, nulls: bool, tmp_path: Any) -> None:
    tables = [
        pyarrow.table({"address": pyarrow.array(KINDS[kind](picked(number)), mask=mask_of(nulls)), **unique(number)})
        for number in range(5)
    ]
    files = [by_pyarrow(**PLAIN)(each) for each in tables]
    data, choices = stitched(files)
    assert strategies(choices) == {"address": "anew", "unique": "raw"}
    (reason,) = {choice.reason for choice in choices if choice.column == "address"}
    assert reason.startswith("values repeat: with a dictionary ")
    expected = pyarrow.concat_tables(tables)
    opened = pyarrow.parquet.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
    assert opened.read().equals(expected)
    assert same_in_duckdb(data, expected, tmp_path / "a.parquet")
    told = opened.metadata.row_group(0).column(0)
    before = [pyarrow.parquet.read_metadata(io.BytesIO(file)).row_group(0).column(0) for file in files]
    assert told.total_compressed_size < 0.5 * sum(each.total_compressed_size for each in before)
    assert "RLE_DICTIONARY" in told.encodings
    assert told.statistics.null_count == expected["address"].null_count


def test_what_is_small_is_not_worth_the_work() -> None:
    tables = [pyarrow.table({"kind": ["a", "b", "c"] * (ROWS // 3), **unique(number)}) for number in range(5)]
    _, choices = stitched([by_pyarrow(**PLAIN)(each) for each in tables])
    assert strategies(choices) == {"kind": "raw", "unique": "raw"}


def test_files_of_which_only_some_may_have_nulls() -> None:
    values = pyarrow.array(addresses(picked(0)))
    required = pyarrow.schema([pyarrow.field("address", pyarrow.string(), nullable=False)])
    tables = [pyarrow.table({"address": values}), pyarrow.table([values], schema=required)] * 2
    data, choices = stitched([by_pyarrow(**PLAIN, store_schema=False)(each) for each in tables])
    assert strategies(choices) == {"address": "anew"}
    assert pyarrow.parquet.read_table(io.BytesIO(data))["address"].to_pylist() == values.to_pylist() * 4
