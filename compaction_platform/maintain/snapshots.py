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
class Known:
    """A snapshot as the table's metadata has it."""

    snapshot_id: int
    parent_id: int | None
    committed: datetime


def to_expire(
    snapshots: Sequence[Known], refs: Mapping[str, int], main: int | None, retention: Retention, now: datetime
) -> list[int]:
    """Ids of the snapshots that nothing needs any more, oldest first. `refs` are the heads of branches and tags."""
    by_id = {each.snapshot_id: each for each in snapshots}
    kept = set(refs.values()) | set(_ancestors(main, by_id)[: max(1, retention.keep_at_least)])
    superseded = {each.snapshot_id: each.committed for each in snapshots}  # what no branch leads to: since it was made
    for head in {*refs.values(), *([main] if main is not None else [])}:
        line = _ancestors(head, by_id)
        for child, parent in pairwise(line):
            superseded[parent] = max(superseded[parent], by_id[child].committed)
    due = [each for each in snapshots if each.snapshot_id not in kept]
    due = [each for each in due if superseded[each.snapshot_id] <= now - retention.time]
    return [each.snapshot_id for each in sorted(due, key=lambda each: each.committed)]


def _ancestors(head: int | None, by_id: Mapping[int, Known]) -> list[int]:
    line = []
    while head is not None and head in by_id:
        line.append(head)
        head = by_id[head].parent_id
    return line
