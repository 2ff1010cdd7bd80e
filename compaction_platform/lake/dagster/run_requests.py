"""Runs for partitions that need one: as few as possible, none twice at a time, and none for ever in vain."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from compaction_platform.persisted_names import DIGESTS_TAG, SUBJECT_TAG

ATTEMPTS = 3
REQUESTS_AT_ONCE = 25
RUNS_LOOKED_AT = 1000
PARTITION_TAG = "dagster/partition"
RANGE_START_TAG = "dagster/asset_partition_range_start"
RANGE_END_TAG = "dagster/asset_partition_range_end"

UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
ENDED = [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.SUCCESS]

WHOLE = ""  # stands for the one partition of what is not partitioned
Range = tuple[str, str]


@dataclass(frozen=True)
class DuePartition:
    """Partitions of one table or dataset that need a run."""

    subject: str
    partitions: Sequence[str]
    digests: Mapping[str, str]  # of what lies in every partition, those that need nothing included
    ranges: Callable[[Sequence[str]], Sequence[Range]]  # which partitions may share a run
    called: str = "hours"

    def short(self, partition: str) -> str:
        return self.digests[partition][:12]


def run_requests(due: DuePartition, instance: dg.DagsterInstance) -> tuple[list[dg.RunRequest], list[str]]:
    """Runs for the partitions that are due; and what is not asked for, and why.

    A partition whose last run did not settle it gets a run of its own, so that it does not hold up the others.
    """
    busy = _on_their_way(due.subject, instance)
    attempts = _attempts(due, instance)
    free = [each for each in due.partitions if not any(first <= each <= last for first, last in busy)]
    notes = []
    if waiting := len(due.partitions) - len(free):
        notes.append(f"{waiting} {due.called} are in a run that is not over")
    if given_up := [each for each in free if attempts[each] >= ATTEMPTS]:
        notes.append(
            f"{len(given_up)} {due.called} (the first: {given_up[0]}) were not settled by {ATTEMPTS} runs; look at "
            "those, then materialize by hand"
        )
    fresh = due.ranges([each for each in free if attempts[each] == 0])
    again = [(each, each) for each in free if 0 < attempts[each] < ATTEMPTS]
    wanted = [_request(due, first, last, attempts[first]) for first, last in sorted([*fresh, *again])]
    if len(wanted) > REQUESTS_AT_ONCE:
        notes.append(f"{len(wanted) - REQUESTS_AT_ONCE} more runs will be asked for later")
    return wanted[:REQUESTS_AT_ONCE], notes


def _request(due: DuePartition, first: str, last: str, attempt: int) -> dg.RunRequest:
    digests = [due.short(partition) for partition in sorted(due.digests) if first <= partition <= last]
    name = hashlib.sha256("".join([first, last, *digests]).encode()).hexdigest()[:16]
    alone = first == last
    return dg.RunRequest(
        run_key=f"{due.subject}-{name}-{attempt}",
        partition_key=first if alone and first != WHOLE else None,
        tags={
            SUBJECT_TAG: due.subject,
            DIGESTS_TAG: ",".join(digests),
            **({} if alone else {RANGE_START_TAG: first, RANGE_END_TAG: last}),
        },
    )


def _attempts(due: DuePartition, instance: dg.DagsterInstance) -> dict[str, int]:
    """How many runs of exactly these files have ended, for each partition that is still due."""
    runs = instance.get_runs(dg.RunsFilter(tags={SUBJECT_TAG: due.subject}, statuses=ENDED), limit=RUNS_LOOKED_AT)
    seen = Counter(digest for run in runs for digest in run.tags.get(DIGESTS_TAG, "").split(","))
    return {partition: seen[due.short(partition)] for partition in due.partitions}


def _on_their_way(subject: str, instance: dg.DagsterInstance) -> list[Range]:
    runs = instance.get_runs(dg.RunsFilter(tags={SUBJECT_TAG: subject}, statuses=UNFINISHED))
    found = []
    for run in runs:
        first = run.tags.get(RANGE_START_TAG) or run.tags.get(PARTITION_TAG) or WHOLE
        found.append((first, run.tags.get(RANGE_END_TAG) or first))
    return found
