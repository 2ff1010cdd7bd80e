"""Which partitions need compaction, found by listing them. Footers are read only where a listing cannot tell."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from compaction_platform.compact.config import CompactedDataset
from compaction_platform.compact.job import LISTINGS_AT_ONCE, CompactRun
from compaction_platform.compact.plan.bin_packing import OWN_NAME, PackingPolicy, digest_of
from compaction_platform.compact.plan.lineage import listed
from compaction_platform.compact.plan.listing import FileVersion, Version
from compaction_platform.compact.plan.nothing_gained import NothingGained
from compaction_platform.compact.plan.skipped_files import SkippedFiles

DIGEST_LENGTH = 12
AT_A_TIME = 4 * LISTINGS_AT_ONCE
LONGEST_LOOK_SECONDS = 25.0  # Dagster gives a tick a minute


@dataclass(frozen=True)
class DetectedChanges:
    """What a look at some partitions found: digests of what lies there, by partition."""

    due: Mapping[str, str] = field(default_factory=dict)
    settled: Mapping[str, str] = field(default_factory=dict)  # looked at closely, and there is nothing to do
    looked_at: Sequence[str] = ()  # fewer than were asked for, if time ran out


def detect_changes(
    dataset: CompactedDataset, run: CompactRun, partitions: Sequence[str], settled: Mapping[str, str]
) -> DetectedChanges:
    """`settled` is what an earlier look has found: it need not be looked at closely again."""
    if partitions:
        run.require_no_list(dataset.prefixes(partitions))
    apart = SkippedFiles(run.target).known() if partitions else {}
    hopeless = NothingGained(run.target).known() if partitions else frozenset()
    began = time.monotonic()
    due: dict[str, str] = {}
    nothing_to_do: dict[str, str] = {}
    looked_at: list[str] = []

    def one(partition: str) -> tuple[str, str, bool] | None:
        (prefix,) = dataset.prefixes([partition])
        files = run.listed(prefix)
        if not could_need_work(files, run.directory.policy, elsewhere=run.directory.target_uri is not None):
            return None
        digest = digest_of(_all_that_matters(run, prefix, files, apart))[:DIGEST_LENGTH]
        if settled.get(partition) == digest:
            return partition, digest, False
        plan = run.survey(prefix, files, apart, hopeless).plan
        if plan.is_empty and plan.conflicts:
            return None  # no run can do anything about it now, but it is not settled
        return partition, digest, bool(not plan.is_empty or plan.unsettled)

    with ThreadPoolExecutor(LISTINGS_AT_ONCE) as pool:
        for start in range(0, len(partitions), AT_A_TIME):
            if time.monotonic() - began > LONGEST_LOOK_SECONDS:
                break
            some = partitions[start : start + AT_A_TIME]
            for partition, digest, is_due in filter(None, pool.map(one, some)):
                (due if is_due else nothing_to_do)[partition] = digest
            looked_at += some
    return DetectedChanges(due, nothing_to_do, looked_at)


def _all_that_matters(
    run: CompactRun, prefix: str, files: Sequence[FileVersion], apart: Mapping[str, set[Version]]
) -> Iterator[Version]:
    """Whatever may change what is to be done: the files, what was set aside, what is in the target, the policy."""
    yield "policy", repr((run.directory.policy, run.directory.originals))
    yield from sorted((file.key, file.etag) for file in files)
    for directory in sorted({file.directory for file in files}):
        yield from sorted(apart.get(directory, ()))
    if run.directory.target_uri is not None:
        yield from sorted((file.key, file.etag) for file in listed(run.target, prefix))


def could_need_work(files: Sequence[FileVersion], policy: PackingPolicy, *, elsewhere: bool) -> bool:
    """Several new small files in some directory; or compacted ones and something else that may be a leftover."""
    new: dict[str, int] = {}
    own: dict[str, int] = {}
    for file in files:
        if OWN_NAME.fullmatch(file.name):
            own[file.directory] = own.get(file.directory, 0) + 1
        elif file.name.endswith(".parquet") and file.size > 0:
            new[file.directory] = new.get(file.directory, 0) + (elsewhere or file.size < policy.small_bytes)
    fewest = 1 if elsewhere else max(2, policy.min_files)
    return any(count >= fewest or own.get(directory) for directory, count in new.items()) or any(
        count > (0 if elsewhere else 1) for count in own.values()
    )
