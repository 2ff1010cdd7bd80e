"""Cleanup removes a staged file only if its rows are certainly in the table, or set aside for certain."""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyiceberg.table.update import SetSnapshotRefUpdate

from compaction_platform.lake.iceberg.branches import commit
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.merge import cleanup_staging
from compaction_platform.merge.cleanup_staging import CleanupReport, clean_up
from compaction_platform.merge.intake.hour_manifest import receipts_of
from compaction_platform.merge.publish.merger import Merger
from compaction_platform.settings import Settings
from compaction_platform_tests.merge.scene import Scene, event

pytestmark = pytest.mark.integration

NewScene = Callable[..., Scene]


@pytest.fixture
def scene(new_scene: NewScene) -> Scene:
    """A table with two commits before the one that is about to be merged and cleaned up."""
    scene = new_scene(cleanup="delete")
    for number in range(2):
        scene.stage(f"{number}.parquet", [event(f"old-{number}")], number)
        scene.merge(number)
    return scene


def clean(scene: Scene, *hours: int) -> CleanupReport:
    return clean_up(scene.rules, scene.settings, [scene.hour(number) for number in hours], scene.said.append)


def roll_back(scene: Scene, snapshot: int | None) -> None:
    assert snapshot is not None
    commit(scene.table(), (), (SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot),))


def expire_before(scene: Scene, snapshot: int | None) -> None:
    older = scene.snapshots()[: scene.snapshots().index(snapshot or 0)]
    assert older
    scene.table().maintenance.expire_snapshots().by_ids(older).commit()


def staged(scene: Scene) -> set[str]:
    return {stored.key for stored in ObjectStore.at(scene.places.staging, scene.settings).list()}


# ---------------------------------------------------------------- rows that the table must have


@pytest.mark.parametrize("expired", [False, True], ids=["nothing has expired", "older snapshots have expired"])
def test_what_was_rolled_back_stays_staged(scene: Scene, expired: bool) -> None:
    second = scene.main()
    scene.stage("new.parquet", [event("new")], 2)
    scene.merge(2)
    if expired:
        expire_before(scene, second)
    roll_back(scene, second)
    cleaned = clean(scene, 2)
    assert cleaned.removed == () and "new.parquet" in staged(scene)
    assert "rolled back" in cleaned.kept["new.parquet"] and "rolled back" in " ".join(scene.said)
    scene.merge(2, again=True)
    scene.check()
    assert clean(scene, 2).removed == ("new.parquet",)


def test_what_was_rolled_back_and_has_expired_stays_staged(scene: Scene) -> None:
    second = scene.main()
    scene.stage("new.parquet", [event("new")], 2)
    merged = scene.merge(2).merged.snapshot_id
    roll_back(scene, second)
    scene.table().maintenance.expire_snapshots().by_id(merged).commit()
    assert clean(scene, 2).removed == ()
    assert "new.parquet" in staged(scene)


def test_where_expiry_has_removed_the_proof_files_stay_until_they_are_merged_again(scene: Scene) -> None:
    scene.stage("2.parquet", [event("new")], 2)
    scene.merge(2)
    expire_before(scene, scene.main())
    assert clean(scene, 1).removed == ("1.parquet",), "the oldest snapshot that is left says what it came from"
    cleaned = clean(scene, 0)
    assert cleaned.removed == () and "again: true" in cleaned.kept["0.parquet"]
    snapshots = scene.snapshots()
    scene.merge(0, again=True)
    assert scene.snapshots() == snapshots
    assert clean(scene, 0).removed == ("0.parquet",)
    scene.check()


def test_a_roll_back_while_other_hours_are_merged_leaves_no_receipt_for_what_it_took_out(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run sees that an hour is merged; then main is rolled back; then the run merges another hour."""
    second = scene.main()
    scene.stage("2.parquet", [event("two")], 2)
    scene.merge(2)
    receipts = receipts_of(scene.places, scene.settings)
    assert receipts.store.delete([stored.key for stored in receipts.store.list("merged")]) == {}
    scene.stage("3.parquet", [event("three")], 3)
    real = Merger.merge

    def rolled_back_first(self: Merger, *arguments: Any, **named: Any) -> Any:
        roll_back(scene, second)
        return real(self, *arguments, **named)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Merger, "merge", rolled_back_first)
        scene.run().take_in_and_merge([scene.hour(2), scene.hour(3)])
    assert clean(scene, 2, 3).removed == ("3.parquet",)
    assert "2.parquet" in staged(scene)
    scene.merge(2)
    scene.model.merge(scene.files[3])
    scene.check()
    assert clean(scene, 2).removed == ("2.parquet",)


def test_a_roll_back_while_files_are_removed_keeps_the_rest(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup_staging, "CHUNK", 1)
    second = scene.main()
    for name in "ab":
        scene.stage(f"{name}.parquet", [event(name)], 2)
    scene.merge(2)
    real = cleanup_staging.delete_unchanged

    def rolled_back_then(*arguments: Any) -> Any:
        removed = real(*arguments)
        roll_back(scene, second)
        return removed

    monkeypatch.setattr(cleanup_staging, "delete_unchanged", rolled_back_then)
    assert clean(scene, 2).removed == ("a.parquet",)
    assert "b.parquet" in staged(scene)


# ---------------------------------------------------------------- rows that were set aside


def without_key(name: str) -> dict[str, Any]:
    return {**event(name), "event_id": None}


@pytest.mark.parametrize("damage", ["gone", "fewer rows", "not Parquet"])
def test_a_file_stays_while_its_rows_without_a_key_are_nowhere_else(scene: Scene, damage: str) -> None:
    scene.stage("new.parquet", [event("new"), without_key("x"), without_key("y")], 2)
    del scene.files[2]["new.parquet"][1:]
    scene.merge(2)
    quarantine = ObjectStore.at(scene.places.quarantine, scene.settings)
    (name,) = scene.quarantine()
    content = scene.quarantine()[name]
    if damage == "gone":
        quarantine.delete([name])
    elif damage == "fewer rows":
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.parquet.read_table(pyarrow.BufferReader(content)).slice(1), sink)
        quarantine.write(name, sink.getvalue())
    else:
        quarantine.write(name, b"not Parquet")
    cleaned = clean(scene, 2)
    assert cleaned.removed == () and "without a key" in cleaned.kept["new.parquet"]
    quarantine.write(name, content)
    assert clean(scene, 2).removed == ("new.parquet",)


def test_a_file_that_was_once_judged_bad_stays_though_a_later_intake_alone_found_it_sound(new_scene: NewScene) -> None:
    scene = new_scene(cleanup="delete", on_new_column="reject")
    wide = pyarrow.table({"event_id": ["a"], "event_time": [event("a")["event_time"]], "more": [1]})
    scene.stage("a.parquet", wide, 0)
    scene.stage("b.parquet", [event("b")], 0)
    scene.run().take_in_and_merge([scene.hour()])
    scene.rules = replace(scene.rules, on_new_column="ignore")
    scene.run(again=True).take_in([scene.hour()])  # its rows are not merged
    assert clean(scene, 0).removed == ("b.parquet",)
    assert staged(scene) == {"a.parquet"}


# ---------------------------------------------------------------- at the moment of the act


@pytest.fixture(params=["a directory", "S3"])
def anywhere(request: pytest.FixtureRequest, new_scene: NewScene, settings: Settings) -> Iterator[Scene]:
    """A staging area of either kind, with one file that was merged."""
    scene = new_scene(cleanup="delete")
    if request.param == "S3":
        scene.rules = replace(scene.rules, source=f"s3://lake/staging-{secrets.token_hex(4)}")
    deliver(scene, [event("a")])
    hour = next(iter(ObjectStore.at(scene.places.staging, settings).list())).last_modified
    scene.hour = lambda number=0: hour.strftime("%Y-%m-%d-%H:00")  # type: ignore[method-assign]
    scene.run().take_in_and_merge([scene.hour()])
    yield scene


def deliver(scene: Scene, rows: list[Any]) -> None:
    from compaction_platform_tests.merge.scene import parquet

    ObjectStore.at(scene.places.staging, scene.settings).write("a.parquet", parquet(rows))


def test_a_name_that_is_delivered_again_before_the_delete_stays(
    anywhere: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = anywhere
    real = cleanup_staging.delete_unchanged

    def delivered_first(*arguments: Any) -> Any:
        deliver(scene, [event("a", 9), event("b")])
        return real(*arguments)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(cleanup_staging, "delete_unchanged", delivered_first)
        cleaned = clean(scene, 0)
    assert cleaned.removed == () and "replaced" in cleaned.kept["a.parquet"]
    scene.run().take_in_and_merge([scene.hour()])
    assert {row["event_id"] for row in scene.content()} == {"a", "b"}
    assert clean(scene, 0).removed == ("a.parquet",) and staged(scene) == set()
