"""Which files of a table become which, and why the others are left alone. Values in, values out."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from compaction_platform.lake.storage.sizes import MB

GROUP_FACTOR = 2  # a group is at most so many target sizes: much can be done at once, and little is lost in a conflict
SORTED_GROUP_FACTOR = 8  # rows that are far apart can come together only inside a group
SLACK = 1.2  # more than small by so much, so that what is made is not small again
EXAMPLES = 3


@dataclass(frozen=True)
class RewritePolicy:
    """When files are rewritten, and into what."""

    target_bytes: int = 128 * MB
    small_bytes: int = 64 * MB
    min_files: int = 3
    max_files: int = 100
    max_delete_files: int = 5  # a data file with so many delete files is rewritten, whatever its size
    max_deleted_share: float = 0.3
    sort_by: tuple[str, ...] = ()
    z_order_by: tuple[str, ...] = ()
    settle: timedelta = timedelta()  # partitions are left to their writers for so long after a commit
    enabled: bool = True

    @property
    def smallest_rest(self) -> float:
        """A rest of so many bytes becomes a file of its own; a smaller one stays in the file before it."""
        return SLACK * self.small_bytes

    def files_for(self, size: int) -> int:
        """How many files so many bytes become."""
        return max(1, 1 + math.floor((size - self.smallest_rest) / self.target_bytes))

    @property
    def group_bytes(self) -> int:
        return self.target_bytes * (SORTED_GROUP_FACTOR if self.sort_by or self.z_order_by else GROUP_FACTOR)


@dataclass(frozen=True)
class LiveFile:
    """A data file as the table's metadata describes it."""

    path: str
    place: str  # its partition: equal only for files of one partition of one partition spec
    partition: str  # the same as a person reads it
    bytes: int
    rows: int
    sequence_number: int
    added_ms: int  # when the snapshot that added it was committed; 0 if that is not known any more
    delete_files: int = 0  # those that may apply to it
    deleted_rows: int = 0  # at most, as far as metadata tells
    unreadable: str | None = None  # why it can only be left as it is
    wanted: bool = True  # by the partition filter

    def is_small(self, policy: RewritePolicy) -> bool:
        return self.bytes < policy.small_bytes

    def burden(self, policy: RewritePolicy) -> str | None:
        """Why it should be rewritten because of deletes."""
        if self.delete_files >= policy.max_delete_files:
            return f"{self.delete_files} delete files apply"
        if self.rows and self.deleted_rows / self.rows >= policy.max_deleted_share:
            return f"{self.deleted_rows / self.rows:.0%} of its rows may be deleted"
        return None


@dataclass(frozen=True)
class DataFileGroup:
    """Files of one partition that are rewritten, verified and committed together."""

    partition: str
    files: tuple[LiveFile, ...]
    reason: str
    expected_files: int

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True)
class SkippedDataFile:
    files: int = 0
    bytes: int = 0
    examples: tuple[str, ...] = ()

    def and_one(self, file: LiveFile) -> "SkippedDataFile":
        examples = self.examples if len(self.examples) >= EXAMPLES else (*self.examples, file.path)
        return SkippedDataFile(self.files + 1, self.bytes + file.bytes, examples)


@dataclass(frozen=True)
class RewritePlan:
    groups: tuple[DataFileGroup, ...] = ()
    left_alone: Mapping[str, SkippedDataFile] = field(default_factory=dict)  # by reason

    @property
    def files(self) -> int:
        return sum(len(group.files) for group in self.groups)

    @property
    def bytes(self) -> int:
        return sum(group.bytes for group in self.groups)

    @property
    def expected_files(self) -> int:
        return sum(group.expected_files for group in self.groups)

    def why_nothing(self) -> str:
        reasons = [f"{left.files:,} files: {reason}" for reason, left in sorted(self.left_alone.items())]
        return "; ".join(reasons) or "the table has no files"


LARGE = "large enough, and few deletes"
UNWANTED = "not in the partition filter"
BEYOND_LIMIT = "more than max_files; the next run goes on"
ALONE = "small, with nothing to be joined to"


def too_few(policy: RewritePolicy) -> str:
    return f"small, but fewer than {policy.min_files} in the partition (min_files_to_compact)"


def make_plan(files: Sequence[LiveFile], policy: RewritePolicy, now_ms: int, *, force: bool = False) -> RewritePlan:
    """`force` takes partitions of any number of small files from two on, and those that were just written."""
    left: dict[str, SkippedDataFile] = defaultdict(SkippedDataFile)
    in_partition: dict[str, list[LiveFile]] = defaultdict(list)
    for file in files:
        if not file.wanted:
            left[UNWANTED] = left[UNWANTED].and_one(file)
        else:
            in_partition[file.place].append(file)
    groups: list[DataFileGroup] = []
    for _, some in sorted(in_partition.items()):
        chosen, others = _chosen(some, policy, now_ms, force)
        made, alone = _groups(some[0].partition, chosen, policy)
        groups += made
        for file, reason in (*others, *((file, ALONE) for file in alone)):
            left[reason] = left[reason].and_one(file)
    groups.sort(key=lambda group: (group.expected_files - len(group.files), group.partition))  # most gain first
    taken, beyond = _within(groups, policy, 2 if force else policy.min_files)
    for file in beyond:
        left[BEYOND_LIMIT] = left[BEYOND_LIMIT].and_one(file)
    return RewritePlan(tuple(taken), dict(left))


def _chosen(
    files: Sequence[LiveFile], policy: RewritePolicy, now_ms: int, force: bool
) -> tuple[list[tuple[LiveFile, str]], list[tuple[LiveFile, str]]]:
    """Files of a partition that are rewritten, and those that are not, each with the reason."""
    others = [(file, file.unreadable) for file in files if file.unreadable]
    readable = [file for file in files if not file.unreadable]
    settle_ms = policy.settle.total_seconds() * 1000
    newest = max((file.added_ms for file in files), default=0)
    if settle_ms and not force and newest and now_ms - newest < settle_ms:
        reason = f"written less than {policy.settle} ago; left to its writers"
        return [], [*others, *((file, reason) for file in readable)]
    small = [file for file in readable if file.is_small(policy)]
    enough = len(small) >= (2 if force else policy.min_files)
    chosen = []
    for file in readable:
        if burden := file.burden(policy):
            chosen.append((file, burden))
        elif file.is_small(policy) and enough:
            chosen.append((file, f"{len(small)} small files"))
        else:
            others.append((file, too_few(policy) if file.is_small(policy) else LARGE))
    return chosen, others


def _groups(
    partition: str, chosen: Sequence[tuple[LiveFile, str]], policy: RewritePolicy
) -> tuple[list[DataFileGroup], list[LiveFile]]:
    """About equally large groups, files in the order in which they were written; and files that are left over."""
    reasons = {file.path: reason for file, reason in chosen}
    files = sorted((file for file, _ in chosen), key=lambda file: (file.sequence_number, file.path))
    total = sum(file.bytes for file in files)
    share = total / max(1, math.ceil(total / policy.group_bytes))
    cut: list[list[LiveFile]] = [[]]
    filled = 0
    for file in files:
        if cut[-1] and filled + file.bytes / 2 > share * len(cut):
            cut.append([])
        cut[-1].append(file)
        filled += file.bytes
    groups, alone = [], []
    for some in cut:
        if len(some) == 1 and some[0].burden(policy) is None:
            alone += some
        elif some:
            reason = ", ".join(dict.fromkeys(reasons[file.path] for file in some))
            size = sum(file.bytes for file in some)
            groups.append(DataFileGroup(partition, tuple(some), reason, policy.files_for(size)))
    return groups, alone


def _within(
    groups: Sequence[DataFileGroup], policy: RewritePolicy, fewest: int
) -> tuple[list[DataFileGroup], list[LiveFile]]:
    """As much as `max_files` allows; what is beyond it."""
    taken: list[DataFileGroup] = []
    beyond: list[LiveFile] = []
    room = policy.max_files
    for group in groups:
        if len(group.files) <= room:
            taken.append(group)
            room -= len(group.files)
            continue
        burdened = any(file.burden(policy) for file in group.files[:room])
        if room >= max(2, fewest) or (room and burdened):
            files = group.files[:room]
            size = sum(file.bytes for file in files)
            expected = policy.files_for(size)
            taken.append(DataFileGroup(group.partition, files, group.reason, expected))
            beyond += group.files[room:]
            room = 0
        else:
            beyond += group.files
    return taken, beyond
