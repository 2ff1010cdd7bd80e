"""What a table looks like now: its files, snapshots and manifests, read from metadata alone."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyiceberg.manifest import FileFormat, ManifestEntry
from pyiceberg.table.refs import MAIN_BRANCH

from compaction_platform.errors import CompactionError
from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.lake.iceberg.replace_files import FORMATS
from compaction_platform.lake.iceberg.snapshot_files import Manifests, SnapshotFiles
from compaction_platform.maintain.plan.delete_index import (
    ApplicableDeletes,
    DeleteIndex,
    Place,
    is_known,
    only_file_of,
    place_of,
)
from compaction_platform.maintain.plan.file_groups import LiveFile
from compaction_platform.maintain.plan.partition_filter import PartitionFilter

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from compaction_platform.settings import Settings

NOT_OURS = "gc.enabled"


class TableMissing(CompactionError):
    """There is no such table."""


class TableUnfit(CompactionError):
    """The table is kept in a way that maintenance must not, or cannot, touch."""


def load_table(settings: "Settings", name: str) -> "Table":
    from pyiceberg.exceptions import NoSuchTableError

    try:
        return open_catalog(settings).load_table(tuple(name.split(".")))
    except NoSuchTableError:
        raise TableMissing(
            f"table {name} does not exist. If a declaration makes it, run the job `setup` first; otherwise check the "
            "name (namespace.table) in the declaration. Nothing was done."
        ) from None


def require_fit(metadata: "TableMetadata", name: str) -> None:
    """A table whose files belong to somebody else, or of a format we cannot commit to, is not touched."""
    if metadata.properties.get(NOT_OURS, "true").lower() == "false":
        raise TableUnfit(
            f"{name} has gc.enabled=false: its files belong to somebody else (the archive, for one), and must not be "
            "replaced or deleted from here. Nothing was done."
        )
    if metadata.format_version not in FORMATS:
        raise TableUnfit(
            f"{name} is of Iceberg format {metadata.format_version}; formats 1 and 2 are supported. Nothing was done. "
            "Until then: CALL <catalog>.system.rewrite_data_files(table => …) in Spark."
        )


@dataclass(frozen=True)
class TableState:
    """One snapshot of main and all that matters about its files."""

    table: "Table"
    metadata: "TableMetadata"  # as it was then, whatever becomes of the table
    files: SnapshotFiles
    manifests: Manifests

    @classmethod
    def at(cls, table: "Table", manifests: Manifests | None = None) -> "TableState":
        reader = manifests or Manifests(table.io)
        return cls(table, table.metadata, reader.of(main_snapshot(table.metadata)), reader)

    @property
    def snapshot(self) -> "Snapshot | None":
        return main_snapshot(self.metadata)

    @cached_property
    def deletes(self) -> DeleteIndex:
        return DeleteIndex.of(self.files.deletes.values(), self.metadata.specs())

    @cached_property
    def applying(self) -> dict[str, ApplicableDeletes]:
        return {path: self.deletes.applying_to(entry) for path, entry in self.files.data.items()}

    def live_files(self, wanted: PartitionFilter) -> list[LiveFile]:
        matches = wanted.matcher()
        committed = {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in self.metadata.snapshots}
        return [self._live_file(entry, committed, matches(entry.data_file)) for entry in self.files.data.values()]

    def _live_file(self, entry: ManifestEntry, committed: dict[int, int], wanted: bool) -> LiveFile:
        file = entry.data_file
        applying = self.applying[file.file_path]
        parquet = file.file_format == FileFormat.PARQUET
        deletes_are_parquet = all(one.data_file.file_format == FileFormat.PARQUET for one in applying.entries)
        unreadable = None if parquet and deletes_are_parquet else "not Parquet, or its delete files are not"
        if not is_known(self.metadata.specs()[file.spec_id], self.metadata.schema()):
            unreadable = "its partitions are by a column that the table has no more"
        return LiveFile(
            path=file.file_path,
            place=repr(place_of(file)),
            partition=self.partition_name(entry),
            bytes=file.file_size_in_bytes,
            rows=file.record_count,
            sequence_number=entry.sequence_number or 0,
            added_ms=committed.get(entry.snapshot_id or 0, 0),
            delete_files=len(applying.entries),
            deleted_rows=min(file.record_count, self._deleted_rows(applying)),
            unreadable=unreadable,
            wanted=wanted,
        )

    @staticmethod
    def _deleted_rows(applying: ApplicableDeletes) -> int:
        """What delete files that are about this file alone say; others may be about any."""
        return sum(one.data_file.record_count for one in applying.positions if only_file_of(one.data_file))

    def partition_name(self, entry: ManifestEntry) -> str:
        place = place_of(entry.data_file)
        if place not in self._names:
            self._names[place] = self._name(entry)
        return self._names[place]

    @cached_property
    def _names(self) -> dict[Place, str]:
        return {}

    def _name(self, entry: ManifestEntry) -> str:
        file, specs = entry.data_file, self.metadata.specs()
        spec = specs[file.spec_id]
        try:
            name = "" if spec.is_unpartitioned() else spec.partition_to_path(file.partition, self.metadata.schema())
        except ValueError:  # a column that the table was partitioned by is gone
            name = str(file.partition)
        return f"{name} (partition spec {file.spec_id})".strip() if len(specs) > 1 else name


def main_snapshot(metadata: "TableMetadata") -> "Snapshot | None":
    return metadata.snapshot_by_name(MAIN_BRANCH)
