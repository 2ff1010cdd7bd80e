"""Snapshots, orphans, manifests, properties, and the way back."""

import gzip
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from compaction_platform.lake.data_file_rows import DataFileRows, key_of
from compaction_platform.lake.errors import CompactionError
from compaction_platform.lake.objects import Objects
from compaction_platform.maintain.audit import missing_files, retention_gap, rows_differ
from compaction_platform.maintain.orphans import QUARANTINE, Orphans, SharedLocation
from compaction_platform.maintain.properties import drift
from compaction_platform.maintain.run import OrphanRules, Request
from compaction_platform.maintain.snapshots import Retention
from compaction_platform.maintain.undo import CannotUndo, NothingToUndo, undo_last
from compaction_platform_tests.maintain.scene import Scene, ordered, rows_of

pytestmark = pytest.mark.integration

NewScene = Callable[..., Scene]
WEEK_AND_MORE = timedelta(hours=169)
DAY_AND_MORE = timedelta(hours=25)
ORPHANS = OrphanRules(older_than=timedelta(hours=24), quarantined_for=timedelta(hours=24))


def objects(scene: Scene) -> Objects:
    return Objects.at(scene.table.location(), scene.settings)


def keys(scene: Scene) -> set[str]:
    return {each.key for each in objects(scene).list()}


# ---------------------------------------------------------------- expiry


def test_time_travel_works_inside_the_retention_and_ends_after_it(scene: Scene) -> None:
    scene.small_files(4)
    states = {snapshot: ordered(scene.read(at=snapshot)) for snapshot in scene.snapshots}
    report = scene.maintain(expire_snapshots=True)
    assert report.snapshots_expired == 0
    for snapshot, rows in states.items():
        assert ordered(scene.read(at=snapshot)) == rows
    assert missing_files(scene.table, scene.settings) == []
    data_before = {key for key in keys(scene) if key.startswith("data/")}
    report = scene.maintain(expire_snapshots=True, later=WEEK_AND_MORE)
    assert report.snapshots_expired == len(states)
    assert len({key for key in keys(scene) if key.startswith("data/")}) == 1 < len(data_before)
    scene.assert_nothing_lost()
    assert missing_files(scene.table, scene.settings) == []


def test_tags_and_branches_keep_their_snapshots(scene: Scene) -> None:
    scene.small_files(3)
    tagged = scene.snapshots[1]
    scene.sql(f"ALTER TABLE {scene.full_name} CREATE TAG `report` AS OF VERSION {tagged}")
    state = ordered(scene.read(at=tagged))
    report = scene.maintain(expire_snapshots=True, later=WEEK_AND_MORE)
    assert report.snapshots_expired == 2
    assert ordered(scene.read(at=tagged)) == state
    scene.assert_nothing_lost()


def test_a_reader_that_began_before_the_compaction_finishes_after_the_expiry(scene: Scene) -> None:
    """The snapshot it reads is older than the retention; but it was the current one until now."""
    scene.small_files(4)
    look = scene.look()
    reader = DataFileRows(scene.table.metadata, scene.settings)
    a_day = Retention(hours=24)
    scene.maintain(expire_snapshots=True, retention=a_day, later=timedelta(hours=23))
    groups = [reader.row_groups(each.data_file, reader.fetch(path)) for path, each in look.files.data.items()]
    read = [row for each in groups for rows in each for row in rows.to_pylist()]
    assert ordered(read) == ordered(scene.expected)


def test_a_request_may_expire_sooner_and_the_check_says_so(scene: Scene) -> None:
    scene.small_files(3)
    scene.maintain(Request(expire_snapshots=True, snapshot_retention_hours=0, force=True), later=timedelta(minutes=1))
    assert len(scene.snapshots) == 1
    scene.assert_nothing_lost()
    now = datetime.now(UTC)
    assert "somebody expires" in str(retention_gap(scene.table.metadata, Retention(168), now))
    assert retention_gap(scene.table.metadata, Retention(168), now + WEEK_AND_MORE) is None


# ---------------------------------------------------------------- orphans


def test_orphans_go_to_quarantine_and_are_deleted_after_the_grace(scene: Scene) -> None:
    scene.small_files(3)
    store = objects(scene)
    store.write("data/country=de/orphan.parquet", b"left by a writer that died")
    store.write("metadata/orphan.avro", b"left by a commit that failed")
    scene.maintain(orphans=ORPHANS)
    assert "data/country=de/orphan.parquet" in keys(scene), "it is young: a writer may be about to commit it"
    needed = {key for key in keys(scene) if "orphan" not in key}
    report = scene.maintain(orphans=ORPHANS, later=DAY_AND_MORE)
    assert sorted(each.key for each in report.orphans.orphans) == [
        "data/country=de/orphan.parquet",
        "metadata/orphan.avro",
    ]
    assert f"{QUARANTINE}/data/country=de/orphan.parquet" in keys(scene)
    assert "data/country=de/orphan.parquet" not in keys(scene)
    assert {key for key in needed if key.startswith("data/")} <= keys(scene)
    scene.maintain(orphans=ORPHANS, later=DAY_AND_MORE + DAY_AND_MORE)
    assert not [key for key in keys(scene) if "orphan" in key]
    scene.assert_nothing_lost()
    assert missing_files(scene.table, scene.settings) == []


def test_what_a_slow_writer_commits_after_all_is_put_back(scene: Scene) -> None:
    scene.small_files(3)
    table, store = scene.table, objects(scene)
    path = f"{table.location()}/data/country=de/slow.parquet"
    sink = pyarrow.BufferOutputStream()
    rows = rows_of([777])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, table.schema().as_arrow()), sink)
    store.write("data/country=de/slow.parquet", sink.getvalue())
    scene.maintain(orphans=ORPHANS, later=DAY_AND_MORE)
    assert "data/country=de/slow.parquet" not in keys(scene)
    store.copy(f"{QUARANTINE}/data/country=de/slow.parquet", "data/country=de/slow.parquet")  # for its own check
    scene.sql(f"REFRESH TABLE {scene.full_name}")
    scene.table.add_files([path], check_duplicate_files=False)
    store.delete(["data/country=de/slow.parquet"])
    scene.expected += rows
    scene.maintain(orphans=ORPHANS, later=DAY_AND_MORE)
    assert "put back" in " ".join(scene.said)
    scene.assert_nothing_lost()


def test_orphans_that_are_too_young_are_refused() -> None:
    with pytest.raises(CompactionError, match="at least"):
        Orphans(None, None, timedelta(hours=1), timedelta(hours=1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content", [b'{"table-uuid": "another"}', gzip.compress(b'{"table-uuid": "another"}'), b"nobody knows"]
)
def test_a_location_that_two_tables_share_is_left_alone(scene: Scene, content: bytes) -> None:
    scene.small_files(3)
    objects(scene).write("metadata/00000-other.metadata.json", content)
    before = keys(scene)
    with pytest.raises(SharedLocation, match="another table"):
        scene.maintain(orphans=ORPHANS, later=DAY_AND_MORE)
    assert {key for key in before if "other" in key} <= keys(scene)


# ---------------------------------------------------------------- manifests and properties


def test_many_small_manifests_become_few(scene: Scene) -> None:
    scene.small_files(2, "de")
    scene.small_files(2, "fr", first=100)
    scene.delete("id = 3", lambda row: row["id"] == 3)
    assert len(scene.look().files.manifests) == 5
    states = {snapshot: ordered(scene.read(at=snapshot)) for snapshot in scene.snapshots}
    report = scene.maintain(manifests_from=3)
    assert report.manifests_merged == 4
    assert len(scene.look().files.manifests) == 2  # one of data, one of deletes
    scene.assert_nothing_lost()
    for snapshot, rows in states.items():
        assert ordered(scene.read(at=snapshot)) == rows
    snapshots = scene.snapshots
    assert scene.maintain(manifests_from=3).manifests_merged == 0
    assert scene.snapshots == snapshots


def test_a_merged_manifest_of_equality_deletes_is_read_by_others(new_scene: NewScene) -> None:
    scene = new_scene(partitioned_by=None)
    scene.small_files(2)
    scene.delete_by_equality([{"id": 3}])
    scene.delete_by_equality([{"id": 4}])
    assert scene.maintain(manifests_from=2).manifests_merged == 4
    scene.assert_nothing_lost()
    assert scene.maintain(manifests_from=2).manifests_merged == 0


def test_write_properties_are_kept_as_declared_and_drift_is_told(scene: Scene) -> None:
    scene.sql(f"ALTER TABLE {scene.full_name} SET TBLPROPERTIES ('write.target-file-size-bytes'='1000')")
    report = scene.maintain()
    assert report.drift["write.target-file-size-bytes"] == ("1000", str(128 << 20))
    assert drift(scene.table, scene.rules().write) == {}
    assert scene.table.properties["write.parquet.compression-codec"] == "zstd"
    assert scene.maintain().drift == {}


# ---------------------------------------------------------------- undo


def undo(scene: Scene) -> Any:
    return undo_last(scene.table, lambda text: None)


def test_the_last_compaction_is_taken_back_and_later_commits_stay(new_scene: NewScene) -> None:
    scene = new_scene(write_delete_granularity="partition")
    scene.small_files(4, "de")
    scene.small_files(3, "fr", first=100)
    scene.delete("id % 4 = 1", lambda row: row["id"] % 4 == 1)
    before = scene.look().files
    scene.maintain()
    scene.small_files(1, "it", first=500)
    assert scene.files() == 3
    undone = undo(scene)
    assert undone.files_back == 7 + len(before.deletes)
    after = scene.look().files
    assert before.data.keys() <= after.data.keys() and after.deletes.keys() == before.deletes.keys()
    assert len(after.data) == 8
    ages = {path: entry.sequence_number for path, entry in after.data.items()}
    assert all(ages[path] == entry.sequence_number for path, entry in before.data.items()), "deletes go by age"
    scene.assert_nothing_lost()
    with pytest.raises(NothingToUndo):
        undo(scene)
    scene.maintain()
    scene.assert_nothing_lost()
    assert scene.files() == 3


def test_undo_is_refused_when_rows_of_the_new_files_were_deleted(scene: Scene) -> None:
    scene.small_files(4)
    scene.maintain()
    scene.delete("id = 7", lambda row: row["id"] == 7)
    with pytest.raises(CannotUndo, match="bring them back"):
        undo(scene)
    scene.assert_nothing_lost()


def test_undo_is_refused_when_the_new_files_were_rewritten(scene: Scene) -> None:
    scene.small_files(4)
    scene.maintain()
    scene.sql(f"ALTER TABLE {scene.full_name} SET TBLPROPERTIES ('write.delete.mode'='copy-on-write')")
    scene.delete("id = 7", lambda row: row["id"] == 7)
    with pytest.raises(CannotUndo, match="rewritten or removed"):
        undo(scene)
    scene.assert_nothing_lost()


def test_undo_ends_with_the_retention(scene: Scene) -> None:
    scene.small_files(4)
    scene.maintain()
    scene.maintain(expire_snapshots=True, later=WEEK_AND_MORE)
    with pytest.raises(CannotUndo, match="expired"):
        undo(scene)
    scene.assert_nothing_lost()


def test_the_audit_reads_what_a_compaction_replaced_and_made(new_scene: NewScene) -> None:
    scene = new_scene(write_delete_granularity="partition")
    assert rows_differ(scene.table, scene.settings) == (0, {})
    scene.small_files(4)
    scene.delete("id % 2 = 0", lambda row: row["id"] % 2 == 0)
    scene.maintain()
    assert rows_differ(scene.table, scene.settings) == (20, {})
    (path,) = scene.look().files.data
    reader = DataFileRows(scene.table.metadata, scene.settings)
    rows = pyarrow.parquet.read_table(pyarrow.BufferReader(reader.fetch(path)))
    changed = rows.set_column(2, rows.schema.field("amount"), pyarrow.array([0.0] * rows.num_rows))
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(changed, sink)
    reader.store(path).write(key_of(path), sink.getvalue())  # as if the store had lied
    rows_found, problems = rows_differ(scene.table, scene.settings)
    assert rows_found == 20
    assert len(problems) == 1
