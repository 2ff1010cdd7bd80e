"""Which partitions need compaction, found by listing them. Footers are read only where a listing cannot tell."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from compaction_platform.compact.dataset import Dataset
from compaction_platform.compact.outputs import listed
from compaction_platform.compact.plan import Listed, Policy, digest_of, is_own
from compaction_platform.compact.run import LISTINGS_AT_ONCE, CompactRun

DIGEST_LENGTH = 12


@dataclass(frozen=True)
class Found:
    """What a look at some partitions found: digests of what lies there, by partition."""

    due: Mapping[str, str] = field(default_factory=dict)
    settled: Mapping[str, str] = field(default_factory=dict)  # looked at closely, and there is nothing to do


def look(dataset: Dataset, run: CompactRun, partitions: Sequence[str], settled: Mapping[str, str]) -> Found:
    """`settled` is what an earlier look has found: it need not be looked at closely again."""
    prefixes = dataset.prefixes(partitions)

    def contents(prefix: str) -> list[Listed]:
        return sorted(file for file in listed(run.source, prefix) if not file.is_hidden)

    due: dict[str, str] = {}
    still_settled: dict[str, str] = {}
    with ThreadPoolExecutor(LISTINGS_AT_ONCE) as pool:
        for partition, prefix, files in zip(partitions, prefixes, pool.map(contents, prefixes), strict=True):
            if not could_need_work(files, run.directory.policy):
                continue
            digest = digest_of((file.key, file.etag) for file in files)[:DIGEST_LENGTH]
            if settled.get(partition) != digest and not run.plan([prefix])[0].plan.is_empty:
                due[partition] = digest
            else:
                still_settled[partition] = digest
    return Found(due, still_settled)


def could_need_work(files: Sequence[Listed], policy: Policy) -> bool:
    """Several new small files in some directory; or compacted ones and something else that may be a leftover."""
    new: dict[str, int] = {}
    own: dict[str, int] = {}
    for file in files:
        if is_own(file, policy):
            own[file.directory] = own.get(file.directory, 0) + 1
        elif file.name.endswith(".parquet") and 0 < file.size < policy.small_bytes:
            new[file.directory] = new.get(file.directory, 0) + 1
    fewest = max(2, policy.min_files)
    return any(count >= fewest or own.get(directory) for directory, count in new.items()) or any(
        count > 1 for count in own.values()
    )
