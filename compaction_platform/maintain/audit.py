"""Proofs about a table as it lies there, taken afresh: nothing here trusts what a run said of itself."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import ManifestEntry
from pyiceberg.table import FileScanTask

from compaction_platform.lake.data_file_rows import DataFileRows, bucket_of, key_of
from compaction_platform.lake.errors import CompactionError
from compaction_platform.lake.fingerprint import AnyOrder, Fingerprint
from compaction_platform.lake.objects import Objects
from compaction_platform.lake.table_entries import Manifests
from compaction_platform.maintain.applied import EqualityDelete
from compaction_platform.maintain.deletes import Deletes, is_position_delete
from compaction_platform.maintain.orphans import snapshot_paths
from compaction_platform.maintain.snapshots import Retention
from compaction_platform.maintain.undo import NothingToUndo, last_compaction

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from compaction_platform.lake.settings import Settings


def rows_differ(table: "Table", settings: "Settings") -> tuple[int, dict[str, str]]:
    """The rows of the last compaction, and for each of its snapshots that holds other rows than the one before, what
    is different. Read by PyIceberg, which applies position deletes in its own way."""
    try:
        _, snapshots = last_compaction(table)
    except NothingToUndo:
        return 0, {}
    manifests = Manifests(table.io)
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    problems: dict[str, str] = {}
    rows = 0
    for snapshot in snapshots:
        parent = by_id.get(snapshot.parent_snapshot_id or 0)
        if parent is None:
            continue  # expired: there is nothing to compare with any more
        added, removed = manifests.changes_of(snapshot)
        try:
            before = _fingerprint(table, settings, removed, _deletes(table, manifests, parent))
            after = _fingerprint(table, settings, added, _deletes(table, manifests, snapshot))
        except (OSError, CompactionError, pyarrow.ArrowException) as error:
            problems[f"snapshot {snapshot.snapshot_id}"] = f"its files cannot be read: {str(error).splitlines()[0]}"
            continue
        rows += after.rows
        if differences := before.differences(after):
            problems[f"snapshot {snapshot.snapshot_id}"] = "; ".join(differences)
    return rows, problems


def _deletes(table: "Table", manifests: Manifests, snapshot: "Snapshot") -> Deletes:
    return Deletes.of(manifests.of(snapshot).deletes.values(), table.metadata.specs())


def _fingerprint(
    table: "Table", settings: "Settings", entries: Iterable[ManifestEntry], deletes: Deletes
) -> Fingerprint:
    reader = DataFileRows(table.metadata, settings)
    digest = AnyOrder(reader.schema)
    for entry in entries:
        if is_position_delete(entry) or entry.data_file.equality_ids:
            continue
        applying = deletes.applying_to(entry)
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        positions = {each.data_file for each in applying.positions}
        rows = scan.to_table([FileScanTask(entry.data_file, delete_files=positions)]).cast(reader.schema)
        for delete in applying.equalities:
            rows = rows.filter(EqualityDelete(delete.data_file, reader).is_left(rows))
        digest.update(rows)
    return digest.finish()


def missing_files(table: "Table", settings: "Settings") -> list[str]:
    """Files that some snapshot of the table needs and that are not there."""
    location = str(table.location()).rstrip("/")
    place = f"{bucket_of(location)}/{key_of(location)}"
    there = {f"{place}/{each.key}" for each in Objects.at(f"s3://{place}", settings).list()}
    reader = DataFileRows(table.metadata, settings)

    def is_there(path: str) -> bool:
        if f"{bucket_of(path)}/{key_of(path)}".startswith(f"{place}/"):
            return f"{bucket_of(path)}/{key_of(path)}" in there
        return reader.store(path).stat(key_of(path)) is not None

    return sorted(path for path in snapshot_paths(table) if not is_there(path))


def retention_gap(metadata: "TableMetadata", retention: Retention, now: datetime) -> str | None:
    """What is said if snapshots were taken away that the retention wants kept."""
    known = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    line = [each for each in metadata.snapshots if each.snapshot_id == metadata.current_snapshot_id]
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    while line and line[-1].parent_snapshot_id in known:
        line.append(by_id[line[-1].parent_snapshot_id or 0])
    if not line or line[-1].parent_snapshot_id is None:
        return None
    superseded = datetime.fromtimestamp(line[-1].timestamp_ms / 1000, UTC)  # the one before it, when this came
    if superseded > now - retention.time:
        return (
            f"the snapshot before {line[-1].snapshot_id} was in use until {superseded:%Y-%m-%d %H:%M} UTC and is gone: "
            f"somebody expires snapshots earlier than after {retention.hours} hours"
        )
    return None
