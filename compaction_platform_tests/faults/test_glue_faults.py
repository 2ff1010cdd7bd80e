"""What may happen in the middle of a swap, made to happen. Afterwards the partition leads to every row, once."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from compaction_platform.compact.commit import delete_inputs
from compaction_platform.compact.glue.commit import cleanup
from compaction_platform.compact.glue.commit.catalog import GlueCatalog
from compaction_platform.compact.glue.commit.swap_location import LocationSwap
from compaction_platform.compact.glue.rewrite.partition_files import PartitionTask, RewritePartition
from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.persisted_names import GLUE_MANIFEST, GLUE_SWAPPED
from compaction_platform.settings import Settings
from compaction_platform_tests.compact.glue.catalog_server import CatalogServer
from compaction_platform_tests.compact.glue.scene import GRACE_OVER, RULES, Scene, clicks
from compaction_platform_tests.zygote import Zygote

pytestmark = pytest.mark.integration

ROWS = list(range(120))
PARTITION = ("2023", "05")
AT_ONCE = timedelta(minutes=-1)  # the store's clock tells seconds


@pytest.fixture(scope="module")
def catalog_server() -> Iterator[CatalogServer]:
    with CatalogServer() as server:
        yield server


@pytest.fixture
def scene(settings: Settings, catalog_server: CatalogServer) -> Iterator[Scene]:
    catalog_server.forget_hooks()
    scene = Scene(settings.model_copy(update={"glue_endpoint": catalog_server.url}), catalog_server)
    scene.fill(scene.partition(*PARTITION))
    yield scene
    catalog_server.forget_hooks()


def versions(scene: Scene) -> set[str]:
    around = scene.names(f"{scene.location}-compacted/year=2023/month=05", hidden=True)
    return {name.split("/")[0] for name in around if name.startswith("v-")}


def is_finished(scene: Scene) -> None:
    """Compact, and the only version that is left."""
    assert scene.ids(*PARTITION) == ROWS
    place = scene.place(*PARTITION)
    assert len(scene.names(place)) == 1
    assert {GLUE_MANIFEST, GLUE_SWAPPED} <= set(scene.names(place, hidden=True))
    assert not scene.compact().results[0].did_something


# ---------------------------------------------------------------- death

SCRIPT = """
import os, signal
from compaction_platform.compact.glue.rewrite import partition_files
from compaction_platform.compact.glue.commit import cleanup
from compaction_platform.compact.glue import job
from compaction_platform.compact.glue.commit import swap_location
from compaction_platform.compact.glue.commit.catalog import GlueCatalog
from compaction_platform.compact.glue.plan.partition_plan import PartitionRules
from compaction_platform.compact.glue.job import GlueRun
from compaction_platform.compact.glue.commit.swap_location import LocationSwap
from compaction_platform.compact.glue.config import GlueTableConfig
from compaction_platform.compact.commit.delete_inputs import InputDeletion
from compaction_platform.compact.commit import delete_inputs
from compaction_platform.compact.commit import delete_inputs
from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.settings import load_settings
from compaction_platform.lake.spark.parallel_map import ParallelMap
from datetime import timedelta

database, point = arguments

def die(*arguments, **named):
    os.kill(os.getpid(), signal.SIGKILL)

def dying_after(real):
    def call(*arguments, **named):
        real(*arguments, **named)
        die()
    return call

points = {
    "before the files": (partition_files.RewritePartition, "__call__", die),
    "after a file": (ObjectStore, "create_from", dying_after(ObjectStore.create_from)),
    "before the manifest": (LocationSwap, "_manifest", die),
    "after the manifest": (LocationSwap, "_update", die),
    "before the swap": (GlueCatalog, "update", die),
    "after the swap": (GlueCatalog, "update", dying_after(GlueCatalog.update)),
    "before its note": (LocationSwap, "note", die),
    "while removing": (InputDeletion, "_remove_some", dying_after(InputDeletion._remove_some)),
}
delete_inputs.CHUNK = 2
owner, name, value = points[point]
setattr(owner, name, value)
kept = GlueTableConfig(database, "clicks", rules=PartitionRules(delete_originals=True, grace=timedelta()))
GlueRun(kept, load_settings(), lambda: ParallelMap(None, 1)).run()
"""


def die_at(zygote: Zygote, scene: Scene, environment: dict[str, str], point: str) -> None:
    there = {**os.environ, **environment, "COMPACTION_GLUE_ENDPOINT": scene.server.url}
    zygote.die(SCRIPT, scene.database, point, environment=there)


@pytest.mark.parametrize(
    ("point", "is_swapped"),
    [
        ("before the files", False),
        ("after a file", False),
        ("before the manifest", False),
        ("after the manifest", False),
        ("before the swap", False),
        ("after the swap", True),
        ("before its note", True),
    ],
)
def test_a_run_that_is_killed_is_finished_by_the_next(
    scene: Scene,
    zygote: Zygote,
    lake_environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    is_swapped: bool,
) -> None:
    home = scene.place(*PARTITION)
    die_at(zygote, scene, lake_environment, point)
    assert (scene.place(*PARTITION) != home) == is_swapped
    assert scene.ids(*PARTITION) == ROWS
    report = scene.compact()
    assert report.is_clean
    if point != "before the files" and not is_swapped:
        assert [each.how for each in report.results[0].outputs] == ["resumed"]
    is_finished(scene)
    monkeypatch.setattr(cleanup, "ABANDONED_AFTER", AT_ONCE)
    scene.compact(GRACE_OVER)
    assert scene.names(home) == []
    assert versions(scene) == {scene.place(*PARTITION).rpartition("/")[2]}
    is_finished(scene)


def test_a_removal_that_is_killed_is_finished_by_the_next(
    scene: Scene, zygote: Zygote, lake_environment: dict[str, str]
) -> None:
    home = scene.place(*PARTITION)
    scene.compact()
    die_at(zygote, scene, lake_environment, "while removing")
    assert len(scene.names(home)) == 4
    assert scene.compact(GRACE_OVER).results[0].removed == 4
    is_finished(scene)


# ---------------------------------------------------------------- others change things meanwhile


def once_before(operation: str, scene: Scene, do: Callable[[], None]) -> list[str]:
    """Do something right before the first such call; the list tells that it happened."""
    happened: list[str] = []

    def hook(called: str, request: dict[str, Any]) -> None:
        if called == operation and not happened:
            happened.append(called)
            do()

    scene.server.before = hook
    return happened


def after_the_files(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> list[str]:
    """Do something when all new files are there, and nothing is committed yet."""
    happened: list[str] = []
    real = LocationSwap.commit

    def commit(*arguments: Any) -> Any:
        if not happened:
            happened.append("yes")
            do()
        return real(*arguments)

    monkeypatch.setattr(LocationSwap, "commit", commit)
    return happened


def test_a_partition_that_was_altered_meanwhile_is_not_swapped(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between our reading it and the swap."""
    home = scene.place(*PARTITION)
    real = LocationSwap._require_unchanged
    happened = []

    def altered(self: LocationSwap, *arguments: Any) -> None:
        real(self, *arguments)
        if not happened:
            happened.append(True)
            scene.update(*PARTITION, Parameters={"altered": "yes"})

    monkeypatch.setattr(LocationSwap, "_require_unchanged", altered)
    report = scene.compact()
    assert happened and report.results[0].outcome == "conflict"
    assert "altered by somebody else" in report.results[0].why and not report.is_clean
    after = scene.described(*PARTITION)
    assert after["Parameters"] == {"altered": "yes"} and scene.place(*PARTITION) == home
    assert scene.compact().is_clean  # the next run plans anew
    assert scene.described(*PARTITION)["Parameters"]["altered"] == "yes"
    is_finished(scene)


def test_a_partition_that_was_led_elsewhere_meanwhile_is_not_swapped(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = f"{scene.location}/restored"
    scene.put(elsewhere, "x.parquet", clicks(0, 120))
    happened = after_the_files(
        monkeypatch, lambda: scene.update(*PARTITION, StorageDescriptor=scene.storage(elsewhere))
    )
    (result,) = scene.compact().results
    assert happened and result.outcome == "conflict" and "was led to" in result.why
    assert scene.place(*PARTITION) == elsewhere


@pytest.mark.parametrize("what", ["added", "replaced", "removed"])
def test_files_that_change_meanwhile_prevent_the_swap(scene: Scene, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    home = scene.place(*PARTITION)

    def change() -> None:
        if what == "removed":
            scene.s3.delete_object(Bucket="lake", Key=f"{home.removeprefix('s3://lake/')}/part-000.parquet")
        else:
            scene.put(home, "part-new.parquet" if what == "added" else "part-000.parquet", clicks(900))

    happened = after_the_files(monkeypatch, change)
    (result,) = scene.compact().results
    assert happened and result.outcome == "conflict" and "came, went or changed" in result.why
    assert scene.place(*PARTITION) == home
    expected = {"added": [*ROWS, *range(900, 920)], "replaced": [*ROWS[20:], *range(900, 920)], "removed": ROWS[20:]}
    assert scene.compact().results[0].outcome == "compacted"
    assert scene.ids(*PARTITION) == expected[what]


def test_an_input_that_changes_before_it_is_read_prevents_the_swap(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = scene.place(*PARTITION)
    real = RewritePartition.__call__
    happened = []

    def replaced_first(self: RewritePartition, work: PartitionTask) -> Any:
        happened.append(True)
        scene.put(home, "part-003.parquet", clicks(900))
        return real(self, work)

    monkeypatch.setattr(RewritePartition, "__call__", replaced_first)
    (result,) = scene.compact().results
    assert happened and result.outcome == "conflict" and scene.place(*PARTITION) == home


def test_a_file_that_comes_in_the_moment_of_the_swap_is_brought_in(scene: Scene) -> None:
    home = scene.place(*PARTITION)
    happened = once_before("UpdatePartition", scene, lambda: scene.put(home, "slipped.parquet", clicks(900)))
    assert scene.compact().results[0].outcome == "compacted"
    assert happened
    assert scene.compact().results[0].late == 1
    assert scene.ids(*PARTITION) == [*ROWS, *range(900, 920)]
    scene.compact(GRACE_OVER)
    assert scene.names(home) == [] and scene.ids(*PARTITION) == [*ROWS, *range(900, 920)]


def test_a_partition_that_is_dropped_meanwhile_stays_dropped(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def drop() -> None:
        scene.glue.delete_partition(DatabaseName=scene.database, TableName="clicks", PartitionValues=list(PARTITION))

    happened = after_the_files(monkeypatch, drop)
    (result,) = scene.compact().results
    assert happened and result.outcome == "failed" and "PartitionMissing" in result.why


def test_originals_stay_if_the_catalog_does_not_lead_to_their_rows_any_more(scene: Scene) -> None:
    home = scene.place(*PARTITION)
    scene.compact(GRACE_OVER)
    surveys = scene.plan(GRACE_OVER)
    assert len(surveys[0].plan.removable) == 6
    back = scene.storage(home)
    happened = once_before("GetPartition", scene, lambda: scene.update(*PARTITION, StorageDescriptor=back))
    report = scene.compact(GRACE_OVER)
    assert happened and report.results[0].removed == 0 and len(report.not_removed) == 6
    assert scene.ids(*PARTITION) == ROWS


def test_originals_stay_if_a_published_file_is_gone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    home = scene.place(*PARTITION)
    scene.compact(GRACE_OVER)
    place = scene.place(*PARTITION)
    real = cleanup.OldVersionCleanup.remove_replaced
    happened = []

    def lost_first(*arguments: Any) -> Any:
        happened.append(True)
        (name,) = scene.names(place)
        scene.s3.delete_object(Bucket="lake", Key=f"{place.removeprefix('s3://lake/')}/{name}")
        return real(*arguments)

    monkeypatch.setattr(cleanup.OldVersionCleanup, "remove_replaced", lost_first)
    report = scene.compact(GRACE_OVER)
    assert happened and report.results[0].removed == 0 and len(scene.names(home)) == 6
    (problem,) = scene.compact(GRACE_OVER).problems.values()
    assert home in problem  # where the rows are


# ---------------------------------------------------------------- answers that do not come


def test_an_update_whose_answer_is_lost_counts(scene: Scene) -> None:
    """Applied, but every answer is an error; the retries are, too."""
    lost: list[str] = []

    def hide(operation: str, request: dict[str, Any]) -> tuple[int, str] | None:
        if operation == "UpdatePartition":
            lost.append(operation)
            return 400, "AccessDeniedException"
        return None

    scene.server.after = hide
    (result,) = scene.compact().results
    assert lost and result.outcome == "compacted"
    scene.server.forget_hooks()
    is_finished(scene)


def test_an_update_that_is_refused_changes_nothing(scene: Scene) -> None:
    home = scene.place(*PARTITION)
    scene.server.before = lambda operation, request: (
        (400, "AccessDeniedException") if operation == "UpdatePartition" else None
    )
    (result,) = scene.compact().results
    assert result.outcome == "failed" and "Glue refused UpdatePartition: AccessDeniedException" in result.why
    assert scene.place(*PARTITION) == home
    scene.server.forget_hooks()
    assert scene.compact().results[0].outcome == "compacted"
    is_finished(scene)


def test_originals_that_may_not_be_deleted_are_reported_and_tried_again(
    settings: Settings, catalog_server: CatalogServer
) -> None:
    """The store itself refuses."""
    catalog_server.forget_hooks()
    places = {"glue_endpoint": catalog_server.url, "s3_endpoint": catalog_server.url}
    scene = Scene(settings.model_copy(update=places), catalog_server)
    scene.s3.create_bucket(Bucket="lake")
    home = scene.partition(*PARTITION)
    scene.fill(home)
    assert scene.compact().results[0].outcome == "compacted"
    catalog_server.denies_deletion = True
    report = scene.compact(GRACE_OVER)
    assert catalog_server.denied and report.results[0].removed == 0 and not report.is_clean
    assert len(report.not_removed) == 6 and all("AccessDenied" in why for why in report.not_removed.values())
    assert len(scene.names(home)) == 6 and scene.ids(*PARTITION) == ROWS
    catalog_server.denies_deletion = False
    assert scene.compact(GRACE_OVER).results[0].removed == 6
    assert scene.names(home) == [] and scene.ids(*PARTITION) == ROWS


def test_a_new_file_that_goes_away_in_the_moment_of_the_swap_leads_it_back(scene: Scene) -> None:
    home = scene.place(*PARTITION)

    def lose() -> None:
        base = f"{scene.prefix}-compacted/year=2023/month=05"
        (name,) = scene.names(f"s3://lake/{base}/{next(iter(versions(scene)))}")
        scene.s3.delete_object(Bucket="lake", Key=f"{base}/{next(iter(versions(scene)))}/{name}")

    happened = once_before("UpdatePartition", scene, lose)
    (result,) = scene.compact().results
    assert happened and result.outcome == "failed" and "led back" in result.why
    assert scene.place(*PARTITION) == home and scene.ids(*PARTITION) == ROWS


# ---------------------------------------------------------------- two runs, and what dead ones left


def test_two_runs_at_once_make_one_swap(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    home = scene.place(*PARTITION)
    happened = after_the_files(monkeypatch, lambda: scene.compact() and None)
    (result,) = scene.compact().results
    assert happened and result.outcome == "conflict"  # the other one was faster
    is_finished(scene)
    assert len(versions(scene)) == 1
    scene.compact(GRACE_OVER)
    assert scene.names(home) == [] and scene.ids(*PARTITION) == ROWS


def test_two_runs_of_different_inputs_lose_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    home = scene.place(*PARTITION)

    def other_run() -> None:
        scene.put(home, "more.parquet", clicks(900))
        assert scene.compact().results[0].outcome == "compacted"

    happened = after_the_files(monkeypatch, other_run)
    (result,) = scene.compact().results
    assert happened and result.outcome == "conflict"
    assert scene.ids(*PARTITION) == [*ROWS, *range(900, 920)]
    assert len(versions(scene)) == 1  # the loser has taken its own files away
    scene.compact(GRACE_OVER)
    assert scene.names(home) == [] and scene.ids(*PARTITION) == [*ROWS, *range(900, 920)]


@pytest.mark.parametrize("point", ["after a file", "after the manifest"])
def test_what_a_dead_run_has_left_is_removed_if_its_inputs_are_safe(
    scene: Scene, zygote: Zygote, lake_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    die_at(zygote, scene, lake_environment, point)
    (left,) = versions(scene)
    scene.put(scene.place(*PARTITION), "more.parquet", clicks(900))
    scene.compact()
    assert left in versions(scene)  # it may be a living run's for a day
    monkeypatch.setattr(cleanup, "ABANDONED_AFTER", AT_ONCE)
    assert scene.compact().results[0].leftovers == 1
    assert versions(scene) == {scene.place(*PARTITION).rpartition("/")[2]}
    assert scene.ids(*PARTITION) == [*ROWS, *range(900, 920)]


def test_a_version_that_the_catalog_led_to_once_is_not_removed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    home = scene.place(*PARTITION)
    scene.compact(GRACE_OVER)
    made = scene.place(*PARTITION)
    scene.update(*PARTITION, StorageDescriptor=scene.storage(home))  # somebody takes the swap back
    monkeypatch.setattr(cleanup, "ABANDONED_AFTER", AT_ONCE)
    report = scene.compact(GRACE_OVER)
    assert not report.is_clean and report.results[0].leftovers == 0 and made in report.problems["year=2023/month=05"]
    assert len(scene.names(made)) == 1


def test_a_run_that_was_taken_for_dead_does_not_publish(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was paused for more than a day; its directory was removed meanwhile."""
    home = scene.place(*PARTITION)
    happened = after_the_files(monkeypatch, lambda: take_for_dead(scene, monkeypatch))
    (result,) = scene.compact().results
    assert happened and result.outcome in ("conflict", "failed")
    assert scene.place(*PARTITION) == home and scene.ids(*PARTITION) == ROWS


def take_for_dead(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(cleanup, "ABANDONED_AFTER", AT_ONCE)
        only_look = replace(RULES, policy=replace(RULES.policy, min_files=100))
        assert scene.compact(only_look).results[0].leftovers == 1


def test_a_run_that_was_taken_for_dead_while_it_publishes_takes_that_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right before its call."""
    home = scene.place(*PARTITION)
    happened = once_before("UpdatePartition", scene, lambda: take_for_dead(scene, monkeypatch))
    (result,) = scene.compact().results
    assert happened and result.outcome == "failed" and "led back" in result.why
    assert scene.place(*PARTITION) == home and scene.ids(*PARTITION) == ROWS


def test_a_version_that_was_published_after_all_is_not_removed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run took it for abandoned, and looks again after it has marked it."""
    only_look = replace(RULES, policy=replace(RULES.policy, min_files=100))
    slow = scene.run(only_look)
    monkeypatch.setattr(cleanup, "ABANDONED_AFTER", AT_ONCE)
    late: list[Any] = []
    real = LocationSwap._update

    def looked_at_first(self: LocationSwap, *arguments: Any) -> None:
        late.append(slow.plan())  # it sees a directory with a manifest that nothing leads to
        real(self, *arguments)

    monkeypatch.setattr(LocationSwap, "_update", looked_at_first)
    assert scene.compact().results[0].outcome == "compacted"
    (surveyed,) = late[0]
    assert cleanup.OldVersionCleanup(slow.swap).remove_leftovers(surveyed, frozenset(), slow.now())[0] == 0
    is_finished(scene)


def test_a_file_that_is_not_of_this_run_prevents_the_swap(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    home = scene.place(*PARTITION)

    def stray() -> None:
        (version,) = versions(scene)
        scene.put(f"{scene.location}-compacted/year=2023/month=05/{version}", "stray.parquet", clicks(0))

    happened = after_the_files(monkeypatch, stray)
    (result,) = scene.compact().results
    assert happened and result.outcome == "conflict" and "not made by this run" in result.why
    assert scene.place(*PARTITION) == home and scene.ids(*PARTITION) == ROWS


def test_a_late_file_is_not_copied_to_a_location_that_was_replaced(scene: Scene) -> None:
    home = scene.place(*PARTITION)
    scene.compact()
    for number in range(2):
        scene.put(scene.place(*PARTITION), f"more-{number}.parquet", clicks(900 + number * 20))
    scene.put(home, "late.parquet", clicks(2000))
    paused = scene.run()
    surveys = paused.plan()
    assert len(surveys[0].plan.late) == 1
    scene.compact()  # brings it in, and swaps
    (result,) = paused._swap_all(surveys)
    assert result.outcome == "failed" and "led elsewhere" in result.why
    scene.compact()
    assert scene.ids(*PARTITION) == [*ROWS, *range(900, 940), *range(2000, 2020)]


# ---------------------------------------------------------------- a process that sleeps for a day

CHANGES = [
    (ObjectStore, "create"),
    (ObjectStore, "create_from"),
    (ObjectStore, "delete_versions"),
    (GlueCatalog, "update"),
]


class Sleeper:
    """Lets a day pass right before the n-th call of one run that changes the store or the catalog."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, a_day: Callable[[], None]) -> None:
        self.slept_before: str | None = None
        self._left, self._a_day, self._is_watching = number, a_day, True
        for owner, name in CHANGES:
            monkeypatch.setattr(owner, name, self._watched(name, getattr(owner, name)))

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self._is_watching:
                self._left -= 1
                if self._left < 0 and self.slept_before is None:
                    self.slept_before = name
                    self.others_at_work(self._a_day)
            return real(*arguments, **named)

        return call

    def others_at_work(self, act: Callable[[], Any]) -> None:
        """What others change meanwhile does not count."""
        self._is_watching = False
        act()
        self._is_watching = True

    def close(self) -> None:
        self._is_watching = False


LATE = list(range(900, 920))


def others_compact(scene: Scene) -> None:
    """A file comes, all is compacted, originals go, what dead runs have left goes, too."""
    scene.put(scene.place(*PARTITION), "more.parquet", clicks(900))
    for _ in range(3):
        scene.compact(GRACE_OVER)


def others_compact_twice(scene: Scene) -> None:
    others_compact(scene)
    for number in range(2):
        scene.put(scene.place(*PARTITION), f"again-{number}.parquet", clicks(920 + 20 * number))
    for _ in range(3):
        scene.compact(GRACE_OVER)


def led_back(scene: Scene) -> None:
    scene.put(scene.place(*PARTITION), "more.parquet", clicks(900))
    scene.update(*PARTITION, StorageDescriptor=scene.storage(f"{scene.location}/year=2023/month=05/"))


def every_row_is_there(scene: Scene, expected: list[int]) -> None:
    """Now, or as soon as a person has done what the plan says."""
    problem = scene.compact(GRACE_OVER).problems.get("year=2023/month=05")
    if problem:
        said = re.search(r"set the partition's location to (s3://\S+)\.", problem)
        assert said, problem
        scene.update(*PARTITION, StorageDescriptor=scene.storage(said[1]))
    for _ in range(3):
        report = scene.compact(GRACE_OVER)
    assert report.is_clean and scene.ids(*PARTITION) == expected, (report.problems, report.not_removed)


@pytest.mark.parametrize("meanwhile", [others_compact, others_compact_twice, led_back])
@pytest.mark.parametrize(
    ("begun", "number"),
    [
        *(("nothing was done yet", number) for number in range(5)),
        *(("originals are due", number) for number in range(3)),
    ],
)
def test_a_run_that_sleeps_for_a_day_before_any_change_loses_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, begun: str, number: int, meanwhile: Callable[[Scene], None]
) -> None:
    if begun == "originals are due":
        scene.compact(GRACE_OVER)
    monkeypatch.setattr(delete_inputs, "CHUNK", 2)
    monkeypatch.setattr(cleanup, "ABANDONED_AFTER", AT_ONCE)
    sleeper = Sleeper(monkeypatch, number, lambda: meanwhile(scene))
    report = scene.compact(GRACE_OVER)
    sleeper.close()
    assert sleeper.slept_before
    if begun == "originals are due" and meanwhile is led_back:
        assert "the partition was led to" in str(report.not_removed) and not report.is_clean
    expected = [*ROWS, *(range(900, 960) if meanwhile is others_compact_twice else LATE)]
    assert meanwhile is led_back or scene.ids(*PARTITION) == expected, "without anybody's help"
    every_row_is_there(scene, expected)


def test_a_run_that_sleeps_for_a_day_before_it_takes_its_own_files_away(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one was faster, and others go on from there."""
    monkeypatch.setattr(cleanup, "ABANDONED_AFTER", AT_ONCE)
    sleeper = Sleeper(monkeypatch, 2, lambda: others_compact_twice(scene))
    after_the_files(monkeypatch, lambda: sleeper.others_at_work(lambda: scene.compact(GRACE_OVER)))
    (result,) = scene.compact(GRACE_OVER).results
    sleeper.close()
    assert (result.outcome, sleeper.slept_before) == ("conflict", "delete_versions")
    every_row_is_there(scene, [*ROWS, *range(900, 960)])
    assert versions(scene) == {scene.place(*PARTITION).rpartition("/")[2]}


@pytest.mark.parametrize("number", range(5))
def test_a_run_that_removes_leftovers_and_sleeps_for_a_day_loses_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """They are those of a run that was held up right before it published them, and does so while the other sleeps."""
    rest: list[Callable[[], None]] = []
    real = LocationSwap._update

    def held_up(self: LocationSwap, surveyed: Any, before: Any, manifest: Any) -> None:
        def go_on() -> None:
            real(self, surveyed, before, manifest)
            self._confirm(before, manifest)

        rest.append(go_on)
        raise ConnectionError("held up")

    with monkeypatch.context() as patched:
        patched.setattr(LocationSwap, "_update", held_up)
        assert scene.compact().results[0].outcome == "failed"
    monkeypatch.setattr(cleanup, "ABANDONED_AFTER", AT_ONCE)
    published: list[str] = []

    def goes_on() -> None:
        try:
            rest[0]()
            published.append(scene.place(*PARTITION))
        except CompactionError as refused:
            assert "abandoned" in str(refused) or "gone" in str(refused)

    sleeper = Sleeper(monkeypatch, number, goes_on)
    scene.compact(replace(RULES, policy=replace(RULES.policy, min_files=100)))
    sleeper.close()
    assert sleeper.slept_before and scene.ids(*PARTITION) == ROWS
    assert bool(published) == (number == 0), "only before it was marked"
    every_row_is_there(scene, ROWS)


def test_a_change_while_an_update_is_throttled_is_not_overwritten(scene: Scene) -> None:
    throttled: list[str] = []

    def throttle(operation: str, request: dict[str, Any]) -> tuple[int, str] | None:
        if operation == "UpdatePartition" and not throttled:
            throttled.append(operation)
            scene.server.before = lambda operation, request: None
            scene.update(*PARTITION, Parameters={"altered": "yes"})
            return 400, "ThrottlingException"
        return None

    scene.server.before = throttle
    (result,) = scene.compact().results
    assert throttled and result.outcome == "conflict"
    assert scene.described(*PARTITION)["Parameters"] == {"altered": "yes"}
