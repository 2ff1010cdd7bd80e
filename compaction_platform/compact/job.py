"""One run over a directory: list, plan, rewrite on Spark, clean up. Dagster, the command and the benchmarks call it."""

import functools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property

from compaction_platform.compact.commit.decisions import Decisions
from compaction_platform.compact.commit.delete_inputs import InputDeletion, Originals, ReplacementCheck, empty_trash
from compaction_platform.compact.plan import reconcile
from compaction_platform.compact.plan.bin_packing import (
    CompactionPlan,
    DirectoryState,
    FileGroup,
    OutputTarget,
    PackingPolicy,
    by_directory,
    make_plan,
    together,
)
from compaction_platform.compact.plan.column_survey import ColumnSurvey, survey_columns
from compaction_platform.compact.plan.copies import copies_of_inputs
from compaction_platform.compact.plan.lineage import RecordedInputs, listed, read_recorded_inputs
from compaction_platform.compact.plan.listing import FileVersion, Version
from compaction_platform.compact.plan.nothing_gained import NothingGained
from compaction_platform.compact.plan.own_lists import list_above, lists_in, refusal, refuse_listed
from compaction_platform.compact.plan.reconcile import Decision, in_doubt
from compaction_platform.compact.plan.skipped_files import SkippedFiles
from compaction_platform.compact.report import CompactionReport, DirectorySurvey
from compaction_platform.compact.rewrite.compatible_inputs import JoinOptions
from compaction_platform.compact.rewrite.result import Verify
from compaction_platform.compact.rewrite.rewrite_bin import CompactedGroup, CompactGroup
from compaction_platform.errors import VerificationFailed
from compaction_platform.lake.parquet.stitch.stitch_plan import ColumnStrategies, column_strategies
from compaction_platform.lake.parquet.writer import WriterOptions
from compaction_platform.lake.spark.parallel_map import SMALL_WORK_BYTES, ParallelMap, TaskResult
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.lake.storage.sizes import MB, FileSizes
from compaction_platform.lake.storage.threads import map_concurrently
from compaction_platform.lake.verification.extent import Extent
from compaction_platform.persisted_names import COMPACTION_DIRECTORY, TRASH_DIRECTORY
from compaction_platform.settings import Settings

SUMMARY = "_metadata"
LISTINGS_AT_ONCE = 16
WAIT_SECONDS = 2.0


@dataclass(frozen=True)
class DirectoryConfig:
    """What is compacted, and how."""

    uri: str
    policy: PackingPolicy = field(default_factory=PackingPolicy)
    encoding: WriterOptions = field(default_factory=WriterOptions)
    originals: Originals = "delete"
    target_uri: str | None = None
    trash_for: timedelta = timedelta(hours=72)
    verify: Verify = "full"
    exactly: bool = False  # join only files of the very same Parquet schema
    second_reader: Extent = "sample"  # how much another Parquet decoder reads as well
    grace: timedelta = timedelta()  # files that changed this recently are left for the next run


@dataclass(frozen=True)
class _Targets:
    directories: Mapping[str, OutputTarget]
    told: RecordedInputs


@dataclass(frozen=True)
class CompactRun:
    """What a run works with. `spread` is called only when there is something to do, `progress` with the bytes of the
    plan and those that are done."""

    directory: DirectoryConfig
    settings: Settings
    spread: Callable[[], ParallelMap]
    say: Callable[[str], None] = lambda text: None
    progress: Callable[[int, int], None] = lambda total, done: None

    @cached_property
    def source(self) -> ObjectStore:
        return ObjectStore.at(self.directory.uri, self.settings)

    @cached_property
    def target(self) -> ObjectStore:
        return ObjectStore.at(self.directory.target_uri or self.directory.uri, self.settings)

    def now(self) -> datetime:
        """The time by the clock of the place that is written to."""
        place = self.directory.target_uri or self.directory.uri
        return ObjectStore.at(f"{place.rstrip('/')}/{COMPACTION_DIRECTORY}", self.settings).now()

    def spread_for(self, size: int) -> ParallelMap:
        """Where work on so many bytes goes: a session is not opened for little of it."""
        return ParallelMap(None, os.cpu_count() or 1) if size <= SMALL_WORK_BYTES else self.spread()

    # ------------------------------------------------------------ list and plan

    def plan(self, prefixes: Sequence[str] = ("",)) -> tuple[DirectorySurvey, ...]:
        """What would be done below these prefixes. Nothing is changed."""
        self.require_no_list(prefixes)
        policy = self.directory.policy
        surveys: list[DirectorySurvey] = []
        apart = SkippedFiles(self.target).known() if prefixes else {}
        hopeless = NothingGained(self.target).known() if prefixes else frozenset()
        with ThreadPoolExecutor(LISTINGS_AT_ONCE) as pool:
            for prefix, files in zip(prefixes, pool.map(self.listed, prefixes), strict=True):
                survey = self.survey(prefix, files, apart, hopeless, policy)
                surveys.append(survey)
                if policy.max_files is not None:
                    policy = replace(policy, max_files=policy.max_files - survey.plan.inputs)
        return tuple(surveys)

    def columns_of(self, surveys: Sequence[DirectorySurvey]) -> ColumnSurvey:
        """What the bins of a plan would unify. It reads the footers of their files."""
        bins = [each for survey in surveys for each in survey.plan.bins]
        return survey_columns(self.source, bins, self.directory.policy.unify)

    def listed(self, prefix: str) -> list[FileVersion]:
        """The files below a prefix. Raises KeptByAList if something there lists some of them by name."""
        everything = list(listed(self.source, prefix))
        refuse_listed(self.directory.uri, lists_in(file.key for file in everything))
        return [file for file in everything if not file.is_hidden]

    def require_no_list(self, prefixes: Sequence[str]) -> None:
        """Raise KeptByAList if the files of this directory are listed by name at it or above it."""
        for uri in filter(None, (self.directory.uri, self.directory.target_uri)):
            if found := list_above(uri, prefixes, self.settings):
                raise refusal(*found)

    def survey(
        self,
        prefix: str,
        files: Sequence[FileVersion],
        apart: Mapping[str, Iterable[Version]],
        hopeless: Set[str],
        policy: PackingPolicy | None = None,
    ) -> DirectorySurvey:
        """What is to be done with these files; `apart` by directory: what was set aside; `hopeless`: marks of bins of
        which nothing could be made."""
        told = read_recorded_inputs(self.source, files)
        targets = self._targets(prefix)
        now = functools.cache(self.now)
        here = by_directory(files)
        holders = told if targets is None else targets.told
        copied = copies_of_inputs(self.source, files, holders.ancestors)
        states = {
            name: replace(
                self._state(
                    here.get(name, []),
                    told,
                    None if targets is None else targets.directories.get(name, OutputTarget()),
                    frozenset(apart.get(name, ())),
                    now,
                ),
                copied={file.key: copied[file.key] for file in here.get(name, []) if file.key in copied},
                nothing_gained=hopeless,
            )
            for name in {*here, *(targets.directories if targets else {})}
        }
        plan = make_plan(files, policy or self.directory.policy, states)
        known = {*told.inputs, *(targets.told.inputs if targets else {})}
        return DirectorySurvey(prefix, plan, FileSizes.of(file.size for file in files), frozenset(known))

    def _targets(self, prefix: str) -> "_Targets | None":
        """Compacted files at the place they go to, if that is another one."""
        if self.directory.target_uri is None:
            return None
        files = [file for file in listed(self.target, prefix) if not file.is_hidden]
        told = read_recorded_inputs(self.target, files)
        found = {
            name: OutputTarget(tuple(inside), *_told_by(inside, told)) for name, inside in by_directory(files).items()
        }
        return _Targets(found, told)

    def _decided(self, files: Sequence[FileVersion], outputs: Mapping[str, tuple[Version, ...]]) -> dict[str, Decision]:
        doubtful = in_doubt(files, outputs)
        return Decisions(self.target).of_all(doubtful) if doubtful else {}

    def _state(
        self,
        files: Sequence[FileVersion],
        told: RecordedInputs,
        target: OutputTarget | None,
        apart: frozenset[Version],
        clock: Callable[[], datetime],
    ) -> DirectoryState:
        outputs, untold = _told_by(files, told)
        grace = self.directory.grace
        decided = self._decided(files, outputs) if target is None else {}
        is_timed = bool(
            in_doubt(files, outputs)
            or (target is not None and in_doubt(files, target.outputs))
            or 0 < len(outputs) < len(files)  # small compacted files may be taken along
        )
        if target is not None:
            target = replace(target, decided=self._decided(files, target.outputs))
        now = clock() if grace or is_timed else None
        return DirectoryState(
            outputs,
            apart,
            target,
            self.directory.originals == "keep",
            untold,
            now,
            now - grace if now and grace else None,
            decided,
        )

    # ------------------------------------------------------------ carry out

    def run(self, prefixes: Sequence[str] = ("",)) -> CompactionReport:
        began = time.monotonic()
        surveys = self.plan(prefixes)
        plan = together([survey.plan for survey in surveys])
        removal = self._removal(needed=not plan.is_empty)
        not_removed = self._finish_earlier(plan, removal)
        removed = len({file.key for file in plan.superseded} - set(not_removed))
        done, failed = self._rewrite(plan, removal, frozenset().union(*(survey.known for survey in surveys)))
        SkippedFiles(self.target).remember(_set_aside(done, plan))
        not_removed |= self._remove_stale_summaries(done)
        not_removed |= {key: why for each in done for key, why in each.not_removed.items()}
        if plan.unsettled or any(each.is_somebody_elses for each in done):
            later, also_removed = self._finish_for_others(prefixes)
            not_removed |= later
            removed += also_removed
        not_removed |= self._empty_trash()
        after = self._sizes_now(prefixes)
        return CompactionReport(
            surveys,
            after,
            tuple(done),
            {key: outcome.error or "" for key, outcome in failed.items()},
            frozenset(key for key, outcome in failed.items() if outcome.has_raised(VerificationFailed)),
            removed,
            not_removed,
            time.monotonic() - began,
        )

    def _finish_for_others(self, prefixes: Sequence[str]) -> tuple[dict[str, str], int]:
        """Another run has just made a file and not removed its inputs. Either it is at it, or it has died: wait until
        that is certain, and do it."""
        waited = 0.0
        while True:
            plan = together([survey.plan for survey in self.plan(prefixes)])
            if not plan.unsettled or waited > 2 * reconcile.SETTLED_AFTER.total_seconds():
                break
            if waited == 0.0:
                self.say(f"{plan.unsettled} files are in one that another run has just made; waiting for it")
            time.sleep(WAIT_SECONDS)
            waited += WAIT_SECONDS
        removal = self._removal(needed=True)
        failures = self._finish_earlier(plan, removal)
        return failures, len({file.key for file in plan.superseded} - set(failures))

    def _rewrite(
        self, plan: CompactionPlan, removal: InputDeletion, known: frozenset[str]
    ) -> tuple[list[CompactedGroup], dict[str, TaskResult[FileGroup, CompactedGroup]]]:
        done: list[CompactedGroup] = []
        failed: dict[str, TaskResult[FileGroup, CompactedGroup]] = {}
        if not plan.bins:
            return done, failed
        self.say(f"{plan.inputs:,} small files become {len(plan.bins):,}, {plan.input_bytes / MB:,.1f} MB")
        touched = {each.directory for each in plan.bins}
        settled = {key for key in known if key.rpartition("/")[0] in touched} | {each.output for each in plan.bins}
        directory = self.directory
        how = JoinOptions(
            directory.encoding, directory.verify, directory.exactly, directory.second_reader, directory.policy.unify
        )
        rewrite = CompactGroup(self.source, self.target, how, removal, frozenset(settled))
        finished = 0
        hopeless: list[FileGroup] = []
        told: set[ColumnStrategies] = set()
        for outcome in self.spread_for(plan.input_bytes).run(rewrite, plan.bins, weight=_size):
            if outcome.value is None:
                failed[outcome.item.output] = outcome
                self.say(f"{outcome.item.output}: {outcome.error}")
            else:
                for result in (outcome.value, *outcome.value.beside):
                    done.append(result)
                    self._tell(result, len(done), len(plan.bins))
                    self._tell_columns(result, told)
                hopeless += _left_over(outcome.item, outcome.value)
            finished += outcome.item.size
            self.progress(plan.input_bytes, finished)
        NothingGained(self.target).remember(hopeless, self.directory.policy.unify)
        return done, failed

    def _removal(self, *, needed: bool) -> InputDeletion:
        """How this run removes originals. The store is asked for the time only if the trash needs it."""
        originals = self.directory.originals
        began = self.now() if needed and originals == "trash" else None
        return InputDeletion(originals, began, self.directory.trash_for)

    def _finish_earlier(self, plan: CompactionPlan, removal: InputDeletion) -> dict[str, str]:
        """What an earlier run has left to do: inputs of outputs that are kept, outputs that are withdrawn."""
        if plan.superseded:
            self.say(f"{len(plan.superseded)} files are in compacted ones already; removing them")
        decisions = Decisions(self.target)
        kept = {key for key in {holder.key for holder in plan.superseded_by.values()} if decisions.keep(key)}
        removable = [file for file in plan.superseded if plan.superseded_by[file.key].key in kept]
        failures = removal.remove(self.source, removable, ReplacementCheck(self.target, plan.superseded_by))
        withdrawn = [file for file in plan.surplus if decisions.withdraw(file.key)]
        failures |= InputDeletion("delete").remove(self.target, withdrawn, proof=None)
        undone = {file.key for file in (*plan.superseded, *plan.surplus)} - {
            file.key for file in (*removable, *withdrawn)
        }
        return failures | dict.fromkeys(undone, "another run has decided otherwise about it; the next run looks again")

    def _remove_stale_summaries(self, done: Sequence[CompactedGroup]) -> dict[str, str]:
        """A `_metadata` file lists the files of its directory and of those below; now it lists some that are gone."""
        if self.directory.originals == "keep":
            return {}
        above = {""}
        for each in done:
            parts = each.made_of.directory.split("/") if each.output is not None and each.made_of.directory else []
            above |= {"/".join(parts[: depth + 1]) for depth in range(len(parts))}
        if not any(each.output for each in done):
            return {}
        found = [self.source.stat(f"{directory}/{SUMMARY}".lstrip("/")) for directory in sorted(above)]
        stale = [FileVersion(stored.key, stored.size, stored.etag) for stored in found if stored is not None]
        for file in stale:
            self.say(f"{file.key} lists files that are gone; it was moved to {TRASH_DIRECTORY}")
        removal = InputDeletion("trash", self.now(), self.directory.trash_for)
        return removal.remove(self.source, stale, proof=None) if stale else {}

    def _empty_trash(self) -> dict[str, str]:
        undeclared = self.directory.trash_for if self.directory.originals == "trash" else None
        deleted, failures = empty_trash(self.source, self.now, undeclared)
        if deleted:
            self.say(f"{deleted} files were in the trash for as long as they had to be; deleted")
        return failures

    def _sizes_now(self, prefixes: Sequence[str]) -> FileSizes:
        """Where the data is now: listed once more, not computed."""
        found = map_concurrently(
            lambda prefix: [f.size for f in listed(self.target, prefix) if not f.is_hidden], prefixes, LISTINGS_AT_ONCE
        )
        return FileSizes.of(size for sizes in found for size in sizes)

    def _tell(self, result: CompactedGroup, done: int, total: int) -> None:
        if result.output is None:
            self.say(f"{done}/{total}: {result.made_of.directory or '.'}: nothing made: {result.reason}")
        else:
            self.say(
                f"{done}/{total}: {len(result.made_of.inputs)} files → {result.output}: {result.bytes / MB:.3g} MB, "
                f"{result.rows:,} rows, {result.engine} ({result.reason}), {result.seconds:.1f} s, "
                f"{result.proof_seconds:.1f} s of them for the proof"
            )
        if result.stitch_failure:
            self.say(f"warning: {result.output} could not be stitched because of a defect: {result.stitch_failure}")
        for key, reason in result.set_aside.items():
            self.say(f"{key}: set aside: {reason}")

    def _tell_columns(self, result: CompactedGroup, told: set[ColumnStrategies]) -> None:
        """How columns were made: once for all outputs in which they were made in the same ways."""
        ways = column_strategies(result.columns)
        if ways and ways not in told:
            told.add(ways)
            self.say(f"columns of {result.output}: {'; '.join(map(str, result.columns))}")


def _told_by(
    files: Iterable[FileVersion], told: RecordedInputs
) -> tuple[dict[str, tuple[Version, ...]], dict[str, str]]:
    """Of what compacted files say, what these ones do; and which of them do not."""
    keys = [file.key for file in files]
    return (
        {key: told.inputs[key] for key in keys if key in told.inputs},
        {key: told.untold[key] for key in keys if key in told.untold},
    )


def _left_over(planned: FileGroup, made: CompactedGroup) -> list[FileGroup]:
    """The files of a bin that do not go together with any other: the bin that the next plan would make of them."""
    results = (made, *made.beside)
    if any(each.is_somebody_elses or each.changed for each in results):
        return []  # the next run tries again
    gone = {file.key for each in results if each.output for file in each.made_of.inputs}
    rest = planned.without(gone.union(*(each.set_aside for each in results)))
    return [rest] if rest.inputs else []


def _size(each: FileGroup) -> int:
    return each.size


def _set_aside(done: Iterable[CompactedGroup], plan: CompactionPlan) -> dict[FileVersion, str]:
    files = {file.key: file for each in plan.bins for file in each.inputs}
    return {files[key]: reason for each in done for key, reason in each.set_aside.items()}
