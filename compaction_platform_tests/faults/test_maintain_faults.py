"""What may happen in the middle of maintenance, made to happen: deaths, other writers, answers that are lost."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from compaction_platform.errors import VerificationFailed
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.maintain.config import MaintenanceRequest, OrphanRules
from compaction_platform.maintain.operations.commit_groups import GroupCommits
from compaction_platform.maintain.operations.rewrite_data_files import RewriteGroup
from compaction_platform.maintain.operations.rollback import CannotRollBack
from compaction_platform.maintain.operations.verify_rows import missing_files, rows_differ
from compaction_platform.settings import Settings
from compaction_platform_tests.maintain.scene import Scene, ordered, rows_of
from compaction_platform_tests.zygote import Zygote

pytestmark = pytest.mark.integration

DAY_AND_MORE = timedelta(hours=25)
ORPHANS = OrphanRules(older_than=timedelta(hours=24), quarantined_for=timedelta(hours=24))


@pytest.fixture
def scene(settings: Settings, spark: Any) -> Scene:
    scene = Scene(settings, spark, write_delete_granularity="partition")
    scene.small_files(4, "de")
    scene.small_files(4, "fr", first=100)
    scene.delete("id % 5 = 2", lambda row: row["id"] % 5 == 2)
    return scene


# ---------------------------------------------------------------- death

SCRIPT = """
import os, signal
from compaction_platform.lake.iceberg import replace_files
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.maintain.operations import commit_groups
from compaction_platform.maintain import job
from compaction_platform.maintain.operations.remove_orphan_files import OrphanRemoval
from compaction_platform.maintain.operations.rewrite_data_files import RewriteGroup
from compaction_platform.maintain.job import MaintainRun
from datetime import datetime, timedelta, UTC

def die(*arguments, **named):
    os.kill(os.getpid(), signal.SIGKILL)

def dying_after(owner, name, times=1):
    real, left = getattr(owner, name), [times]
    def call(*arguments, **named):
        value = real(*arguments, **named)
        left[0] -= 1
        if left[0] == 0:
            die()
        return value
    setattr(owner, name, call)

points = {
    "before anything is written": lambda: setattr(RewriteGroup, "_written", die),
    "after a file was written": lambda: dying_after(RewriteGroup, "_stored"),
    "after all files were written": lambda: setattr(commit_groups, "commit_change", die),
    "after the manifests were written": lambda: setattr(replace_files, "commit", die),
    "after the first commit": lambda: dying_after(commit_groups, "commit_change"),
    "after the compaction": lambda: setattr(job, "remove_dangling", die),
    "after an orphan was copied": lambda: dying_after(ObjectStore, "copy"),
    "after an orphan was set aside": lambda: dying_after(OrphanRemoval, "_set_aside"),
}
def work(point, rules, settings, later):
    points[point]()
    MaintainRun(rules, settings, lambda: ParallelMap(None, 1), None, clock=lambda: datetime.now(UTC) + later).run()

work(*arguments)
"""


def die_at(scene: Scene, point: str, zygote: Zygote, later: timedelta = timedelta(), **changes: Any) -> None:
    zygote.die(SCRIPT, point, scene.rules(**changes), scene.settings, later)


@pytest.mark.parametrize(
    "point",
    [
        "before anything is written",
        "after a file was written",
        "after all files were written",
        "after the manifests were written",
        "after the first commit",
        "after the compaction",
    ],
)
def test_whatever_is_killed_the_rows_are_there_and_the_next_run_goes_on(
    scene: Scene, point: str, zygote: Zygote
) -> None:
    die_at(scene, point, zygote)
    scene.assert_nothing_lost()
    scene.maintain()
    scene.assert_nothing_lost()
    assert scene.files() == 2
    assert scene.look().files.deletes == {}
    # What the dead one wrote and did not commit goes with the orphans, and nothing else does.
    scene.maintain(orphans=ORPHANS, later=DAY_AND_MORE)
    scene.maintain(orphans=ORPHANS, later=DAY_AND_MORE + DAY_AND_MORE)
    scene.assert_nothing_lost()
    assert missing_files(scene.table, scene.settings) == []
    assert rows_differ(scene.table, scene.settings)[1] == {}


@pytest.mark.parametrize("point", ["after an orphan was copied", "after an orphan was set aside"])
def test_a_death_while_orphans_are_set_aside(scene: Scene, point: str, zygote: Zygote) -> None:
    store = ObjectStore.at(scene.table.location(), scene.settings)
    for number in range(3):
        store.write(f"data/country=de/orphan-{number}.parquet", b"left over")
    rules = replace(ORPHANS, quarantined_for=timedelta(hours=48))
    die_at(scene, point, zygote, later=DAY_AND_MORE, orphans=rules)
    scene.maintain(orphans=rules, later=DAY_AND_MORE)
    aside = [each.key for each in store.list() if "orphan" in each.key]
    assert len(aside) == 3 and all(key.startswith("_compaction/quarantine/") for key in aside)
    scene.assert_nothing_lost()
    assert missing_files(scene.table, scene.settings) == []


# ---------------------------------------------------------------- other writers


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], times: int = 1) -> list[int]:
    """Let a writer commit after the files were rewritten and before they are committed."""
    happened: list[int] = []
    real = GroupCommits._commit

    def interrupted(self: GroupCommits, *arguments: Any) -> Any:
        if len(happened) < times:
            happened.append(1)
            act()
            self.look.table.refresh()
        return real(self, *arguments)

    monkeypatch.setattr(GroupCommits, "_commit", interrupted)
    return happened


def test_an_append_in_between_costs_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    happened = meanwhile(monkeypatch, lambda: scene.write(rows_of([5000], "de"), rows_of([5001], "it")))
    report = scene.maintain()
    assert happened and report.conflicts == {}
    scene.assert_nothing_lost()
    assert scene.look().files.deletes == {}


def test_an_append_right_before_the_commit_costs_one_more_attempt(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race is lost at the catalog itself."""
    happened: list[int] = []
    real = RestCatalog.commit_table

    def late(self: RestCatalog, *arguments: Any) -> Any:
        if not happened and any("compaction.kind" in str(update) for update in arguments[2]):
            happened.append(1)
            scene.write(rows_of([5000], "de"))
        return real(self, *arguments)

    monkeypatch.setattr(RestCatalog, "commit_table", late)
    report = scene.maintain()
    assert happened and "another commit came first" in " ".join(scene.said)
    assert report.conflicts == {}
    scene.assert_nothing_lost()


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_a_delete_in_between_wins(scene: Scene, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    scene.sql(f"ALTER TABLE {scene.full_name} SET TBLPROPERTIES ('write.delete.mode'='{mode}')")

    def delete() -> None:
        scene.delete("id IN (3, 103, 113)", lambda row: row["id"] in (3, 103, 113))

    happened = meanwhile(monkeypatch, delete)
    report = scene.maintain()
    assert happened and report.conflicts
    assert all("a writer" in reason for reason in report.conflicts.values())
    scene.assert_nothing_lost()
    assert scene.files() == 2, "what the writer left was planned again"


def test_a_merge_in_between_wins(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def merge() -> None:
        scene.sql(
            f"MERGE INTO {scene.full_name} t USING (SELECT explode(array(4L, 9000L)) AS id) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET amount = 0.25 "
            "WHEN NOT MATCHED THEN INSERT (id, country, amount) VALUES (s.id, 'de', 0.5)"
        )
        scene.expected = [{**row, "amount": 0.25} if row["id"] == 4 else row for row in scene.expected]
        scene.expected.append({"id": 9000, "country": "de", "amount": 0.5})

    happened = meanwhile(monkeypatch, merge)
    report = scene.maintain()
    assert happened and report.conflicts
    scene.assert_nothing_lost()


def test_an_equality_delete_in_between_applies_to_the_new_files(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(settings, spark, partitioned_by=None)
    scene.small_files(4)
    happened = meanwhile(monkeypatch, lambda: scene.delete_by_equality([{"id": 3}, {"id": 33}]))
    report = scene.maintain()
    assert happened and report.conflicts == {}
    scene.assert_nothing_lost()
    # Java drops delete files that are older than all data: it must not think so of this one.
    scene.sql(f"INSERT INTO {scene.full_name} VALUES (7000, 'de', 1.0)")
    scene.expected.append({"id": 7000, "country": "de", "amount": 1.0})
    scene.sql(f"CALL lake.system.rewrite_manifests('{scene.name}')")
    scene.assert_nothing_lost()


def test_columns_that_change_in_between(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def add_column() -> None:
        scene.sql(f"ALTER TABLE {scene.full_name} ADD COLUMN note string")
        scene.expected = [{**row, "note": None} for row in scene.expected]

    happened = meanwhile(monkeypatch, add_column)
    report = scene.maintain()
    assert happened and "columns changed" in str(report.conflicts)
    scene.assert_nothing_lost()
    assert scene.files() == 2


def test_a_roll_back_in_between(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The delete is taken back while files from which it was applied wait for their commit."""
    parent = scene.snapshots[-2]
    state = scene.read(at=parent)

    def roll_back() -> None:
        scene.sql(f"CALL lake.system.rollback_to_snapshot('{scene.name}', {parent})")
        scene.expected = state

    happened = meanwhile(monkeypatch, roll_back)
    report = scene.maintain()
    assert happened and "rolled back" in str(report.conflicts)
    scene.assert_nothing_lost()
    assert scene.files() == 2


def test_two_compactions_at_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    other: list[Any] = []
    happened = meanwhile(monkeypatch, lambda: other.append(scene.maintain()))
    report = scene.maintain()
    assert happened and other[0].committed
    assert report.committed == () and report.conflicts
    scene.assert_nothing_lost()
    assert scene.files() == 2
    data = {path.rpartition("/")[2] for path in scene.look().files.data}
    lying_there = {
        each.key.rpartition("/")[2] for each in ObjectStore.at(scene.table.location(), scene.settings).list()
    }
    assert {name for name in lying_there if name.startswith("compacted-")} == data, "the loser cleaned up"


def test_a_writer_that_never_stops_is_not_chased_for_ever(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(10_000, 20_000))

    def delete_and_write() -> None:
        scene.write(rows_of([next(numbers)], "de"))
        victim = min(row["id"] for row in scene.expected if row["country"] == "de")
        scene.delete(f"id = {victim}", lambda row: row["id"] == victim)

    happened = meanwhile(monkeypatch, delete_and_write, times=1000)
    report = scene.maintain()
    assert len(happened) <= 20
    assert report.conflicts
    scene.assert_nothing_lost()


# ---------------------------------------------------------------- answers that are lost


@pytest.mark.parametrize(
    ("was_taken", "answer"),
    [
        (True, CommitStateUnknownException("504: the gateway gave up")),
        (False, CommitStateUnknownException("504: the gateway gave up")),
        (True, CommitFailedException("409: a client that asks twice loses against itself")),
    ],
)
def test_a_commit_whose_answer_is_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, was_taken: bool, answer: Exception
) -> None:
    lost: list[int] = []
    real = RestCatalog.commit_table

    def silent(self: RestCatalog, *arguments: Any) -> Any:
        if not lost and any("compaction.kind" in str(update) for update in arguments[2]):
            lost.append(1)
            if was_taken:
                real(self, *arguments)
            raise answer
        return real(self, *arguments)

    monkeypatch.setattr(RestCatalog, "commit_table", silent)
    report = scene.maintain()
    assert lost
    scene.assert_nothing_lost()
    assert missing_files(scene.table, scene.settings) == [], "no file that the commit may need was deleted"
    if was_taken:
        assert report.unknown is None and report.committed
    else:
        assert report.unknown is not None and "run again" in report.unknown
    scene.maintain()
    scene.assert_nothing_lost()
    assert scene.files() == 2


def test_a_log_that_fails_after_the_commit_costs_no_file(scene: Scene) -> None:
    def say(text: str) -> None:
        if text.startswith("snapshot"):
            raise OSError("the log cannot be written")

    run = scene.run_of()
    run.say = say
    with pytest.raises(OSError, match="the log"):
        run.run()
    scene.assert_nothing_lost()
    assert missing_files(scene.table, scene.settings) == []


@pytest.mark.parametrize("was_taken", [True, False])
def test_an_undo_whose_answer_is_lost(scene: Scene, monkeypatch: pytest.MonkeyPatch, was_taken: bool) -> None:
    at = scene.table.metadata.current_snapshot_id
    scene.maintain()
    real = RestCatalog.commit_table

    def silent(self: RestCatalog, *arguments: Any) -> Any:
        if was_taken:
            real(self, *arguments)
        raise CommitStateUnknownException("504: the gateway gave up")

    monkeypatch.setattr(RestCatalog, "commit_table", silent)
    if was_taken:
        assert scene.run_of().undo().to_snapshot == at
    else:
        with pytest.raises(CommitStateUnknownException):
            scene.run_of().undo()
    monkeypatch.undo()
    assert (scene.table.metadata.current_snapshot_id == at) == was_taken
    scene.assert_nothing_lost()


def test_an_undo_that_meets_a_writer_leaves_the_table_to_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.maintain()
    real = RestCatalog.commit_table

    def late(self: RestCatalog, *arguments: Any) -> Any:
        monkeypatch.undo()
        scene.write(rows_of([5000], "de"))
        return real(self, *arguments)

    monkeypatch.setattr(RestCatalog, "commit_table", late)
    with pytest.raises(CannotRollBack, match="another commit came first"):
        scene.run_of().undo()
    scene.assert_nothing_lost()


def test_a_failure_after_the_compaction_does_not_hide_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("Spark is gone")

    monkeypatch.setattr("compaction_platform.maintain.operations.expire_snapshots.expire", broken)
    report = scene.maintain(expire_snapshots=True, later=timedelta(hours=169))
    assert len(report.committed) == 2
    assert list(report.troubles) == ["snapshots: Spark is gone"]
    scene.assert_nothing_lost()


def test_what_reads_back_differently_is_discarded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that gives back other rows than it was given."""
    real = RewriteGroup._stored

    def altered(self: RewriteGroup, spooled: Any, work: Any) -> Any:
        import pyarrow.parquet

        rows = pyarrow.parquet.read_table(spooled)
        if "fr" in work.directory:
            rows = rows.slice(0, rows.num_rows - 1)
            pyarrow.parquet.write_table(rows, spooled)
        return real(self, spooled, work)

    monkeypatch.setattr(RewriteGroup, "_stored", altered)
    report = scene.maintain()
    assert len(report.committed) == 1
    assert VerificationFailed.__name__ in str(report.failed)
    scene.assert_nothing_lost()
    assert scene.files() == 5


def test_a_run_may_be_asked_for_by_force_while_others_write(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    happened = meanwhile(monkeypatch, lambda: scene.write(rows_of([5000], "de")))
    scene.maintain(MaintenanceRequest(force=True))
    assert happened
    assert ordered(scene.read()) == ordered(scene.expected)
