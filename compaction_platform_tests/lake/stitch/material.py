"""Columns of every type, and files of many writers, for the tests of stitching."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy
import polars
import pyarrow
import pyarrow.parquet

from compaction_platform.lake.parquet.stitch.stitch_plan import (
    FEWEST_ROWS,
    ColumnChoice,
    agreed,
    footers_of,
    plan_stitch,
)
from compaction_platform.lake.parquet.stitch.stitch_writer import write_stitched
from compaction_platform.lake.parquet.stitch.verify import verify_stitched

ROWS = 1300  # of a file
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

Table = pyarrow.Table
Writer = Callable[[Table], bytes]


# ---------------------------------------------------------------- columns


def _values() -> dict[str, tuple[pyarrow.DataType, Callable[[int], Any]]]:
    """For each type, the value with that number; numbers may be of any size."""
    arrow = pyarrow
    return {
        "bool": (arrow.bool_(), lambda n: n % 3 == 0),
        "int8": (arrow.int8(), lambda n: n % 256 - 128),
        "int16": (arrow.int16(), lambda n: n % 65536 - 32768),
        "int32": (arrow.int32(), lambda n: n * 7919 % (1 << 32) - (1 << 31)),
        "int64": (arrow.int64(), lambda n: n * 7919 * 10**12 % (1 << 64) - (1 << 63)),
        "uint8": (arrow.uint8(), lambda n: n % 256),
        "uint16": (arrow.uint16(), lambda n: n * 31 % 65536),
        "uint32": (arrow.uint32(), lambda n: (n * 7919 + (1 << 31)) % (1 << 32)),
        "uint64": (arrow.uint64(), lambda n: (n * 7919 + (1 << 63)) % (1 << 64)),
        "half": (arrow.float16(), lambda n: numpy.float16(n % 2000 / 8)),
        "float": (arrow.float32(), lambda n: [float("nan"), -0.0, 0.0][n % 3] if n % 50 < 3 else n / 7),
        "double": (arrow.float64(), lambda n: [float("nan"), -0.0, 0.0][n % 3] if n % 50 < 3 else n / 7 - 40),
        "tidy": (arrow.float64(), lambda n: n / 8 - 40),
        "string": (arrow.string(), lambda n: f"value-{n}-ä€😀"[: 8 + n % 9]),
        "long_string": (arrow.string(), lambda n: f"{n}" * 40),
        "large_string": (arrow.large_string(), lambda n: f"large {n}"),
        "binary": (arrow.binary(), lambda n: n.to_bytes(5, "big")),
        "fixed": (arrow.binary(6), lambda n: n.to_bytes(6, "big")),
        "decimal_9": (arrow.decimal128(9, 2), lambda n: Decimal(n % 10**9 - 300) / 100),
        "decimal_18": (arrow.decimal128(18, 4), lambda n: Decimal(n - 300) / 10000),
        "decimal_38": (arrow.decimal128(38, 10), lambda n: Decimal(n - 300) * 10**20),
        "date": (arrow.date32(), lambda n: date(1960, 1, 1) + timedelta(days=n % 40000)),
        "time": (arrow.time64("us"), lambda n: time(n % 24, n % 60, n % 59, n % 10**6)),
        "moment": (arrow.timestamp("us", "UTC"), lambda n: EPOCH + timedelta(seconds=n)),
        "local": (arrow.timestamp("ms"), lambda n: datetime(1969, 12, 1) + timedelta(minutes=n)),
        "fine": (arrow.timestamp("ns"), lambda n: 1_790_000_000_000_000_000 + n * 1001),
        "duration": (arrow.duration("us"), lambda n: timedelta(milliseconds=n)),
        "list": (arrow.list_(arrow.int64()), lambda n: [None if n % 7 == i else n + i for i in range(n % 4)]),
        "texts": (arrow.list_(arrow.string()), lambda n: [f"t{(n + i) % 9}" for i in range(n % 3)]),
        "struct": (
            arrow.struct([("a", arrow.int32()), ("b", arrow.string())]),
            lambda n: {"a": None if n % 5 == 0 else n % 10**6, "b": f"b{n % 11}"},
        ),
        "map": (arrow.map_(arrow.string(), arrow.int32()), lambda n: [(f"k{i}", n % 100) for i in range(n % 3)]),
        "deep": (
            arrow.list_(arrow.struct([("c", arrow.list_(arrow.int32())), ("d", arrow.string())])),
            lambda n: [{"c": [n % 5] * (n % 2), "d": None if n % 4 == 0 else f"d{n}"}] * (n % 3),
        ),
    }


TYPES = _values()
NEVER_NULL = pyarrow.field("required_text", pyarrow.string(), nullable=False)
NEVER_NULL_NUMBER = pyarrow.field("required_number", pyarrow.int64(), nullable=False)


def columns_of(name: str, first: int, rows: int) -> Iterator[tuple[pyarrow.Field, pyarrow.Array]]:
    """A type as four columns: every value another one, few values, with nulls, and nothing but nulls."""
    kind, value = TYPES[name]
    numbers = range(first, first + rows)
    yield pyarrow.field(f"{name}_unique", kind), _array([value(n) for n in numbers], kind)
    yield pyarrow.field(f"{name}_few", kind), _array([value(n * n % 7) for n in numbers], kind)
    yield pyarrow.field(f"{name}_nulls", kind), _array([None if n % 3 == 0 else value(n) for n in numbers], kind)
    yield pyarrow.field(f"{name}_none", kind), _array([None] * rows, kind)


def _array(values: list[Any], kind: pyarrow.DataType) -> pyarrow.Array:
    return pyarrow.array(values, kind)


def table(first: int, rows: int = ROWS, names: Sequence[str] | None = None) -> Table:
    """So many rows, the first with this number."""
    fields, arrays = (
        [NEVER_NULL, NEVER_NULL_NUMBER],
        [
            pyarrow.array([f"r{n % 5}" for n in range(first, first + rows)]),
            pyarrow.array(range(first, first + rows), pyarrow.int64()),
        ],
    )
    for name in names if names is not None else TYPES:
        for field, array in columns_of(name, first, rows):
            fields.append(field)
            arrays.append(array)
    return pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields))


# ---------------------------------------------------------------- writers


def by_pyarrow(**options: Any) -> Writer:
    def write(rows: Table) -> bytes:
        sink = io.BytesIO()
        pyarrow.parquet.write_table(rows, sink, **options)
        return sink.getvalue()

    return write


def by_duckdb(options: str) -> Writer:
    def write(rows: Table) -> bytes:
        import tempfile

        with duckdb.connect() as connection, tempfile.TemporaryDirectory() as directory:
            connection.register("given", rows)
            connection.execute(f"COPY given TO '{directory}/file' (FORMAT parquet, {options})")
            return (Path(directory) / "file").read_bytes()

    return write


def by_polars(**options: Any) -> Writer:
    def write(rows: Table) -> bytes:
        sink = io.BytesIO()
        polars.DataFrame(polars.from_arrow(rows)).write_parquet(sink, **options)
        return sink.getvalue()

    return write


def by_fastparquet(**options: Any) -> Writer:
    def write(rows: Table) -> bytes:
        import tempfile
        import warnings

        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as directory:
            warnings.simplefilter("ignore")  # of pandas, about fastparquet
            import fastparquet

            fastparquet.write(f"{directory}/file", rows.to_pandas(), write_index=False, **options)
            return (Path(directory) / "file").read_bytes()

    return write


FLOATS = [f"{name}_{kind}" for name in ("float", "double", "tidy") for kind in ("unique", "few", "nulls", "none")]
NUMBERS = [f"{name}_{kind}" for name in ("int32", "int64") for kind in ("unique", "few", "nulls", "none")]
TEXTS = [f"{name}_{kind}" for name in ("string", "long_string") for kind in ("unique", "few", "nulls", "none")]
ENCODED = {
    **dict.fromkeys(FLOATS, "BYTE_STREAM_SPLIT"),
    **dict.fromkeys(NUMBERS, "DELTA_BINARY_PACKED"),
    **dict.fromkeys(TEXTS, "DELTA_BYTE_ARRAY"),
}


@dataclass(frozen=True)
class Written:
    """A way to write, and which types it can."""

    write: Writer
    without: frozenset[str] = frozenset()

    def names(self) -> list[str]:
        return [name for name in TYPES if name not in self.without]


NOT_IN_DUCKDB = frozenset(("half", "duration"))
NOT_IN_POLARS = frozenset(("map",))
ONLY_FLAT = frozenset(("list", "texts", "struct", "map", "deep"))
NOT_IN_PANDAS = ONLY_FLAT | {
    "half", "decimal_9", "decimal_18", "decimal_38", "date", "time", "duration", "binary", "fixed", "uint8", "int8",
    "fine", "moment", "local", "large_string", "bool",
}  # fmt: skip

WRITERS: Mapping[str, Written] = {
    "pyarrow": Written(by_pyarrow()),
    "zstd": Written(by_pyarrow(compression="zstd")),
    "gzip": Written(by_pyarrow(compression="gzip")),
    "brotli": Written(by_pyarrow(compression="brotli")),
    "lz4": Written(by_pyarrow(compression="lz4")),
    "uncompressed": Written(by_pyarrow(compression="none")),
    "no dictionaries": Written(by_pyarrow(compression="zstd", use_dictionary=False)),
    "pages v2": Written(by_pyarrow(compression="zstd", data_page_version="2.0")),
    "pages v2, no dictionaries": Written(by_pyarrow(use_dictionary=False, data_page_version="2.0")),
    "pages v2, uncompressed": Written(by_pyarrow(compression="none", data_page_version="2.0")),
    "many pages": Written(by_pyarrow(compression="zstd", data_page_size=300, write_batch_size=50)),
    "many pages v2": Written(by_pyarrow(data_page_size=300, write_batch_size=50, data_page_version="2.0")),
    "many pages, no dictionaries": Written(by_pyarrow(use_dictionary=False, data_page_size=300, write_batch_size=50)),
    "overflow": Written(
        by_pyarrow(compression="zstd", dictionary_pagesize_limit=500, data_page_size=300, write_batch_size=50)
    ),
    "overflow v2": Written(
        by_pyarrow(dictionary_pagesize_limit=500, data_page_size=300, write_batch_size=50, data_page_version="2.0")
    ),
    "row groups": Written(by_pyarrow(compression="zstd", row_group_size=700)),
    "no statistics": Written(by_pyarrow(write_statistics=False)),
    "checksums": Written(by_pyarrow(compression="zstd", write_page_checksum=True)),
    "page index": Written(by_pyarrow(write_page_index=True, data_page_size=300, write_batch_size=50)),
    "encodings": Written(by_pyarrow(use_dictionary=False, column_encoding=ENCODED)),
    "int96": Written(by_pyarrow(use_deprecated_int96_timestamps=True)),
    "integer decimals": Written(by_pyarrow(store_decimal_as_integer=True)),
    "format 1.0": Written(by_pyarrow(version="1.0"), frozenset(("fine", "uint32", "half"))),
    "no Arrow schema": Written(by_pyarrow(store_schema=False)),
    "duckdb": Written(by_duckdb("COMPRESSION zstd"), NOT_IN_DUCKDB),
    "duckdb snappy": Written(by_duckdb("COMPRESSION snappy, ROW_GROUP_SIZE 2048"), NOT_IN_DUCKDB),
    "duckdb v2": Written(by_duckdb("COMPRESSION zstd, PARQUET_VERSION V2"), NOT_IN_DUCKDB),
    "polars": Written(by_polars(), NOT_IN_POLARS),
    "polars snappy": Written(by_polars(compression="snappy", data_page_size=300), NOT_IN_POLARS),
    "fastparquet": Written(by_fastparquet(compression="SNAPPY"), NOT_IN_PANDAS),
}


# ---------------------------------------------------------------- stitching


def stitched(
    files: Sequence[bytes], row_group_bytes: int = 1 << 30, fewest_rows: int = FEWEST_ROWS, *, proof: bool = True
) -> tuple[bytes, list[ColumnChoice]]:
    """The files as one, proved, and how each column of each row group was made."""
    sink = io.BytesIO()
    footers = footers_of(files)
    plan = plan_stitch(files, footers, row_group_bytes, fewest_rows)
    made = write_stitched(plan, agreed([footer.metadata for footer in footers]), sink)
    if proof:
        made.publish(verify_stitched(plan, made.choices, sink.getvalue()).bounds)
    return sink.getvalue(), made.choices


def strategies(choices: Sequence[ColumnChoice]) -> dict[str, str]:
    return {choice.column: choice.strategy for choice in choices}
