"""Snapshots, orphans, manifests, properties, and the way back."""

import gzip
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow
import pyarrow.parquet
import pytest

from compaction_platform.errors import CompactionError
from compaction_platform.lake.iceberg.data_file_reader import DataFileReader, bucket_of, key_of
from compaction_platform.lake.storage.aws_clients import aws_client
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.maintain.config import MaintenanceRequest, OrphanRules
from compaction_platform.maintain.operations import expire_snapshots
from compaction_platform.maintain.operations.remove_orphan_files import OrphanRemoval
from compaction_platform.maintain.operations.rollback import CannotRollBack, NothingToRollBack
from compaction_platform.maintain.operations.verify_rows import missing_files, retention_gap, rows_differ
from compaction_platform.maintain.operations.write_properties import drift
from compaction_platform.maintain.plan.snapshot_retention import Retention
from compaction_platform.persisted_names import QUARANTINE_DIRECTORY
from compaction_platform_tests.maintain.scene import Scene, ordered, rows_of

pytestmark = pytest.mark.integration

NewScene = Callable[..., Scene]
WEEK_AND_MORE = timedelta(hours=169)
DAY_AND_MORE = timedelta(hours=25)
ORPHANS = OrphanRules(older_than=timedelta(hours=24), quarantined_for=timedelta(hours=24))


def objects(scene: Scene) -> ObjectStore:
    return ObjectStore.at(scene.table.location(), scene.settings)


def keys(scene: Scene) -> set[str]:
    return {each.key for each in objects(scene).list()}


# ---------------------------------------------------------------- expiry


def test_time_travel_works_inside_the_retention_and_ends_after_it(scene: Scene) -> None:
    scene.small_commits(4)
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
    scene.small_commits(3)
    tagged = scene.snapshots[1]
    scene.sql(f"ALTER TABLE {scene.full_name} CREATE TAG `report` AS OF VERSION {tagged}")
    state = ordered(scene.read(at=tagged))
    report = scene.maintain(expire_snapshots=True, later=WEEK_AND_MORE)
    assert report.snapshots_expired == 2
    assert ordered(scene.read(at=tagged)) == state
    scene.assert_nothing_lost()


def test_a_reader_that_began_before_the_compaction_finishes_after_the_expiry(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot it reads is much older than the retention; but it was the current one until now."""
    scene.small_commits(4)
    look = scene.look()
    began = round(datetime.now(UTC).timestamp() * 1000)

    def aged(stamp_ms: int) -> datetime:
        moment = datetime.fromtimestamp(stamp_ms / 1000, UTC)
        return moment if stamp_ms > began else moment - timedelta(hours=1000)

    monkeypatch.setattr(expire_snapshots, "_moment", aged)
    report = scene.maintain(expire_snapshots=True, retention=Retention(hours=24))
    assert report.committed and report.snapshots_expired == 3, "all but the one that is being read"
    reader = DataFileReader(scene.table.metadata, scene.settings)
    groups = [reader.row_groups(each.data_file, reader.fetch(path)) for path, each in look.files.data.items()]
    read = [row for each in groups for rows in each for row in rows.to_pylist()]
    assert ordered(read) == ordered(scene.expected)


def test_a_branch_with_a_retention_of_its_own_is_not_guessed_about(scene: Scene) -> None:
    scene.small_commits(3)
    scene.sql(f"ALTER TABLE {scene.full_name} REPLACE BRANCH `main` WITH SNAPSHOT RETENTION 1 MINUTES")
    report = scene.maintain(expire_snapshots=True, later=WEEK_AND_MORE)
    assert report.snapshots_expired == 0
    assert "retention of its own" in " ".join(report.troubles)
    assert len(scene.snapshots) == 4


def test_a_request_may_expire_sooner_and_the_check_says_so(scene: Scene) -> None:
    scene.small_commits(3)
    scene.maintain(
        MaintenanceRequest(expire_snapshots=True, snapshot_retention_hours=0, force=True), later=timedelta(minutes=1)
    )
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
    assert f"{QUARANTINE_DIRECTORY}/data/country=de/orphan.parquet" in keys(scene)
    assert "data/country=de/orphan.parquet" not in keys(scene)
    assert {key for key in needed if key.startswith("data/")} <= keys(scene)
    scene.maintain(orphans=ORPHANS, later=DAY_AND_MORE + DAY_AND_MORE)
    assert not [key for key in keys(scene) if "orphan" in key]
    scene.assert_nothing_lost()
    assert missing_files(scene.table, scene.settings) == []


def test_uploads_that_a_killed_run_has_left_are_given_up_and_others_are_not(scene: Scene) -> None:
    scene.small_files(3)
    client = aws_client("s3", scene.settings, scene.settings.s3_endpoint)
    bucket, prefix = bucket_of(scene.table.location()), key_of(scene.table.location())

    def unfinished() -> set[str]:
        found = client.list_multipart_uploads(Bucket=bucket, Prefix=f"{prefix}/").get("Uploads", [])
        return {each["Key"].removeprefix(f"{prefix}/") for each in found}

    ours, theirs = "data/country=de/compacted-1.parquet", "data/country=de/00000-1.parquet"
    for name in (ours, theirs):
        upload = client.create_multipart_upload(Bucket=bucket, Key=f"{prefix}/{name}")["UploadId"]
        client.upload_part(Bucket=bucket, Key=f"{prefix}/{name}", UploadId=upload, PartNumber=1, Body=b"some")
    scene.maintain(orphans=ORPHANS)
    assert unfinished() == {ours, theirs}, "it is young: a run may be about to end it"
    scene.maintain(orphans=ORPHANS, later=DAY_AND_MORE)
    assert unfinished() == {theirs}
    assert any("1 uploads were given up" in said for said in scene.said)
    scene.assert_nothing_lost()


def test_files_of_partitions_with_odd_names_are_not_taken_for_orphans(scene: Scene) -> None:
    for country in ("a/b=c %2F ü", "a b", "a+b", "100%", None):
        scene.write(*([{"id": number, "country": country, "amount": 1.0}] for number in range(2)))
        scene.sql(f"INSERT INTO {scene.full_name} VALUES (9, {'NULL' if country is None else repr(country)}, 1.0)")
        scene.expected.append({"id": 9, "country": country, "amount": 1.0})
    report = scene.maintain(orphans=ORPHANS, later=DAY_AND_MORE)
    assert len(report.committed) == 5
    report = scene.maintain(orphans=ORPHANS, later=DAY_AND_MORE)
    assert [each.key for each in report.orphans.orphans if each.key.startswith("data/")] == []
    assert missing_files(scene.table, scene.settings) == []
    scene.assert_nothing_lost()


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
    store.copy(
        f"{QUARANTINE_DIRECTORY}/data/country=de/slow.parquet", "data/country=de/slow.parquet"
    )  # for its own check
    scene.sql(f"REFRESH TABLE {scene.full_name}")
    scene.table.add_files([path], check_duplicate_files=False)
    store.delete(["data/country=de/slow.parquet"])
    scene.expected += rows
    scene.maintain(orphans=ORPHANS, later=DAY_AND_MORE)
    assert "put back" in " ".join(scene.said)
    scene.assert_nothing_lost()


def test_orphans_that_are_too_young_are_refused() -> None:
    with pytest.raises(CompactionError, match="at least"):
        OrphanRemoval(None, None, timedelta(hours=1), timedelta(hours=1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content",
    [b'{"table-uuid": "another"}', gzip.compress(b'{"table-uuid": "another"}'), b"nobody knows"],
    ids=["plain", "compressed", "neither"],
)
def test_a_location_that_two_tables_share_is_left_alone(scene: Scene, content: bytes) -> None:
    scene.small_files(3)
    objects(scene).write("metadata/00000-other.metadata.json", content)
    objects(scene).write("data/country=de/other.parquet", b"the other table's")
    report = scene.maintain(orphans=ORPHANS, later=DAY_AND_MORE)
    assert "another table" in " ".join(report.troubles)
    assert report.committed, "the compaction stands, and is told"
    assert {"data/country=de/other.parquet", "metadata/00000-other.metadata.json"} <= keys(scene)
    assert "another table" in str(scene.run_of(orphans=ORPHANS).prospect(MaintenanceRequest()).trouble)


# ---------------------------------------------------------------- manifests and properties


def test_many_small_manifests_become_few(scene: Scene) -> None:
    scene.small_commits(2, "de")
    scene.small_commits(2, "fr", first=100)
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
    scene.small_commits(2)
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


def test_the_last_compaction_is_taken_back(new_scene: NewScene) -> None:
    scene = new_scene(write_delete_granularity="partition")
    scene.small_files(4, "de")
    scene.small_files(3, "fr", first=100)
    scene.delete("id % 4 = 1", lambda row: row["id"] % 4 == 1)
    before = scene.look().files
    at = scene.table.metadata.current_snapshot_id
    scene.maintain(manifests_from=2)
    assert scene.files() == 2
    undone = scene.run_of().undo()
    assert undone.to_snapshot == scene.table.metadata.current_snapshot_id == at
    after = scene.look().files
    assert after.data.keys() == before.data.keys() and after.deletes.keys() == before.deletes.keys()
    scene.assert_nothing_lost()
    with pytest.raises(NothingToRollBack):
        scene.run_of().undo()
    scene.maintain()
    scene.assert_nothing_lost()
    assert scene.files() == 2


def test_what_was_taken_back_outlives_the_expiry_of_the_compaction(scene: Scene) -> None:
    scene.small_files(4)
    scene.maintain()
    compacted = scene.table.metadata.current_snapshot_id
    scene.run_of().undo()
    scene.maintain(enabled=False, expire_snapshots=True, later=WEEK_AND_MORE)
    assert compacted not in scene.snapshots
    scene.assert_nothing_lost()
    assert missing_files(scene.table, scene.settings) == []


def test_a_roll_back_that_would_lose_a_commit_is_refused(scene: Scene) -> None:
    scene.small_files(4)
    scene.maintain()
    scene.write(rows_of([999]))
    with pytest.raises(CannotRollBack, match="writers have committed 1 times"):
        scene.run_of().undo()
    scene.assert_nothing_lost()


def test_undo_ends_with_the_retention(scene: Scene) -> None:
    scene.small_files(4)
    scene.maintain()
    with pytest.raises(CannotRollBack, match="may at any moment"):
        scene.run_of(later=timedelta(hours=167, minutes=30)).undo()
    scene.maintain(expire_snapshots=True, later=WEEK_AND_MORE)
    with pytest.raises(CannotRollBack, match="expired"):
        scene.run_of().undo()
    scene.assert_nothing_lost()


def test_the_audit_reads_what_a_compaction_replaced_and_made(new_scene: NewScene) -> None:
    scene = new_scene(write_delete_granularity="partition")
    assert rows_differ(scene.table, scene.settings) == (0, {})
    scene.small_files(4)
    scene.delete("id % 2 = 0", lambda row: row["id"] % 2 == 0)
    scene.maintain()
    assert rows_differ(scene.table, scene.settings) == (20, {})
    (path,) = scene.look().files.data
    reader = DataFileReader(scene.table.metadata, scene.settings)
    rows = pyarrow.parquet.read_table(pyarrow.BufferReader(reader.fetch(path)))
    changed = rows.set_column(2, rows.schema.field("amount"), pyarrow.array([0.0] * rows.num_rows))
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(changed, sink)
    reader.store(path).write(key_of(path), sink.getvalue())  # as if the store had lied
    rows_found, problems = rows_differ(scene.table, scene.settings)
    assert rows_found == 20
    assert len(problems) == 1
