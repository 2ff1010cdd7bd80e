"""One run over partitions of a Glue table: list, plan, rewrite on Spark, swap, clean up. Dagster, the command and the
job on AWS call it. Every partition is finished by itself."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

from compaction_platform.compact.glue.carry import Carry, Work
from compaction_platform.compact.glue.catalog import CatalogRefused, GlueCatalog, PartitionMissing
from compaction_platform.compact.glue.cleanup import Cleanup
from compaction_platform.compact.glue.in_place import InPlace
from compaction_platform.compact.glue.manifest import NOTHING_GAINED, OutputFile
from compaction_platform.compact.glue.plan import LARGE_OR_ALONE, Rules, place_of
from compaction_platform.compact.glue.report import PartitionResult, Report
from compaction_platform.compact.glue.survey import EVERYTHING, NOTHING_TO_GAIN, Selection, Surveyor
from compaction_platform.compact.glue.swap import Swap, SwapConflict
from compaction_platform.compact.glue.table import KeptTable, Surveyed
from compaction_platform.compact.joining import How, in_one_line
from compaction_platform.compact.listed import Listed
from compaction_platform.lake.file_sizes import Sizes
from compaction_platform.lake.objects import Objects, StoreRefused
from compaction_platform.lake.parquet_output import Encoding
from compaction_platform.lake.settings import Settings
from compaction_platform.lake.spread import SMALL_WORK_BYTES, Spread


@dataclass
class _Partly:
    """A partition whose files are on their way."""

    surveyed: Surveyed
    target: str
    began: float
    waiting: int
    outputs: list[OutputFile] = field(default_factory=list)
    error: str | None = None


@dataclass(frozen=True)
class GlueRun:
    """What a run works with. `spread` is called only when there is something to do, `done` with every partition that
    is finished, `progress` with the bytes to rewrite and those that are done."""

    kept: KeptTable
    settings: Settings
    spread: Callable[[], Spread]
    say: Callable[[str], None] = lambda text: None
    done: Callable[[PartitionResult], None] = lambda result: None
    progress: Callable[[int, int], None] = lambda total, done: None

    @cached_property
    def surveyor(self) -> Surveyor:
        place = Objects.at("s3://any", self.settings)
        return Surveyor(self.kept, GlueCatalog.at(self.settings), place)

    @cached_property
    def swap(self) -> Swap:
        return Swap(self.surveyor.catalog, self.surveyor.table, self.surveyor.objects)

    @property
    def rules(self) -> Rules:
        return self.kept.rules

    @cached_property
    def in_place(self) -> InPlace:
        return InPlace(self.surveyor, self.settings, self.spread, self.say)

    def now(self) -> datetime:
        """By the store's clock."""
        return Objects.at(f"{self.surveyor.root}/_compaction", self.settings).now()

    # ------------------------------------------------------------ list and plan

    def plan(self, selection: Selection = EVERYTHING) -> tuple[Surveyed, ...]:
        """What would be done. Nothing is changed."""
        if self.kept.publish == "in_place":
            return tuple(self.in_place.surveys(self.surveyor.partitions(selection)))
        now = self.now()  # first of all: a target that cannot be is refused before anything is read
        return tuple(self.surveyor.surveys(self.surveyor.partitions(selection), self.rules, now))

    # ------------------------------------------------------------ carry out

    def run(self, selection: Selection = EVERYTHING) -> Report:
        began = time.monotonic()
        surveys = self.plan(selection)
        if self.kept.publish == "in_place":
            results = list(self._told(self.in_place.run(surveys)))
        else:
            results = list(self._told(self._swap_all(surveys)))
        return Report(surveys, tuple(results), time.monotonic() - began)

    def _told(self, results: Iterable[PartitionResult]) -> Iterator[PartitionResult]:
        for each in results:
            self.say(_sentence(each))
            self.done(each)
            yield each

    def _swap_all(self, surveys: Sequence[Surveyed]) -> Iterator[PartitionResult]:
        now = self.now() if surveys else datetime.min
        ready: list[Surveyed] = []
        brought: dict[str, int] = {}
        for surveyed in surveys:
            try:
                again, count = self._prepared(surveyed, now)
            except (StoreRefused, CatalogRefused, SwapConflict, PartitionMissing, OSError) as error:
                yield self._result(surveyed, "failed", in_one_line(error))
                continue
            brought[again.name] = count
            if again.plan.bins:
                ready.append(again)
            else:
                yield replace(self._left_alone(again, now), late=count)
        for result, surveyed in self._rewritten(ready, now):
            yield replace(self._tidied(result, surveyed, now), late=brought[result.name])

    def _prepared(self, surveyed: Surveyed, now: datetime) -> tuple[Surveyed, int]:
        """What is to be done first: a swap is noted that a dead run did not, and late files are brought in."""
        plan, found = surveyed.plan, surveyed.found
        if plan.notes_swap and found.manifest is not None:
            self.swap.note(found.manifest)
        if not plan.late:
            return surveyed, 0
        carry = self._carry()
        for file in plan.late:
            carry.copy(file.place, found.current.uri, Listed(file.name, file.size, file.etag), "late")
            self.say(f"{surveyed.name}: {file.place}/{file.name} came to an old location; it is part of it now")
        return self.surveyor.survey(surveyed.partition, self.rules, now), len(plan.late)

    # ------------------------------------------------------------ rewrite and commit

    def _rewritten(self, ready: Sequence[Surveyed], now: datetime) -> Iterator[tuple[PartitionResult, Surveyed]]:
        """As soon as all files of a partition are at their new place, it is committed."""
        partly: dict[str, _Partly] = {}
        works: list[Work] = []
        for surveyed in ready:
            target = f"{self.surveyor.root}/{surveyed.name}/{surveyed.plan.version}"
            some = _works(surveyed, target, self.rules.policy.target_mb)
            partly[surveyed.name] = _Partly(surveyed, target, time.monotonic(), len(some))
            works += some
        total = sum(work.size for work in works)
        finished = 0
        if works:
            self.say(f"{len(ready):,} partitions, {len(works):,} pieces of work, {total / 1e6:,.1f} MB")
        for outcome in self.spread_for(total).run(self._carry(), works, weight=lambda work: work.size):
            one = partly[outcome.item.partition]
            one.waiting -= 1
            one.outputs += outcome.value or ()
            one.error = one.error or outcome.error
            finished += outcome.item.size
            self.progress(total, finished)
            if one.waiting == 0:
                yield self._committed(one, now), one.surveyed

    def _committed(self, one: _Partly, now: datetime) -> PartitionResult:
        surveyed = one.surveyed
        seconds = time.monotonic() - one.began
        if one.error is not None:
            outcome = "conflict" if one.error.startswith("InputsChanged") else "failed"
            return self._result(surveyed, outcome, one.error, seconds)
        if len(one.outputs) >= len(surveyed.found.current.data):
            self._remember_nothing_gained(one)
            return self._result(surveyed, "left alone", NOTHING_TO_GAIN, seconds)
        try:
            manifest = self.swap.commit(surveyed, one.target, one.outputs, now)
        except SwapConflict as conflict:
            return self._result(surveyed, "conflict", str(conflict), seconds)
        except Exception as error:  # noqa: BLE001 (of this partition; the others go on)
            return self._result(surveyed, "failed", in_one_line(error), seconds)
        return replace(
            self._result(surveyed, "compacted", "", time.monotonic() - one.began),
            after=Sizes.of(each.size for each in manifest.outputs),
            location=manifest.location,
            outputs=manifest.outputs,
            rows=manifest.rows,
        )

    def _remember_nothing_gained(self, one: _Partly) -> None:
        beside = self.surveyor.at(f"{self.surveyor.root}/{one.surveyed.name}")
        version = one.surveyed.plan.version
        stale = [each.key for each in beside.list_directory() if each.key.startswith(NOTHING_GAINED)]
        beside.write(f"{NOTHING_GAINED}{version}", b"")
        beside.delete([*stale, *(f"{version}/{each.name}" for each in one.outputs)])

    # ------------------------------------------------------------ clean up

    def _left_alone(self, surveyed: Surveyed, now: datetime) -> PartitionResult:
        result = self._result(surveyed, "left alone", surveyed.plan.why_not or "")
        if surveyed.plan.problem:
            return replace(result, problem=surveyed.plan.problem)
        return self._tidied(result, surveyed, now)

    def _tidied(self, result: PartitionResult, surveyed: Surveyed, now: datetime) -> PartitionResult:
        """Remove what earlier swaps have replaced, and what dead runs have left; after a swap, the next time."""
        if result.outcome != "left alone":
            return result
        cleanup = Cleanup(self.swap)
        kept_for = self._read_by_others(surveyed)
        try:
            files = [file for file in surveyed.plan.removable if file.place not in kept_for]
            removed, failures = cleanup.remove_replaced(surveyed, files)
            wanted = [place_of(location) for location in self.surveyor.locations.values()]
            leftovers, notes = cleanup.remove_leftovers(surveyed, wanted, now)
        except (StoreRefused, CatalogRefused, PartitionMissing) as error:
            return replace(result, not_removed={surveyed.name: in_one_line(error)})
        return replace(result, removed=removed, leftovers=leftovers, not_removed={**failures, **notes, **kept_for})

    def _read_by_others(self, surveyed: Surveyed) -> dict[str, str]:
        """Old places that another table of the database reads, too."""
        found: dict[str, str] = {}
        for place in {file.place for file in surveyed.plan.removable}:
            for name, other in self._other_places.items():
                if f"{place}/".startswith(f"{other}/") or f"{other}/".startswith(f"{place}/"):
                    found[place] = f"table {name} of the same database reads it, too; the originals stay"
        return found

    @cached_property
    def _other_places(self) -> dict[str, str]:
        places = self.surveyor.catalog.other_places(self.surveyor.table)
        return {name: place_of(location) for name, location in places.items() if "://" in location}

    # ------------------------------------------------------------

    def _carry(self) -> Carry:
        return Carry(self.surveyor.objects, How(Encoding(), exactly=True))

    def spread_for(self, size: int) -> Spread:
        """Where work on so many bytes goes: a session is not opened for little of it."""
        return Spread(None, os.cpu_count() or 1) if size <= SMALL_WORK_BYTES else self.spread()

    def _result(self, surveyed: Surveyed, outcome: str, why: str, seconds: float = 0.0) -> PartitionResult:
        location = surveyed.found.current.uri or surveyed.partition.location or ""
        return PartitionResult(
            name=surveyed.name,
            outcome=outcome,  # type: ignore[arg-type]  # one of the few that are given here
            why=why,
            before=surveyed.sizes,
            after=surveyed.sizes,
            location_before=location,
            location=location,
            seconds=seconds,
        )


def _works(surveyed: Surveyed, target: str, target_mb: int) -> list[Work]:
    source = surveyed.found.current.uri
    joins = [Work(surveyed.name, source, target, each.inputs, target_mb) for each in surveyed.plan.bins]
    copies = [Work(surveyed.name, source, target, (file,), reason=LARGE_OR_ALONE) for file in surveyed.plan.copies]
    return joins + copies


def _sentence(result: PartitionResult) -> str:
    if result.outcome == "compacted":
        return (
            f"{result.name}: {result.before.files:,} files → {result.after.files:,}, "
            f"{result.after.bytes / 1e6:.3g} MB, now at {result.location}"
        )
    done = [
        *([f"{result.removed} replaced files removed"] if result.removed else []),
        *([f"{result.leftovers} leftovers removed"] if result.leftovers else []),
    ]
    return f"{result.name}: {'; '.join([f'{result.outcome}: {result.why}', *done])}"
