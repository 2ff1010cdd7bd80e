"""Look at the staging area and ask for the hours that need a merge. The sensor does it all the time, a schedule
(for those who prefer one) at its hours."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import dagster as dg

from compaction_platform.lake.objects import Objects
from compaction_platform.lake.resources import LakeResource
from compaction_platform.lake.settings import Settings
from compaction_platform.merge.intake import Manifest, manifests_of, receipts_of, staged_files
from compaction_platform.merge.plan import Batch, HoursToRequest, batches, hours_to_request, ranges
from compaction_platform.merge.rules import MergeRules, Places

HOURS_PER_LOOK = 168
ATTEMPTS = 3
TABLE_TAG = "compaction/table"
BATCH_TAG = "compaction/batch"
RANGE_START_TAG = "dagster/asset_partition_range_start"
RANGE_END_TAG = "dagster/asset_partition_range_end"

UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


@dataclass(frozen=True)
class Look:
    """What a look at the staging area found. `settled` (hour: digest) is what need not be asked about again."""

    plan: HoursToRequest
    staged: Mapping[str, Batch]
    settled: dict[str, str]


def look(rules: MergeRules, settings: Settings, settled: Mapping[str, str]) -> Look:
    places = Places.of(rules, settings)
    staged = batches(staged_files(rules, places, settings))
    settled = {hour: digest for hour, digest in settled.items() if hour in staged and staged[hour].digest == digest}
    unsettled = [hour for hour in staged if hour not in settled]
    if unsettled:
        settled |= _merged_before(places, settings, {hour: staged[hour] for hour in unsettled})
    plan = hours_to_request(
        staged,
        settled,
        now=Objects.at(places.state, settings).now(),
        grace=rules.arrival_grace,
        first_hour=rules.first_hour,
        limit=HOURS_PER_LOOK,
    )
    return Look(plan, staged, settled)


def _merged_before(places: Places, settings: Settings, unsettled: Mapping[str, Batch]) -> dict[str, str]:
    """Hours with a receipt for what is staged now, or whose staged files are the rest of what was merged: the
    bucket's own rules remove files, too, and that is no news."""
    manifests = manifests_of(places, settings)
    receipts = receipts_of(places, settings).all()
    settled = {}
    for hour, batch in unsettled.items():
        digests = receipts.get(hour, [])
        if batch.digest in digests:
            settled[hour] = batch.digest
        elif digests:
            texts = [manifests.get(hour, digest) for digest in digests]
            merged = {(f.key, f.etag) for text in texts if text for f in Manifest.from_json(text).files}
            if all((file.key, file.etag) in merged for file in batch.files):
                settled[hour] = batch.digest
    return settled


def run_requests(rules: MergeRules, found: Look, instance: dg.DagsterInstance) -> tuple[list[dg.RunRequest], list[str]]:
    """One run for each range of hours, unless one is on its way or has failed too often; and why not."""
    busy = _hours_on_their_way(rules, instance)
    waiting = [hour for hour in found.plan.hours if any(first <= hour <= last for first, last in busy)]
    notes = [f"{len(waiting)} hours are in a run that is not over"] if waiting else []
    requests = []
    for first, last in ranges([hour for hour in found.plan.hours if hour not in waiting], found.staged):
        digests = [batch.digest for hour, batch in found.staged.items() if first <= hour <= last]
        digest = hashlib.sha256("".join([first, last, *digests]).encode()).hexdigest()[:16]
        failures = _failures(instance, digest)
        if failures >= ATTEMPTS:
            notes.append(f"{_named(first, last)} failed {failures} times; look at the runs, then materialize by hand")
            continue
        one_hour = first == last
        requests.append(
            dg.RunRequest(
                run_key=f"{rules.full_name}-{digest}-{failures}",
                partition_key=first if one_hour else None,
                tags={
                    TABLE_TAG: rules.full_name,
                    BATCH_TAG: digest,
                    **({} if one_hour else {RANGE_START_TAG: first, RANGE_END_TAG: last}),
                },
            )
        )
    return requests, notes


def _hours_on_their_way(rules: MergeRules, instance: dg.DagsterInstance) -> list[tuple[str, str]]:
    runs = instance.get_runs(dg.RunsFilter(tags={TABLE_TAG: rules.full_name}, statuses=UNFINISHED), limit=200)
    found = []
    for run in runs:
        first = run.tags.get(RANGE_START_TAG) or run.tags.get("dagster/partition")
        last = run.tags.get(RANGE_END_TAG) or first
        if first and last:
            found.append((first, last))
    return found


def _failures(instance: dg.DagsterInstance, digest: str) -> int:
    ended = [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
    return instance.get_runs_count(dg.RunsFilter(tags={BATCH_TAG: digest}, statuses=ended))


def _named(first: str, last: str) -> str:
    return f"hour {first}" if first == last else f"hours {first} to {last}"


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
        found = look(rules, lake.settings(), json.loads(context.cursor or "{}"))
        requests, notes = run_requests(rules, found, context.instance)
        explanation = _explained(found.plan, [*_asked(requests), *notes])
        context.log.info(explanation)
        return dg.SensorResult(
            run_requests=requests,
            cursor=json.dumps(found.settled),
            skip_reason=None if requests else dg.SkipReason(explanation),
        )

    return staged
