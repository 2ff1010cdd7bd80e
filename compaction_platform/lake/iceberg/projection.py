"""Project the columns of a data file onto a table's columns by field id, as the Iceberg specification describes.

Renamed, reordered, added, dropped and widened columns are found at every depth. Nulls are kept as they are: a null
list, map or struct never becomes an empty one. (PyIceberg 0.12's ArrowScan does that to nested columns.)
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow
import pyarrow.parquet
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from compaction_platform.errors import CompactionError
from compaction_platform.lake.iceberg.types import converted, holds
from compaction_platform.lake.verification.canonical_form import (
    Array,
    canonical,
    canonical_type,
    is_list,
    lengths_of,
    validity,
)

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.name_mapping import MappedField

FIELD_ID = b"PARQUET:field_id"


class CannotProject(CompactionError):
    """A data file does not have the table's columns, nor anything that the specification puts in their place."""


@dataclass(frozen=True)
class Projection:
    """How columns of a data file become these columns of its table.

    `wanted` and `types` are the same columns, for Iceberg and for Arrow. `constants`: values by field id for columns
    that the file may lack because its partition tells them.
    """

    wanted: "Schema"
    types: pyarrow.Schema
    constants: Mapping[int, Any] = field(default_factory=dict)
    names: "Iterable[MappedField] | None" = None  # the table's name mapping, for files without field ids

    @classmethod
    def of(cls, metadata: "TableMetadata", file: "DataFile", wanted: "Schema", types: pyarrow.Schema) -> "Projection":
        """The projection of one data file of a table."""
        mapping = metadata.name_mapping()
        constants = partition_constants(metadata.specs()[file.spec_id], file)
        return cls(wanted, types, constants, None if mapping is None else mapping.root)

    def columns_of(self, physical: pyarrow.Schema) -> list[str] | None:
        """The top-level columns to read; None if names do not tell them apart, and all of them have to be read."""
        if len(set(physical.names)) != len(physical.names) or any("." in name for name in physical.names):
            return None
        ids = _ids_of(list(physical), self._names_by_name)
        wanted = {each.field_id for each in self.wanted.fields}
        found = [name for name, number in zip(physical.names, ids, strict=True) if number in wanted]
        return found or physical.names[:1]  # something has to tell how many rows there are

    def table(self, rows: pyarrow.Table) -> pyarrow.Table:
        """Rows as they are in the file, in the table's columns. Raises CannotProject, or ArrowInvalid for a value that
        its column cannot hold."""
        ids = _ids_of(list(rows.schema), self._names_by_name)
        if self.names is None and rows.num_columns and not any(number is not None for number in ids):
            raise CannotProject("has no field ids, and the table has no name mapping (schema.name-mapping.default)")
        _require_distinct(ids)
        columns = []
        for each, kind in zip(self.wanted.fields, self.types, strict=True):
            if each.field_id in ids:
                place = ids.index(each.field_id)
                columns.append(self._column(rows.column(place), rows.schema.field(place), each, kind))
            else:
                columns.append(self._missing(each, kind.type, rows.num_rows))
        return pyarrow.Table.from_arrays(columns, schema=self.types)

    def _column(
        self, column: pyarrow.ChunkedArray, source: pyarrow.Field, wanted: NestedField, kind: pyarrow.Field
    ) -> pyarrow.ChunkedArray:
        if is_same_column(source.with_name(kind.name), kind):
            return column.cast(kind.type)
        mapped = self._mapped(source.name)
        chunks = [_projected(chunk, source.type, wanted, kind.type, mapped) for chunk in column.chunks]
        return pyarrow.chunked_array(chunks, kind.type)

    def _missing(self, each: NestedField, kind: pyarrow.DataType, count: int) -> pyarrow.Array:
        if each.field_id in self.constants:
            return _repeated(self.constants[each.field_id], kind, count)
        return _absent(each, kind, count)

    def _mapped(self, name: str) -> "Mapping[str, MappedField] | None":
        found = self._names_by_name.get(name) if self._names_by_name is not None else None
        return None if found is None else _by_name(found.fields)

    @cached_property
    def _names_by_name(self) -> "Mapping[str, MappedField] | None":
        return None if self.names is None else _by_name(self.names)


def partition_constants(spec: "PartitionSpec", file: "DataFile") -> dict[int, Any]:
    """Values of columns by which a file's partition is defined, by field id."""
    return {
        each.source_id: file.partition[place]
        for place, each in enumerate(spec.fields)
        if isinstance(each.transform, IdentityTransform) and file.partition[place] is not None
    }


def _by_name(fields: "Iterable[MappedField]") -> "dict[str, MappedField]":
    return {name: each for each in fields for name in each.names}


def _ids_of(columns: list[pyarrow.Field], names: "Mapping[str, MappedField] | None") -> list[int | None]:
    """The field id of each of these columns: its own, or where none of them has one, the name mapping's."""
    own = [(each.metadata or {}).get(FIELD_ID) for each in columns]
    if any(number is not None for number in own):
        return [None if number is None else int(number) for number in own]
    if names is None:
        return [None] * len(columns)
    return [names[each.name].field_id if each.name in names else None for each in columns]


def _require_distinct(ids: list[int | None]) -> None:
    known = [number for number in ids if number is not None]
    if len(set(known)) != len(known):
        raise CannotProject("has two columns of one field id")


def _absent(each: NestedField, kind: pyarrow.DataType, count: int) -> pyarrow.Array:
    default = getattr(each, "initial_default", None)
    if default is not None:
        return _repeated(default, kind, count)
    if each.required:
        raise CannotProject(f"has no column {each.name} (field id {each.field_id}), which the table requires")
    return pyarrow.nulls(count, kind)


def _repeated(value: Any, kind: pyarrow.DataType, count: int) -> pyarrow.Array:
    """One value for all rows. Iceberg keeps dates and times as numbers."""
    storage = kind.storage_type if isinstance(kind, pyarrow.BaseExtensionType) else kind
    if isinstance(value, int) and pyarrow.types.is_temporal(storage):
        number = pyarrow.int32() if storage.bit_width == 32 else pyarrow.int64()
        array = pyarrow.repeat(pyarrow.scalar(value, number), count).view(storage)
    else:
        value = value.bytes if hasattr(value, "bytes") else value  # a UUID
        array = pyarrow.repeat(pyarrow.scalar(value, storage), count)
    return array if storage == kind else pyarrow.ExtensionArray.from_storage(kind, array)


# ---------------------------------------------------------------- one column, at any depth


def _projected(
    array: pyarrow.Array,
    source: pyarrow.DataType,
    wanted: NestedField,
    kind: pyarrow.DataType,
    names: "Mapping[str, MappedField] | None",
) -> pyarrow.Array:
    if isinstance(wanted.field_type, StructType):
        return _struct(array, source, wanted.field_type, kind, names)
    if isinstance(wanted.field_type, ListType):
        return _list(array, source, wanted.field_type, kind, names)
    if isinstance(wanted.field_type, MapType):
        return _map(array, source, wanted.field_type, kind, names)
    return _primitive(array, wanted.field_type, kind, wanted.name)


def _struct(
    array: pyarrow.Array,
    source: pyarrow.DataType,
    wanted: StructType,
    kind: pyarrow.DataType,
    names: "Mapping[str, MappedField] | None",
) -> pyarrow.Array:
    if not pyarrow.types.is_struct(source):
        raise CannotProject(f"has {source} where the table has a struct")
    fields = [source.field(number) for number in range(source.num_fields)]
    ids = _ids_of(fields, names)
    _require_distinct(ids)
    children = []
    for number, each in enumerate(wanted.fields):
        inner = kind.field(number).type
        if each.field_id in ids:
            place = ids.index(each.field_id)
            mapped = _children_of(names, fields[place].name)
            children.append(_projected(array.field(place), fields[place].type, each, inner, mapped))
        else:
            children.append(_absent(each, inner, len(array)))
    mask = array.is_null() if array.null_count else None
    return pyarrow.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def _list(
    array: pyarrow.Array,
    source: pyarrow.DataType,
    wanted: ListType,
    kind: pyarrow.DataType,
    names: "Mapping[str, MappedField] | None",
) -> pyarrow.Array:
    if not is_list(source):
        raise CannotProject(f"has {source} where the table has a list")
    mapped = _children_of(names, "element")
    items = _projected(array.flatten(), source.value_type, wanted.element_field, kind.value_type, mapped)
    maker = pyarrow.LargeListArray if pyarrow.types.is_large_list(kind) else pyarrow.ListArray
    return maker.from_arrays(_offsets(lengths_of(array), kind), items, type=kind, mask=_nulls(array))


def _map(
    array: pyarrow.Array,
    source: pyarrow.DataType,
    wanted: MapType,
    kind: pyarrow.DataType,
    names: "Mapping[str, MappedField] | None",
) -> pyarrow.Array:
    if not pyarrow.types.is_map(source):
        raise CannotProject(f"has {source} where the table has a map")
    entries = canonical_entries(array)
    pieces = [
        _projected(values, inner, each, into, _children_of(names, name))
        for values, inner, each, into, name in (
            (entries.keys, source.key_type, wanted.key_field, kind.key_type, "key"),
            (entries.items, source.item_type, wanted.value_field, kind.item_type, "value"),
        )
    ]
    return pyarrow.MapArray.from_arrays(_offsets(entries.lengths, kind), *pieces, type=kind, mask=_nulls(array))


@dataclass(frozen=True)
class Entries:
    """All entries of some maps, one map behind the other, without what lies under nulls."""

    lengths: Array
    keys: pyarrow.Array
    items: pyarrow.Array


def canonical_entries(array: pyarrow.MapArray) -> Entries:
    """Keys and items belong to the whole buffer, of which the array may be a slice."""
    offsets = array.offsets.to_numpy().astype(numpy.int64)
    there = validity(array)
    lengths = numpy.diff(offsets) * there
    first, last = int(offsets[0]), int(offsets[-1])
    if int(lengths.sum()) == last - first:
        return Entries(lengths, array.keys.slice(first, last - first), array.items.slice(first, last - first))
    places = pyarrow.array(numpy.flatnonzero(numpy.repeat(there, numpy.diff(offsets))) + first)
    return Entries(lengths, array.keys.take(places), array.items.take(places))


def _children_of(names: "Mapping[str, MappedField] | None", name: str) -> "Mapping[str, MappedField] | None":
    return None if names is None or name not in names else _by_name(names[name].fields)


def _offsets(lengths: Array, kind: pyarrow.DataType) -> pyarrow.Array:
    width = pyarrow.int64() if pyarrow.types.is_large_list(kind) else pyarrow.int32()
    return pyarrow.array(numpy.concatenate([[0], numpy.cumsum(lengths)]), width)


def _nulls(array: pyarrow.Array) -> pyarrow.Array | None:
    return array.is_null() if array.null_count else None


def _primitive(array: pyarrow.Array, wanted: IcebergType, kind: pyarrow.DataType, name: str) -> pyarrow.Array:
    if array.type == kind:
        return array
    values = canonical(array)
    storage = kind.storage_type if isinstance(kind, pyarrow.BaseExtensionType) else kind
    found = values.type
    if pyarrow.types.is_timestamp(found) and pyarrow.types.is_timestamp(storage):
        # INT96 has no time zone, and writers disagree about the others: to every Iceberg reader the number counts.
        values = values.cast(pyarrow.timestamp(storage.unit, found.tz)).view(storage)
    elif found != storage:
        if not holds(storage, found):
            raise CannotProject(f"has {found} in column {name}, which is {wanted} in the table")
        values = converted(values, storage)
    return values if storage == kind else pyarrow.ExtensionArray.from_storage(kind, values)


def has_same_columns(found: pyarrow.Schema, wanted: pyarrow.Schema) -> bool:
    """Whether columns are the same ones: names, types and field ids at every depth, in the same order."""
    return len(found) == len(wanted) and all(map(is_same_column, found, wanted))


def is_same_column(found: pyarrow.Field, wanted: pyarrow.Field) -> bool:
    """Whether a column of a file is this one of the table, with the same field ids at every depth."""
    if found.name != wanted.name or (found.metadata or {}).get(FIELD_ID) != (wanted.metadata or {}).get(FIELD_ID):
        return False
    if not pyarrow.types.is_nested(wanted.type):
        return bool(canonical_type(found.type) == canonical_type(wanted.type))
    if not pyarrow.types.is_nested(found.type):
        return False
    ours, theirs = _children(found.type), _children(wanted.type)
    return len(ours) == len(theirs) and all(map(is_same_column, ours, theirs))


def _children(kind: pyarrow.DataType) -> list[pyarrow.Field]:
    """What is inside. Names in lists and maps have no meaning, and writers have their own: here they tell the kind."""
    if pyarrow.types.is_map(kind):
        return [kind.key_field.with_name("/key"), kind.item_field.with_name("/value")]
    if pyarrow.types.is_struct(kind):
        return [kind.field(number) for number in range(kind.num_fields)]
    return [kind.value_field.with_name("/element")]


# ---------------------------------------------------------------- a whole file


def opened(source: Any) -> pyarrow.parquet.ParquetFile:
    """A data file, its pages checked, INT96 timestamps read as microseconds: as nanoseconds they wrap in silence."""
    return pyarrow.parquet.ParquetFile(
        source, page_checksum_verification=True, coerce_int96_timestamp_unit="us", pre_buffer=True
    )


def row_group_tables(
    file: pyarrow.parquet.ParquetFile, projection: Projection, numbers: Iterable[int] | None = None
) -> Iterator[pyarrow.Table]:
    """The row groups of a data file in the table's columns, one after the other."""
    columns = projection.columns_of(file.schema_arrow)
    for number in range(file.metadata.num_row_groups) if numbers is None else numbers:
        yield projection.table(file.read_row_group(number, columns=columns, use_threads=False))
