"""Rows are projected by field id at every depth, and nulls stay nulls: held against DuckDB, which has its own way."""

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.types import DateType, IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType

from compaction_platform.lake.iceberg.projection import CannotProject, Projection, opened, row_group_tables
from compaction_platform.lake.iceberg.second_table_reader import LocalFile, SecondTableReader
from compaction_platform.lake.parquet.second_reader import connected
from compaction_platform.lake.verification.fingerprint import OrderedFingerprint
from compaction_platform_tests.lake.nested_tables import NestedTables, metadata_of

pytestmark = pytest.mark.unit


def projected(path: Path, projection: Projection) -> pyarrow.Table:
    return pyarrow.concat_tables(row_group_tables(opened(path), projection))


def in_sql(path: Path, metadata: Any, types: pyarrow.Schema, **named: Any) -> list[pyarrow.RecordBatch]:
    with connected(path.parent) as connection:
        return list(
            SecondTableReader(connection, metadata).batches(LocalFile(path, "s3://t/data.parquet", **named), types)
        )


def fingerprint(batches: Any, types: pyarrow.Schema) -> Any:
    digest = OrderedFingerprint(types)
    for batch in batches:
        digest.update(batch)
    return digest.finish()


@pytest.mark.parametrize("seed", range(40))
def test_nested_columns_are_projected_as_duckdb_projects_them(tmp_path: Path, seed: int) -> None:
    """Three levels, nulls at each; columns renamed, swapped, dropped, added, moved and widened since."""
    made = NestedTables(seed)
    before = made.schema()
    rows = made.rows(schema_to_pyarrow(before, include_field_ids=True), 120)
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(rows, path, row_group_size=50)
    for after in (before, made.evolved(before)):
        types = schema_to_pyarrow(after, include_field_ids=True)
        found = projected(path, Projection(after, types))
        assert found.num_rows == 120
        expected = in_sql(path, metadata_of(after), types)
        assert fingerprint(found.to_batches(), types).differences(fingerprint(expected, types)) == []
        if after is before:
            assert found.to_pylist() == rows.to_pylist()


def field_with_id(name: str, kind: pyarrow.DataType, number: int) -> pyarrow.Field:
    return pyarrow.field(name, kind, metadata={"PARQUET:field_id": str(number)})


NULLS = {
    "list of structs": (ListType(2, StructType(NestedField(3, "a", IntegerType()))), [None, [], [None], [{"a": None}]]),
    "map of structs": (
        MapType(2, StringType(), 3, StructType(NestedField(4, "a", IntegerType()))),
        [None, [], [("k", None)], [("k", {"a": None})]],
    ),
    "list in a struct": (
        StructType(NestedField(2, "l", ListType(3, IntegerType(), element_required=False))),
        [None, {"l": None}, {"l": []}, {"l": [None]}],
    ),
    "list of structs of lists": (
        ListType(2, StructType(NestedField(3, "l", ListType(4, IntegerType(), element_required=False)))),
        [None, [], [None], [{"l": None}], [{"l": []}]],
    ),
}


@pytest.mark.parametrize("shape", NULLS)
def test_a_null_is_neither_empty_nor_full_of_nulls(tmp_path: Path, shape: str) -> None:
    kind, values = NULLS[shape]
    if isinstance(kind, ListType):
        kind = ListType(kind.element_id, kind.element_type, element_required=False)
    if isinstance(kind, MapType):
        kind = MapType(kind.key_id, kind.key_type, kind.value_id, kind.value_type, value_required=False)
    schema = Schema(NestedField(1, "v", kind))
    types = schema_to_pyarrow(schema, include_field_ids=True)
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(
        pyarrow.Table.from_arrays([pyarrow.array(values, types.field(0).type)], schema=types), path
    )
    assert projected(path, Projection(schema, types))["v"].to_pylist() == values
    renamed = Schema(NestedField(1, "w", kind), NestedField(9, "late", StringType()))
    found = projected(path, Projection(renamed, schema_to_pyarrow(renamed, include_field_ids=True)))
    assert found.to_pylist() == [{"w": value, "late": None} for value in values]


def test_files_without_field_ids_are_read_by_the_name_mapping_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"old": pyarrow.array([1, 2], pyarrow.int32()), "more": ["x", "y"]}), path
    )
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "more", StringType()))
    types = schema_to_pyarrow(schema, include_field_ids=True)
    names = [MappedField.model_validate({"field-id": 1, "names": ["id", "old"]})]
    assert projected(path, Projection(schema, types, names=names)).to_pylist() == [
        {"id": 1, "more": None},
        {"id": 2, "more": None},
    ]
    mapped = metadata_of(schema).model_copy(
        update={"properties": {"schema.name-mapping.default": NameMapping(names).model_dump_json()}}
    )
    assert pyarrow.Table.from_batches(in_sql(path, mapped, types)).to_pylist() == [
        {"id": 1, "more": None},
        {"id": 2, "more": None},
    ]
    with pytest.raises(CannotProject, match="no field ids"):
        projected(path, Projection(schema, types))


def test_what_a_partition_tells_stands_in_for_a_column_that_a_file_lacks(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    rows = pyarrow.table([pyarrow.array([1, 2])], schema=pyarrow.schema([field_with_id("id", pyarrow.int64(), 1)]))
    pyarrow.parquet.write_table(rows, path)
    schema = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "day", DateType()), NestedField(3, "c", StringType())
    )
    types = schema_to_pyarrow(schema, include_field_ids=True)
    constants = {2: 20_000, 3: "d'e"}
    found = projected(path, Projection(schema, types, constants))
    assert fingerprint(found.to_batches(), types) == fingerprint(
        in_sql(path, metadata_of(schema), types, constants=constants), types
    )
    assert [(str(row["day"]), row["c"]) for row in found.to_pylist()] == [("2024-10-04", "d'e")] * 2


@pytest.mark.parametrize("required", [True, False])
def test_a_required_column_that_is_missing_is_refused(tmp_path: Path, required: bool) -> None:
    path = tmp_path / "data.parquet"
    rows = pyarrow.table([pyarrow.array([1])], schema=pyarrow.schema([field_with_id("id", pyarrow.int64(), 1)]))
    pyarrow.parquet.write_table(rows, path)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "must", StringType(), required=required))
    projection = Projection(schema, schema_to_pyarrow(schema, include_field_ids=True))
    if required:
        with pytest.raises(CannotProject, match="must"):
            projected(path, projection)
    else:
        assert projected(path, projection)["must"].null_count == 1


def test_deletes_are_applied_in_sql(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "c", StringType()))
    types = schema_to_pyarrow(schema, include_field_ids=True)
    rows = pyarrow.table([pyarrow.array(range(10)), pyarrow.array(["a", None] * 5)], names=["id", "c"]).cast(types)
    path, positions, equality = (tmp_path / f"{name}.parquet" for name in ("data", "positions", "equality"))
    pyarrow.parquet.write_table(rows, path)
    there = {"file_path": ["s3://t/data.parquet"] * 2 + ["s3://t/other.parquet"], "pos": [0, 7, 3]}
    pyarrow.parquet.write_table(pyarrow.table(there), positions)
    key = pyarrow.table([pyarrow.array([None], pyarrow.string())], schema=pyarrow.schema([types.field("c")]))
    pyarrow.parquet.write_table(key, equality)
    found = in_sql(path, metadata_of(schema), types, positions=(positions,), equalities=((equality, (2,)),))
    assert pyarrow.Table.from_batches(found)["id"].to_pylist() == [2, 4, 6, 8], "null equals null"
