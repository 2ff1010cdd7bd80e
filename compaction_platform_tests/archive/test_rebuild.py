"""A ledger that was lost, set back, or belongs to another database is made again from the cold files."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.cold.ownership import RootNotOurs
from compaction_platform.archive.cold.publish import ForeignFile, Publication
from compaction_platform.archive.cold.read import hot_and_cold
from compaction_platform.archive.jobs.purge_range import ColdFileDiffers, NotArchived, PurgeRun
from compaction_platform.archive.jobs.restore_range import RestoreRun
from compaction_platform.archive.ledger.lease import RangeLease
from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform_tests.archive.databases import Elsewhere, another_database, carry_over, rebuilding
from compaction_platform_tests.archive.scene import NAMES, RANGE, Scene, comparable, everything_once, hot
from compaction_platform_tests.faults.test_archive_faults import paused

pytestmark = pytest.mark.integration


@pytest.fixture
def backup(scene: Scene) -> Iterator[Scene]:
    """A database to keep a state of the scene in."""
    with another_database(scene, f"backup_{scene.chain_id}") as url:
        yield Elsewhere(scene, url)


@pytest.fixture
def heir(scene: Scene) -> Iterator[Scene]:
    """Another database, with the same chain synced again."""
    with another_database(scene, f"heir_{scene.chain_id}") as url:
        heir = Elsewhere(scene, url)
        heir.grow(0, 30)
        yield heir


def lose_the_ledger(scene: Scene) -> None:
    chain = f"(SELECT id FROM compaction.archive_ranges WHERE chain_id = {scene.chain_id})"
    for table in ("archive_purged_files", "archive_versions"):
        scene.execute(f"DELETE FROM compaction.{table} WHERE range_id IN {chain}")
    for table in ("archive_ranges", "archive_heads", "archive_roots"):
        scene.execute(f"DELETE FROM compaction.{table} WHERE chain_id = {scene.chain_id}")


def files(scene: Scene) -> list[str]:
    return [name for dataset in NAMES for name in scene.visible(dataset)]


def read(scene: Scene) -> dict[str, list[tuple[str, ...]]]:
    with hot_and_cold(scene.archive, scene.settings, BlockRange(0, 40)) as rows:
        return {name: [comparable(tuple(row.values())) for row in rows.arrow(name).to_pylist()] for name in NAMES}


def test_a_lost_ledger_is_rebuilt_with_purged_half_purged_and_hot_ranges(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.grow(30, 50)
    expected, before = hot(scene), read(scene)
    for start in (0, 10, 20, 30):
        scene.archived(start, start + 10)
    scene.purge(0, 10)
    dying = PurgeRun._delete
    calls = [0]

    def die(run: PurgeRun, *arguments: Any) -> int:
        calls[0] += 1
        if calls[0] == 3:
            raise RuntimeError("out of power")
        return dying(run, *arguments)

    monkeypatch.setattr(PurgeRun, "_delete", die)
    with pytest.raises(RuntimeError):
        scene.purge(10, 20)
    monkeypatch.undo()
    scene.execute("UPDATE TABLES.logs SET data = 'changed' WHERE block_number = 25")
    left, names = hot(scene), files(scene)
    lose_the_ledger(scene)
    with pytest.raises(RootNotOurs, match="archive rebuild"):
        scene.archived(30, 40)
    done = rebuilding(scene).rebuild()
    assert (done.states, list(done.problems), list(done.published_again)) == (
        {"purged": 1, "purging": 1, "committed": 2},
        [],
        [],
    )
    assert (hot(scene), files(scene)) == (left, names), "nothing was moved or deleted"
    assert {version.blocks.key: version.state for version in scene.ledger.versions()} == {
        "0-10": "purged",
        "10-20": "purging",
        "20-30": "committed",
        "30-40": "committed",
    }
    assert read(scene) == before
    with pytest.raises(NotArchived, match="withheld: entered from the cold files; hot rows of logs are others"):
        scene.purge(20, 30)
    scene.purge(10, 20)
    scene.purge(30, 40)
    assert scene.archived(0, 10).outcome == "kept"
    everything_once(scene, expected)
    RestoreRun(scene.archive, scene.settings).run(BlockRange(0, 10))
    assert [row for row in scene.hot("blocks") if row[1] < 10] == expected["blocks"][:10]


def test_a_ledger_that_was_set_back_loses_and_doubles_nothing(scene: Scene, backup: Scene) -> None:
    """The backup is from before 10-20 was replaced, 0-10 archived: rows and ledger are as they were then."""
    scene.archived(10, 20)
    carry_over(scene, backup)
    expected = hot(backup)
    scene.execute("UPDATE TABLES.logs SET data = 'changed' WHERE block_number = 14")
    scene.archived(10, 20)
    scene.archived(0, 10)
    scene.purge(0, 10)
    with pytest.raises(RootNotOurs, match="a copy or a later state of this ledger.*archive rebuild"):
        backup.archived(0, 10)
    done = rebuilding(backup).rebuild()
    assert (done.states, list(done.problems)) == ({"committed": 2}, [])
    assert backup.states(RANGE) == ["superseded", "committed"]
    assert hot(backup) == expected
    (logs,) = [version for version in backup.ledger.versions(RANGE) if version.state == "committed"]
    assert logs.withheld_because is not None, "the hot rows are older than the cold ones: a person decides"
    backup.purge(0, 10)
    assert len([row for row in backup.hot("blocks") if row[1] < 10]) == 0
    assert len(backup.cold("blocks")) == 20
    with pytest.raises(RootNotOurs):
        scene.purge(10, 20)


def test_without_rebuilding_a_set_back_ledger_without_a_log_stops_at_files_that_it_does_not_know(scene: Scene) -> None:
    """The last defence: even if the log is lost, too, no file that the ledger does not list is touched."""
    scene.archived(10, 20)
    names = files(scene)
    lose_the_ledger(scene)
    scene.store.delete([key for key in scene.all_keys() if "/_ledger/" in key or key.endswith("_SUCCESS")])
    with pytest.raises(ForeignFile, match="which no manifest of this range lists.*archive rebuild"):
        scene.archived(10, 20)
    assert files(scene) == names


def test_damaged_and_missing_cold_files_are_told_and_not_purged_on(scene: Scene) -> None:
    scene.archived(0, 10)
    scene.archived(10, 20)
    (key, *_) = [name for name in scene.visible("logs") if "range=10-20" in name]
    scene.store.write(key, b"x" * len(bytes(scene.store.read(key))))
    lose_the_ledger(scene)
    done = rebuilding(scene).rebuild()
    assert any(key in problem and "not the file that was committed" in problem for problem in done.problems)
    with pytest.raises(NotArchived, match="marked invalid"):
        scene.purge(10, 20)
    scene.purge(0, 10)
    assert scene.archived(10, 20, because="damaged").outcome == "replaced"
    assert len(scene.cold("logs")) == len([row for row in scene.cold("logs") if 0 <= row[1] < 20]) > 0


def test_rebuilding_anothers_root_is_refused_and_adopting_ones_own_too(scene: Scene, heir: Scene) -> None:
    scene.archived(10, 20)
    with pytest.raises(RootNotOurs, match="belong to ledger .*archive adopt"):
        rebuilding(heir).rebuild()
    with pytest.raises(CompactionError, match="belong to this ledger already"):
        rebuilding(scene).adopt()
    scene.purge(10, 20)


def test_the_old_ledger_is_refused_after_adoption_and_the_new_one_goes_on(scene: Scene, heir: Scene) -> None:
    scene.archived(0, 10)
    scene.archived(10, 20)
    scene.purge(0, 10)
    heir.execute("DELETE FROM TABLES.logs WHERE block_number < 10")
    done = rebuilding(heir).adopt()
    assert (done.states, list(done.problems)) == ({"purging": 1, "committed": 1}, [])
    for old in (lambda: scene.archived(0, 10), lambda: scene.archived(10, 20, "why"), lambda: scene.purge(10, 20)):
        with pytest.raises(RootNotOurs, match=r"\(adopt, .*was made by ledger"):
            old()
    heir.purge(0, 10)
    heir.execute("UPDATE TABLES.logs SET data = 'changed' WHERE block_number = 14")
    assert heir.archived(10, 20).outcome == "replaced"
    heir.purge(10, 20)
    assert heir.archived(10, 20).outcome == "kept"
    assert len(heir.cold("blocks")) == 20


def test_what_an_earlier_ledger_published_is_never_deleted_by_the_new_one(scene: Scene, heir: Scene) -> None:
    """The old database may have purged its rows a moment before: their cold file is their only copy."""
    scene.archived(10, 20)
    rebuilding(heir).adopt()
    heir.execute("UPDATE TABLES.logs SET data = 'changed' WHERE block_number = 14")
    heir.archived(10, 20)
    heir.execute("UPDATE compaction.archive_versions SET superseded_at = now() - interval '8 days'")
    heir.archived(0, 10)
    assert [key for key in heir.all_keys() if "/logs/_superseded/10-20/v1/part-" in key]
    heir.execute("UPDATE TABLES.logs SET data = 'changed again' WHERE block_number = 14")
    heir.archived(10, 20)
    heir.execute("UPDATE compaction.archive_versions SET superseded_at = now() - interval '8 days'")
    heir.execute("UPDATE TABLES.logs SET data = 'changed once more' WHERE block_number = 4")
    heir.archived(0, 10)
    assert [key for key in heir.all_keys() if "/logs/_superseded/10-20/v1/part-" in key]
    assert not [key for key in heir.all_keys() if "/logs/_superseded/10-20/v2/" in key], "its own, it does"


# ---------------------------------------------------------------- an old process that was only paused


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (RangeLease, "stage"),
        (Publication, "publish"),
        (Publication, "_set_aside"),
        (Publication, "_keep"),
        (Publication, "_delete"),
        (Publication, "_copy"),
        (ObjectStore, "copy"),
        (Publication, "_mark"),
        (RangeLease, "commit"),
        (Publication, "clean_up"),
    ],
)
def test_a_paused_replacement_of_the_old_ledger_does_no_harm_after_adoption(
    scene: Scene, heir: Scene, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    scene.archived(10, 20)
    scene.execute("UPDATE TABLES.logs SET data = 'changed' WHERE block_number = 14")
    for dataset in NAMES:
        heir.execute(f"DELETE FROM TABLES.{dataset} WHERE block_number BETWEEN 10 AND 19")
    with paused(owner, name, monkeypatch) as start:
        finish = start(lambda: scene.archived(10, 20))
        done = rebuilding(heir).adopt()
        assert list(done.problems) == []
        state = {dataset: heir.cold(dataset) for dataset in NAMES}
        assert [len(rows) for rows in state.values()] == [10, 17, 10]
        assert [version.state for version in heir.ledger.versions(RANGE) if version.is_live] == ["purged"]
        names = files(heir)
        finish()
    assert files(heir) == names
    assert {dataset: heir.cold(dataset) for dataset in NAMES} == state
    assert RestoreRun(heir.archive, heir.settings).run(RANGE) == 37


@pytest.mark.parametrize("name", ["_require_cold", "_delete", "_record", "_require_nothing_left"])
def test_a_paused_purge_of_the_old_ledger_deletes_nothing_after_adoption(
    scene: Scene, heir: Scene, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    expected = hot(scene)
    scene.archived(10, 20)
    with paused(PurgeRun, name, monkeypatch) as start:
        finish = start(lambda: scene.purge(10, 20))
        rebuilding(heir).adopt()
        heir.execute("UPDATE TABLES.logs SET data = 'changed' WHERE block_number = 14")
        heir.archived(10, 20)
        outcome = finish()
    if name == "_require_nothing_left":  # all is deleted already
        assert outcome is None
        kept = [key for key in scene.all_keys() if "/_superseded/10-20/v1/part-" in key]
        assert len(kept) >= len(NAMES), "and what was deleted is kept as long as nobody deletes it by hand"
    else:
        assert isinstance(outcome, RootNotOurs if name == "_record" else (RootNotOurs, ColdFileDiffers))
        assert hot(scene) == expected


def test_of_two_adoptions_at_once_one_wins(scene: Scene, heir: Scene, backup: Scene) -> None:
    scene.archived(10, 20)
    backup.grow(0, 30)
    outcomes: list[Any] = []

    def adopt(other: Scene) -> None:
        try:
            outcomes.append(rebuilding(other).adopt())
        except RootNotOurs as error:
            outcomes.append(error)

    threads = [threading.Thread(target=adopt, args=(other,)) for other in (heir, backup)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    usable = [other for other in (scene, heir, backup) if _may_go_on(other)]
    assert len(usable) == 1
    assert usable[0] is not scene


def _may_go_on(scene: Scene) -> bool:
    try:
        scene.archived(0, 10)
    except RootNotOurs:
        return False
    return True
