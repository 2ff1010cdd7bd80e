"""Look at the staging area and ask for the hours that need a merge. The sensor does it all the time, a schedule
(for those who prefer one) at its hours."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import dagster as dg

from compaction_platform.lake.objects import Objects
from compaction_platform.lake.resources import LakeResource
from compaction_platform.lake.settings import Settings
from compaction_platform.merge.plan import Batch, HoursToRequest, batches, hours_to_request, ranges
from compaction_platform.merge.records import Manifest, Receipt, manifests_of, receipts_of, short_uuid, staged_files
from compaction_platform.merge.rules import MergeRules, Places
from compaction_platform.merge.run import TableMissing, load_table

HOURS_PER_LOOK = 168
ATTEMPTS = 3
RUNS_LOOKED_AT = 1000
TABLE_TAG = "compaction/table"
DIGESTS_TAG = "compaction/digests"
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
    """What a look at the staging area found."""

    plan: HoursToRequest
    staged: Mapping[str, Batch]
    seen: "Seen"


@dataclass(frozen=True)
class Seen:
    """What need not be asked about again: the hours (with their digests) that were merged into this very table."""

    table: str = ""
    settled: Mapping[str, str] = field(default_factory=dict)

    def to_cursor(self) -> str:
        return json.dumps({"table": self.table, "settled": dict(self.settled)})

    @classmethod
    def from_cursor(cls, cursor: str | None) -> "Seen":
        return cls(**json.loads(cursor)) if cursor else cls()


def look(rules: MergeRules, settings: Settings, seen: Seen) -> Look:
    places = Places.of(rules, settings)
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
        now=Objects.at(places.state, settings).now(),
        grace=rules.arrival_grace,
        first_hour=rules.first_hour,
        limit=HOURS_PER_LOOK,
    )
    return Look(plan, staged, Seen(table, settled))


def _merged_before(places: Places, settings: Settings, table: str, unsettled: Mapping[str, Batch]) -> dict[str, str]:
    """Hours with a receipt for what is staged now, or whose staged files are the rest of what was merged: the
    bucket's own rules remove files, too, and that is no news."""
    manifests = manifests_of(places, settings)
    receipts = receipts_of(places, settings).all()
    settled = {}
    for hour, batch in unsettled.items():
        found = [Receipt.from_name(name) for name in receipts.get(hour, [])]
        digests = {receipt.digest for receipt in found if receipt.table == table}
        if batch.digest in digests:
            settled[hour] = batch.digest
        elif digests:
            texts = [manifests.get(hour, digest) for digest in digests]
            merged = {(f.key, f.etag) for text in texts if text for f in Manifest.from_json(text).files}
            if all((file.key, file.etag) in merged for file in batch.files):
                settled[hour] = batch.digest
    return settled


def run_requests(rules: MergeRules, found: Look, instance: dg.DagsterInstance) -> tuple[list[dg.RunRequest], list[str]]:
    """Runs for the hours that are due, as few as possible; and what is not asked for, and why.

    An hour whose last run did not settle it gets a run of its own, so that it does not hold up the others.
    """
    busy = _hours_on_their_way(rules, instance)
    attempts = _attempts(rules, found, instance)
    due = [hour for hour in found.plan.hours if not any(first <= hour <= last for first, last in busy)]
    notes = []
    if waiting := len(found.plan.hours) - len(due):
        notes.append(f"{waiting} hours are in a run that is not over")
    if given_up := [hour for hour in due if attempts[hour] >= ATTEMPTS]:
        notes.append(
            f"{len(given_up)} hours (the first: {given_up[0]}) failed {ATTEMPTS} times; look at the runs, then "
            "materialize by hand"
        )
    fresh = ranges([hour for hour in due if attempts[hour] == 0], found.staged)
    again = [(hour, hour) for hour in due if 0 < attempts[hour] < ATTEMPTS]
    return [_request(rules, found, first, last, attempts[first]) for first, last in sorted([*fresh, *again])], notes


def _request(rules: MergeRules, found: Look, first: str, last: str, attempt: int) -> dg.RunRequest:
    digests = [_short(batch) for hour, batch in found.staged.items() if first <= hour <= last]
    name = hashlib.sha256("".join([first, last, *digests]).encode()).hexdigest()[:16]
    one_hour = first == last
    return dg.RunRequest(
        run_key=f"{rules.full_name}-{name}-{attempt}",
        partition_key=first if one_hour else None,
        tags={
            TABLE_TAG: rules.full_name,
            DIGESTS_TAG: ",".join(digests),
            **({} if one_hour else {RANGE_START_TAG: first, RANGE_END_TAG: last}),
        },
    )


def _short(batch: Batch) -> str:
    return batch.digest[:12]


def _attempts(rules: MergeRules, found: Look, instance: dg.DagsterInstance) -> dict[str, int]:
    """How many runs of exactly these files have ended, for each hour that is still due."""
    ended = [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.SUCCESS]
    runs = instance.get_runs(dg.RunsFilter(tags={TABLE_TAG: rules.full_name}, statuses=ended), limit=RUNS_LOOKED_AT)
    seen = Counter(digest for run in runs for digest in run.tags.get(DIGESTS_TAG, "").split(","))
    return {hour: seen[_short(found.staged[hour])] for hour in found.plan.hours}


def _hours_on_their_way(rules: MergeRules, instance: dg.DagsterInstance) -> list[tuple[str, str]]:
    runs = instance.get_runs(dg.RunsFilter(tags={TABLE_TAG: rules.full_name}, statuses=UNFINISHED), limit=200)
    found = []
    for run in runs:
        first = run.tags.get(RANGE_START_TAG) or run.tags.get("dagster/partition")
        last = run.tags.get(RANGE_END_TAG) or first
        if first and last:
            found.append((first, last))
    return found


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
            found = look(rules, lake.settings(), Seen.from_cursor(context.cursor))
        except TableMissing as missing:
            return dg.SensorResult(skip_reason=str(missing))
        requests, notes = run_requests(rules, found, context.instance)
        explanation = _explained(found.plan, [*_asked(requests), *notes])
        context.log.info(explanation)
        return dg.SensorResult(
            run_requests=requests,
            cursor=found.seen.to_cursor(),
            skip_reason=None if requests else dg.SkipReason(explanation),
        )

    return staged
