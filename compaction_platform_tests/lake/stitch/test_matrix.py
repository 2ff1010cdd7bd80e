"""Every type by every writer: stitched, and read back by several readers as the inputs are."""

import io
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow
import pyarrow.parquet
import pytest

from compaction_platform.lake.verification.fingerprint import ordered_fingerprint
from compaction_platform_tests.lake.stitch.material import ROWS, WRITERS, stitched, strategies, table

pytestmark = pytest.mark.unit

FILES = 2


def by_pyarrow(data: bytes, columns: Sequence[str] | None) -> pyarrow.Table:
    return pyarrow.parquet.ParquetFile(
        io.BytesIO(data), page_checksum_verification=True, coerce_int96_timestamp_unit="us"
    ).read(columns=list(columns) if columns else None)


def by_duckdb(path: Path) -> Callable[[bytes, Sequence[str] | None], pyarrow.Table]:
    numbers = itertools.count()

    def read(data: bytes, columns: Sequence[str] | None) -> pyarrow.Table:
        file = path / f"{next(numbers)}.parquet"
        file.write_bytes(data)
        chosen = ", ".join(f'"{name}"' for name in columns) if columns else "*"
        with duckdb.connect() as connection:
            return connection.sql(f"SELECT {chosen} FROM read_parquet('{file}')").to_arrow_table()

    return read


def by_polars(data: bytes, columns: Sequence[str] | None) -> pyarrow.Table:
    return polars.read_parquet(io.BytesIO(data), columns=list(columns) if columns else None).to_arrow()


CANNOT_READ = (pyarrow.ArrowException, duckdb.Error, polars.exceptions.PolarsError, OSError)


def readable(read: Any, data: bytes, names: Sequence[str]) -> list[str]:
    """The columns that this reader can read at all. One that cannot read them together is asked for each."""
    try:
        ordered_fingerprint(read(data, names).slice(0, 0))
        return list(names)
    except CANNOT_READ:
        if len(names) == 1:
            return []
        half = len(names) // 2
        return readable(read, data, names[:half]) + readable(read, data, names[half:])


@pytest.mark.parametrize("writer", WRITERS)
def test_every_reader_finds_the_rows_of_the_inputs(writer: str, tmp_path: Path) -> None:
    how = WRITERS[writer]
    tables = [table(number * ROWS * 3, ROWS + number * 137, how.names()) for number in range(FILES)]
    files = [how.write(rows) for rows in tables]
    # Arrow cannot read the all-null delta pages that DuckDB writes here; other readers can, before and after.
    output, choices = stitched(files, proof=writer != "duckdb v2")
    assert len(strategies(choices)) >= len(tables[0].schema.names)
    names = tables[0].schema.names
    for read in (by_pyarrow, by_duckdb(tmp_path), by_polars):
        known = readable(read, files[0], names)
        assert len(known) > len(names) * 0.6
        expected = pyarrow.concat_tables([read(data, known) for data in files], promote_options="permissive")
        found = read(output, known)
        assert ordered_fingerprint(found.cast(expected.schema)).differences(ordered_fingerprint(expected)) == [], read
    metadata = pyarrow.parquet.read_metadata(io.BytesIO(output))
    assert (metadata.num_row_groups, metadata.num_rows) == (1, sum(rows.num_rows for rows in tables))
