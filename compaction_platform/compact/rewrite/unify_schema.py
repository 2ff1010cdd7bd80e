"""One schema for files that differ a little: a column more or less, another order, a wider type."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow

from compaction_platform.compact.rewrite.read_inputs import InputUnusable
from compaction_platform.lake.iceberg.types import converted, holds
from compaction_platform.lake.verification.canonical_form import canonical_type

FIELD_ID = b"PARQUET:field_id"
# What pyarrow and pandas write about a schema in their own words; it is written anew, or does not hold any more.
REWRITTEN = (b"ARROW:schema", b"pandas")
OURS = b"compaction."
UNITS = ("s", "ms", "us", "ns")


@dataclass(frozen=True)
class Unified:
    """The columns of the output so far, in the order in which they were first seen."""

    columns: tuple[pyarrow.Field, ...] = ()
    metadata: Mapping[bytes, bytes] = field(default_factory=dict)
    differing: frozenset[bytes] = frozenset()  # metadata on which the files do not agree

    @property
    def schema(self) -> pyarrow.Schema:
        return pyarrow.schema(list(self.columns), metadata=dict(self.metadata))

    def with_file(self, schema: pyarrow.Schema, keys: Mapping[bytes, bytes]) -> "Unified":
        """Raises Unusable if this file does not go together with those before it. `keys` is the footer's metadata."""
        metadata = carried_over(keys)
        if not self.columns:
            return Unified(tuple(schema), metadata)
        if tuple(schema) == self.columns and _ids(schema) == _ids(self.columns):
            columns = self.columns
        else:
            columns = self._columns_with(schema)
        names = {*self.metadata, *metadata}
        differing = {name for name in names if self.metadata.get(name) != metadata.get(name)} | self.differing
        agreed = {name: value for name, value in self.metadata.items() if name not in differing}
        return Unified(columns, agreed, frozenset(differing))

    def _columns_with(self, schema: pyarrow.Schema) -> tuple[pyarrow.Field, ...]:
        known = {column.name: column for column in self.columns}
        lower = {name.lower(): name for name in known}
        ids = {identity: column.name for column in self.columns if (identity := _id(column))}
        for column in schema:
            if column.name not in known and column.name.lower() in lower:
                raise InputUnusable(f"its column {column.name} is {lower[column.name.lower()]} in the others")
            if (identity := _id(column)) and ids.get(identity, column.name) != column.name:
                raise InputUnusable(f"its column {column.name} has the field id of {ids[identity]} in the others")
        there = set(schema.names)
        merged = [
            _wider(column, schema.field(column.name)) if column.name in there else column.with_nullable(True)
            for column in self.columns
        ]
        return (*merged, *(column.with_nullable(True) for column in schema if column.name not in known))


def _wider(ours: pyarrow.Field, theirs: pyarrow.Field) -> pyarrow.Field:
    if _id(ours) != _id(theirs):
        raise InputUnusable(f"its column {theirs.name} has another field id than in the others")
    nullable = ours.nullable or theirs.nullable
    for wide, narrow in ((ours, theirs), (theirs, ours)):
        if wide.type == narrow.type or (not pyarrow.types.is_nested(wide.type) and _holds(wide.type, narrow.type)):
            return wide.with_nullable(nullable)
    raise InputUnusable(f"its column {theirs.name} is {theirs.type}, in the others it is {ours.type}")


def _holds(wide: pyarrow.DataType, narrow: pyarrow.DataType) -> bool:
    """Widening that every reader would expect: not bytes to text, not a moment to another calendar."""
    types = pyarrow.types
    plain = canonical_type(narrow)
    if types.is_timestamp(wide) != types.is_timestamp(plain):
        return bool(types.is_null(plain))
    if types.is_large_binary(plain) or types.is_fixed_size_binary(plain):
        return bool(canonical_type(wide) == plain)
    if types.is_timestamp(wide):
        finer = UNITS.index(wide.unit) >= UNITS.index(plain.unit)
        return finer and (wide.tz is None) == (plain.tz is None)
    return holds(wide, narrow)


def fitted(batch: pyarrow.RecordBatch, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """The batch in the columns of a schema that was unified with its own."""
    if batch.schema.equals(schema):
        return batch
    there = set(batch.schema.names)
    arrays = [
        converted(batch.column(column.name), column.type)
        if column.name in there
        else pyarrow.nulls(batch.num_rows, column.type)
        for column in schema
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def carried_over(keys: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Of a footer's metadata, what a compacted file has as well."""
    return {name: value for name, value in keys.items() if name not in REWRITTEN and not name.startswith(OURS)}


def _ids(columns: pyarrow.Schema | tuple[pyarrow.Field, ...]) -> list[bytes | None]:
    return [_id(column) for column in columns]


def _id(column: pyarrow.Field) -> bytes | None:
    return (column.metadata or {}).get(FIELD_ID)
