"""Read data files of an Iceberg table with DuckDB: by field id, with deletes applied, in SQL.

This is the row logic of proofs. It shares nothing with `projection` and `maintain.applied`, by which rows are read to
be rewritten: a reader that is wrong in the same way on both sides proves nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
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
    TimeType,
    UUIDType,
)

from compaction_platform.lake.parquet.int96 import int96_moments
from compaction_platform.lake.parquet.second_reader import (
    BATCH_ROWS,
    ROW_NUMBER,
    NotJudged,
    SecondReaderRefused,
    first_line,
    in_type,
    quoted_name,
    quoted_text,
    require_no_exhaustion,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.name_mapping import MappedField

INT96_VIEW = "int96_columns"
_TYPES: dict[type[IcebergType], str] = {
    BooleanType: "BOOLEAN",
    IntegerType: "INTEGER",
    LongType: "BIGINT",
    FloatType: "FLOAT",
    DoubleType: "DOUBLE",
    DateType: "DATE",
    TimeType: "TIME",
    TimestampType: "TIMESTAMP",
    TimestamptzType: "TIMESTAMPTZ",
    StringType: "VARCHAR",
    BinaryType: "BLOB",
    FixedType: "BLOB",
    UUIDType: "UUID",
}


@dataclass(frozen=True)
class LocalFile:
    """A data file and the delete files that apply to it, copied to the local disk."""

    path: Path
    location: str  # of the data file in the table: position deletes name it
    constants: Mapping[int, Any] = field(default_factory=dict)  # what its partition tells, by field id
    positions: tuple[Path, ...] = ()
    equalities: tuple[tuple[Path, tuple[int, ...]], ...] = ()  # with the field ids that they compare


@dataclass(frozen=True)
class _FieldNode:
    """A column of a Parquet file, as DuckDB describes it."""

    name: str
    physical: str | None
    kind: str | None  # DuckDB's type
    repetition: str
    annotation: str
    field_id: int | None
    children: tuple["_FieldNode", ...] = ()

    @property
    def is_list(self) -> bool:
        return "LIST" in self.annotation.upper()

    @property
    def is_map(self) -> bool:
        return "MAP" in self.annotation.upper()

    @property
    def element(self) -> "_FieldNode":
        """What a list holds: below the repeated group, or that group itself, as old writers had it."""
        (repeated,) = self.children
        is_wrapper = len(repeated.children) == 1 and repeated.name not in ("array", f"{self.name}_tuple")
        return repeated.children[0] if is_wrapper else repeated


@dataclass(frozen=True)
class SecondTableReader:
    """Reads data files of one table. Raises SecondReaderRefused, or NotJudged for what DuckDB does not know."""

    connection: "DuckDBPyConnection"
    metadata: "TableMetadata"

    def batches(self, file: LocalFile, types: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
        """The rows that are left in a file, in their order, in the table's current columns and these types."""
        import duckdb

        schema = self.metadata.schema()
        try:
            stream = self.connection.sql(self._query(file, schema)).to_arrow_reader(BATCH_ROWS)
            for batch in stream:
                arrays = [in_type(column, kind.type) for column, kind in zip(batch.columns, types, strict=True)]
                yield pyarrow.RecordBatch.from_arrays(arrays, names=types.names)
        except (duckdb.NotImplementedException, duckdb.BinderException, pyarrow.ArrowNotImplementedError) as unknown:
            raise NotJudged(f"{file.location}: DuckDB does not know its columns: {first_line(unknown)}") from unknown
        except (duckdb.Error, pyarrow.ArrowException, OSError, ValueError) as refused:
            require_no_exhaustion(refused)
            raise SecondReaderRefused(f"{file.location}: DuckDB does not read it: {first_line(refused)}") from refused

    def _query(self, file: LocalFile, schema: "Schema") -> str:
        columns = self._columns(file.path, schema.fields, file.constants, is_data=True)
        source = f"read_parquet({quoted_text(file.path)}, {ROW_NUMBER} = true)"
        if INT96_VIEW in " ".join(columns.values()):
            source = f"{source} AS data POSITIONAL JOIN {INT96_VIEW}"
        chosen = ", ".join(f"{columns[each.field_id]} AS f{each.field_id}" for each in schema.fields)
        rows = f"SELECT {chosen}, {ROW_NUMBER} AS place FROM {source}"
        wanted = ", ".join(f"r.f{each.field_id}" for each in schema.fields)
        conditions = [
            f"r.place NOT IN (SELECT pos FROM read_parquet({quoted_text(path)}) "
            f"WHERE file_path = {quoted_text(file.location)})"
            for path in file.positions
        ]
        conditions += [self._not_equal_to(path, ids, schema) for path, ids in file.equalities]
        if not conditions:
            return f"SELECT {wanted} FROM ({rows}) AS r"
        return f"SELECT {wanted} FROM ({rows}) AS r WHERE {' AND '.join(conditions)} ORDER BY r.place"

    def _not_equal_to(self, path: Path, ids: Sequence[int], schema: "Schema") -> str:
        fields = [each for each in schema.fields if each.field_id in ids]
        if len(fields) != len(ids):
            raise NotJudged(f"{path.name} deletes by a column that the table does not have any more")
        keys = self._columns(path, fields, {}, is_data=False)
        chosen = ", ".join(f"{sql} AS k{number}" for number, sql in keys.items())
        same = " AND ".join(f"d.k{number} IS NOT DISTINCT FROM r.f{number}" for number in keys)
        return f"NOT EXISTS (SELECT 1 FROM (SELECT {chosen} FROM read_parquet({quoted_text(path)})) AS d WHERE {same})"

    # ------------------------------------------------------------ columns by field id

    def _columns(
        self, path: Path, fields: Sequence[NestedField], constants: Mapping[int, Any], *, is_data: bool
    ) -> dict[int, str]:
        """Each field as SQL over the columns of a file."""
        nodes = self._nodes(path)
        mapping = self.metadata.name_mapping()
        ids = _ids(nodes, None if mapping is None else mapping.root)
        int96 = {node.name for node in nodes if node.physical == "INT96"}
        if int96 and is_data:
            self.connection.register(INT96_VIEW, int96_moments(path.read_bytes()))
        found: dict[int, str] = {}
        for each in fields:
            place = ids.get(each.field_id)
            if place is None:
                found[each.field_id] = _absent(each, constants)
                continue
            node, names = place
            if node.name in int96:
                found[each.field_id] = f"{INT96_VIEW}.{quoted_name(node.name)}::{_sql_type(each.field_type)}"
            else:
                found[each.field_id] = _expression(node, quoted_name(node.name), each.field_type, names, 0)
        return found

    def _nodes(self, path: Path) -> tuple[_FieldNode, ...]:
        described = self.connection.execute(
            "SELECT name, type, duckdb_type, repetition_type, concat(converted_type, ' ', logical_type), field_id, "
            "num_children FROM parquet_schema(?)",
            [str(path)],
        ).fetchall()
        rows = iter(described)

        def taken() -> _FieldNode:
            *facts, count = next(rows)
            name, physical, kind, repetition, annotation, number = facts
            children = tuple(taken() for _ in range(count or 0))
            return _FieldNode(name, physical, kind, repetition or "", annotation or "", number, children)

        return taken().children


def _ids(nodes: Sequence[_FieldNode], names: "Sequence[MappedField] | None") -> dict[int, tuple[_FieldNode, Any]]:
    """Nodes by field id: their own, or where none of them has one, that of the table's name mapping."""
    if any(node.field_id is not None for node in nodes):
        return {node.field_id: (node, None) for node in nodes if node.field_id is not None}
    found = {}
    for mapped in names or ():
        for node in nodes:
            if node.name in mapped.names and mapped.field_id is not None:
                found[mapped.field_id] = (node, mapped.fields)
    return found


def _of_name(names: "Sequence[MappedField] | None", name: str) -> Any:
    return next((each.fields for each in names or () if name in each.names), None)


def _absent(each: NestedField, constants: Mapping[int, Any]) -> str:
    value = constants.get(each.field_id)
    kind = _sql_type(each.field_type)
    if value is None:
        return f"NULL::{kind}"
    if isinstance(value, int) and isinstance(each.field_type, DateType):
        return f"(DATE '1970-01-01' + {value})"
    if isinstance(value, int) and isinstance(each.field_type, TimestampType | TimestamptzType):
        return f"make_timestamp({value})::{kind}"
    if isinstance(value, bytes):
        return f"unhex({quoted_text(value.hex())})"
    return f"{quoted_text(value)}::{kind}"


def _expression(node: _FieldNode, sql: str, wanted: IcebergType, names: Any, depth: int) -> str:
    """A column, at any depth, as SQL in the table's type."""
    if isinstance(wanted, StructType):
        inner = _ids(node.children, names)
        parts = []
        for each in wanted.fields:
            found = inner.get(each.field_id)
            if found is None:
                value = _absent(each, {})
            else:
                child, mapped = found
                value = _expression(child, f"{sql}.{quoted_name(child.name)}", each.field_type, mapped, depth)
            parts.append(f"{quoted_name(each.name)} := {value}")
        return f"CASE WHEN {sql} IS NULL THEN NULL ELSE struct_pack({', '.join(parts)}) END"
    variable = f"v{depth}"
    if isinstance(wanted, ListType):
        item = _expression(node.element, variable, wanted.element_type, _of_name(names, "element"), depth + 1)
        return f"list_transform({sql}, lambda {variable}: {item})"
    if isinstance(wanted, MapType):
        of_keys, of_items = node.children[0].children
        keys = _expression(of_keys, f"{variable}.key", wanted.key_type, _of_name(names, "key"), depth + 1)
        items = _expression(of_items, f"{variable}.value", wanted.value_type, _of_name(names, "value"), depth + 1)
        entries = f"list_transform(map_entries({sql}), lambda {variable}: struct_pack(k := {keys}, v := {items}))"
        return f"CASE WHEN {sql} IS NULL THEN NULL ELSE map_from_entries({entries}) END"
    return _primitive(node, sql, wanted)


def _primitive(node: _FieldNode, sql: str, wanted: IcebergType) -> str:
    kind = node.kind or ""
    if isinstance(wanted, UUIDType):
        return f"unhex(replace({sql}::VARCHAR, '-', ''))" if kind == "UUID" else sql
    if isinstance(wanted, StringType) and kind == "BLOB":
        return f"decode({sql})"
    if isinstance(wanted, BinaryType) and kind == "VARCHAR":
        return f"encode({sql})"
    return f"{sql}::{_sql_type(wanted)}"


def _sql_type(kind: IcebergType) -> str:
    if isinstance(kind, DecimalType):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if isinstance(kind, ListType):
        return f"{_sql_type(kind.element_type)}[]"
    if isinstance(kind, MapType):
        return f"MAP({_sql_type(kind.key_type)}, {_sql_type(kind.value_type)})"
    if isinstance(kind, StructType):
        return f"STRUCT({', '.join(f'{quoted_name(each.name)} {_sql_type(each.field_type)}' for each in kind.fields)})"
    if isinstance(kind, UUIDType):
        return "BLOB"
    try:
        return _TYPES[type(kind)]
    except KeyError:
        raise NotJudged(f"DuckDB has no type for {kind}") from None
