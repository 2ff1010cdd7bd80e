"""Many small files become few, with the same rows: read by Spark, compared with plain Python."""

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pyarrow
import pytest
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record

from compaction_platform.lake.parquet.writer import WriterOptions
from compaction_platform.maintain.config import MaintenanceRequest, MaintenanceRequestInvalid, WriteRules
from compaction_platform.maintain.plan.file_groups import BEYOND_LIMIT
from compaction_platform.maintain.plan.partition_filter import FilterInvalid
from compaction_platform.maintain.table_state import TableMissing, TableUnfit
from compaction_platform.settings import Settings
from compaction_platform_tests.maintain.scene import Scene, ordered, rows_of

pytestmark = pytest.mark.integration

NewScene = Callable[..., Scene]


def test_small_files_of_each_partition_become_one(scene: Scene) -> None:
    scene.small_files(5, "de")
    scene.small_files(4, "fr", first=1000)
    report = scene.maintain()
    scene.assert_nothing_lost()
    figures = report.figures()
    assert {name: figures[name] for name in ("files_before", "files_after", "files_compacted", "files_removed")} == {
        "files_before": 9,
        "files_after": 2,
        "files_compacted": 9,
        "files_removed": 9,
    }
    assert scene.files() == 2
    assert figures["bytes_saved"] == figures["bytes_before"] - figures["bytes_after"] > 0
    assert figures["small_files_remaining"] == 2
    assert report.after.score > report.before.score


def test_the_commit_is_a_replace_that_streaming_readers_pass_over(scene: Scene, spark: Any) -> None:
    scene.small_files(5)
    before = scene.table.metadata.current_snapshot_id
    scene.maintain()
    snapshot = scene.table.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    assert snapshot.summary.operation == Operation.REPLACE
    summary = snapshot.summary.additional_properties
    assert (summary["total-data-files"], summary["total-records"]) == ("1", "50")
    appended = spark.read.format("iceberg").option("start-snapshot-id", str(before)).load(scene.full_name)
    assert appended.count() == 0, "nothing was appended since"
    assert ordered(scene.read(at=before)) == ordered(scene.expected), "time travel to before the compaction"


def test_running_again_does_nothing(scene: Scene) -> None:
    scene.small_files(5)
    scene.maintain()
    snapshots = scene.snapshots
    report = scene.maintain()
    assert scene.snapshots == snapshots
    assert report.committed == ()
    assert report.skipped is not None and "fewer than 3" in report.skipped


def test_too_few_small_files_are_left_alone_until_forced(scene: Scene) -> None:
    scene.small_files(2)
    report = scene.maintain()
    assert report.skipped is not None and "min_files_to_compact" in report.skipped
    assert scene.files() == 2
    scene.maintain(MaintenanceRequest(force=True))
    assert scene.files() == 1
    scene.assert_nothing_lost()
    report = scene.maintain(MaintenanceRequest(force=True))
    assert report.committed == () and report.skipped is not None


def test_max_files_is_kept(scene: Scene) -> None:
    scene.small_files(9)
    report = scene.maintain(MaintenanceRequest(max_files=5))
    assert report.figures()["files_compacted"] == 5
    assert report.plan.left_alone[BEYOND_LIMIT].files == 4
    assert scene.files() == 5
    scene.assert_nothing_lost()


def test_a_dry_run_shows_the_plan_that_a_run_carries_out(scene: Scene) -> None:
    scene.small_files(4)
    before = scene.table.metadata
    prospect = scene.run_of().prospect(MaintenanceRequest(dry_run=True))
    assert scene.table.metadata == before
    report = scene.maintain()
    assert report.plan == prospect.plan
    assert [each.group for each in report.committed] == list(prospect.plan.groups)


def test_the_work_spreads_over_spark(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.small_files(4, "de")
    scene.small_files(4, "fr", first=500)
    monkeypatch.setattr("compaction_platform.maintain.job.SMALL_WORK_BYTES", 0)
    monkeypatch.setattr("compaction_platform.lake.spark.parallel_map.SMALL_WORK_BYTES", 0)
    scene.maintain(on_spark=True)
    assert scene.files() == 2
    scene.assert_nothing_lost()


def test_outputs_are_cut_at_the_target_size_and_a_rest_is_not_left_small(new_scene: NewScene) -> None:
    scene = new_scene(columns="id bigint, note string", partitioned_by=None)
    schema = pyarrow.schema({"id": pyarrow.int64(), "note": pyarrow.string()})
    noise = [{"id": number, "note": f"{(number * 2654435761) % 2**61:x}" * 12} for number in range(24_000)]
    scene.write(*(noise[start : start + 3_000] for start in range(0, 24_000, 3_000)), schema=schema)
    size = scene.run_of().health().bytes
    target = size // 3
    scene.maintain(target_bytes=target, small_bytes=target // 2)
    sizes = sorted(entry.data_file.file_size_in_bytes for entry in scene.look().files.data.values())
    assert 2 <= len(sizes) <= 4
    assert sizes[0] >= target // 2
    scene.assert_nothing_lost()


# ---------------------------------------------------------------- partition filter


def test_only_partitions_of_the_filter_are_touched(scene: Scene) -> None:
    scene.small_files(3, "de")
    scene.small_files(3, "fr", first=100)
    scene.maintain(MaintenanceRequest(partition_filter="country = 'fr'"))
    assert sorted(partition.files for partition in scene.run_of().health().partitions) == [1, 3]
    scene.assert_nothing_lost()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nation = 'de'", "nation"),
        ("amount > 3", "not partitioned by amount"),
        ("country = 'de'; DROP TABLE t", "not a filter"),
        ("country like (select 1)", "not a filter"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_refused(scene: Scene, text: str, problem: str) -> None:
    scene.small_files(3)
    with pytest.raises(FilterInvalid, match=problem):
        scene.maintain(MaintenanceRequest(partition_filter=text))
    assert scene.files() == 3


def test_a_filter_on_the_source_of_a_transform_finds_its_partitions(new_scene: NewScene) -> None:
    scene = new_scene(columns="id bigint, at timestamp", partitioned_by="days(at)")
    schema = pyarrow.schema({"id": pyarrow.int64(), "at": pyarrow.timestamp("us", "UTC")})
    moment = pyarrow.scalar(1_767_225_600_000_000, schema.field("at").type).as_py()  # 2026-01-01
    for day in (0, 1):
        for number in range(3):
            scene.write([{"id": day * 10 + number, "at": moment + timedelta(days=day)}], schema=schema)
    scene.maintain(MaintenanceRequest(partition_filter="at >= '2026-01-02T00:00:00+00:00'"))
    assert scene.files() == 4
    assert len(scene.read()) == 6


# ---------------------------------------------------------------- odd partitions and columns


def test_a_null_partition_and_the_word_null_are_two(scene: Scene) -> None:
    for country in (None, "null", "None", "a/b=c %2F ü"):
        scene.write(*([{"id": number, "country": country, "amount": 1.0}] for number in range(3)))
    scene.maintain()
    assert scene.files() == 4
    scene.assert_nothing_lost()
    assert len(scene.sql(f"SELECT * FROM {scene.full_name} WHERE country IS NULL")) == 3
    assert len(scene.sql(f"SELECT * FROM {scene.full_name} WHERE country = 'null'")) == 3


def test_nested_columns_and_all_types_stay_as_they_are(new_scene: NewScene, spark: Any) -> None:
    scene = new_scene(
        columns="id bigint, s struct<a: int, b: array<string>>, m map<string, double>, d decimal(30, 4), day date, "
        "at timestamp, local timestamp_ntz, ok boolean, raw binary, f float",
        partitioned_by=None,
    )
    for number in range(4):
        scene.sql(
            f"INSERT INTO {scene.full_name} SELECT {number}, IF({number} = 1, NULL, named_struct('a', {number}, 'b', "
            f"array('x', NULL))), map('k', {number}.5D), {number}.1234, DATE '2026-01-0{number + 1}', "
            f"TIMESTAMP '2026-01-01 00:00:0{number}', TIMESTAMP_NTZ '2026-01-01 00:00:00', {number} % 2 = 0, "
            f"X'0{number}FF', CAST('NaN' AS float)"
        )
    before = [str(row) for row in spark.table(scene.full_name).orderBy("id").collect()]
    scene.maintain()
    assert scene.files() == 1
    assert [str(row) for row in spark.table(scene.full_name).orderBy("id").collect()] == before
    assert "b" in str(scene.sql(f"SELECT s.b FROM {scene.full_name} WHERE id = 0"))


def test_files_of_every_schema_the_table_had_are_read_by_its_rules(new_scene: NewScene, spark: Any) -> None:
    scene = new_scene(columns="id int, country string, old string, f float", partitioned_by=None)
    name = scene.full_name
    for number in range(3):
        scene.sql(f"INSERT INTO {name} VALUES ({number}, 'de', 'gone', 0.5)")
    scene.sql(f"ALTER TABLE {name} DROP COLUMN old")
    scene.sql(f"ALTER TABLE {name} RENAME COLUMN country TO nation")
    scene.sql(f"ALTER TABLE {name} ALTER COLUMN id TYPE bigint")
    scene.sql(f"ALTER TABLE {name} ADD COLUMN country string")
    scene.sql(f"ALTER TABLE {name} ADD COLUMN old string")
    for number in range(3, 6):
        scene.sql(f"INSERT INTO {name} VALUES ({number}, 'fr', 1.5, 'new', 'newer')")
    before = sorted(map(str, scene.read()))
    report = scene.maintain()
    assert scene.files() == 1
    assert sorted(map(str, scene.read())) == before
    assert report.committed[0].result.rows == 6


def test_files_partitioned_by_a_column_that_is_gone_are_left_alone(scene: Scene) -> None:
    scene.small_files(3, "de")
    scene.sql(f"ALTER TABLE {scene.full_name} DROP PARTITION FIELD country")
    scene.sql(f"ALTER TABLE {scene.full_name} DROP COLUMN country")
    scene.expected = [{"id": row["id"], "amount": row["amount"]} for row in scene.expected]
    schema = pyarrow.schema({"id": pyarrow.int64(), "amount": pyarrow.float64()})
    scene.write(*([{"id": 100 + number, "amount": 1.0}] for number in range(3)), schema=schema)
    report = scene.maintain(manifests_from=2)
    scene.assert_nothing_lost()
    assert scene.files() == 4
    assert any("column that the table has no more" in reason for reason in report.plan.left_alone)


def test_values_too_long_for_statistics_are_still_found(new_scene: NewScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet gives no bounds for them; the table's metadata must then give none either."""
    scene = new_scene(columns="id bigint, note string", partitioned_by=None)
    schema = pyarrow.schema({"id": pyarrow.int64(), "note": pyarrow.string()})
    for number, note in enumerate(("a", "b", "z" * 5000, "c")):
        scene.write([{"id": number, "note": note}], schema=schema)
    monkeypatch.setattr(WriteRules, "encoding", lambda self: WriterOptions(row_group_bytes=1))
    scene.maintain()
    assert scene.files() == 1
    assert [row.id for row in scene.sql(f"SELECT id FROM {scene.full_name} WHERE note > 'd'")] == [2]


def test_files_of_an_earlier_partition_spec_stay_in_it(scene: Scene) -> None:
    scene.small_files(3, "de")
    scene.sql(f"ALTER TABLE {scene.full_name} ADD PARTITION FIELD bucket(2, id)")
    scene.small_files(3, "de", first=100)
    scene.sql(f"ALTER TABLE {scene.full_name} DROP PARTITION FIELD country")
    scene.small_files(3, "fr", first=200)
    report = scene.maintain()
    scene.assert_nothing_lost()
    specs = {entry.data_file.spec_id for entry in scene.look().files.data.values()}
    assert len(specs) == 3
    assert report.failed == {}
    assert scene.maintain().committed == ()


def test_a_table_of_format_1(new_scene: NewScene) -> None:
    scene = new_scene(format__version="1")
    scene.small_files(4)
    scene.maintain()
    assert scene.table.metadata.format_version == 1
    assert scene.files() == 1
    scene.assert_nothing_lost()


# ---------------------------------------------------------------- order


@pytest.mark.parametrize("how", [{"sort_by": ("amount", "id")}, {"z_order_by": ("amount", "id")}])
def test_rows_are_put_in_order_and_none_is_lost(new_scene: NewScene, how: dict[str, Any]) -> None:
    scene = new_scene(partitioned_by=None)
    scene.write(*(rows_of([(n * 7919) % 1000 for n in range(start, start + 100)]) for start in range(0, 400, 100)))
    scene.maintain(**how)
    assert scene.files() == 1
    scene.assert_nothing_lost()
    found = [row["id"] for row in scene.read()]
    assert found == sorted(found), "amount and id grow together, so the curve is a line"


def test_sorted_rows_are_cut_at_the_target_size_too(new_scene: NewScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WriteRules, "encoding", lambda self: WriterOptions(row_group_bytes=200_000))
    scene = new_scene(columns="id bigint, note string", partitioned_by=None)
    schema = pyarrow.schema({"id": pyarrow.int64(), "note": pyarrow.string()})
    noise = [{"id": (n * 7919) % 24_000, "note": f"{(n * 2654435761) % 2**61:x}" * 12} for n in range(24_000)]
    scene.write(*(noise[start : start + 3_000] for start in range(0, 24_000, 3_000)), schema=schema)
    target = scene.run_of().health().bytes // 4
    scene.maintain(target_bytes=target, small_bytes=target, sort_by=("id",))
    assert 2 <= scene.files() <= 4
    scene.assert_nothing_lost()
    bounds = [(e.data_file.lower_bounds[1], e.data_file.upper_bounds[1]) for e in scene.look().files.data.values()]
    ranges = sorted(tuple(int.from_bytes(each, "little") for each in pair) for pair in bounds)
    assert all(one[1] < two[0] for one, two in pairwise(ranges)), "each file has a range of its own"


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "request_",
    [{"target_file_size_mb": 0}, {"snapshot_retention_hours": 0}, {"snapshot_retention_hours": -1}, {"max_files": 1}],
)
def test_absurd_requests_are_refused_in_words(request_: dict[str, int]) -> None:
    with pytest.raises(MaintenanceRequestInvalid, match=next(iter(request_))):
        MaintenanceRequest(**request_)  # type: ignore[arg-type]


def test_retention_0_is_possible_with_force() -> None:
    assert MaintenanceRequest(snapshot_retention_hours=0, force=True).force


def test_a_dry_run_is_never_a_run(scene: Scene) -> None:
    scene.small_files(3)
    with pytest.raises(MaintenanceRequestInvalid, match="dry_run"):
        scene.maintain(MaintenanceRequest(dry_run=True))
    assert scene.files() == 3


def test_a_table_that_does_not_exist(scene: Scene, settings: Settings) -> None:
    scene.sql(f"DROP TABLE {scene.full_name}")
    with pytest.raises(TableMissing, match="setup"):
        scene.maintain()


def test_an_empty_table(scene: Scene) -> None:
    report = scene.maintain()
    assert report.skipped == "the table has no files"
    assert report.after.score == 100
    assert report.after.reason == "the table is empty"


def test_a_table_whose_files_belong_to_somebody_else_is_refused(new_scene: NewScene) -> None:
    scene = new_scene(gc_enabled="false")
    scene.small_files(4)
    with pytest.raises(TableUnfit, match="gc.enabled"):
        scene.maintain()
    assert scene.files() == 4


def test_format_3_is_refused_with_a_way_out(new_scene: NewScene) -> None:
    scene = new_scene(format__version="3")
    with pytest.raises(TableUnfit, match="rewrite_data_files"):
        scene.maintain()


def test_a_damaged_file_is_left_and_the_other_partitions_go_on(scene: Scene) -> None:
    from compaction_platform.lake.iceberg.data_file_reader import DataFileReader, key_of

    scene.small_files(3, "de")
    scene.small_files(3, "fr", first=100)
    path = next(path for path in scene.look().files.data if "country=fr" in path)
    store = DataFileReader(scene.table.metadata, scene.settings).store(path)
    content = bytearray(bytes(store.read(key_of(path))))
    content[20] ^= 0xFF
    store.write(key_of(path), bytes(content))
    report = scene.maintain(min_files=2)
    assert report.failed.keys() == {path}
    assert "It is left as it is" in report.failed[path]
    assert scene.files() == 3, "one of each partition, and the damaged one beside them"


def test_a_spec_of_dropped_fields_is_no_partitioning() -> None:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import IdentityTransform, VoidTransform

    from compaction_platform.maintain.plan.delete_index import is_unpartitioned

    void: Any = PartitionField(1, 1000, VoidTransform(), "gone")
    alive: Any = PartitionField(2, 1001, IdentityTransform(), "there")
    assert is_unpartitioned(PartitionSpec(void)) and is_unpartitioned(PartitionSpec())
    assert not is_unpartitioned(PartitionSpec(void, alive))


def test_a_record_of_partitions_is_told_apart_by_value() -> None:
    from compaction_platform.maintain.plan.delete_index import place_of

    class File:
        spec_id = 0

        def __init__(self, *values: Any) -> None:
            self.partition = Record(*values)

    assert place_of(File(None)) != place_of(File("None"))  # type: ignore[arg-type]
    assert place_of(File(1)) != place_of(File("1"))  # type: ignore[arg-type]
