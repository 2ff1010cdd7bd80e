"""Random nested tables with nulls at every level, and a random evolution of their columns."""

import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import (
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
)

LEVELS = 3
LEAVES: list[IcebergType] = [
    IntegerType(),
    LongType(),
    FloatType(),
    DoubleType(),
    BooleanType(),
    StringType(),
    DateType(),
    TimestampType(),
    DecimalType(9, 2),
]
PROMOTIONS: list[tuple[IcebergType, IcebergType]] = [
    (IntegerType(), LongType()),
    (FloatType(), DoubleType()),
    (DecimalType(9, 2), DecimalType(18, 2)),
]


class NestedTables:
    """Everything of one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._last_id = 0

    def _id(self) -> int:
        self._last_id += 1
        return self._last_id

    def schema(self, columns: int = 4) -> Schema:
        return Schema(*(self._field(f"c{number}", LEVELS) for number in range(columns)))

    def _field(self, name: str, levels: int) -> NestedField:
        return NestedField(self._id(), name, self._type(levels), required=False)

    def _type(self, levels: int) -> IcebergType:
        kind = self.chance.choice(["leaf", "struct", "list", "map"]) if levels else "leaf"
        if kind == "struct":
            return StructType(*(self._field(f"f{number}", levels - 1) for number in range(self.chance.randint(1, 3))))
        if kind == "list":
            return ListType(self._id(), self._type(levels - 1), element_required=False)
        if kind == "map":
            return MapType(self._id(), StringType(), self._id(), self._type(levels - 1), value_required=False)
        return self.chance.choice(LEAVES)

    # ------------------------------------------------------------ values

    def rows(self, types: pyarrow.Schema, count: int) -> pyarrow.Table:
        columns = [pyarrow.array([self._value(kind.type) for _ in range(count)], kind.type) for kind in types]
        return pyarrow.Table.from_arrays(columns, schema=types)

    def _value(self, kind: pyarrow.DataType) -> Any:
        types = pyarrow.types
        if self.chance.random() < 0.25:
            return None
        if types.is_struct(kind):
            return {field.name: self._value(field.type) for field in kind}
        if types.is_map(kind):
            keys = self.chance.sample(["a", "b", "ü", ""], self.chance.randint(0, 3))
            return [(key, self._value(kind.item_type)) for key in keys]
        if types.is_nested(kind):
            return [self._value(kind.value_type) for _ in range(self.chance.randint(0, 3))]
        if types.is_boolean(kind):
            return self.chance.random() < 0.5
        if types.is_floating(kind):
            return self.chance.choice([0.5, -1.25, 1e30, float("inf")])
        if types.is_decimal(kind):
            return Decimal(self.chance.randint(-99999, 99999)).scaleb(-kind.scale)
        if types.is_integer(kind) or types.is_temporal(kind):
            number = self.chance.choice([0, 1, -1, self.chance.randint(-(10**5), 10**5)])
            storage = pyarrow.int32() if kind.bit_width == 32 else pyarrow.int64()
            return pyarrow.array([number], storage).view(kind)[0].as_py()
        return self.chance.choice(["", "x", "yy", "zürich"])

    # ------------------------------------------------------------ evolution

    def evolved(self, schema: Schema) -> Schema:
        """Columns renamed, dropped, added, moved and widened, at every level."""
        return Schema(*self._evolved_fields(schema.fields))

    def _evolved_fields(self, fields: Any) -> Iterator[NestedField]:
        kept = [each for each in fields if self.chance.random() > 0.2] or list(fields)[:1]
        new = [self._evolved_field(each) for each in kept]
        if self.chance.random() < 0.5:
            self._last_id += 1000
            new.append(self._field(f"new{self._last_id}", 1))
        self.chance.shuffle(new)
        names = [each.name for each in new]
        if len(new) > 1 and self.chance.random() < 0.3:  # two columns swap their names
            names[0], names[1] = names[1], names[0]
        for each, name in zip(new, names, strict=True):
            yield NestedField(each.field_id, name, each.field_type, required=False)

    def _evolved_field(self, field: NestedField) -> NestedField:
        name = f"{field.name}_renamed" if self.chance.random() < 0.3 else field.name
        return NestedField(field.field_id, name, self._evolved_type(field.field_type), required=False)

    def _evolved_type(self, kind: IcebergType) -> IcebergType:
        if isinstance(kind, StructType):
            return StructType(*self._evolved_fields(kind.fields))
        if isinstance(kind, ListType):
            return ListType(kind.element_id, self._evolved_type(kind.element_type), element_required=False)
        if isinstance(kind, MapType):
            inner = self._evolved_type(kind.value_type)
            return MapType(kind.key_id, kind.key_type, kind.value_id, inner, value_required=False)
        wider = [new for old, new in PROMOTIONS if old == kind]
        return self.chance.choice(wider) if wider and self.chance.random() < 0.5 else kind


def metadata_of(schema: Schema) -> TableMetadata:
    """The metadata of a table with these columns, ids as they are."""
    made = new_table_metadata(schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "s3://lake/t", {})
    return made.model_copy(update={"schemas": [schema], "current_schema_id": schema.schema_id})
