"""A process that is paused right before it deletes, overwrites or drops something, while another one goes on: what it
does when it wakes up harms nothing. Each line of the table in docs/archive.md has its test here or is named there."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from compaction_platform.archive.cold.publish import Publication, StagedFilesMissing, is_marked
from compaction_platform.archive.jobs import archive_range, purge_range
from compaction_platform.archive.jobs.archive_range import ArchiveRun
from compaction_platform.archive.jobs.purge_range import PurgeRun
from compaction_platform.archive.jobs.restore_range import RestoreRun
from compaction_platform.archive.ledger.lease import LeaseLost, Withheld
from compaction_platform.archive.ledger.ledger import Ledger, RangeBusy
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.settings import Settings
from compaction_platform_tests.archive.scene import NAMES, RANGE, Scene, everything_once, hot
from compaction_platform_tests.archive.test_purge import partitioned
from compaction_platform_tests.faults.test_archive_faults import before, paused

pytestmark = pytest.mark.integration


@pytest.fixture
def scene(settings: Settings) -> Scene:
    scene = Scene(settings)
    scene.grow(0, 30)
    return scene


def shows_what_is_live(scene: Scene) -> None:
    """What plain readers see of the range is what the ledger says."""
    version = scene.version(RANGE)
    assert version is not None
    for name, manifest in version.manifests.items():
        names = {key.rpartition("/")[2] for key in scene.visible(name) if "range=10-20" in key}
        assert names == {file.name for file in manifest.files}


def is_whole(scene: Scene) -> None:
    """And it is marked."""
    shows_what_is_live(scene)
    version = scene.version(RANGE)
    assert version is not None
    assert all(is_marked(scene.store, manifest) for manifest in version.manifests.values())


def change(scene: Scene, data: str) -> None:
    scene.execute(f"UPDATE TABLES.logs SET data = '{data}' WHERE block_number = 14")


def lose_staged_files(scene: Scene) -> Callable[[], None]:
    return lambda: scene.store.delete([key for key in scene.all_keys() if "/logs/_attempts/" in key]) and None


@pytest.mark.parametrize("name", ["_set_aside", "_keep", "_delete"])
def test_a_deletion_of_the_old_version_that_comes_late_misses_what_was_brought_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Another run could not finish the new version, and brought the old one back."""
    scene.archived(10, 20)
    first = {dataset: scene.cold(dataset) for dataset in NAMES}
    change(scene, "changed")
    scene.execute("UPDATE TABLES.blocks SET extra = '{}' WHERE block_number = 14")
    with paused(Publication, name, monkeypatch) as start:
        finish = start(lambda: scene.archived(10, 20))
        scene.expire_leases()
        before(monkeypatch, Publication, "_show", lose_staged_files(scene))
        with pytest.raises(StagedFilesMissing):
            scene.archived(10, 20)
        assert {dataset: scene.cold(dataset) for dataset in NAMES} == first
        finish()
    assert {dataset: scene.cold(dataset) for dataset in NAMES} == first
    shows_what_is_live(scene)
    scene.archived(10, 20)  # puts a mark back, if the late one took it away, and archives the change
    is_whole(scene)
    expected = hot(scene)
    scene.purge(10, 20)
    everything_once(scene, expected)


def test_what_is_hidden_late_of_a_version_that_was_given_up_is_nothing_else(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(scene, "first")
    with paused(Publication, "hide", monkeypatch) as start:
        before(monkeypatch, Publication, "_show", lose_staged_files(scene))
        finish = start(lambda: scene.archived(10, 20))
        expected = hot(scene)
        scene.archived(10, 20)
        scene.purge(10, 20)
        assert isinstance(finish(), StagedFilesMissing)
    is_whole(scene)
    everything_once(scene, expected)


@pytest.mark.parametrize("name", ["mark_again", "copy"])
def test_marks_that_are_put_back_late_do_not_replace_those_of_a_newer_version(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    scene.archived(10, 20)
    scene.store.delete([f"{scene.chain_id}/logs/range=10-20/_SUCCESS"])
    owner: Any = archive_range if name == "mark_again" else ObjectStore
    with paused(owner, name, monkeypatch) as start:
        finish = start(lambda: scene.archived(10, 20))
        scene.expire_leases()
        change(scene, "changed")
        assert scene.archived(10, 20).outcome == "replaced"
        is_whole(scene)
        assert finish() is not None
    is_whole(scene)


def test_files_of_superseded_versions_that_are_deleted_late_are_only_those(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.archived(10, 20)
    change(scene, "changed")
    scene.archived(10, 20)
    scene.execute("UPDATE compaction.archive_versions SET superseded_at = now() - interval '8 days'")
    with paused(ObjectStore, "delete", monkeypatch) as start:
        finish = start(scene.run()._forget_expired)
        change(scene, "changed again")
        scene.archived(10, 20)
        assert finish() is None
    is_whole(scene)
    assert not [key for key in scene.all_keys() if "/_superseded/10-20/v1/" in key]
    assert [key for key in scene.all_keys() if "/_superseded/10-20/v2/" in key]


def test_attempts_that_are_cleared_late_are_only_those_that_were_over(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(scene, "first")
    with pytest.raises(RuntimeError), monkeypatch.context() as dying:
        dying.setattr(ArchiveRun, "_publish", _die)
        scene.archived(10, 20)
    scene.expire_leases()
    with paused(ObjectStore, "delete", monkeypatch) as start:
        finish = start(lambda: scene.archived(10, 20))
        scene.expire_leases()
        scene.archived(10, 20)
        change(scene, "changed")
        expected = hot(scene)
        scene.archived(10, 20)
        finish()
    is_whole(scene)
    everything_once(scene, expected)


def _die(*arguments: Any) -> None:
    raise RuntimeError("out of power")


# ---------------------------------------------------------------- the hot side


def test_what_is_withheld_while_a_purge_is_paused_is_not_deleted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = hot(scene)
    scene.archived(10, 20)
    with paused(PurgeRun, "_delete", monkeypatch) as start:
        finish = start(lambda: scene.purge(10, 20))
        version = scene.version(RANGE)
        assert version is not None
        scene.ledger.withhold(version, "an audit")
        assert isinstance(finish(), Withheld)
    assert hot(scene) == expected
    assert scene.states(RANGE) == ["purging"]


def test_a_withholding_that_comes_late_says_so(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.archived(10, 20)
    version = scene.version(RANGE)
    assert version is not None
    with paused(Ledger, "withhold", monkeypatch) as start:
        finish = start(lambda: scene.ledger.withhold(version, "an audit"))
        scene.purge(10, 20)
        outcome = finish()
    assert isinstance(outcome, RangeBusy)
    assert "was purged, or replaced by another" in str(outcome)


def test_a_remark_that_came_later_is_not_taken_back(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.archived(10, 20)
    version = scene.version(RANGE)
    assert version is not None
    scene.ledger.withhold(version, "an audit")
    seen = scene.version(RANGE)
    assert seen is not None
    with paused(Ledger, "believe_again", monkeypatch) as start:
        finish = start(lambda: scene.ledger.believe_again(seen))
        scene.ledger.mark_invalid(version, "a reorganisation")
        outcome = finish()
    assert isinstance(outcome, RangeBusy)
    now = scene.version(RANGE)
    assert now is not None
    assert (now.invalid_because, now.withheld_because) == ("a reorganisation", "an audit")


def test_a_restore_that_is_paused_inserts_nothing_twice(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = hot(scene)
    scene.archived(10, 20)
    scene.purge(10, 20)
    with paused(RestoreRun, "_insert", monkeypatch) as start:
        finish = start(lambda: RestoreRun(scene.archive, scene.settings, owner="one").run(RANGE))
        scene.expire_leases()
        RestoreRun(scene.archive, scene.settings, owner="two").run(RANGE)
        assert isinstance(finish(), LeaseLost)
    assert hot(scene) == expected
    assert scene.states(RANGE) == ["committed"]


def test_partitions_cannot_be_exchanged_between_the_look_at_them_and_the_lock(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL locks the partitions that it tells of, until the transaction ends."""
    partitioned(scene, "block_number", [("0", "10"), ("10", "20"), ("20", "30")])
    expected = hot(scene)
    scene.archived(10, 20)
    with paused(PurgeRun, "_lock", monkeypatch) as start:
        finish = start(lambda: scene.purge(10, 20))
        with scene.connect() as connection:
            connection.execute("SET lock_timeout = '200ms'")
            blocked = [dataset for dataset in NAMES if _cannot_be_detached(connection, scene, dataset)]
        assert len(blocked) == 1, "the one that is about to be dropped"
        outcome = finish()
    assert outcome is None or isinstance(outcome, purge_range.TableBusy)
    everything_once(scene, expected)


def _cannot_be_detached(connection: Any, scene: Scene, dataset: str) -> bool:
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(f"ALTER TABLE {scene.schema}.{dataset} DETACH PARTITION {scene.schema}.{dataset}_1")
    except psycopg.errors.LockNotAvailable:
        return True
    return False


def test_a_purge_that_is_paused_after_it_read_the_cold_files_does_not_outlive_them(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost by hand, between the proof and the first deletion."""
    scene.archived(10, 20)
    expected = hot(scene)
    with paused(PurgeRun, "_delete", monkeypatch) as start:
        finish = start(lambda: scene.purge(10, 20))
        scene.store.delete([key for name in NAMES for key in scene.visible(name)])
        assert isinstance(finish(), purge_range.ColdFileDiffers)
    assert hot(scene) == expected


def test_a_copy_that_was_paused_is_not_committed_over_what_was_purged_meanwhile(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.archived(10, 20)
    expected = hot(scene)
    change(scene, "changed")
    with paused(ArchiveRun, "_copy", monkeypatch) as start:
        finish = start(lambda: scene.archived(10, 20))
        scene.expire_leases()
        scene.execute("UPDATE TABLES.logs SET data = '\\x0064617461' WHERE block_number = 14")
        scene.purge(10, 20)
        assert isinstance(finish(), LeaseLost)
    everything_once(scene, expected)
    assert scene.archived(10, 20).outcome == "kept"
