"""Nulls inside nested columns and INT96 timestamps stay what they are, to Spark, to Arrow and to the service."""

import secrets
from collections.abc import Callable
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record

from compaction_platform.lake.iceberg import projection
from compaction_platform.lake.iceberg.data_file_reader import DataFileReader, key_of
from compaction_platform.lake.iceberg.replace_files import AddedFile, FileChange, commit_change
from compaction_platform.lake.iceberg.snapshot_files import Manifests
from compaction_platform.lake.iceberg.table_scan import TableRows
from compaction_platform.maintain.config import MaintenanceRequest
from compaction_platform.maintain.operations import rewrite_data_files
from compaction_platform.maintain.operations.verify_rows import rows_differ
from compaction_platform.serve.http.models import Query
from compaction_platform.serve.tables.queries import Queries
from compaction_platform_tests.lake.nested_tables import NestedTables
from compaction_platform_tests.maintain.scene import Scene

pytestmark = pytest.mark.integration

NewScene = Callable[..., Scene]

SHAPES = {
    "list<struct>": ("array<struct<a:int>>", ["null", "array()", "array(null)", "array(named_struct('a', null))"]),
    "list<int>": ("array<int>", ["null", "array()", "array(1, null)"]),
    "map<string, struct>": ("map<string,struct<a:int>>", ["null", "map()", "map('k', null)"]),
    "struct": ("struct<a:int,b:string>", ["null", "named_struct('a', null, 'b', null)"]),
    "struct<list>": ("struct<l:array<int>>", ["null", "named_struct('l', null)", "named_struct('l', array())"]),
    "list<list>": ("array<array<int>>", ["null", "array()", "array(null, array(), array(1))"]),
    "list<struct<list>>": (
        "array<struct<l:array<int>>>",
        ["null", "array(null)", "array(named_struct('l', null))", "array(named_struct('l', array()))"],
    ),
    "list<map>": ("array<map<string,int>>", ["null", "array(null)", "array(map())"]),
    "struct<struct>": ("struct<i:struct<a:int>>", ["null", "named_struct('i', null)"]),
    "map<string, list<struct>>": ("map<string,array<struct<a:int>>>", ["null", "map('k', null)", "map('k', array())"]),
}


def nested_scene(new_scene: NewScene) -> Scene:
    """Three files with each shape of null in a column of its own, and one row deleted by position."""
    columns = ", ".join(f"c{number} {kind}" for number, (kind, _) in enumerate(SHAPES.values()))
    scene = new_scene(columns=f"id int, {columns}", partitioned_by=None)
    for file in range(3):
        rows = []
        for place in range(4):
            values = [f"CAST({some[place % len(some)]} AS {kind})" for kind, some in SHAPES.values()]
            rows.append(f"SELECT {file * 10 + place} AS id, {', '.join(values)}")
        scene.sql(f"INSERT INTO {scene.full_name} SELECT /*+ COALESCE(1) */ * FROM ({' UNION ALL '.join(rows)})")
    scene.sql(f"DELETE FROM {scene.full_name} WHERE id = 11")
    assert len(scene.look().files.deletes) == 1
    return scene


def by_spark(scene: Scene) -> list[str]:
    return sorted(str(row) for row in scene.sql(f"SELECT * FROM {scene.full_name}"))


def by_arrow(scene: Scene) -> list[dict[str, Any]]:
    table = scene.table
    rows = TableRows(table, table.metadata.current_snapshot_id, AlwaysTrue())
    names = [field.name for field in table.schema().fields]
    found = [row for part in rows.each(lambda file: file.read(names)) for row in part.to_pylist()]
    return sorted(found, key=lambda row: row["id"])


def by_the_service(scene: Scene) -> list[dict[str, Any]]:
    query = Query(operation="QUERY", tenant_id="t", namespace="n", table="t", limit=1000)
    return sorted(Queries(1000, 60).page(scene.table, query).records, key=lambda row: row["id"])


def test_nulls_in_nested_columns_stay_nulls(new_scene: NewScene) -> None:
    scene = nested_scene(new_scene)
    before, arrow, served = by_spark(scene), by_arrow(scene), by_the_service(scene)
    assert [row["c0"] for row in served][:4] == [None, [], [None], [{"a": None}]]
    report = scene.maintain(MaintenanceRequest(force=True))
    assert report.failed == {}
    assert [each.result.engine for each in report.committed] == ["re-encode"]
    assert by_spark(scene) == before
    assert (by_arrow(scene), by_the_service(scene)) == (arrow, served)
    assert rows_differ(scene.table, scene.settings) == (11, {})


FAULTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "nulls become empty": (projection, "_nulls", lambda array: None),
    "no position is deleted": (
        rewrite_data_files,
        "is_left",
        lambda rows, first, positions: numpy.ones(rows.num_rows, dtype=bool),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_proof_finds_what_row_logic_does_wrong(
    new_scene: NewScene, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Whatever is read wrong is wrong on both sides of a comparison that reads with it twice."""
    scene = nested_scene(new_scene)
    scene.sql(f"ALTER TABLE {scene.full_name} ADD COLUMN c0.element.z int")
    before = by_spark(scene)
    monkeypatch.setattr(*FAULTS[fault])
    report = scene.maintain(MaintenanceRequest(force=True))
    assert report.committed == ()
    (problem,) = report.failed.values()
    assert "VerificationFailed" in problem and "a second reader finds" in problem
    assert by_spark(scene) == before


def test_the_check_alone_finds_nulls_that_became_empty(new_scene: NewScene) -> None:
    scene = nested_scene(new_scene)
    scene.maintain(MaintenanceRequest(force=True))
    (path,) = scene.look().files.data
    reader = DataFileReader(scene.table.metadata, scene.settings)
    rows = pyarrow.parquet.read_table(pyarrow.BufferReader(reader.fetch(path)))
    changed = pyarrow.array([[] if value is None else value for value in rows["c0"].to_pylist()], rows["c0"].type)
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(rows.set_column(1, rows.schema.field("c0"), changed), sink)
    reader.store(path).write(key_of(path), sink.getvalue())
    assert len(rows_differ(scene.table, scene.settings)[1]) == 1


# ---------------------------------------------------------------- generated schemas


def add_file(scene: Scene, rows: pyarrow.Table, **options: Any) -> None:
    """A Parquet file of somebody else's becomes part of the table, as `add_files` does it."""
    table = scene.table
    path = f"{table.location()}/data/{secrets.token_hex(6)}.parquet"
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(rows, sink, **options)
    content = sink.getvalue()
    DataFileReader(table.metadata, scene.settings).store(path).write(key_of(path), content)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=len(content),
    )
    file.spec_id = table.metadata.default_spec_id
    commit_change(table, FileChange(added=[AddedFile(file)], operation=Operation.APPEND), Manifests(table.io))


@pytest.mark.parametrize("seed", [3, 8, 21])
def test_generated_nested_tables_read_alike_before_and_after(new_scene: NewScene, seed: int) -> None:
    """Three levels with nulls at each, columns added, renamed and dropped between files: Spark is the judge."""
    made = NestedTables(seed)
    scene = new_scene(columns="id int", partitioned_by=None)
    with scene.table.update_schema() as update:
        update.union_by_name(Schema(*made.schema(3).fields))
    for number in range(3):
        types = schema_to_pyarrow(scene.schema, include_field_ids=True)
        rows = made.rows(types, 20)
        ids = pyarrow.array(range(number * 20, number * 20 + 20), pyarrow.int32())
        add_file(scene, rows.set_column(0, types.field(0), ids))
        with scene.table.update_schema(allow_incompatible_changes=True) as update:
            if number == 0:
                update.rename_column("c0", "c0_renamed")
                update.union_by_name(Schema(made._field("late", 2)))
            if number == 1:
                update.delete_column("c1")
    before = by_spark(scene)
    report = scene.maintain(MaintenanceRequest(force=True))
    assert (report.failed, scene.files()) == ({}, 1)
    assert by_spark(scene) == before
    assert rows_differ(scene.table, scene.settings) == (60, {})


# ---------------------------------------------------------------- INT96

MOMENTS = [0, 10**15, -62135596800 * 10**6, 253402300799 * 10**6, -(10**15)]  # years 1 to 9999


def int96_scene(new_scene: NewScene) -> Scene:
    scene = new_scene(columns="id int, ts timestamp", partitioned_by=None)
    for number in range(3):
        types = schema_to_pyarrow(scene.schema, include_field_ids=True)
        columns = [
            pyarrow.array(range(number * 5, number * 5 + 5), pyarrow.int32()),
            pyarrow.array(MOMENTS, pyarrow.timestamp("us", "UTC")),
        ]
        add_file(scene, pyarrow.Table.from_arrays(columns, schema=types), use_deprecated_int96_timestamps=True)
    return scene


def moments_by_spark(scene: Scene) -> list[int]:
    return [row[0] for row in scene.sql(f"SELECT unix_micros(ts) FROM {scene.full_name} ORDER BY id")]


def test_int96_timestamps_far_away_stay_what_they_are(new_scene: NewScene) -> None:
    scene = int96_scene(new_scene)
    assert moments_by_spark(scene) == MOMENTS * 3
    served = [row["ts"] for row in by_the_service(scene)]
    assert (served[2][:10], served[3][:19]) == ("0001-01-01", "9999-12-31T23:59:59")
    report = scene.maintain(MaintenanceRequest(force=True))
    assert report.failed == {}
    assert [each.result.engine for each in report.committed] == ["re-encode"]
    assert moments_by_spark(scene) == MOMENTS * 3
    assert [row["ts"] for row in by_the_service(scene)] == served
    assert rows_differ(scene.table, scene.settings) == (15, {})


def test_the_check_alone_finds_int96_timestamps_that_became_others(new_scene: NewScene) -> None:
    scene = int96_scene(new_scene)
    scene.maintain(MaintenanceRequest(force=True))
    (path,) = scene.look().files.data
    reader = DataFileReader(scene.table.metadata, scene.settings)
    rows = pyarrow.parquet.read_table(pyarrow.BufferReader(reader.fetch(path)))
    wrapped = [(moment * 1000 + (1 << 63)) % (1 << 64) - (1 << 63) for moment in MOMENTS]
    others = pyarrow.array([moment // 1000 for moment in wrapped] * 3).cast(rows["ts"].type)
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(rows.set_column(1, rows.schema.field("ts"), others), sink)
    reader.store(path).write(key_of(path), sink.getvalue())
    assert len(rows_differ(scene.table, scene.settings)[1]) == 1


def test_int96_timestamps_that_microseconds_cannot_hold_leave_their_file_alone(
    new_scene: NewScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = int96_scene(new_scene)
    types = schema_to_pyarrow(scene.schema, include_field_ids=False)
    fields = [field.with_metadata({"PARQUET:field_id": str(place + 1)}) for place, field in enumerate(types)]
    fields[1] = fields[1].with_type(pyarrow.timestamp("ns", "UTC"))
    rows = pyarrow.Table.from_arrays(
        [pyarrow.array([99], pyarrow.int32()), pyarrow.array([1], fields[1].type)], schema=pyarrow.schema(fields)
    )
    add_file(scene, rows, use_deprecated_int96_timestamps=True)
    report = scene.maintain(MaintenanceRequest(force=True))
    (problem,) = report.failed.values()
    assert "INT96 timestamps that microseconds cannot hold" in problem
    assert scene.files() == 2, "the others were compacted"
