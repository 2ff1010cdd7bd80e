"""Two hot databases with one chain and one `uri`: the second one is refused until a person says otherwise."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.cold.ownership import Ownership, RootNotOurs
from compaction_platform.archive.cold.paths import RangePaths
from compaction_platform.archive.jobs.archive_range import ArchiveRun
from compaction_platform.archive.jobs.purge_range import PurgeRun
from compaction_platform_tests.archive.databases import Elsewhere, another_database, carry_over
from compaction_platform_tests.archive.scene import RANGE, Scene, block_hash, hot

pytestmark = pytest.mark.integration


@pytest.fixture
def other(scene: Scene) -> Iterator[Scene]:
    """The same chain synced again elsewhere: some values are others, of the same length."""
    with another_database(scene, f"other_{scene.chain_id}") as url:
        other = Elsewhere(scene, url)
        other.grow(0, 30)
        other.execute("UPDATE TABLES.logs SET data = 'other'")
        yield other


@pytest.fixture
def copy(scene: Scene) -> Iterator[Any]:
    """Makes a copy of the scene's database as it is now: its ledger has the same identity."""
    with another_database(scene, f"from_{scene.chain_id}") as base:

        def restore() -> Scene:
            copied = Elsewhere(scene, base)
            carry_over(scene, copied)
            return copied

        yield restore


def content(scene: Scene) -> dict[str, bytes]:
    return {key: bytes(scene.store.read(key)) for key in scene.all_keys()}


# ---------------------------------------------------------------- another ledger


def test_a_second_database_is_refused_and_the_first_ones_only_copy_stays(scene: Scene, other: Scene) -> None:
    scene.archived(10, 20)
    scene.purge(10, 20)
    before = content(scene)
    with pytest.raises(RootNotOurs, match=r"ledger .* of the database .*Nothing was changed.*archive adopt"):
        other.archived(10, 20)
    with pytest.raises(RootNotOurs):
        other.archived(0, 10)
    with pytest.raises(RootNotOurs):
        other.purge(10, 20)
    assert content(scene) == before
    assert scene.ledger.identity() in str(before[f"{scene.chain_id}/_ledger/00000001.json"])


def test_of_two_databases_that_begin_at_once_one_wins(scene: Scene, other: Scene) -> None:
    ours, theirs = Ownership(scene.ledger, scene.store), Ownership(other.ledger, other.store)
    ours.require()
    theirs.require()
    theirs.announce("publish", RANGE, 1)
    with pytest.raises(RootNotOurs, match="was made by ledger"):
        ours.announce("publish", RANGE, 1)
    theirs.announce("publish", RANGE, 1)


def test_files_from_before_there_was_a_log_belong_to_the_ledger_that_lists_them(scene: Scene, other: Scene) -> None:
    scene.archived(10, 20)
    forget_the_log(scene)
    with pytest.raises(RootNotOurs, match=r"range=10-20/_SUCCESS belongs to a version that this ledger does not know"):
        other.archived(0, 10)
    assert scene.archived(0, 10).outcome == "archived"
    scene.purge(10, 20)


def forget_the_log(scene: Scene) -> None:
    """As if everything had been written by a version of the platform that kept no log."""
    scene.store.delete([key for key in scene.all_keys() if "/_ledger/" in key])
    scene.execute(f"DELETE FROM compaction.archive_roots WHERE chain_id = {scene.chain_id}")


def test_a_manifest_from_before_attempts_had_tokens_keeps_its_sha256(scene: Scene) -> None:
    from compaction_platform.archive.cold.manifest import RangeManifest

    scene.archived(10, 20)
    key = f"{scene.chain_id}/blocks/range=10-20/_manifest.json"
    old = json.loads(bytes(scene.store.read(key)))
    assert old.pop("token")
    assert old.pop("ledger") == scene.ledger.identity()
    written = json.dumps(old, indent=1).encode()
    manifest = RangeManifest.from_bytes(written, key)
    assert json.loads(manifest.to_bytes()) == old
    assert (
        RangePaths("1", "blocks", RANGE)
        .staged(manifest.attempt_name, "x")
        .startswith(f"1/blocks/_attempts/10-20/{manifest.attempt}/")
    )


# ---------------------------------------------------------------- a copy of the ledger


def test_a_copy_of_the_database_is_refused_as_soon_as_the_first_one_goes_on(scene: Scene, copy: Any) -> None:
    """A staging database made from a backup: its ledger has the same identity, and thinks that the rows are hot."""
    scene.archived(10, 20)
    staging = copy()
    scene.purge(10, 20)
    before = content(scene)
    staging.execute("UPDATE TABLES.logs SET data = 'of staging' WHERE block_number = 14")
    with pytest.raises(RootNotOurs, match=r"a copy or a later state of this ledger.*archive rebuild.*`uri` of its own"):
        staging.archived(10, 20)
    assert content(scene) == before


def test_a_copy_that_goes_on_first_is_not_overwritten_by_the_first_one(scene: Scene, copy: Any) -> None:
    expected = hot(scene)
    scene.archived(10, 20)
    staging = copy()
    staging.archived(0, 10)
    before = content(scene)
    with pytest.raises(RootNotOurs):
        scene.purge(10, 20)
    with pytest.raises(RootNotOurs):
        scene.archived(0, 10)
    assert hot(scene) == expected
    assert content(scene) == before


def test_a_copy_that_was_announcing_when_it_was_made_does_not_win_later(scene: Scene, copy: Any) -> None:
    """An entry that is written to the ledger, and not yet created, is in the copy, too."""
    scene.archived(10, 20)
    ours = Ownership(scene.ledger, scene.store)
    ours._pending("a nonce", "publish", BlockRange(0, 10), 1, {})
    staging = copy()
    scene.archived(0, 10)
    with pytest.raises(RootNotOurs):
        staging.archived(0, 10)


def test_an_announcement_that_a_dead_process_left_is_finished_by_the_next(scene: Scene) -> None:
    ours = Ownership(scene.ledger, scene.store)
    ours._pending("a nonce", "publish", RANGE, 1, {})
    scene.archived(10, 20)
    assert [entry.nonce == "a nonce" for entry in ours.history()] == [True, False]
    pending = ours._pending("another", "publish", RANGE, 1, {})
    scene.store.create(ours._key(pending.number), pending.to_bytes())
    scene.purge(10, 20)
    assert [entry.number for entry in ours.history()] == [1, 2, 3, 4]


def test_many_runs_of_one_ledger_announce_one_after_the_other(scene: Scene) -> None:
    from concurrent.futures import ThreadPoolExecutor

    scene.grow(30, 70)
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda start: scene.archived(start, start + 10).outcome, range(0, 60, 10)))
    assert done == ["archived"] * 6
    entries = Ownership(scene.ledger, scene.store).history()
    assert [entry.number for entry in entries] == list(range(1, 7))
    assert {entry.blocks for entry in entries} == {f"{start}-{start + 10}" for start in range(0, 60, 10)}


# ---------------------------------------------------------------- names and contents


@pytest.mark.parametrize("size", ["the same", "another"])
def test_other_bytes_under_a_files_name_are_neither_overwritten_nor_committed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    from compaction_platform.archive.cold.publish import ForeignFile, Publication

    real = Publication._show
    planted = {}

    def plant(publication: Publication, manifest: Any) -> None:
        if manifest.dataset == "logs":
            (file, *_) = manifest.files
            key = RangePaths(scene.archive.chain, "logs", RANGE).visible(file.name)
            planted[key] = b"x" * (file.size if size == "the same" else file.size + 1)
            scene.store.write(key, planted[key])
        real(publication, manifest)

    monkeypatch.setattr(Publication, "_show", plant)
    with pytest.raises(ForeignFile, match="exists and is not what was verified .*not changed"):
        scene.archived(10, 20)
    ((key, bytes_),) = planted.items()
    assert bytes(scene.store.read(key)) == bytes_
    assert scene.states(RANGE) == ["staged"]
    monkeypatch.undo()
    scene.store.delete([key])
    assert scene.archived(10, 20).outcome == "finished"


def test_what_is_set_aside_is_compared_by_content_before_it_leaves(scene: Scene) -> None:
    from compaction_platform.archive.cold.publish import NotRemoved

    scene.archived(10, 20)
    (key, *_) = scene.visible("logs")
    kept = RangePaths(scene.archive.chain, "logs", RANGE).superseded(1, key.rpartition("/")[2])
    scene.store.write(kept, b"x" * len(bytes(scene.store.read(key))))
    scene.execute("UPDATE TABLES.logs SET data = 'changed' WHERE block_number = 14")
    with pytest.raises(NotRemoved, match="is not what lies at"):
        scene.archived(10, 20)
    assert key in scene.visible("logs")


def test_a_changed_uri_without_its_files_is_told(scene: Scene) -> None:
    from dataclasses import replace

    scene.archived(10, 20)
    moved = replace(scene.archive, uri=f"{scene.archive.uri}_elsewhere")
    for run in (
        lambda: ArchiveRun(moved, scene.settings, scene.run().spread).run(BlockRange(0, 10)),
        lambda: PurgeRun(moved, scene.settings).run(RANGE),
    ):
        with pytest.raises(RootNotOurs, match=r"its entry 1 is missing.*Was `uri` changed\?"):
            run()
    assert block_hash(0) in {row[2] for row in scene.hot("blocks")}
