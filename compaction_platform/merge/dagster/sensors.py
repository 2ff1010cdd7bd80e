"""Look at the staging area and ask for the hours that need a merge. The sensor does it all the time, a schedule
(for those who prefer one) at its hours."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import dagster as dg

from compaction_platform.lake.dagster.resources import LakeResource
from compaction_platform.lake.dagster.run_requests import DuePartition, run_requests
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.merge.config import MergeRules, StagingPaths
from compaction_platform.merge.intake.hour_manifest import (
    HourManifest,
    MergeReceipt,
    manifests_of,
    receipts_of,
    short_uuid,
    staged_files,
)
from compaction_platform.merge.job import TargetMissing, load_table
from compaction_platform.merge.plan.staged_hours import Batch, HoursToRequest, batches, hours_to_request, ranges
from compaction_platform.settings import Settings

HOURS_PER_LOOK = 168


@dataclass(frozen=True)
class StagingState:
    """What a look at the staging area found."""

    plan: HoursToRequest
    staged: Mapping[str, Batch]
    seen: "StagingCursor"


@dataclass(frozen=True)
class StagingCursor:
    """What need not be asked about again: the hours (with their digests) that were merged into this very table."""

    table: str = ""
    settled: Mapping[str, str] = field(default_factory=dict)

    def to_cursor(self) -> str:
        return json.dumps({"table": self.table, "settled": dict(self.settled)})

    @classmethod
    def from_cursor(cls, cursor: str | None) -> "StagingCursor":
        return cls(**json.loads(cursor)) if cursor else cls()


def staging_state(rules: MergeRules, settings: Settings, seen: StagingCursor) -> StagingState:
    places = StagingPaths.of(rules, settings)
    table = short_uuid(load_table(rules, settings))
    staged = batches(staged_files(rules, places, settings))
    before = seen.settled if seen.table == table else {}
    settled = {hour: digest for hour, digest in before.items() if hour in staged and staged[hour].digest == digest}
    unsettled = {hour: batch for hour, batch in staged.items() if hour not in settled}
    if unsettled:
        settled |= _merged_before(places, settings, table, unsettled)
    plan = hours_to_request(
        staged,
        settled,
        now=ObjectStore.at(places.state, settings).now(),
        grace=rules.arrival_grace,
        first_hour=rules.first_hour,
        limit=HOURS_PER_LOOK,
    )
    return StagingState(plan, staged, StagingCursor(table, settled))


def _merged_before(
    places: StagingPaths, settings: Settings, table: str, unsettled: Mapping[str, Batch]
) -> dict[str, str]:
    """Hours with a receipt for what is staged now, or whose staged files are the rest of what was merged: the
    bucket's own rules remove files, too, and that is no news."""
    manifests = manifests_of(places, settings)
    receipts = receipts_of(places, settings).all()
    settled = {}
    for hour, batch in unsettled.items():
        found = [MergeReceipt.from_name(name) for name in receipts.get(hour, [])]
        digests = {receipt.digest for receipt in found if receipt.table == table}
        if batch.digest in digests:
            settled[hour] = batch.digest
        elif digests:
            texts = [manifests.get(hour, digest) for digest in digests]
            merged = {(f.key, f.etag) for text in texts if text for f in HourManifest.from_json(text).files}
            if all((file.key, file.etag) in merged for file in batch.files):
                settled[hour] = batch.digest
    return settled


def due_hours(rules: MergeRules, found: StagingState) -> DuePartition:
    digests = {hour: batch.digest for hour, batch in found.staged.items()}
    return DuePartition(rules.full_name, found.plan.hours, digests, partial(ranges, staged=found.staged))


def _asked(requests: list[dg.RunRequest]) -> list[str]:
    return [f"asked for {len(requests)} runs"] if requests else []


def _explained(plan: HoursToRequest, notes: list[str]) -> str:
    parts = list(notes)
    if plan.still_open:
        parts.append(f"{plan.still_open} hours are not over yet (or within the grace)")
    if plan.too_early:
        parts.append(f"files of {plan.too_early} hours before first_hour are left alone")
    if plan.left_for_later:
        parts.append(f"{plan.left_for_later} more hours will be asked for next time")
    return "; ".join(parts) or "nothing new is staged"


def merge_sensor(rules: MergeRules, job: object) -> dg.SensorDefinition:
    @dg.sensor(
        name=f"staged_{rules.table}",
        job=job,  # type: ignore[arg-type]  # an unresolved asset job is one of the kinds this takes
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Lists {rules.source} and merges hours that are over and have something new.",
    )
    def staged(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult:
        try:
            found = staging_state(rules, lake.settings(), StagingCursor.from_cursor(context.cursor))
        except TargetMissing as missing:
            return dg.SensorResult(skip_reason=str(missing))
        requests, notes = run_requests(due_hours(rules, found), context.instance)
        explanation = _explained(found.plan, [*_asked(requests), *notes])
        context.log.info(explanation)
        return dg.SensorResult(
            run_requests=requests,
            cursor=found.seen.to_cursor(),
            skip_reason=None if requests else dg.SkipReason(explanation),
        )

    return staged
