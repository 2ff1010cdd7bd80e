"""The published history of an Iceberg table: what led to the state readers see, from metadata alone."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot


@dataclass(frozen=True)
class History:
    """The ancestors of main, newest first. Snapshots that were never published or rolled back are not in it."""

    snapshots: tuple["Snapshot", ...]
    complete: bool  # False once expiry has removed the older ones

    @property
    def known_ids(self) -> frozenset[int]:
        """Snapshots that are certainly part of main: its ancestors, and the one that the oldest of them came from,
        though that has expired. Of others nobody can tell whether they were rolled back."""
        parents = {
            snapshot.parent_snapshot_id for snapshot in self.snapshots if snapshot.parent_snapshot_id is not None
        }
        return frozenset(parents | {snapshot.snapshot_id for snapshot in self.snapshots})

    def properties(self, name: str) -> list[str]:
        """The values of a summary property wherever it was given, newest first."""
        found = []
        for snapshot in self.snapshots:
            value = snapshot.summary.additional_properties.get(name) if snapshot.summary else None
            if value is not None:
                found.append(value)
        return found


def published(table: "Table") -> History:
    return _published(table.metadata)


def _published(metadata: "TableMetadata") -> History:
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    ancestors = []
    next_id = metadata.current_snapshot_id
    while next_id is not None and next_id in by_id:
        ancestors.append(by_id[next_id])
        next_id = by_id[next_id].parent_snapshot_id
    return History(tuple(ancestors), complete=next_id is None)
