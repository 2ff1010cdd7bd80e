"""Column types in three languages: Iceberg (what tables declare), Arrow (what files hold), Spark SQL.

Types without the same meaning in all three (time, uuid, fixed) are refused by name. `converted` moves values
to a wider type without losing anything, or raises.
"""

import re
from typing import Any

import pyarrow
import pyarrow.compute
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage.identifiers import quoted
from compaction_platform.lake.verification.canonical_form import canonical_type, is_list

UTC_MICROSECONDS = pyarrow.timestamp("us", "UTC")
LOCAL_MICROSECONDS = pyarrow.timestamp("us")

_PRIMITIVES: list[tuple[type[IcebergType], pyarrow.DataType, str]] = [
    (BooleanType, pyarrow.bool_(), "boolean"),
    (IntegerType, pyarrow.int32(), "int"),
    (LongType, pyarrow.int64(), "bigint"),
    (FloatType, pyarrow.float32(), "float"),
    (DoubleType, pyarrow.float64(), "double"),
    (DateType, pyarrow.date32(), "date"),
    (TimestamptzType, UTC_MICROSECONDS, "timestamp"),
    (TimestampType, LOCAL_MICROSECONDS, "timestamp_ntz"),
    (StringType, pyarrow.string(), "string"),
    (BinaryType, pyarrow.binary(), "binary"),
]
_SPARK_NAMES = [(arrow, spark) for _, arrow, spark in _PRIMITIVES]


class TypeUnsupported(CompactionError):
    """A column has a type we cannot keep exactly through Arrow, Spark and Iceberg."""


def parsed_type(text: str) -> IcebergType:
    """An Iceberg type as people write it: string, decimal(18, 2), list<long>, map<string, int>, struct<x: double>."""
    text = text.strip()
    match = re.fullmatch(r"(list|map|struct)\s*<(.*)>", text, re.DOTALL)
    try:
        if match is None:
            return NestedField(field_id=1, name="column", field_type=text, required=False).field_type
        kind, parts = match[1], _split(match[2])
        if kind == "list" and len(parts) == 1:
            return ListType(1, parsed_type(parts[0]), element_required=False)
        if kind == "map" and len(parts) == 2:
            return MapType(1, parsed_type(parts[0]), 2, parsed_type(parts[1]), value_required=False)
        if kind == "struct":
            fields = []
            for number, part in enumerate(parts, start=1):
                name, _, inner = part.partition(":")
                fields.append(NestedField(number, name.strip(), parsed_type(inner), required=False))
            return StructType(*fields)
    except (ValueError, ValidationError, TypeUnsupported):
        pass
    raise TypeUnsupported(
        f"{text!r} is not a type. Examples: string, long, double, timestamptz, decimal(38, 0), list<string>, "
        "map<string, long>, struct<x: double, y: double>."
    )


def _split(text: str) -> list[str]:
    """At commas that are not inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += letter in "<("
        depth -= letter in ">)"
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def arrow_type(kind: IcebergType) -> pyarrow.DataType:
    """The Arrow type that holds values of this Iceberg type, in the form Spark accepts."""
    for iceberg, arrow, _ in _PRIMITIVES:
        if isinstance(kind, iceberg):
            return arrow
    if isinstance(kind, DecimalType):
        return pyarrow.decimal128(kind.precision, kind.scale)
    if isinstance(kind, ListType):
        return pyarrow.list_(arrow_type(kind.element_type))
    if isinstance(kind, MapType):
        return pyarrow.map_(arrow_type(kind.key_type), arrow_type(kind.value_type))
    if isinstance(kind, StructType):
        return pyarrow.struct([(field.name, arrow_type(field.field_type)) for field in kind.fields])
    raise TypeUnsupported(f"Iceberg type {kind} is not supported; use string, binary or timestamptz instead.")


def arrow_schema(schema: Schema) -> pyarrow.Schema:
    return pyarrow.schema([(field.name, arrow_type(field.field_type)) for field in schema.fields])


def spark_type(kind: pyarrow.DataType) -> str:
    """An Arrow type (of those `arrow_type` gives) in Spark SQL."""
    for arrow, spark in _SPARK_NAMES:
        if kind == arrow:
            return spark
    if pyarrow.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pyarrow.types.is_map(kind):
        return f"map<{spark_type(kind.key_type)},{spark_type(kind.item_type)}>"
    if pyarrow.types.is_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    if pyarrow.types.is_struct(kind):
        fields = (f"{quoted(field.name)}:{spark_type(field.type)}" for field in kind)
        return f"struct<{','.join(fields)}>"
    raise TypeUnsupported(f"type {kind} has no counterpart in Spark.")


def spark_columns(schema: pyarrow.Schema) -> str:
    """A schema as Spark writes it: `a` int, `b` string."""
    return ", ".join(f"{quoted(field.name)} {spark_type(field.type)}" for field in schema)


def iceberg_type(kind: pyarrow.DataType) -> IcebergType:
    """The narrowest Iceberg type that holds every value of this Arrow type."""
    types = pyarrow.types
    kind = canonical_type(kind)
    exact: list[tuple[bool, type[IcebergType]]] = [
        (types.is_boolean(kind), BooleanType),
        (types.is_integer(kind) and holds(pyarrow.int32(), kind), IntegerType),
        (types.is_integer(kind) and holds(pyarrow.int64(), kind), LongType),
        (types.is_float16(kind) or types.is_float32(kind), FloatType),
        (types.is_float64(kind), DoubleType),
        (types.is_date(kind), DateType),
        (types.is_timestamp(kind) and kind.tz is not None, TimestamptzType),
        (types.is_timestamp(kind) and kind.tz is None, TimestampType),
        (types.is_large_string(kind), StringType),
        (types.is_large_binary(kind) or types.is_fixed_size_binary(kind), BinaryType),
    ]
    for applies, iceberg in exact:
        if applies:
            return iceberg()
    if types.is_uint64(kind):
        return DecimalType(20, 0)
    if types.is_decimal(kind) and kind.precision <= 38:
        return DecimalType(kind.precision, kind.scale)
    if is_list(kind):
        return ListType(1, iceberg_type(kind.value_type), element_required=False)
    if types.is_map(kind):
        return MapType(1, iceberg_type(kind.key_type), 2, iceberg_type(kind.item_type), value_required=False)
    if types.is_struct(kind):
        fields = [
            NestedField(number, field.name, iceberg_type(field.type), required=False)
            for number, field in enumerate(kind, start=1)
        ]
        return StructType(*fields)
    raise TypeUnsupported(f"type {kind} has no counterpart in Iceberg.")


def holds(target: pyarrow.DataType, source: pyarrow.DataType) -> bool:
    """Whether every value of the source type has an equal in the target type.

    Two cases are left to the values: timestamps finer than microseconds, and bytes that claim to be text;
    `converted` raises where one cannot be kept.
    """
    types = pyarrow.types
    target, source = canonical_type(target), canonical_type(source)
    if source == target or types.is_null(source):
        return True
    if types.is_integer(source):
        digits = {8: 3, 16: 5, 32: 10, 64: 20 if types.is_unsigned_integer(source) else 19}[source.bit_width]
        if types.is_decimal(target):
            return bool(target.precision - target.scale >= digits)
        bits = source.bit_width + (1 if types.is_unsigned_integer(source) else 0)
        return bool(types.is_signed_integer(target) and target.bit_width >= bits)
    if types.is_floating(source):
        return bool(types.is_floating(target) and target.bit_width >= source.bit_width)
    if types.is_decimal(source):
        return bool(
            types.is_decimal(target)
            and target.scale >= source.scale
            and target.precision - target.scale >= source.precision - source.scale
        )
    if types.is_date(source):
        return bool(types.is_date(target) or types.is_timestamp(target))
    if types.is_timestamp(source):
        return bool(types.is_timestamp(target))
    if types.is_large_binary(source) or types.is_fixed_size_binary(source):
        return bool(types.is_large_string(target) or types.is_large_binary(target))
    if is_list(source):
        return is_list(target) and holds(target.value_type, source.value_type)
    if types.is_map(source):
        both = types.is_map(target)
        return both and holds(target.key_type, source.key_type) and holds(target.item_type, source.item_type)
    if types.is_struct(source):
        return bool(types.is_struct(target)) and _fields_hold(target, source)
    return False


def _fields_hold(target: pyarrow.DataType, source: pyarrow.DataType) -> bool:
    known = {field.name: field.type for field in target}
    return all(field.name in known and holds(known[field.name], field.type) for field in source)


def converted(values: Any, target: pyarrow.DataType) -> Any:
    """These values (an array or chunked array) in a type that `holds` them; ArrowInvalid where one does not fit."""
    types = pyarrow.types
    kind = values.type
    if kind == target:
        return values
    if isinstance(kind, pyarrow.BaseExtensionType):
        return converted(values.cast(kind.storage_type), target)
    if types.is_dictionary(kind):
        return converted(values.cast(kind.value_type), target)
    if types.is_date(kind) and types.is_timestamp(target):
        values = values.cast(pyarrow.timestamp("ms" if types.is_date64(kind) else "s"))
    if types.is_struct(kind) and types.is_struct(target):
        return _converted_struct(values, target)
    if is_list(kind) and types.is_list(target) and _has_struct(target.value_type):
        return _converted_list(values, target)
    return values.cast(target)  # safe: an overflow or a lost fraction raises


def _has_struct(kind: pyarrow.DataType) -> bool:
    return bool(pyarrow.types.is_struct(kind) or (is_list(kind) and _has_struct(kind.value_type)))


def _converted_struct(values: Any, target: pyarrow.DataType) -> Any:
    """Fields by name, whatever their order; one that is missing is null."""
    if isinstance(values, pyarrow.ChunkedArray):
        return pyarrow.chunked_array([_converted_struct(chunk, target) for chunk in values.chunks], type=target)
    names = {field.name for field in values.type}
    children = [
        converted(pyarrow.compute.struct_field(values, field.name), field.type)
        if field.name in names
        else pyarrow.nulls(len(values), field.type)
        for field in target
    ]
    return pyarrow.StructArray.from_arrays(children, fields=list(target), mask=values.is_null())


def _converted_list(values: Any, target: pyarrow.DataType) -> Any:
    if isinstance(values, pyarrow.ChunkedArray):
        return pyarrow.chunked_array([_converted_list(chunk, target) for chunk in values.chunks], type=target)
    lists = values.cast(pyarrow.list_(values.type.value_type))
    offsets = pyarrow.compute.subtract(lists.offsets, lists.offsets[0])
    items = converted(lists.flatten() if lists.null_count == 0 else _under(lists), target.value_type)
    return pyarrow.ListArray.from_arrays(offsets, items, type=target, mask=lists.is_null())


def _under(lists: Any) -> Any:
    """The child values between the first and the last offset, those hidden under nulls included."""
    first, last = lists.offsets[0].as_py(), lists.offsets[len(lists)].as_py()
    return lists.values.slice(first, last - first)
