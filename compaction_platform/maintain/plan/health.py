"""How a table is, in numbers and one sentence, from metadata alone."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from compaction_platform.maintain.plan.file_groups import LiveFile, RewritePlan, RewritePolicy, make_plan

UNLIMITED = 1 << 62
# What a perfect table loses, of 100 points, for each kind of trouble at its worst.
FOR_SMALL_FILES, FOR_DELETES, FOR_SNAPSHOTS, FOR_MANIFESTS = 60, 20, 10, 10


@dataclass(frozen=True)
class PartitionHealth:
    partition: str
    files: int = 0
    small_files: int = 0
    with_deletes: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class FileCounts:
    """What the files alone do not tell."""

    delete_files: int = 0
    snapshots: int = 0
    snapshots_due: int = 0  # that may expire
    oldest_snapshot_ms: int = 0
    manifests: int = 0
    manifests_to_merge: int = 0
    metadata_bytes: int = 0


@dataclass(frozen=True)
class TableHealth:
    files: int
    small_files: int
    bytes: int
    expected_files: int  # after a compaction of everything that is worth it
    counts: FileCounts
    partitions: Sequence[PartitionHealth] = ()
    live_files: Sequence[LiveFile] = field(default=(), repr=False)
    penalties: Mapping[str, float] = field(default_factory=dict)
    plan: RewritePlan = field(default_factory=RewritePlan, repr=False)  # of everything, whatever a run's limit is

    @property
    def score(self) -> int:
        """100: there is nothing to do."""
        return max(0, round(100 - sum(self.penalties.values())))

    @property
    def recommended(self) -> bool:
        """Whether a compaction would do something."""
        return bool(self.plan.groups)

    @property
    def sizes(self) -> list[int]:
        return [file.bytes for file in self.live_files]

    @property
    def files_fewer(self) -> int:
        return self.files - self.expected_files

    @property
    def reason(self) -> str:
        if not self.files:
            return "the table is empty"
        worst = max(self.penalties, key=lambda name: self.penalties[name])
        return worst if self.penalties[worst] >= 1 else "healthy"


def health_of(files: Sequence[LiveFile], counts: FileCounts, policy: RewritePolicy) -> TableHealth:
    plan = make_plan(files, replace(policy, max_files=UNLIMITED, settle=timedelta()), now_ms=0)
    expected = len(files) - plan.files + plan.expected_files
    small = sum(file.is_small(policy) for file in files)
    with_deletes = sum(file.delete_files > 0 for file in files)
    penalties = {
        f"{plan.files:,} of {len(files):,} files could become {plan.expected_files:,}": FOR_SMALL_FILES
        * _share(len(files) - expected, len(files)),
        f"{counts.delete_files:,} delete files apply to {with_deletes:,} files": FOR_DELETES
        * _share(with_deletes, len(files)),
        f"{counts.snapshots_due:,} of {counts.snapshots:,} snapshots may expire": FOR_SNAPSHOTS
        * _share(counts.snapshots_due, counts.snapshots),
        f"{counts.manifests_to_merge:,} of {counts.manifests:,} manifests are small": FOR_MANIFESTS
        * _share(counts.manifests_to_merge, counts.manifests),
    }
    return TableHealth(
        files=len(files),
        small_files=small,
        bytes=sum(file.bytes for file in files),
        expected_files=expected,
        counts=counts,
        partitions=_by_partition(files, policy),
        live_files=tuple(files),
        penalties=penalties,
        plan=plan,
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _by_partition(files: Sequence[LiveFile], policy: RewritePolicy) -> tuple[PartitionHealth, ...]:
    """Those with most small files first."""
    found: dict[str, list[LiveFile]] = defaultdict(list)
    for file in files:
        found[file.place].append(file)
    partitions = [
        PartitionHealth(
            some[0].partition,
            files=len(some),
            small_files=sum(file.is_small(policy) for file in some),
            with_deletes=sum(file.delete_files > 0 for file in some),
            bytes=sum(file.bytes for file in some),
        )
        for some in found.values()
    ]
    return tuple(sorted(partitions, key=lambda each: (-each.small_files, each.partition)))
