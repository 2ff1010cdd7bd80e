"""Spark reads stitched files as it reads their inputs, by both of its readers; and its own files can be stitched."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow
import pyarrow.parquet
import pytest

from compaction_platform.lake.verification.fingerprint import ordered_fingerprint
from compaction_platform_tests.lake.stitch.material import ROWS, WRITERS, stitched, strategies, table

pytestmark = pytest.mark.integration

# Spark compiles code for every column: not all types by all writers, but every kind of page by some.
FLAT = ["int32", "double", "string", "decimal_38", "decimal_9", "date", "moment", "uint64", "bool"]
NESTED = ["texts", "struct", "map", "deep", "int64", "string", "binary"]
CHOSEN = {
    "pyarrow": FLAT,
    "zstd": NESTED,
    "many pages v2": NESTED,
    "duckdb": NESTED,
    "int96": ["moment", "local"],
}
JAVA = {
    "defaults": {},
    "pages v2": {"parquet.writer.version": "v2"},
    "overflow, zstd": {"parquet.dictionary.page.size": "3000", "compression": "zstd", "parquet.page.size": "2000"},
}


@contextmanager
def reader(spark: Any, vectorized: bool) -> Iterator[None]:
    names = ("spark.sql.parquet.enableVectorizedReader", "spark.sql.parquet.enableNestedColumnVectorizedReader")
    for name in names:
        spark.conf.set(name, str(vectorized).lower())
    try:
        yield
    finally:
        for name in names:
            spark.conf.unset(name)


def told(spark: Any, paths: Sequence[Path], where: str = "true") -> tuple[Any, ...]:
    """All rows in a few numbers."""
    frame = spark.read.parquet(*(f"file://{path}" for path in paths)).where(where)
    hashed = "xxhash64(to_json(struct(*)))"
    (row,) = frame.selectExpr("count(*)", f"bit_xor({hashed})", f"sum(CAST({hashed} AS decimal(38, 0)))").collect()
    return tuple(row)


@pytest.mark.parametrize("writer", CHOSEN)
def test_both_readers_find_the_rows_of_the_inputs(writer: str, spark: Any, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    names = CHOSEN[writer]
    paths = []
    for number in range(3):
        paths.append(tmp_path / f"{number}.parquet")
        paths[-1].write_bytes(WRITERS[writer].write(table(number * 2000, ROWS, names)))
    output = tmp_path / "output.parquet"
    output.write_bytes(stitched([path.read_bytes() for path in paths], row_group_bytes=1 << 20)[0])
    conditions = ["true", "required_number = 2000", "required_text = 'r3' AND required_number > 5000"]
    expected = {where: told(spark, paths, where) for where in conditions}
    assert expected["true"][0] == 3 * ROWS
    for vectorized in (True, False):
        with reader(spark, vectorized):
            for where in conditions:
                assert told(spark, [output], where) == expected[where], (vectorized, where)


@pytest.mark.parametrize("options", JAVA)
def test_files_of_spark_are_stitched(options: str, spark: Any, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)  # Spark may be somebody else
    source = tmp_path / "source.parquet"
    names = ["int32", "tidy", "string", "decimal_38", "date", "moment", "texts", "struct", "map"]
    pyarrow.parquet.write_table(table(0, 4 * ROWS, names), source)
    frame = spark.read.parquet(f"file://{source}").repartitionByRange(3, "required_number")
    frame.write.options(**JAVA[options]).parquet(f"file://{tmp_path}/written")
    paths = sorted((tmp_path / "written").glob("*.parquet"))
    assert len(paths) == 3
    made, choices = stitched([path.read_bytes() for path in paths])
    assert "raw" in strategies(choices).values()
    output = tmp_path / "output.parquet"
    output.write_bytes(made)
    by_spark = {where: told(spark, paths, where) for where in ("true", "required_number BETWEEN 1700 AND 1800")}
    for vectorized in (True, False):
        with reader(spark, vectorized):
            for where, rows in by_spark.items():
                assert told(spark, [output], where) == rows, (vectorized, where)
    expected = pyarrow.concat_tables([read(path) for path in paths])
    assert ordered_fingerprint(read(output)).differences(ordered_fingerprint(expected)) == []
    with duckdb.connect() as connection:
        listed = ", ".join(f"'{path}'" for path in paths)
        difference = f"(SELECT * FROM read_parquet([{listed}]) EXCEPT ALL SELECT * FROM read_parquet('{output}'))"
        assert connection.sql(f"SELECT count(*) FROM {difference}").fetchall() == [(0,)]


def read(path: Path) -> pyarrow.Table:
    file = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True, coerce_int96_timestamp_unit="us")
    return file.read()


def test_files_with_and_without_dictionaries_read_right_together(spark: Any, tmp_path: Path) -> None:
    """Spark's vectorized reader takes plain pages before a dictionary's for part of it: such pages are never made."""
    tmp_path.chmod(0o755)
    rows = pyarrow.table({"s": [f"k{n % 40}" for n in range(1000)], "i": [n % 40 for n in range(1000)]})
    files = []
    for number in range(4):
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(rows, sink, use_dictionary=number % 2 == 1)
        files.append(sink.getvalue().to_pybytes())
    output = tmp_path / "output.parquet"
    output.write_bytes(stitched(files)[0])
    for vectorized in (True, False):
        with reader(spark, vectorized):
            frame = spark.read.parquet(f"file://{output}")
            assert [tuple(row) for row in frame.collect()] == [tuple(row.values()) for row in rows.to_pylist()] * 4
