"""Types in Iceberg, Arrow and Spark, and which values may move between them."""

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow
import pytest
from pyiceberg.types import IcebergType, StringType, TimeType, UUIDType

from compaction_platform.lake.iceberg.types import (
    TypeUnsupported,
    arrow_type,
    converted,
    holds,
    iceberg_type,
    parsed_type,
    spark_columns,
    spark_type,
)

pytestmark = pytest.mark.unit

UTC = pyarrow.timestamp("us", "UTC")
LIST_OF_STRUCTS = pyarrow.list_(pyarrow.struct({"a": pyarrow.int32()}))


@pytest.mark.parametrize(
    ("source", "target", "fits"),
    [
        (pyarrow.int8(), pyarrow.int32(), True),
        (pyarrow.int32(), pyarrow.int64(), True),
        (pyarrow.int64(), pyarrow.int32(), False),
        (pyarrow.uint32(), pyarrow.int32(), False),
        (pyarrow.uint32(), pyarrow.int64(), True),
        (pyarrow.uint64(), pyarrow.int64(), False),
        (pyarrow.uint64(), pyarrow.decimal128(20, 0), True),
        (pyarrow.int64(), pyarrow.decimal128(20, 2), False),
        (pyarrow.float32(), pyarrow.float64(), True),
        (pyarrow.float64(), pyarrow.float32(), False),
        (pyarrow.int32(), pyarrow.float64(), False),
        (pyarrow.float64(), pyarrow.int64(), False),
        (pyarrow.decimal128(10, 2), pyarrow.decimal128(12, 2), True),
        (pyarrow.decimal128(10, 2), pyarrow.decimal128(12, 4), True),
        (pyarrow.decimal128(10, 2), pyarrow.decimal128(10, 4), False),
        (pyarrow.date32(), UTC, True),
        (UTC, pyarrow.date32(), False),
        (pyarrow.timestamp("ns"), UTC, True),
        (pyarrow.string(), pyarrow.string(), True),
        (pyarrow.large_string(), pyarrow.string(), True),
        (pyarrow.dictionary(pyarrow.int8(), pyarrow.string()), pyarrow.string(), True),
        (pyarrow.binary(), pyarrow.string(), True),
        (pyarrow.string(), pyarrow.binary(), False),
        (pyarrow.string(), pyarrow.int64(), False),
        (pyarrow.null(), pyarrow.int64(), True),
        (pyarrow.bool_(), pyarrow.int32(), False),
        (pyarrow.list_(pyarrow.int32()), pyarrow.list_(pyarrow.int64()), True),
        (pyarrow.list_(pyarrow.int64()), pyarrow.list_(pyarrow.int32()), False),
        (pyarrow.struct({"a": pyarrow.int32()}), pyarrow.struct({"b": pyarrow.string(), "a": pyarrow.int64()}), True),
        (pyarrow.struct({"c": pyarrow.int32()}), pyarrow.struct({"a": pyarrow.int64()}), False),
        (pyarrow.list_(pyarrow.int32()), pyarrow.int32(), False),
    ],
)
def test_what_fits_without_loss(source: pyarrow.DataType, target: pyarrow.DataType, fits: bool) -> None:
    assert holds(target, source) is fits


@pytest.mark.parametrize(
    ("values", "target", "expected"),
    [
        (pyarrow.array([1, None], pyarrow.int16()), pyarrow.int64(), [1, None]),
        (pyarrow.array([2**64 - 1], pyarrow.uint64()), pyarrow.decimal128(20, 0), [Decimal(2**64 - 1)]),
        (pyarrow.array(["1.50"]).cast(pyarrow.decimal128(4, 2)), pyarrow.decimal128(9, 4), [Decimal("1.5000")]),
        (pyarrow.array(["x", None]).dictionary_encode(), pyarrow.string(), ["x", None]),
        (pyarrow.array([date(2026, 1, 2)]), pyarrow.timestamp("us"), [datetime(2026, 1, 2)]),
        (pyarrow.array([b"text"]), pyarrow.string(), ["text"]),
        (
            pyarrow.array(
                [[{"a": 1}], None, [], [None, {"a": None}]], pyarrow.list_(pyarrow.struct({"a": pyarrow.int32()}))
            ),
            pyarrow.list_(pyarrow.struct({"b": pyarrow.string(), "a": pyarrow.int64()})),
            [[{"b": None, "a": 1}], None, [], [None, {"b": None, "a": None}]],
        ),
        (
            pyarrow.array([{"a": 1, "b": None}, None], pyarrow.struct({"a": pyarrow.int32(), "b": pyarrow.string()})),
            pyarrow.struct({"b": pyarrow.string(), "a": pyarrow.int64()}),
            [{"b": None, "a": 1}, None],
        ),
    ],
)
def test_values_keep_their_meaning(values: Any, target: pyarrow.DataType, expected: list[Any]) -> None:
    padded = pyarrow.concat_arrays([values.slice(0, 0), values])
    for given in (values, padded, pyarrow.chunked_array([values])):
        result = converted(given, target)
        assert result.type == target
        assert result.to_pylist() == expected


@pytest.mark.parametrize(
    ("values", "target"),
    [
        (pyarrow.array([1], pyarrow.timestamp("ns")), UTC),
        (pyarrow.array([b"\xff\xfe"]), pyarrow.string()),
    ],
)
def test_a_value_that_cannot_be_kept_raises(values: Any, target: pyarrow.DataType) -> None:
    with pytest.raises(pyarrow.ArrowInvalid):
        converted(values, target)


@pytest.mark.parametrize(
    ("kind", "iceberg", "spark"),
    [
        (pyarrow.int16(), "int", "int"),
        (pyarrow.uint32(), "long", "bigint"),
        (pyarrow.uint64(), "decimal(20, 0)", "decimal(20,0)"),
        (pyarrow.float16(), "float", "float"),
        (pyarrow.timestamp("ms", "Europe/Lisbon"), "timestamptz", "timestamp"),
        (pyarrow.timestamp("ns"), "timestamp", "timestamp_ntz"),
        (pyarrow.date64(), "date", "date"),
        (pyarrow.binary(16), "binary", "binary"),
        (pyarrow.list_(pyarrow.large_string()), "list<string>", "array<string>"),
        (pyarrow.map_(pyarrow.string(), pyarrow.int8()), "map<string, int>", "map<string,int>"),
    ],
)
def test_three_names_for_one_type(kind: pyarrow.DataType, iceberg: str, spark: str) -> None:
    found = iceberg_type(kind)
    assert str(found) == iceberg
    assert holds(arrow_type(found), kind)
    assert spark_type(arrow_type(found)) == spark


@pytest.mark.parametrize("kind", [TimeType(), UUIDType()])
def test_types_without_a_counterpart_are_refused(kind: IcebergType) -> None:
    with pytest.raises(TypeUnsupported):
        arrow_type(kind)


def test_a_schema_as_spark_writes_it() -> None:
    nested = pyarrow.struct({"x": pyarrow.float64(), "y": pyarrow.list_(pyarrow.bool_())})
    schema = pyarrow.schema({"a": arrow_type(StringType()), "b": nested})
    assert spark_columns(schema) == "`a` string, `b` struct<`x`:double,`y`:array<boolean>>"


@pytest.mark.parametrize(
    ("text", "spark"),
    [
        ("long", "bigint"),
        ("decimal(18, 2)", "decimal(18,2)"),
        ("list<string>", "array<string>"),
        ("map<string, list<decimal(4, 1)>>", "map<string,array<decimal(4,1)>>"),
        (
            "struct<x: double, at: struct<y: map<string, int>, z: date>>",
            "struct<`x`:double,`at`:struct<`y`:map<string,int>,`z`:date>>",
        ),
    ],
)
def test_types_as_people_write_them(text: str, spark: str) -> None:
    assert spark_type(arrow_type(parsed_type(text))) == spark


@pytest.mark.parametrize("text", ["", "text", "list<>", "map<string>", "struct<x>", "list<string", "decimal(x)"])
def test_what_is_no_type_is_refused_with_examples(text: str) -> None:
    with pytest.raises(TypeUnsupported, match="Examples"):
        parsed_type(text)
