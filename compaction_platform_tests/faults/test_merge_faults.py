"""What may happen in the middle of a merge, made to happen: deaths, other writers, lies of the store."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compaction_platform.embedded_lake.embedded import EmbeddedLake
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.spark.session import spark_session
from compaction_platform.merge import job as run_module
from compaction_platform.merge.publish.audit import AuditFailed
from compaction_platform.merge.publish.merger import ATTEMPTS, MergeConflict, Merger
from compaction_platform.settings import Settings
from compaction_platform_tests.merge.scene import Scene, event
from compaction_platform_tests.zygote import Zygote

pytestmark = pytest.mark.integration

NewScene = Callable[..., Scene]


@pytest.fixture
def new_scene(settings: Settings, spark: Any, tmp_path: Path) -> Iterator[NewScene]:
    def make(**arguments: Any) -> Scene:
        staging = tmp_path / "staging"
        staging.mkdir()
        return Scene(settings, spark, staging, **arguments)

    yield make


@pytest.fixture
def scene(new_scene: NewScene) -> Scene:
    scene = new_scene()
    scene.stage("first.parquet", [event(str(number), 1) for number in range(30)])
    scene.merge(0)
    scene.stage("second.parquet", [event(str(number), 2, 2.0) for number in range(20, 50)], 1)
    return scene


def before(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[int], None]) -> list[int]:
    """Let something happen right before a step of the merge; returns how often it did."""
    happened: list[int] = []
    real = getattr(Merger, step)

    def interrupted(self: Merger, *arguments: Any, **named: Any) -> Any:
        happened.append(len(happened) + 1)
        act(happened[-1])
        return real(self, *arguments, **named)

    monkeypatch.setattr(Merger, step, interrupted)
    return happened


# ---------------------------------------------------------------- death

SCRIPT = """
import os, signal
from compaction_platform.settings import load_settings
from compaction_platform.lake.spark.session import open_session
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.merge.publish.merger import Merger
from compaction_platform.merge.job import MergeRun
import pyspark.sql.connect.session, requests

rules, hour, point = arguments

def die(*arguments, **named):
    os.kill(os.getpid(), signal.SIGKILL)

if point == "before the commit":
    Merger._merge_once = die
elif point == "after the merge into the branch":
    Merger._audited = die
elif point == "before publishing":
    Merger._publish = die
elif point == "after publishing":
    MergeRun._write_receipts = die
elif point == "while publishing":
    real = requests.Session.send
    def send(self, request, **named):
        answer = real(self, request, **named)
        if request.method == "POST" and b"set-snapshot-ref" in (request.body or b"") and b'"main"' in request.body:
            die()
        return answer
    requests.Session.send = send
session = open_session(load_settings())
MergeRun(rules, load_settings(), lambda: ParallelMap(session, 2)).take_in_and_merge([hour])
"""


@pytest.mark.parametrize(
    ("point", "is_published"),
    [
        ("before the commit", False),
        ("after the merge into the branch", False),
        ("before publishing", False),
        ("while publishing", True),
        ("after publishing", True),
    ],
)
def test_a_run_that_is_killed_is_finished_by_the_next(
    scene: Scene, lake: EmbeddedLake, zygote: Zygote, point: str, is_published: bool
) -> None:
    main = scene.main()
    kill_a_merge(zygote, scene, lake, 1, point)
    assert (scene.main() != main) == is_published
    if not is_published:
        scene.check()  # readers see the table as it was
    snapshot = scene.main()
    outcome = scene.merge(1)
    scene.check()
    assert outcome.merged.published is not is_published
    assert (scene.main() == snapshot) == is_published


@pytest.mark.parametrize("point", ["after the merge into the branch", "before publishing"])
def test_a_run_that_is_killed_while_it_appends_new_keys(
    scene: Scene, lake: EmbeddedLake, zygote: Zygote, point: str
) -> None:
    scene.stage("new.parquet", [event(f"new {number}") for number in range(20)], 2)
    kill_a_merge(zygote, scene, lake, 2, point)
    scene.check()
    assert scene.merge(2).merged.inserted == 20
    scene.check()


def kill_a_merge(zygote: Zygote, scene: Scene, lake: EmbeddedLake, hour: int, point: str) -> None:
    environment = lake.isolated_environment(os.environ)
    zygote.die(SCRIPT, scene.rules, scene.hour(hour), point, environment=environment)


# ---------------------------------------------------------------- other writers


def test_two_merges_at_once_both_take_effect(scene: Scene, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is published while the first is about to be: the first starts again from the new state."""
    scene.stage("third.parquet", [event(str(number), 3, 3.0) for number in range(25, 60)], 2)

    def other(time: int) -> None:
        if time == 1:
            scene.merge(2)

    happened = before(monkeypatch, "_publish", other)
    outcome = scene.merge(1)
    assert len(happened) == 3, "the first attempt, the other merge, the second attempt"
    assert outcome.merged.attempts == 2
    assert scene.branches() == set()
    scene.check()


@pytest.mark.parametrize("keys", ["the same", "new"])
def test_merges_that_race_in_earnest(scene: Scene, settings: Settings, keys: str) -> None:
    """Each hour in a thread and a Spark session of its own; whoever comes second does it again."""
    for hour in (2, 3):
        names = [f"{hour}-{number}" if keys == "new" else str(number) for number in range(hour * 5, 60)]
        scene.stage(f"{hour}.parquet", [event(name, hour, hour * 1.0) for name in names], hour)

    def merge(hour: int) -> None:
        with spark_session(settings) as session:
            run = replace(scene.run(), spread=lambda: ParallelMap(session, 2))
            run.take_in_and_merge([scene.hour(hour)])

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(merge, (1, 2, 3)))
    for hour in (1, 2, 3):
        scene.model.merge(scene.files[hour])
    assert [{**row, "_staged_file": 0, "_staged_row": 0} for row in scene.content()] == [
        {**row, "_staged_file": 0, "_staged_row": 0} for row in scene.model.content()
    ]
    assert scene.branches() == set()


def test_a_lost_race_that_spark_reports_is_run_again_and_other_errors_are_not(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.errors import PySparkException

    def lose(time: int) -> None:
        if time == 1:
            raise PySparkException("can't add snapshot with sequence number 3, must be > than last sequence number 3")
        if time == 3:
            raise PySparkException("the disk is full")

    before(monkeypatch, "_counted", lose)
    assert scene.merge(1).merged.attempts == 2
    scene.check()
    with pytest.raises(PySparkException, match="disk is full"):
        scene.merge(1, again=True)
    assert scene.branches() == set()
    scene.check()


def test_maintenance_while_a_merge_runs(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def rewrite(time: int) -> None:
        if time == 1:
            options = "map('rewrite-all', 'true')"
            scene.sql(
                f"CALL lake.system.rewrite_data_files(table => 'merging.{scene.rules.table}', options => {options})"
            )

    happened = before(monkeypatch, "_audited", rewrite)
    outcome = scene.merge(1)
    assert happened == [1, 2]
    assert outcome.merged.attempts == 2
    scene.check()
    operations = [snapshot.summary.operation.value for snapshot in scene.table().metadata.snapshots]
    assert "replace" in operations, "maintenance took effect, too"


def test_a_table_that_never_rests_ends_in_an_explanation(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def insert(time: int) -> None:
        scene.sql(f"INSERT INTO {{table}} (event_id, amount) VALUES ('other-{time}', {time})")

    happened = before(monkeypatch, "_publish", insert)
    with pytest.raises(MergeConflict, match="Nothing was published and nothing is lost"):
        scene.run().take_in_and_merge([scene.hour(1)])
    assert len(happened) == ATTEMPTS
    assert scene.branches() == set()
    ours = [row for row in scene.content() if not row["event_id"].startswith("other")]
    assert ours == scene.model.content()


# ---------------------------------------------------------------- a merge that went wrong


@pytest.mark.parametrize(
    ("damage", "complaint", "evidence"),
    [
        ("DELETE FROM {branch} WHERE event_id = '33'", "1 staged keys are missing", "33"),
        ("UPDATE {branch} SET amount = 7 WHERE event_id = '34'", "1 rows are neither", "34"),
        ("INSERT INTO {branch} SELECT * FROM {branch} WHERE event_id = '35'", "1 keys are there more than once", "35"),
        ("DELETE FROM {branch} WHERE event_id = '5'", "30 rows + 20 inserted are not 49", ""),
        ("INSERT INTO {branch} SELECT * FROM {branch} WHERE event_id = '6'", "1 keys are there more than once", "6"),
    ],
)
@pytest.mark.parametrize("where", ["here", "on Spark"])
def test_an_audit_that_fails_publishes_nothing_and_shows_the_rows(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, damage: str, complaint: str, evidence: str, where: str
) -> None:
    if where == "on Spark":
        monkeypatch.setattr("compaction_platform.merge.publish.merger.ROWS_READ_HERE", -1)
    main, content = scene.main(), scene.content()

    def do_damage(time: int) -> None:
        (branch,) = scene.branches()
        scene.sql(damage.replace("{branch}", f"{{table}}.branch_{branch}"))

    before(monkeypatch, "_audited", do_damage)
    with pytest.raises(AuditFailed, match="Nothing was published") as failed:
        scene.run().take_in_and_merge([scene.hour(1)])
    assert complaint in str(failed.value)
    assert evidence in str([row["event_id"] for row in failed.value.rows])
    assert (scene.main(), scene.content()) == (main, content)
    assert scene.branches() == set()


# ---------------------------------------------------------------- files that change under our hands


@pytest.mark.parametrize("fate", ["replaced", "deleted"])
def test_a_file_that_changes_between_listing_and_reading_is_left_for_its_new_hour(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, fate: str
) -> None:
    path = scene.stage("restless.parquet", [event("restless", 1, 1.0)], 1)
    del scene.files[1]["restless.parquet"]
    real = run_module.staged_batches

    def listed_then_changed(*arguments: Any) -> Any:
        found = real(*arguments)
        if fate == "replaced":
            scene.stage("restless.parquet", [event("restless", 1, 2.0)], 2)
        else:
            path.unlink()
        return found

    monkeypatch.setattr(run_module, "staged_batches", listed_then_changed)
    outcome = scene.merge(1)
    monkeypatch.undo()
    assert [file.key for file in outcome.manifests[scene.hour(1)].files] == ["second.parquet"]
    assert scene.quarantine() == {}
    scene.check()
    if fate == "replaced":
        scene.merge(2)
        scene.check()
        assert "restless" in {row["event_id"] for row in scene.content()}
    main = scene.main()
    assert scene.merge(1).planned == (), "what was merged is known under what was really read"
    assert scene.main() == main
