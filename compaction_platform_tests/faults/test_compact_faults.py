"""What may happen in the middle of a compaction, made to happen. Afterwards every row is there, exactly once."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from compaction_platform.compact import job
from compaction_platform.compact.commit import delete_inputs
from compaction_platform.compact.commit.decisions import Decisions
from compaction_platform.compact.job import CompactRun
from compaction_platform.compact.plan import reconcile
from compaction_platform.compact.plan.bin_packing import FileGroup
from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.compact.rewrite import reencode, rewrite_bin
from compaction_platform.compact.rewrite.compatible_inputs import JoinOptions
from compaction_platform.compact.rewrite.read_inputs import FetchedInputs, SourceFile
from compaction_platform.compact.rewrite.rewrite_bin import CompactGroup
from compaction_platform.lake.parquet.stitch.errors import StitchUnsupported
from compaction_platform.lake.parquet.writer import WriterOptions
from compaction_platform.lake.storage.object_store import ObjectExists, ObjectStore, StoreRefused
from compaction_platform.settings import Settings
from compaction_platform_tests.compact.yard import Yard, local_yard, rows
from compaction_platform_tests.zygote import Zygote

pytestmark = pytest.mark.unit


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    yard = local_yard(tmp_path / "yard", Settings(_env_file=None))
    for number in range(8):
        yard.put(f"h=1/{number}.parquet", rows(number * 50))
    return yard


def every_row_once(yard: Yard, *more: pyarrow.Table) -> None:
    expected = [row for number in range(8) for row in rows(number * 50).to_pylist()]
    expected += [row for table in more for row in table.to_pylist()]
    found = [row for directory in yard.content().values() for row in directory]
    assert sorted(found, key=lambda row: row["id"]) == sorted(expected, key=lambda row: row["id"])


def is_compacted(yard: Yard) -> None:
    assert len(yard.files()) == len(yard.outputs()) == 1
    assert yard.run().plan()[0].plan.is_empty


# ---------------------------------------------------------------- death

SCRIPT = """
import os, signal, sys
from compaction_platform.compact.rewrite import reencode
from compaction_platform.compact.commit import delete_inputs
from compaction_platform.compact.rewrite import rewrite_bin
from compaction_platform.compact.commit.delete_inputs import InputDeletion
from compaction_platform.compact.rewrite.rewrite_bin import CompactGroup
from compaction_platform.compact.job import CompactRun, DirectoryConfig
from compaction_platform.settings import Settings
from compaction_platform.lake.parquet.stitch.errors import StitchUnsupported
from compaction_platform.lake.spark.parallel_map import ParallelMap

uri, point = arguments

def die(*arguments, **named):
    os.kill(os.getpid(), signal.SIGKILL)

def dying_after(real):
    def call(*arguments, **named):
        real(*arguments, **named)
        die()
    return call

if point == "before reading":
    rewrite_bin.fetch = die
elif point == "after reading":
    reencode.write = die
elif point == "after writing":
    CompactGroup._commit = die
elif point == "while uploading":
    os.link = os.replace = die
elif point == "after uploading":
    CompactGroup._commit = dying_after(CompactGroup._commit)
elif point == "before removing":
    InputDeletion._remove_some = die
elif point == "while removing":
    delete_inputs.CHUNK = 3
    InputDeletion._remove_some = dying_after(InputDeletion._remove_some)
elif point == "after removing":
    CompactGroup._finish = dying_after(CompactGroup._finish)
CompactRun(DirectoryConfig(uri), Settings(_env_file=None), lambda: ParallelMap(None, 1)).run()
"""


@pytest.mark.parametrize(
    ("point", "is_committed"),
    [
        ("before reading", False),
        ("after reading", False),
        ("after writing", False),
        ("while uploading", False),
        ("after uploading", True),
        ("before removing", True),
        ("while removing", True),
        ("after removing", True),
    ],
)
def test_a_run_that_is_killed_is_finished_by_the_next(
    yard: Yard, zygote: Zygote, point: str, is_committed: bool
) -> None:
    zygote.die(SCRIPT, yard.uri, point)
    assert len(yard.outputs()) == is_committed
    yard.grow_older()  # or the next run would wait for the dead one
    assert yard.compact().failed == {}
    every_row_once(yard)
    is_compacted(yard)


def test_a_run_right_after_a_death_waits_and_finishes(
    yard: Yard, zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "SETTLED_AFTER", timedelta(seconds=3))
    monkeypatch.setattr(job, "WAIT_SECONDS", 0.1)
    zygote.die(SCRIPT, yard.uri, "after uploading")
    (survey,) = yard.run().plan()
    assert (survey.plan.unsettled, survey.plan.is_empty) == (8, True), "what another run may take back is not touched"
    report = yard.compact()
    assert report.removed_superseded == 8
    assert any("waiting" in said for said in yard.said)
    every_row_once(yard)
    is_compacted(yard)


def test_a_full_disk_changes_nothing(yard: Yard, zygote: Zygote) -> None:
    limited = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))"
    script = SCRIPT.replace("CompactRun(", f"{limited}; report = CompactRun(").rstrip() + "; print(report.failed)"
    ended = zygote.run(script, yard.uri, "nowhere")
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "File too large" in ended.stdout
    assert (len(yard.files()), yard.outputs()) == (8, [])
    every_row_once(yard)


@pytest.mark.parametrize(
    "trouble",
    [MemoryError("realloc"), pyarrow.ArrowMemoryError("malloc of 64 failed"), OSError(errno.EMFILE, "too many files")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("place", ["decoded", "write"])
def test_no_memory_and_no_room_damage_no_file(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, trouble: Exception, place: str
) -> None:
    """What this machine lacks is nothing that is said about a file, and the next run compacts it."""

    def fail(*arguments: Any, **named: Any) -> Any:
        raise trouble

    with monkeypatch.context() as patch:
        patch.setattr(reencode.stitch, "write", raising(StitchUnsupported))
        if place == "decoded":
            patch.setattr(SourceFile, "decoded", fail)
        else:
            patch.setattr(reencode.ParquetOutput, "write", fail)
        report = yard.compact()
    assert report.made == [] and report.set_aside == {}
    assert yard.notes() == {}
    every_row_once(yard)
    assert yard.compact().is_clean
    is_compacted(yard)


def test_a_file_that_wants_more_memory_than_there_is_does_not_stop_the_others(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged footer may ask for any amount of it."""
    real = SourceFile.decoded

    def decoded(self: SourceFile) -> Any:
        if self.file.name == "3.parquet":
            raise MemoryError
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(reencode.stitch, "write", raising(StitchUnsupported))
        patch.setattr(SourceFile, "decoded", decoded)
        report = yard.compact()
    assert [len(each.made_of.inputs) for each in report.made] == [7]
    assert "memory ran out" in report.made[0].changed["h=1/3.parquet"]
    assert yard.notes() == {}
    every_row_once(yard)


def test_trash_is_kept_for_as_long_as_its_declaration_said(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever empties it later: `compaction compact`, which knows no declaration, or a run that declares less."""
    yard.compact(originals="trash", trash_for=timedelta(hours=720))
    assert len(list(yard.store.list("_compaction/trash"))) == 8
    for hours, left in ((719, 8), (721, 0)):
        later = datetime.now(UTC) + timedelta(hours=hours)
        monkeypatch.setattr(CompactRun, "now", lambda self, later=later: later)
        yard.compact()
        yard.compact(originals="trash", trash_for=timedelta(hours=1))
        assert len(list(yard.store.list("_compaction/trash"))) == left


# ---------------------------------------------------------------- a store that fails


def test_an_upload_whose_answer_is_lost(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ObjectStore.create_from

    def lost(self: ObjectStore, key: str, data: Any) -> None:
        real(self, key, data)
        raise StoreRefused("the connection was closed")

    monkeypatch.setattr(ObjectStore, "create_from", lost)
    report = yard.compact()
    assert "the connection was closed" in next(iter(report.failed.values()))
    assert len(yard.files()) == 9, "nobody knows whether it was stored: nothing is removed"
    monkeypatch.undo()
    yard.grow_older()
    assert len(yard.compact().plan.superseded) == 8
    every_row_once(yard)
    is_compacted(yard)


def test_an_upload_that_the_library_tries_twice(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt was stored and its answer lost; the second is told that the file exists."""
    real = ObjectStore.create_from

    def twice(self: ObjectStore, key: str, data: Any) -> None:
        real(self, key, data)
        raise ObjectExists(key)

    monkeypatch.setattr(ObjectStore, "create_from", twice)
    monkeypatch.setattr(reconcile, "SETTLED_AFTER", timedelta(seconds=1))
    monkeypatch.setattr(job, "WAIT_SECONDS", 0.1)
    assert yard.compact().failed == {}
    every_row_once(yard)
    is_compacted(yard)


def test_another_file_of_that_name_is_not_taken_for_ours(yard: Yard) -> None:
    (planned,) = yard.run().plan()[0].plan.bins

    def put_before(self: CompactGroup, made_of: FileGroup, output: Any) -> None:
        yard.put(planned.output, rows(5000))
        real(self, made_of, output)

    real = CompactGroup._commit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompactGroup, "_commit", put_before)
        report = yard.compact()
    assert "has other rows" in report.failed[planned.output]
    assert len(yard.files()) == 9


def test_originals_that_cannot_be_removed_are_reported_and_removed_by_the_next_run(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ObjectStore.delete_versions

    def refuse(self: ObjectStore, versions: Iterable[tuple[str, str]]) -> dict[str, str]:
        some = list(versions)
        refused = {key: "access denied" for key, _ in some if key.endswith(("/3.parquet", "/5.parquet"))}
        return refused | real(self, [(key, etag) for key, etag in some if key not in refused])

    monkeypatch.setattr(ObjectStore, "delete_versions", refuse)
    assert set(yard.compact().not_removed) == {"h=1/3.parquet", "h=1/5.parquet"}
    yard.put("h=1/8.parquet", rows(400))
    yard.put("h=1/9.parquet", rows(450))
    yard.grow_older()
    report = yard.compact()  # still refused: the compacted file must not be taken along, or nobody knew of 3 and 5
    assert set(report.not_removed) == {"h=1/3.parquet", "h=1/5.parquet"}
    monkeypatch.undo()
    yard.compact()
    every_row_once(yard, rows(400), rows(450))
    assert len(yard.files()) == len(yard.outputs()) == 2


# ---------------------------------------------------------------- others at work


def interrupted(monkeypatch: pytest.MonkeyPatch, place: Any, step: str, act: Callable[[], None]) -> list[str]:
    """Let something happen right before a step, once; returns whether it did."""
    real = getattr(place, step)
    happened: list[str] = []

    def call(*arguments: Any, **named: Any) -> Any:
        if not happened:
            happened.append(step)
            act()
        return real(*arguments, **named)

    monkeypatch.setattr(place, step, call)
    return happened


@pytest.mark.parametrize(
    ("place", "step"),
    [
        (reencode, "write"),
        (CompactGroup, "_commit"),
        (CompactGroup, "_finish"),
        (delete_inputs.InputDeletion, "_remove_some"),
    ],
    ids=["write", "commit", "finish", "remove"],
)
@pytest.mark.parametrize("late", [0, 2], ids=["the same plan", "another plan"])
def test_two_runs_at_once(yard: Yard, monkeypatch: pytest.MonkeyPatch, place: Any, step: str, late: int) -> None:
    """The other run does all of its work in the middle of this one, with files this one has not seen."""
    monkeypatch.setattr(reconcile, "SETTLED_AFTER", timedelta(seconds=1))  # the other one waits for this one
    monkeypatch.setattr(job, "WAIT_SECONDS", 0.1)
    more = [rows(1000 + number * 50) for number in range(late)]

    def other() -> None:
        for number, table in enumerate(more):
            yard.put(f"h=1/0-late-{number}.parquet", table)
        yard.compact()

    happened = interrupted(monkeypatch, place, step, other)
    yard.compact()
    assert happened == [step]
    every_row_once(yard, *more)
    yard.grow_older()
    yard.compact()
    every_row_once(yard, *more)
    assert yard.run().plan()[0].plan.is_empty


# Who reads the outputs as well says nothing about a race, and costs more than the rest: these tests read all rows.
UNPROVED = JoinOptions(WriterOptions(), second_reader="none")


def unproved(yard: Yard, target: Yard, originals_are: Any) -> CompactRun:
    target_uri = None if target is yard else target.uri
    return yard.run(originals=originals_are, target_uri=target_uri, second_reader="none")


OVERLAPPING = [
    ((0, 1, 2, 3), (3, 4, 5, 6)),
    ((3, 4, 5, 6), (0, 1, 2, 3)),
    ((0, 1, 2, 3, 4), (1, 2)),
    ((1, 2), (0, 1, 2)),
]


@pytest.mark.parametrize(
    ("originals_are", "elsewhere"), [("delete", False), ("trash", False), ("delete", True), ("keep", True)]
)
@pytest.mark.parametrize("groups", OVERLAPPING, ids=str)
@pytest.mark.parametrize("step", ["fetch", "_commit", "_finish", "remove", "_remove_some"])
@pytest.mark.parametrize("dies", [False, True], ids=["", "the other one dies after its commit"])
def test_two_runs_whose_plans_overlap(  # noqa: PLR0917 (its parameters are what it varies)
    yard: Yard,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    originals_are: Any,
    elsewhere: bool,
    groups: tuple[tuple[int, ...], tuple[int, ...]],
    step: str,
    dies: bool,
) -> None:
    target = local_yard(tmp_path / "target", yard.settings) if elsewhere else yard
    files = sorted(
        FileVersion(stored.key, stored.size, stored.etag, stored.last_modified) for stored in yard.store.list()
    )
    removal = delete_inputs.InputDeletion(originals_are, datetime.now(UTC))
    work = CompactGroup(yard.store, target.store, UNPROVED, removal)
    ours, theirs = (FileGroup(tuple(files[number] for number in group), 128) for group in groups)

    def other() -> None:
        with contextlib.ExitStack() as until_dead:
            if dies:
                patch = until_dead.enter_context(pytest.MonkeyPatch.context())
                patch.setattr(CompactGroup, "_finish", raising(Dead))
                until_dead.enter_context(contextlib.suppress(Dead))
            work(theirs)

    place: Any = {
        "fetch": rewrite_bin,
        "remove": delete_inputs.InputDeletion,
        "_remove_some": delete_inputs.InputDeletion,
    }.get(step, CompactGroup)
    happened = interrupted(monkeypatch, place, step, other)
    work(ours)
    assert happened == ([] if originals_are == "keep" and step == "_remove_some" else [step])
    for age in (timedelta(), timedelta(minutes=5), timedelta(days=1), timedelta(days=1)):
        target.grow_older(age)
        again = unproved(yard, target, originals_are)
        if not again.plan()[0].plan.unsettled:  # or it would wait
            again.run()
        assert {row["id"] for row in all_rows(yard, target)} == set(range(400)), "nothing is ever lost"
    found = all_rows(target) if originals_are == "keep" else all_rows(yard, target)
    assert sorted(row["id"] for row in found) == list(range(400)), "nothing is there twice in the end"
    assert again.plan()[0].plan.conflicts == {}


# ---------------------------------------------------------------- a process that sleeps for a day


CHANGES = ("create", "create_from", "write", "copy", "delete", "delete_versions")


class Sleeper:
    """Lets a day pass right before the n-th call of one run that changes the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, a_day: Callable[[], None]) -> None:
        self.slept_before: str | None = None
        self._left, self._a_day, self._is_watching = number, a_day, True
        for name in CHANGES:
            monkeypatch.setattr(ObjectStore, name, self._watched(name, getattr(ObjectStore, name)))

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self._is_watching:
                if self._left == 0:
                    self.slept_before = name
                    self.others_at_work(self._a_day)
                self._left -= 1
            return real(*arguments, **named)

        return call

    def others_at_work(self, act: Callable[[], None]) -> None:
        """What others change meanwhile does not count."""
        self._is_watching = False
        act()
        self._is_watching = True


@pytest.mark.parametrize(("originals_are", "elsewhere"), [("trash", False), ("delete", True)])
@pytest.mark.parametrize("groups", OVERLAPPING[::2], ids=str)
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize(
    "other_one", ["comes meanwhile", "dies meanwhile", "has committed before", "has looked before"]
)
def test_a_run_that_sleeps_for_a_day_before_any_change_loses_nothing(  # noqa: PLR0917 (what it varies)
    yard: Yard,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    originals_are: Any,
    elsewhere: bool,
    groups: tuple[tuple[int, ...], tuple[int, ...]],
    place: int,
    other_one: str,
) -> None:
    """Another run has files of it in an output of its own. While this one sleeps, further runs finish, a day later,
    what both have left to do."""
    target = local_yard(tmp_path / "target", yard.settings) if elsewhere else yard
    files = sorted(
        FileVersion(stored.key, stored.size, stored.etag, stored.last_modified) for stored in yard.store.list()
    )
    work = CompactGroup(
        yard.store,
        target.store,
        UNPROVED,
        delete_inputs.InputDeletion(originals_are, datetime.now(UTC)),
    )
    ours, theirs = (FileGroup(tuple(files[number] for number in group), 128) for group in groups)
    real_commit, real_finish = CompactGroup._commit, CompactGroup._finish
    left_to_do: list[Callable[[], Any]] = []

    def only_commit(self: CompactGroup, *arguments: Any) -> Any:
        left_to_do.append(lambda: real_finish(self, *arguments))
        raise Dead

    def commit_other() -> None:
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Dead):
            patch.setattr(CompactGroup, "_finish", only_commit)
            work(theirs)

    days: list[int] = []

    def run_later() -> None:
        days.append(1)
        unproved(yard, target, originals_are).run()

    def a_day() -> None:
        if other_one.endswith("meanwhile"):
            commit_other()
        if other_one in ("comes meanwhile", "has committed before"):
            left_to_do.pop()()
        run_later()  # one only: the next would take the output along into a larger one
        assert {row["id"] for row in all_rows(yard, target)} == set(range(400))

    def committed_before(self: CompactGroup, made_of: FileGroup, output: Any) -> bool:
        monkeypatch.setattr(CompactGroup, "_commit", real_commit)
        sleeper.others_at_work(commit_other)
        if other_one == "has looked before":
            sleeper.others_at_work(left_to_do.pop())
        return real_commit(self, made_of, output)

    if other_one.endswith("before"):
        monkeypatch.setattr(CompactGroup, "_commit", committed_before)
    monkeypatch.setattr(CompactRun, "now", lambda self: datetime.now(UTC) + timedelta(days=sum(days)))
    sleeper = Sleeper(monkeypatch, place, a_day)
    with contextlib.suppress(rewrite_bin.OutputsConflict):
        work(ours)
    slept = sleeper.slept_before
    assert slept or place > 1
    assert {row["id"] for row in all_rows(yard, target)} == set(range(400)), ("nothing is ever lost", slept)
    for _ in range(3):
        run_later()
    assert sorted(row["id"] for row in all_rows(yard, target)) == list(range(400)), ("nothing is there twice", slept)
    again = unproved(yard, target, originals_are)
    assert again.plan()[0].plan.conflicts == {}


def test_an_output_whose_inputs_are_being_removed_cannot_be_withdrawn_any_more(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[bool] = []
    happened = interrupted(
        monkeypatch,
        delete_inputs.InputDeletion,
        "_remove_some",
        lambda: answers.append(Decisions(yard.store).withdraw(yard.outputs()[0])),
    )
    yard.compact()
    assert (happened, answers) == (["_remove_some"], [False])
    every_row_once(yard)


def test_an_output_that_was_withdrawn_never_has_that_name_again(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever withdrew it may delete it at any time: what is made of the same files later has another name."""
    files = sorted(
        FileVersion(stored.key, stored.size, stored.etag, stored.last_modified) for stored in yard.store.list()
    )
    work = CompactGroup(yard.store, yard.store, JoinOptions(WriterOptions()), delete_inputs.InputDeletion("delete"))
    planned = FileGroup(tuple(files), 128)
    Decisions(yard.store).withdraw(planned.output)
    made = work(planned)
    assert made.output is not None and made.output != planned.output
    yard.store.delete([planned.output])
    every_row_once(yard)


def test_of_many_decisions_at_once_one_holds(yard: Yard) -> None:
    decisions = Decisions(yard.store)
    for turn in range(20):
        output = f"o{turn}"
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit((decisions.keep, decisions.withdraw)[number % 2], output) for number in range(8)]
            answers = [each.result() for each in asked]
        assert len(set(answers[::2])) == len(set(answers[1::2])) == 1
        assert answers[0] != answers[1]


def test_a_file_that_is_replaced_in_the_very_moment_of_its_removal_stays(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last look and the deletion: the version is compared when it is out of everybody's way."""
    real = Path.rename

    def replaced_before(self: Path, target: Any) -> Any:
        if self.name == "3.parquet" and "#" in str(target):
            monkeypatch.setattr(Path, "rename", real)
            yard.put("h=1/3.parquet", rows(3000))
        return real(self, target)

    monkeypatch.setattr(Path, "rename", replaced_before)
    report = yard.compact()
    assert list(report.not_removed) == ["h=1/3.parquet"]
    every_row_once(yard, rows(3000))


def test_a_task_that_is_repeated_after_it_removed_some(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark repeats what a dead executor was doing. What it makes of the rest is taken back."""
    monkeypatch.setattr(delete_inputs, "CHUNK", 3)
    monkeypatch.setattr(reconcile, "SETTLED_AFTER", timedelta(seconds=1))
    monkeypatch.setattr(job, "WAIT_SECONDS", 0.1)
    real = CompactGroup.__call__
    real_chunk = delete_inputs.InputDeletion._remove_some
    deaths: list[str] = []

    def die_after_a_chunk(*arguments: Any) -> Any:
        real_chunk(*arguments)
        if not deaths:
            deaths.append("died")
            raise Dead
        return {}

    def attempts(self: CompactGroup, *arguments: Any) -> Any:
        with contextlib.suppress(Dead):
            return real(self, *arguments)
        return real(self, *arguments)

    monkeypatch.setattr(delete_inputs.InputDeletion, "_remove_some", die_after_a_chunk)
    monkeypatch.setattr(CompactGroup, "__call__", attempts)
    report = yard.compact()
    assert deaths == ["died"]
    assert report.is_clean
    every_row_once(yard)
    is_compacted(yard)


def test_what_an_output_was_made_of_is_known_when_it_is_taken_along(yard: Yard) -> None:
    """A slow run comes late with a file whose rows have moved on, twice."""
    files = sorted(
        FileVersion(stored.key, stored.size, stored.etag, stored.last_modified) for stored in yard.store.list()
    )
    work = CompactGroup(yard.store, yard.store, JoinOptions(WriterOptions()), delete_inputs.InputDeletion("delete"))
    late = FileGroup(tuple(files[1:3]), 128)
    kept = rewrite_bin.fetch(yard.store, late.inputs)
    work(FileGroup(tuple(files[:2]), 128))
    (first,) = [
        FileVersion(stored.key, stored.size, stored.etag, stored.last_modified)
        for stored in yard.store.list()
        if "compacted" in stored.key
    ]
    work(FileGroup((first, *files[6:]), 128))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewrite_bin, "fetch", lambda *arguments: kept)
        assert "taken back" in work(late).reason
        patch.setattr(CompactGroup, "_finish", raising(Dead))
        with contextlib.suppress(Dead):
            work(late)
    for _ in range(2):
        yard.grow_older()
        yard.compact()
        every_row_once(yard)


def test_an_output_made_of_a_file_that_was_replaced_since_is_for_a_person(yard: Yard, zygote: Zygote) -> None:
    zygote.die(SCRIPT, yard.uri, "after uploading")
    yard.put("h=1/3.parquet", rows(3000))
    yard.grow_older()
    report = yard.compact()
    assert "replaced" in report.plan.conflicts[yard.outputs()[0]]
    assert (report.is_clean, len(yard.files())) == (False, 9)


def test_an_output_is_new_when_it_appears(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it took to verify it."""
    real = reencode.write

    def slowly(inputs: Any, unified: Any, encoding: Any, sink: Any, verify: Any) -> Any:
        written = real(inputs, unified, encoding, sink, verify)
        os.utime(sink.name, (0, 0))
        return written

    monkeypatch.setattr(reencode, "write", slowly)
    yard.compact()
    stored = yard.store.stat(yard.outputs()[0])
    assert stored is not None
    assert datetime.now(UTC) - stored.last_modified < timedelta(minutes=1)


class Dead(BaseException):
    """As good as killed: nothing that comes after is done."""


def raising(kind: type[BaseException]) -> Any:
    def call(*arguments: Any, **named: Any) -> None:
        raise kind

    return call


def all_rows(*yards: Yard) -> list[dict[str, Any]]:
    different = {yard.uri: yard for yard in yards}
    return [row for yard in different.values() for content in yard.content().values() for row in content]


def test_files_that_appear_or_are_replaced_before_they_are_read(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    def write() -> None:
        yard.put("h=1/new.parquet", rows(1000))
        yard.put("h=1/3.parquet", rows(3000))
        yard.store.delete(["h=1/4.parquet"])

    happened = interrupted(monkeypatch, rewrite_bin, "fetch", write)
    report = yard.compact()
    assert happened == ["fetch"]
    assert set(report.made[0].changed) == {"h=1/3.parquet", "h=1/4.parquet"}
    assert set(yard.files()) == {*yard.outputs(), "h=1/new.parquet", "h=1/3.parquet"}
    yard.grow_older()
    yard.compact()
    found = sorted(row["id"] for row in yard.content()["h=1"])
    kept = [*range(150), *range(250, 400)]
    assert found == sorted([*kept, *range(1000, 1050), *range(3000, 3050)])
    is_compacted(yard)


def test_a_file_that_is_replaced_while_it_is_compacted(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written from its old version is taken back."""
    happened = interrupted(monkeypatch, CompactGroup, "_finish", lambda: yard.put("h=1/3.parquet", rows(3000)))
    report = yard.compact()
    assert happened == ["_finish"]
    assert (report.made, yard.outputs()) == ([], [])
    assert "taken back" in report.done[0].reason
    assert sorted(row["id"] for row in yard.content()["h=1"]) == [*range(150), *range(200, 400), *range(3000, 3050)]
    yard.compact()
    is_compacted(yard)


def test_an_output_that_vanishes_leaves_its_inputs(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    def vanish() -> None:
        for key in yard.outputs():
            (Path(yard.uri) / key).unlink()

    for step in ("_finish", "_commit"):
        monkeypatch.setattr(CompactGroup, "_commit", CompactGroup._commit)
        real = CompactGroup._commit

        def commit(self: CompactGroup, *arguments: Any, real: Any = real) -> Any:
            answer = real(self, *arguments)
            vanish()
            return answer

        monkeypatch.setattr(CompactGroup, "_commit", commit)
        report = yard.compact()
        assert "is gone as soon as it was made" in next(iter(report.failed.values())), step
        every_row_once(yard)
        monkeypatch.undo()
    happened = interrupted(monkeypatch, delete_inputs.InputDeletion, "_remove_some", vanish)
    monkeypatch.setattr(delete_inputs, "CHUNK", 3)
    assert len(yard.compact().not_removed) == 5, "the second chunk and the third were not removed any more"
    assert happened == ["_remove_some"]


def test_a_deletion_asks_again_right_before(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_inputs, "CHUNK", 4)
    real = delete_inputs.InputDeletion._remove_some
    calls: list[int] = []

    def replace_later(removal: Any, store: ObjectStore, files: Any) -> dict[str, str]:
        calls.append(len(files))
        if len(calls) == 2:
            yard.put("h=1/6.parquet", rows(6000))
        return real(removal, store, files)

    monkeypatch.setattr(delete_inputs.InputDeletion, "_remove_some", replace_later)
    yard.compact()
    assert calls == [4, 4]
    every_row_once(yard, rows(6000))


# ---------------------------------------------------------------- output that is not what it should be


@pytest.mark.parametrize("sort_by", [(), ("word",)])
def test_output_that_differs_is_never_published(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, sort_by: tuple[str, ...]
) -> None:
    real = reencode.ParquetOutput.write

    def lose_a_row(output: Any, row_groups: Any) -> None:
        real(output, (rows.slice(1) for rows in row_groups))

    monkeypatch.setattr(reencode.ParquetOutput, "write", lose_a_row)
    report = yard.compact(encoding=WriterOptions(sort_by=sort_by))
    assert "are not those that were read" in next(iter(report.failed.values()))
    assert (len(yard.files()), yard.outputs()) == (8, [])
    every_row_once(yard)


def test_what_is_fetched_is_the_version_that_was_listed(yard: Yard) -> None:
    stored = yard.store.stat("h=1/0.parquet")
    assert stored is not None
    listed = FileVersion("h=1/0.parquet", stored.size, stored.etag)
    yard.put("h=1/0.parquet", rows(77))
    found = rewrite_bin.fetch(yard.store, [listed])
    assert isinstance(found, FetchedInputs)
    assert found.inputs == ()
    assert "not the version that was listed" in found.changed["h=1/0.parquet"]
    assert (Path(yard.uri) / "h=1/0.parquet").exists()
