"""Which snapshots may go. Values in, values out.

A snapshot's time runs from the moment another took its place, not from its own commit: a reader that began just before
that has the whole retention to finish, and a compaction can be undone for as long.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise


@dataclass(frozen=True)
class Retention:
    hours: int = 168
    keep_at_least: int = 1  # of main, the newest

    @property
    def time(self) -> timedelta:
        return timedelta(hours=self.hours)


@dataclass(frozen=True)
class KnownSnapshot:
    """A snapshot as the table's metadata has it."""

    snapshot_id: int
    parent_id: int | None
    committed: datetime


@dataclass(frozen=True)
class Ref:
    """A branch or a tag, with the retention it was given by itself."""

    head: int
    keep_at_least: int = 1
    younger_than: timedelta | None = None


def to_expire(
    snapshots: Sequence[KnownSnapshot],
    refs: Mapping[str, Ref],
    main: str,
    retention: Retention,
    now: datetime,
    was_current_until: Mapping[int, datetime] | None = None,
) -> list[int]:
    """Ids of the snapshots that nothing needs any more, oldest first. `was_current_until` is what the table's log says
    about those that were rolled back."""
    by_id = {each.snapshot_id: each for each in snapshots}
    superseded = {each.snapshot_id: each.committed for each in snapshots}  # what no branch leads to: since it was made
    for snapshot_id, until in (was_current_until or {}).items():
        if snapshot_id in superseded:
            superseded[snapshot_id] = max(superseded[snapshot_id], until)
    kept: set[int] = set()
    for name, ref in refs.items():
        line = _ancestors(ref.head, by_id)
        kept |= set(line[: max(1, ref.keep_at_least, retention.keep_at_least if name == main else 1)])
        if ref.younger_than is not None:
            kept |= {each for each in line if by_id[each].committed > now - ref.younger_than}
        for child, parent in pairwise(line):
            superseded[parent] = max(superseded[parent], by_id[child].committed)
    due = [each for each in snapshots if each.snapshot_id not in kept]
    due = [each for each in due if superseded[each.snapshot_id] <= now - retention.time]
    return [each.snapshot_id for each in sorted(due, key=lambda each: each.committed)]


def _ancestors(head: int | None, by_id: Mapping[int, KnownSnapshot]) -> list[int]:
    line = []
    while head is not None and head in by_id:
        line.append(head)
        head = by_id[head].parent_id
    return line
