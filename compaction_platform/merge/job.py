"""One run: take in some hours, merge them, leave receipts. What Dagster, the demo and the benchmarks call.

The five steps, in order: list what is staged, plan which hours need anything, read them on Spark, merge and
audit on a branch, publish; then write down what was merged.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from compaction_platform.errors import CompactionError
from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.lake.iceberg.history import published
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.merge.config import MergeRules, StagingPaths
from compaction_platform.merge.intake.hour_manifest import (
    HourManifest,
    MergeReceipt,
    batch_of,
    manifests_of,
    receipts_of,
    short_uuid,
    staged_batches,
)
from compaction_platform.merge.intake.intake import Intake, IntakeResult, RowsFor
from compaction_platform.merge.plan.staged_hours import Batch, StagedFile
from compaction_platform.merge.publish.merger import Merged, Merger, merged_batches
from compaction_platform.settings import Settings


class TargetMissing(CompactionError):
    """The table was never set up."""


class NoIntake(CompactionError):
    """An hour is to be merged that was never taken in."""


class StagingChanged(CompactionError):
    """Files are not what an earlier intake saw any more."""


def load_table(rules: MergeRules, settings: Settings) -> Table:
    try:
        return open_catalog(settings).load_table(rules.identifier)
    except NoSuchTableError as missing:
        raise TargetMissing(f"table {rules.full_name} does not exist yet. Run the job `setup` once.") from missing


@dataclass(frozen=True)
class MergeRun:
    """What a run works with. `spread` is called only when there is something to read: it opens a Spark session."""

    rules: MergeRules
    settings: Settings
    spread: Callable[[], ParallelMap]
    run_id: str = ""
    dry_run: bool = False
    again: bool = False
    say: Callable[[str], None] = lambda text: None

    @property
    def places(self) -> StagingPaths:
        return StagingPaths.of(self.rules, self.settings)

    def table(self) -> Table:
        return load_table(self.rules, self.settings)

    def take_in(self, hours: Iterable[str]) -> "MergeOutcome":
        """Bronze alone: read what arrived in these hours, leave manifests."""
        began = time.monotonic()
        staged = staged_batches(self.rules, self.places, self.settings, hours)
        found = {batch.hour: self._earlier_manifest(batch) for batch in staged}
        to_read = [batch for batch in staged if found[batch.hour] is None]
        manifests = {hour: manifest for hour, manifest in found.items() if manifest is not None}
        if to_read:
            read = self._read(to_read, self.table(), "nobody")
            manifests |= read.manifests
        return MergeOutcome(dict(sorted(manifests.items())), None, time.monotonic() - began)

    def take_in_and_merge(self, hours: Iterable[str]) -> "MergeOutcome":
        """Bronze and Silver together: every file is read once."""
        return self._merge(staged_batches(self.rules, self.places, self.settings, hours), strict=False)

    def merge(self, hours: Iterable[str]) -> "MergeOutcome":
        """Silver alone: merge what the last intake of each hour found sound."""
        return self._merge([self._last_intake(hour) for hour in sorted(hours)], strict=True)

    def _merge(self, staged: "Sequence[Batch | IntakeBatch]", *, strict: bool) -> "MergeOutcome":
        began = time.monotonic()
        table = self.table()
        known = set() if self.again else merged_batches(table)
        known_in = table.metadata.current_snapshot_id  # a later one need not have them, after a roll back
        manifests: dict[str, HourManifest] = {}
        plan: dict[str, Batch | IntakeBatch] = {}
        for batch in staged:
            if not batch.files:
                self.say(f"hour {batch.hour} has no files; nothing to do")
                manifests[batch.hour] = HourManifest(batch.hour, batch.digest, ())
            elif (batch.hour, batch.digest) in known and (manifest := self._earlier_manifest(batch)):
                self.say(f"hour {batch.hour} was merged before; nothing to do")
                manifests[batch.hour] = manifest
            else:
                plan[batch.hour] = batch
        merged = Merged(table.metadata.current_snapshot_id)
        if plan:
            spread = self.spread()
            session = spread.session
            assert session is not None  # noqa: S101 (for the type checker: a merge always has Spark)
            merger = Merger(self.rules, self.settings, session, spread.slots, self.run_id, self.say)
            read = self._read(list(plan.values()), table, "comparison" if self.dry_run else "merge", strict=strict)
            try:
                manifests |= read.manifests
                digests = {hour: manifest.digest for hour, manifest in read.manifests.items()}
                merged = merger.merge(read.taken, digests, dry_run=self.dry_run)
            finally:
                read.taken.release()
        outcome = MergeOutcome(dict(sorted(manifests.items())), merged, time.monotonic() - began, tuple(sorted(plan)))
        if not self.dry_run:
            self._write_receipts(outcome, table, known_in)
        return outcome

    def _read(
        self, batches: "Sequence[Batch | IntakeBatch]", table: Table, rows_for: RowsFor, *, strict: bool = False
    ) -> "Read":
        files = [file for batch in batches for file in batch.files]
        self.say(f"reading {len(files)} files of {len(batches)} hours, {sum(f.size for f in files) / 1e6:.1f} MB")
        intake = Intake(self.rules, self.settings, self.spread(), self.dry_run, self.say)
        taken = intake.take_in(files, table, rows_for)
        try:
            return Read(taken, self._written_down(batches, taken, strict=strict))
        except BaseException:
            taken.discard(table, self.settings)
            raise

    def _written_down(
        self, batches: "Sequence[Batch | IntakeBatch]", taken: IntakeResult, *, strict: bool
    ) -> dict[str, HourManifest]:
        """A manifest for each hour."""
        changed = [report for report in taken.reports if report.fate != "sound"]
        if strict and changed:
            raise StagingChanged(
                f"{len(changed)} files are not what the intake saw any more, the first: {changed[0].key} "
                f"({changed[0].reason}). Nothing was merged. Materialize bronze and silver together."
            )
        manifests = {
            batch.hour: batch.manifest if isinstance(batch, IntakeBatch) else taken.manifest(batch) for batch in batches
        }
        if not self.dry_run:
            shelf = manifests_of(self.places, self.settings)
            for manifest in manifests.values():
                shelf.put(manifest.hour, manifest.digest, manifest.to_json())
        return manifests

    def _earlier_manifest(self, batch: "Batch | IntakeBatch") -> HourManifest | None:
        if isinstance(batch, IntakeBatch):
            return batch.manifest
        if self.again:
            return None
        text = manifests_of(self.places, self.settings).get(batch.hour, batch.digest)
        return HourManifest.from_json(text) if text is not None else None

    def _last_intake(self, hour: str) -> "IntakeBatch":
        shelf = manifests_of(self.places, self.settings)
        for digest in shelf.names(hour):
            text = shelf.get(hour, digest)
            if text is not None:
                return IntakeBatch(HourManifest.from_json(text))
        (staged,) = staged_batches(self.rules, self.places, self.settings, [hour])
        if not staged.files:
            return IntakeBatch(HourManifest(hour, staged.digest, ()))
        raise NoIntake(
            f"hour {hour} was never taken in. Materialize bronze/{self.rules.table} for it, or both together."
        )

    def _write_receipts(self, outcome: "MergeOutcome", table: Table, known_in: int | None) -> None:
        """What the sensor and the cleanup look at. Main's history says the same, until snapshots expire."""
        assert outcome.merged is not None  # noqa: S101 (for the type checker)
        shelf = receipts_of(self.places, self.settings)
        in_main = published(table).known_ids
        for hour, manifest in outcome.manifests.items():
            if not manifest.files:
                continue
            was_read = hour in outcome.planned
            snapshot = outcome.merged.snapshot_id if was_read else known_in
            receipt = MergeReceipt(manifest.digest, short_uuid(table), snapshot)
            known = [] if was_read else [MergeReceipt.from_name(name) for name in shelf.names(hour)]
            if not any(each.is_for(receipt) and each.snapshot_id in in_main for each in known):
                shelf.put(hour, receipt.name, json.dumps({"run_id": self.run_id}))


@dataclass(frozen=True)
class IntakeBatch:
    """An hour as an earlier intake saw it: its digest covers all files, its files are the sound ones."""

    manifest: HourManifest

    @property
    def hour(self) -> str:
        return self.manifest.hour

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @property
    def files(self) -> tuple[StagedFile, ...]:
        return batch_of(self.manifest).files


@dataclass(frozen=True)
class Read:
    taken: IntakeResult
    manifests: dict[str, HourManifest]


@dataclass(frozen=True)
class MergeOutcome:
    """What a run found and did. `merged` is None where only the intake was asked for."""

    manifests: Mapping[str, HourManifest]
    merged: Merged | None
    seconds: float
    planned: tuple[str, ...] = field(default=())

    @property
    def read(self) -> list[HourManifest]:
        """The manifests of the hours that were read in this run."""
        return [self.manifests[hour] for hour in self.planned]
