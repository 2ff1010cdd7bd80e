"""Batches whose rows Spark tasks read: what they leave behind, where, and what of it goes away again."""

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.merge.intake import intake
from compaction_platform.merge.intake.write_data_files import BatchWriteTask, WrittenBatch
from compaction_platform.merge.plan.staged_hours import StagedFile
from compaction_platform.merge.publish.merger import Merger
from compaction_platform_tests.merge.scene import Scene, event

pytestmark = pytest.mark.integration

NewScene = Callable[..., Scene]
OLD = [event(f"old-{number}", 1, number * 1.0, day=number % 3) for number in range(40)]
NEW = [event(f"new-{number}", 1, number * 1.0, day=number % 3) for number in range(40)]
CHANGED = [event(f"old-{number}", 2, 7.0, day=number % 3) for number in range(20)]


class Deadly(BatchWriteTask):
    """Some files kill whoever reads them."""

    def land(self, files: Sequence[StagedFile]) -> WrittenBatch:
        if any("deadly" in file.key for file in files):
            os._exit(9)  # as a crash in native code, or the kernel's out-of-memory killer, would do it
        return super().land(files)


class Failing(BatchWriteTask):
    def land(self, files: Sequence[StagedFile]) -> WrittenBatch:
        if any("failing" in file.key for file in files):
            raise RuntimeError("the quarantine is full")
        return super().land(files)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compaction_platform.merge.intake.intake.SMALL_BATCH_BYTES", -1)


@pytest.fixture
def scene(new_scene: NewScene, large: None) -> Scene:
    scene = new_scene()
    scene.stage("old.parquet", OLD)
    scene.merge(0)
    return scene


def data_files(scene: Scene) -> set[str]:
    """What lies in the table's place."""
    place = scene.table().location()
    return {f"{place}/{stored.key}" for stored in ObjectStore.at(place, scene.settings).list("data")}


def known_files(scene: Scene) -> set[str]:
    """What some snapshot of the table refers to."""
    table = scene.table()
    return {
        entry.data_file.file_path
        for snapshot in table.metadata.snapshots
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    }


def said(scene: Scene, text: str) -> bool:
    return any(text in line for line in scene.said)


@pytest.mark.parametrize("limit", [-1, 1 << 30], ids=["large", "small"])
def test_new_keys_are_appended_without_a_join(scene: Scene, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr("compaction_platform.merge.intake.intake.SMALL_BATCH_BYTES", limit)
    scene.stage("new.parquet", NEW, 1)
    scene.stage("more.parquet", [event("more", 1, day=9)], 1)
    result = scene.merge(1).merged
    scene.check()
    assert (result.inserted, result.updated, result.unchanged, result.published) == (41, 0, 0, True)
    assert result.audit.rows_before + 41 == result.audit.rows_after
    assert said(scene, "41 rows, all of new keys")
    assert scene.table().current_snapshot().summary.operation.value == "append"
    assert scene.merge(1).merged.published is False
    assert data_files(scene) == known_files(scene)
    assert scene.branches() == set()


def test_a_batch_that_changes_rows_is_merged_from_its_landed_files(scene: Scene) -> None:
    scene.stage("changed.parquet", CHANGED, 1)
    scene.stage("new.parquet", NEW, 1)
    result = scene.merge(1).merged
    scene.check()
    assert (result.inserted, result.updated) == (40, 20)
    assert said(scene, "40 rows inserted, 20 updated")
    assert scene.branches() == set()
    assert data_files(scene) == known_files(scene), "what is not needed any more goes with its snapshot"
    scene.sql(
        f"CALL lake.system.expire_snapshots(table => 'merging.{scene.rules.table}', "
        "older_than => timestamp '2100-01-01 00:00:00', retain_last => 1)"
    )
    scene.check()
    assert data_files(scene) == known_files(scene)


def test_new_keys_met_by_another_writer_are_merged_all_the_same(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.stage("new.parquet", NEW, 1)
    scene.stage("also new.parquet", [event("new-7", 3, 70.0, day=1), event("another", 1)], 2)
    happened: list[int] = []
    real = Merger._publish

    def interrupted(self: Merger, *arguments: Any) -> None:
        happened.append(1)
        if len(happened) == 1:
            scene.merge(2)
        real(self, *arguments)

    monkeypatch.setattr(Merger, "_publish", interrupted)
    result = scene.merge(1).merged
    assert (result.attempts, result.inserted, result.unchanged) == (2, 39, 1)
    scene.check()
    assert data_files(scene) == known_files(scene)


def test_files_too_small_to_stay_are_merged_instead(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compaction_platform.merge.publish.batch.FILES_FOR_EACH_PARTITION", 0)
    scene.stage("new.parquet", NEW, 1)
    assert scene.merge(1).merged.inserted == 40
    scene.check()
    assert said(scene, "merged into a branch: 40 rows inserted")


@pytest.mark.parametrize("what", ["bronze alone", "a dry run"])
def test_nothing_is_left_in_the_table_by(scene: Scene, what: str) -> None:
    before, snapshots = data_files(scene), scene.snapshots()
    scene.stage("changed.parquet", CHANGED, 1)
    scene.stage("new.parquet", NEW, 1)
    if what == "bronze alone":
        assert scene.run().take_in([scene.hour(1)]).manifests[scene.hour(1)].rows == 60
    else:
        result = scene.merge(1, dry_run=True).merged
        assert (result.inserted, result.updated) == (40, 20)
    assert (data_files(scene), scene.snapshots()) == (before, snapshots)


def test_a_run_that_fails_while_reading_leaves_no_files(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "BatchWriteTask", Failing)
    before = data_files(scene)
    for name in ("a", "b", "failing", "c"):
        scene.stage(f"{name}.parquet", NEW, 1)
    with pytest.raises(CompactionError, match="the quarantine is full"):
        scene.run().take_in_and_merge([scene.hour(1)])
    assert data_files(scene) == before
    monkeypatch.undo()
    scene.merge(1)
    scene.check()


def test_a_file_that_kills_its_reader_is_set_aside_and_the_others_go_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "BatchWriteTask", Deadly)
    scene.stage("changed.parquet", CHANGED, 1)
    path = scene.stage("deadly.parquet", b"PAR1 and then a trap PAR1", 1)
    scene.stage("new.parquet", NEW, 1)
    outcome = scene.merge(1)
    scene.check()
    (bad,) = outcome.manifests[scene.hour(1)].quarantined
    assert (bad.key, "died" in bad.reason) == ("deadly.parquet", True)
    kept = scene.quarantine()
    assert path.read_bytes() in kept.values()
    assert any(json.loads(data)["key"] == bad.key for name, data in kept.items() if name.endswith("reason.json"))
    assert data_files(scene) == known_files(scene)


# ---------------------------------------------------------------- a table that changes meanwhile


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[int]:
    """Let something happen once, after the batch was read and before it is written."""
    happened: list[int] = []
    real = Merger._merge_once

    def interrupted(self: Merger, *arguments: Any) -> Any:
        if not happened:
            happened.append(1)
            act()
        return real(self, *arguments)

    monkeypatch.setattr(Merger, "_merge_once", interrupted)
    return happened


@pytest.mark.parametrize("limit", [-1, 1 << 30], ids=["large", "small"])
def test_a_column_that_another_merge_adds(scene: Scene, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr("compaction_platform.merge.intake.intake.SMALL_BATCH_BYTES", limit)
    scene.stage("new.parquet", NEW, 1)
    happened = meanwhile(monkeypatch, lambda: scene.sql("ALTER TABLE {table} ADD COLUMN colour string"))
    result = scene.merge(1).merged
    assert (happened, result.published, result.attempts) == ([1], True, 2)
    assert len(scene.content()) == 80
    assert {row["colour"] for row in scene.content()} == {None}
    assert data_files(scene) == known_files(scene)


def test_another_partitioning_while_a_large_batch_is_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files were written for the old one: with them, readers would look for rows in the wrong places."""
    before = data_files(scene)
    scene.stage("new.parquet", NEW, 1)
    meanwhile(monkeypatch, lambda: scene.sql("ALTER TABLE {table} ADD PARTITION FIELD bucket(4, event_id)"))
    with pytest.raises(CompactionError, match="partitioned in another way") as failed:
        scene.run().take_in_and_merge([scene.hour(1)])
    assert "Nothing was merged" in str(failed.value)
    assert data_files(scene) == before
    scene.merge(1)
    scene.check()
    found = {row.event_id for row in scene.sql("SELECT event_id FROM {table} WHERE event_id = 'new-7'")}
    assert found == {"new-7"}
