"""Columns of a hot table, and what they become in Parquet. A type that is not listed here is refused by its name: no
value is guessed at, cut off or wrapped."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow
import pyarrow.compute

from compaction_platform.errors import CompactionError

DECIMAL_DIGITS = 38
UTC_MICROSECONDS = pyarrow.timestamp("us", "UTC")

PLAIN = {
    "bool": pyarrow.bool_(),
    "int2": pyarrow.int32(),  # Iceberg has nothing smaller
    "int4": pyarrow.int32(),
    "int8": pyarrow.int64(),
    "float4": pyarrow.float32(),
    "float8": pyarrow.float64(),
    "text": pyarrow.string(),
    "varchar": pyarrow.string(),
    "bpchar": pyarrow.string(),
    "jsonb": pyarrow.string(),
    "bytea": pyarrow.binary(),
    "date": pyarrow.date32(),
    "time": pyarrow.time64("us"),
    "timestamp": pyarrow.timestamp("us"),
    "timestamptz": UTC_MICROSECONDS,
}
IN_ARRAYS = ("bool", "int2", "int4", "int8", "float4", "float8", "text", "varchar", "bytea")
AS_TEXT = ("uuid",)
# Values that PostgreSQL has and Arrow has not (infinity, years after 262142) come through the driver as something
# before the first moment that PostgreSQL has.
FIRST_DAY = -2_440_588
FIRST_MICROSECOND = FIRST_DAY * 86_400_000_000


class TypeRefused(CompactionError):
    """A column's type cannot be archived faithfully."""


class ValueRefused(CompactionError):
    """A value cannot be archived faithfully."""


@dataclass(frozen=True)
class HotColumn:
    name: str
    source_type: str
    kind: pyarrow.DataType
    as_text: bool = False  # the database gives its text form

    @property
    def is_array(self) -> bool:
        return bool(pyarrow.types.is_list(self.kind))


def hot_columns(table: str, schema: pyarrow.Schema, enums: Collection[str]) -> tuple[HotColumn, ...]:
    """`schema` is what the driver says about the table; it names PostgreSQL's own types."""
    columns, refused = [], []
    for field in schema:
        metadata = field.metadata or {}
        name = metadata.get(b"POSTGRESQL:type", b"?").decode()
        column = _column(field.name, name, int(metadata.get(b"POSTGRESQL:typmod", b"-1")), enums)
        if column is None:
            refused.append(f"{field.name} ({name.removeprefix('_')}{'[]' if name.startswith('_') else ''})")
        else:
            columns.append(column)
    if refused:
        raise TypeRefused(
            f"{table} has columns of types that cannot be archived: {', '.join(refused)}. Nothing was copied. "
            f"Supported are numeric, uuid, enums, {', '.join(PLAIN)} and arrays of "
            f"{', '.join(IN_ARRAYS)}, uuid and numeric."
        )
    return tuple(columns)


def _column(name: str, kind: str, typmod: int, enums: Collection[str]) -> HotColumn | None:
    if kind in PLAIN:
        return HotColumn(name, kind, PLAIN[kind])
    if kind == "numeric":
        return HotColumn(name, *_numeric(typmod))
    if kind in AS_TEXT or kind in enums:
        return HotColumn(name, kind, pyarrow.string(), as_text=True)
    element = kind.removeprefix("_")
    if kind.startswith("_") and element in IN_ARRAYS:
        return HotColumn(name, f"{element}[]", pyarrow.list_(PLAIN[element]))
    if kind.startswith("_") and (element in AS_TEXT or element == "numeric"):
        return HotColumn(name, f"{element}[]", pyarrow.list_(pyarrow.string()), as_text=True)
    return None


def _numeric(typmod: int) -> tuple[str, pyarrow.DataType]:
    """A decimal where every value of the type fits into one; text otherwise, as for 256-bit integers."""
    if typmod < 0:
        return "numeric", pyarrow.string()
    precision, scale = (typmod - 4) >> 16 & 0xFFFF, (typmod - 4) & 0x7FF
    scale = scale - 2048 if scale >= 1024 else scale  # eleven bits, signed
    fits = precision <= DECIMAL_DIGITS and 0 <= scale <= precision
    return f"numeric({precision},{scale})", pyarrow.decimal128(precision, scale) if fits else pyarrow.string()


def arrow_schema(columns: Sequence[HotColumn]) -> pyarrow.Schema:
    return pyarrow.schema([(column.name, column.kind) for column in columns])


def converted(rows: pyarrow.Table, columns: Sequence[HotColumn]) -> pyarrow.Table:
    """Rows as the driver gives them become rows as they are stored."""
    arrays = [_converted(rows.column(number), column) for number, column in enumerate(columns)]
    return pyarrow.Table.from_arrays(arrays, schema=arrow_schema(columns))


def _converted(values: pyarrow.ChunkedArray, column: HotColumn) -> pyarrow.ChunkedArray:
    if isinstance(values.type, pyarrow.BaseExtensionType):
        values = pyarrow.chunked_array([chunk.storage for chunk in values.chunks], values.type.storage_type)
    if column.source_type.startswith("numeric") and not column.is_array:
        _require_numbers(values, column)
    if values.type != column.kind:
        values = values.cast(column.kind)
    if pyarrow.types.is_temporal(column.kind) and not pyarrow.types.is_time(column.kind):
        _require_moments(values, column)
    return values


def _require_numbers(values: pyarrow.ChunkedArray, column: HotColumn) -> None:
    odd = pyarrow.compute.is_in(values, pyarrow.array(["nan", "inf", "-inf"]))
    if pyarrow.compute.any(odd).as_py():
        raise ValueRefused(f"column {column.name} ({column.source_type}) holds NaN or infinity; nothing was archived.")


def _require_moments(values: pyarrow.ChunkedArray, column: HotColumn) -> None:
    is_date = pyarrow.types.is_date(column.kind)
    lowest = pyarrow.compute.min(values.cast(pyarrow.int32() if is_date else pyarrow.int64())).as_py()
    if lowest is not None and lowest < (FIRST_DAY if is_date else FIRST_MICROSECOND):
        raise ValueRefused(
            f"column {column.name} ({column.source_type}) holds infinity, or a moment too far away for Parquet; "
            "nothing was archived."
        )
