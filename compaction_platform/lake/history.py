"""The published history of an Iceberg table: what led to the state readers see, from metadata alone."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot


@dataclass(frozen=True)
class History:
    """The ancestors of main, newest first. Snapshots that were never published or rolled back are not in it."""

    snapshots: tuple["Snapshot", ...]
    complete: bool  # False once expiry has removed the older ones

    def properties(self, name: str) -> list[str]:
        """The values of a summary property wherever it was given, newest first."""
        found = []
        for snapshot in self.snapshots:
            value = snapshot.summary.additional_properties.get(name) if snapshot.summary else None
            if value is not None:
                found.append(value)
        return found


def rows_by_metadata(table: "Table", row_filter: "BooleanExpression", snapshot_id: int) -> int | None:
    """How many rows a filter on partitions leaves, as the metadata says; None where it cannot say.

    It is wrong after a rewrite that left deletes without their data files behind.
    """
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.manifest import DataFileContent

    rows, deletes = 0, {}
    try:
        tasks = list(table.scan(row_filter=row_filter, snapshot_id=snapshot_id).plan_files())
    except TypeError:  # PyIceberg 0.12 cannot compare a partition that is NULL
        return None
    for task in tasks:
        if task.residual != AlwaysTrue():
            return None
        rows += task.file.record_count
        for file in task.delete_files:
            if file.content != DataFileContent.POSITION_DELETES:
                return None
            deletes[file.file_path] = file.record_count
    return rows - sum(deletes.values())


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
