"""One run over partitions of a Glue table: list, plan, rewrite on Spark, swap, clean up. Dagster, the command and the
job on AWS call it. Every partition is finished by itself."""

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

from compaction_platform.compact.glue.commit.catalog import GlueCatalog
from compaction_platform.compact.glue.commit.cleanup import OldVersionCleanup
from compaction_platform.compact.glue.commit.in_place import InPlace
from compaction_platform.compact.glue.commit.swap_location import LocationSwap, SwapConflict
from compaction_platform.compact.glue.config import GlueTableConfig, PartitionSurvey
from compaction_platform.compact.glue.plan.inventory import EVERYTHING, NOTHING_TO_GAIN, PartitionInventory, Selection
from compaction_platform.compact.glue.plan.manifest import OutputFile
from compaction_platform.compact.glue.plan.partition_plan import (
    LARGE_OR_ALONE,
    PartitionRules,
    copied_name,
    overlap,
    place_of,
)
from compaction_platform.compact.glue.plan.places import PartitionLocations
from compaction_platform.compact.glue.report import GlueReport, PartitionResult
from compaction_platform.compact.glue.rewrite.partition_files import InputsChanged, PartitionTask, RewritePartition
from compaction_platform.compact.rewrite.compatible_inputs import JoinOptions, in_one_line
from compaction_platform.errors import VerificationFailed
from compaction_platform.lake.parquet.writer import WriterOptions
from compaction_platform.lake.spark.parallel_map import SMALL_WORK_BYTES, ParallelMap, TaskResult
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.lake.storage.sizes import MB, FileSizes
from compaction_platform.lake.storage.threads import map_concurrently
from compaction_platform.persisted_names import GLUE_NOTHING_GAINED, GLUE_SWAPPED
from compaction_platform.settings import Settings

BEGUN_AT_ONCE = 16


@dataclass
class _Partly:
    """A partition whose files are on their way."""

    surveyed: PartitionSurvey
    target: str
    began: float
    waiting: int
    outputs: list[OutputFile] = field(default_factory=list)
    failure: TaskResult[PartitionTask, tuple[OutputFile, ...]] | None = None


@dataclass(frozen=True)
class GlueRun:
    """What a run works with. `spread` is called only when there is something to do, `done` with every partition that
    is finished, `progress` with the bytes to rewrite and those that are done."""

    kept: GlueTableConfig
    settings: Settings
    spread: Callable[[], ParallelMap]
    say: Callable[[str], None] = lambda text: None
    done: Callable[[PartitionResult], None] = lambda result: None
    progress: Callable[[int, int], None] = lambda total, done: None

    @cached_property
    def surveyor(self) -> PartitionInventory:
        places = PartitionLocations(ObjectStore.at("s3://any", self.settings))
        return PartitionInventory(self.kept, GlueCatalog.at(self.settings), places, self.settings)

    @cached_property
    def swap(self) -> LocationSwap:
        return LocationSwap(self.surveyor.catalog, self.surveyor.table, self.surveyor.places)

    @property
    def rules(self) -> PartitionRules:
        return self.kept.rules

    @cached_property
    def in_place(self) -> InPlace:
        return InPlace(self.surveyor, self.settings, self.spread, self.say)

    def now(self) -> datetime:
        """By the store's clock."""
        return ObjectStore.at(f"{self.surveyor.root}/_compaction", self.settings).now()

    # ------------------------------------------------------------ list and plan

    def plan(self, selection: Selection = EVERYTHING) -> tuple[PartitionSurvey, ...]:
        """What would be done. Nothing is changed."""
        is_swapped = self.kept.publish == "swap_location"
        now = self.now() if is_swapped else None  # first of all: a target that cannot be is refused
        self.surveyor.refuse_listed()
        published = self.surveyor.published(selection)
        partitions = self.surveyor.partitions(selection)
        found = self.surveyor.surveys(partitions, self.rules, now) if now else self.in_place.surveys(partitions)
        return self.surveyor.with_strays(found, published)

    # ------------------------------------------------------------ carry out

    def run(self, selection: Selection = EVERYTHING) -> GlueReport:
        began = time.monotonic()
        surveys = self.plan(selection)
        if self.kept.publish == "in_place":
            results = list(self._told(self.in_place.run(surveys)))
        else:
            results = list(self._told(self._swap_all(surveys)))
        return GlueReport(surveys, tuple(results), time.monotonic() - began)

    def _told(self, results: Iterable[PartitionResult]) -> Iterator[PartitionResult]:
        for each in results:
            self.say(_sentence(each))
            self.done(each)
            yield each

    def _swap_all(self, surveys: Sequence[PartitionSurvey]) -> Iterator[PartitionResult]:
        now = self.now()
        ready: list[PartitionSurvey] = []
        brought: dict[str, int] = {}
        for surveyed in surveys:
            try:
                again, brought[surveyed.name] = self._prepared(surveyed, now)
            except Exception as error:  # noqa: BLE001 (of this partition; the others go on)
                yield self._result(surveyed, "failed", _named(error))
                continue
            if again.plan.bins:
                ready.append(again)
            else:
                yield replace(self._left_alone(again, now), late=brought[again.name])
        for result, surveyed in self._rewritten(ready, now):
            late = brought[result.name]
            yield replace(self._tidied(result, surveyed, now) if result.outcome == "left alone" else result, late=late)

    def _prepared(self, surveyed: PartitionSurvey, now: datetime) -> tuple[PartitionSurvey, int]:
        """What is to be done first: a swap is noted that a dead run did not, and late files are brought in."""
        plan, found = surveyed.plan, surveyed.found
        if plan.notes_swap and found.manifest is not None:
            self.swap.note(found.manifest)
        if not plan.late:
            return surveyed, 0
        if self.swap.location(surveyed.partition) != found.current.uri:
            raise SwapConflict("it was led elsewhere meanwhile; the next run plans anew")
        for late in plan.late:
            name = copied_name(late.identity, late.file.key)
            self._carry().copy(late.place, found.current.uri, late.file, "late", name)
            self.say(f"{surveyed.name}: {late.place}/{late.file.key} came to an old location; it is part of it now")
        return self.surveyor.survey(surveyed.partition, self.rules, now), len(plan.late)

    # ------------------------------------------------------------ rewrite and commit

    def _rewritten(
        self, ready: Sequence[PartitionSurvey], now: datetime
    ) -> Iterator[tuple[PartitionResult, PartitionSurvey]]:
        """As soon as all files of a partition are at their new place, it is committed."""
        partly: dict[str, _Partly] = {}
        works: list[PartitionTask] = []
        for surveyed in ready:
            # A directory of its own for every attempt: no other run can put anything into it, and no name comes twice.
            attempt = f"{surveyed.plan.version}-{secrets.token_hex(8)}"
            target = f"{self.surveyor.root}/{surveyed.name}/{attempt}"
            some = _works(surveyed, target, self.rules.policy.target_mb)
            partly[surveyed.name] = _Partly(surveyed, target, time.monotonic(), len(some))
            works += some
        map_concurrently(self.swap.begin, (one.target for one in partly.values()), BEGUN_AT_ONCE)
        total = sum(work.size for work in works)
        finished = 0
        if works:
            self.say(f"{len(ready):,} partitions, {len(works):,} pieces of work, {total / MB:,.1f} MB")
        for outcome in self.spread_for(total).run(self._carry(), works, weight=lambda work: work.size):
            one = partly[outcome.item.partition]
            one.waiting -= 1
            one.outputs += outcome.value or ()
            one.failure = one.failure or (outcome if outcome.failed else None)
            finished += outcome.item.size
            self.progress(total, finished)
            if one.waiting == 0:
                yield self._committed(one, now), one.surveyed

    def _committed(self, one: _Partly, now: datetime) -> PartitionResult:
        surveyed = one.surveyed
        if one.failure is not None:
            outcome = "conflict" if one.failure.has_raised(InputsChanged) else "failed"
            result = self._result(surveyed, outcome, one.failure.error or "", one.began)
            return replace(result, is_unproved=one.failure.has_raised(VerificationFailed))
        try:
            if len(one.outputs) >= len(surveyed.found.current.data):
                self._remember_nothing_gained(one)
                return self._result(surveyed, "left alone", NOTHING_TO_GAIN, one.began)
            manifest = self.swap.commit(surveyed, one.target, one.outputs, now)
        except SwapConflict as conflict:
            self._discard(one)
            return self._result(surveyed, "conflict", str(conflict), one.began)
        except Exception as error:  # noqa: BLE001 (of this partition; the others go on)
            result = self._result(surveyed, "failed", _named(error), one.began)
            return replace(result, is_unproved=isinstance(error, VerificationFailed))
        return replace(
            self._result(surveyed, "compacted", "", one.began),
            after=FileSizes.of(each.size for each in manifest.outputs),
            location=manifest.location,
            outputs=manifest.outputs,
            rows=manifest.rows,
        )

    def _remember_nothing_gained(self, one: _Partly) -> None:
        beside = self.surveyor.places.at(f"{self.surveyor.root}/{one.surveyed.name}")
        stale = [(each.key, each.etag) for each in beside.list_directory() if each.key.startswith(GLUE_NOTHING_GAINED)]
        beside.delete_versions(stale)
        beside.write(f"{GLUE_NOTHING_GAINED}{one.surveyed.plan.version}", b"no two of these files can be joined\n")
        self._discard(one)

    def _discard(self, one: _Partly) -> None:
        OldVersionCleanup(self.swap).discard(one.surveyed, one.target, [each.name for each in one.outputs])

    # ------------------------------------------------------------ clean up

    def _left_alone(self, surveyed: PartitionSurvey, now: datetime) -> PartitionResult:
        result = self._result(surveyed, "left alone", surveyed.plan.why_not or "")
        if surveyed.plan.problem:
            return replace(result, problem=surveyed.plan.problem)
        return self._tidied(result, surveyed, now)

    def _tidied(self, result: PartitionResult, surveyed: PartitionSurvey, now: datetime) -> PartitionResult:
        """Remove what earlier swaps have replaced, and what dead runs have left."""
        cleanup = OldVersionCleanup(self.swap)
        try:
            kept_for = self._read_by_others(surveyed)
            files = [file for file in surveyed.plan.removable if file.place not in kept_for]
            removed, failures = cleanup.remove_replaced(surveyed, files)
            leftovers, notes = cleanup.remove_leftovers(surveyed, self._wanted, now)
        except Exception as error:  # noqa: BLE001 (of this partition; the others go on)
            return replace(result, not_removed={surveyed.name: _named(error)})
        kept = {**notes, **kept_for}
        return replace(result, removed=removed, leftovers=leftovers, not_removed=failures, kept=kept)

    def _read_by_others(self, surveyed: PartitionSurvey) -> dict[str, str]:
        """Old places that another partition, or another table of the database, reads, too."""
        found: dict[str, str] = {}
        for place in {file.place for file in surveyed.plan.removable}:
            for name, location in self.surveyor.locations.items():
                if name != surveyed.name and overlap(place, place_of(location)):
                    found[place] = f"partition {name} reads it, too; the originals stay"
            for name, other in self._other_places.items():
                if overlap(place, other):
                    found[place] = f"table {name} of the same database reads it, too; the originals stay"
        return found

    @cached_property
    def _wanted(self) -> frozenset[str]:
        return frozenset(place_of(location) for location in self.surveyor.locations.values())

    @cached_property
    def _other_places(self) -> dict[str, str]:
        places = self.surveyor.catalog.other_places(self.surveyor.table)
        return {name: place_of(location) for name, location in places.items() if "://" in location}

    # ------------------------------------------------------------

    def _carry(self) -> RewritePartition:
        return RewritePartition(
            self.surveyor.places.objects,
            JoinOptions(WriterOptions(), exactly=True, second_reader=self.kept.second_reader),
        )

    def spread_for(self, size: int) -> ParallelMap:
        """Where work on so many bytes goes: a session is not opened for little of it."""
        return ParallelMap(None, os.cpu_count() or 1) if size <= SMALL_WORK_BYTES else self.spread()

    def _result(self, surveyed: PartitionSurvey, outcome: str, why: str, began: float | None = None) -> PartitionResult:
        location = surveyed.found.current.uri or surveyed.partition.location or ""
        return PartitionResult(
            name=surveyed.name,
            outcome=outcome,  # type: ignore[arg-type]  # one of the few that are given here
            why=why,
            before=surveyed.sizes,
            after=surveyed.sizes,
            location_before=location,
            location=location,
            seconds=0.0 if began is None else time.monotonic() - began,
        )


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {in_one_line(error).removeprefix(f'{type(error).__name__}: ')}"


def _works(surveyed: PartitionSurvey, target: str, target_mb: int) -> list[PartitionTask]:
    source = surveyed.found.current.uri
    earlier = tuple(
        place.uri
        for place in surveyed.versions
        if place.uri.rpartition("/")[2].startswith(surveyed.plan.version) and not place.find(GLUE_SWAPPED)
    )
    joins = [
        PartitionTask(surveyed.name, source, target, each.inputs, target_mb, earlier=earlier)
        for each in surveyed.plan.bins
    ]
    copies = [
        PartitionTask(surveyed.name, source, target, (file,), reason=LARGE_OR_ALONE) for file in surveyed.plan.copies
    ]
    return joins + copies


def _sentence(result: PartitionResult) -> str:
    if result.outcome == "compacted":
        return (
            f"{result.name}: {result.before.files:,} files → {result.after.files:,}, "
            f"{result.after.bytes / MB:.3g} MB, now at {result.location}"
        )
    done = [
        *([f"{result.removed} replaced files removed"] if result.removed else []),
        *([f"{result.leftovers} leftovers removed"] if result.leftovers else []),
    ]
    return f"{result.name}: {'; '.join([f'{result.outcome}: {result.why}', *done])}"
