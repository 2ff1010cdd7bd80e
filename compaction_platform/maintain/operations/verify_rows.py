"""Proofs about a table as it lies there, taken afresh: nothing here trusts what a run said of itself."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.transforms import VoidTransform

from compaction_platform.errors import CompactionError
from compaction_platform.lake.iceberg.data_file_reader import DataFileReader, bucket_of, key_of
from compaction_platform.lake.iceberg.snapshot_files import Manifests
from compaction_platform.lake.parquet.second_reader import NotJudged
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.lake.verification.fingerprint import Fingerprint, UnorderedFingerprint
from compaction_platform.maintain.operations.remove_orphan_files import snapshot_paths
from compaction_platform.maintain.operations.rollback import NothingToRollBack, last_compaction
from compaction_platform.maintain.operations.second_reader import FileWithDeletes, read_in_sql
from compaction_platform.maintain.plan.snapshot_retention import Retention

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from compaction_platform.settings import Settings


def rows_differ(table: "Table", settings: "Settings") -> tuple[int, dict[str, str]]:
    """The rows of the last compaction, and for each of its snapshots that holds other rows than the one before, what
    is different. Read by DuckDB, with nothing of what rewrites read by."""
    try:
        _, snapshots = last_compaction(table)
    except NothingToRollBack:
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
            before = _fingerprint(table, settings, removed, manifests.of(parent).deletes.values())
            after = _fingerprint(table, settings, added, manifests.of(snapshot).deletes.values())
        except NotJudged as unknown:
            problems[f"snapshot {snapshot.snapshot_id}"] = f"its rows cannot be compared: {unknown}"
            continue
        except (OSError, CompactionError, pyarrow.ArrowException) as error:
            problems[f"snapshot {snapshot.snapshot_id}"] = f"its files cannot be read: {str(error).splitlines()[0]}"
            continue
        rows += after.rows
        if differences := before.differences(after):
            problems[f"snapshot {snapshot.snapshot_id}"] = "; ".join(differences)
    return rows, problems


def _fingerprint(
    table: "Table", settings: "Settings", entries: Iterable[ManifestEntry], deletes: Iterable[ManifestEntry]
) -> Fingerprint:
    reader = DataFileReader(table.metadata, settings)
    digest = UnorderedFingerprint(reader.schema)
    data = [each for each in entries if each.data_file.content == DataFileContent.DATA]
    some = list(deletes)
    read_in_sql(reader, (_with_deletes(each, some, table.metadata) for each in data), digest, reader.schema)
    return digest.finish()


def _with_deletes(data: ManifestEntry, deletes: Iterable[ManifestEntry], metadata: "TableMetadata") -> FileWithDeletes:
    """The deletes that apply to a data file, by the words of the specification: not by `deletes`, which the rewrite
    goes by. Which rows a position delete is about, its paths tell: so all that are not older are asked."""
    age = data.sequence_number or 0
    partition = data.data_file.spec_id, list(_values(data.data_file))
    positions, equalities = [], []
    for each in deletes:
        file = each.data_file
        is_global = not any(_is_partitioned(metadata, file.spec_id))
        if file.content == DataFileContent.POSITION_DELETES:
            if (each.sequence_number or 0) >= age:
                positions.append(file)
        elif (each.sequence_number or 0) > age and (is_global or (file.spec_id, list(_values(file))) == partition):
            equalities.append(file)
    return FileWithDeletes(data.data_file, tuple(positions), tuple(equalities))


def _values(file: DataFile) -> Iterator[Any]:
    return (file.partition[number] for number in range(len(file.partition)))


def _is_partitioned(metadata: "TableMetadata", spec_id: int) -> Iterator[bool]:
    return (not isinstance(each.transform, VoidTransform) for each in metadata.specs()[spec_id].fields)


def missing_files(table: "Table", settings: "Settings") -> list[str]:
    """Files that some snapshot of the table needs and that are not there."""
    location = str(table.location()).rstrip("/")
    place = f"{bucket_of(location)}/{key_of(location)}"
    there = {f"{place}/{each.key}" for each in ObjectStore.at(f"s3://{place}", settings).list()}
    reader = DataFileReader(table.metadata, settings)

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
