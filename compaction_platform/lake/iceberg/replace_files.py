"""One commit that takes files out of an Iceberg table and puts others in.

PyIceberg has no such operation, so this is a snapshot producer of our own on its private base (the version is pinned,
and tests read the result with Spark). What it adds may keep an older data sequence number: then deletes that others
commit meanwhile still apply to it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV1,
    ManifestWriterV2,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Transaction
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    SetSnapshotRefUpdate,
)
from pyiceberg.table.update.snapshot import _SnapshotProducer
from pyiceberg.types import IntegerType, ListType, NestedField, StructType

from compaction_platform.errors import CompactionError
from compaction_platform.lake.iceberg import history
from compaction_platform.lake.iceberg.branches import commit
from compaction_platform.lake.iceberg.snapshot_files import Manifests

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

ENTRIES_PER_MANIFEST = 20_000
FORMATS = (1, 2)
DATA_FILE, EQUALITY_IDS = 2, 135  # fields of a manifest entry, by the specification


class CommitUnknown(CompactionError):
    """The catalog did not say whether it took a commit. Nothing that the commit may need was deleted."""


@dataclass(frozen=True)
class AddedFile:
    file: DataFile
    sequence_number: int | None = None  # None: that of the commit


@dataclass(frozen=True)
class FileChange:
    """What a commit does to the files of a table."""

    added: Sequence[AddedFile] = ()
    removed: frozenset[str] = frozenset()  # paths of data files and delete files
    merged: frozenset[str] = frozenset()  # paths of manifests whose entries are put together into few
    operation: Operation = Operation.REPLACE
    properties: Mapping[str, str] | None = None


def commit_change(table: "Table", change: FileChange, manifests: Manifests) -> int:
    """Commit to main as this `table` knows it; the id of the new snapshot. If main or the columns have changed since,
    or something that is to be removed is not there, CommitFailedException; nothing is tried again here."""
    head = table.metadata.refs.get(MAIN_BRANCH)
    producer = _Producer(table, change, manifests)
    try:
        made = producer._commit()[0][0]  # writes the manifests; it is we who commit
    except BaseException:
        producer._clean_all_uncommitted()
        raise
    try:
        commit(
            table,
            (
                AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=head.snapshot_id if head else None),
                AssertCurrentSchemaId(current_schema_id=table.metadata.current_schema_id),
            ),
            (
                made,
                SetSnapshotRefUpdate(
                    ref_name=MAIN_BRANCH,
                    type=SnapshotRefType.BRANCH,
                    snapshot_id=producer.snapshot_id,
                    max_ref_age_ms=head.max_ref_age_ms if head else None,
                    max_snapshot_age_ms=head.max_snapshot_age_ms if head else None,
                    min_snapshots_to_keep=head.min_snapshots_to_keep if head else None,
                ),
            ),
        )
    except Exception as problem:
        # Also when it says that the race is lost: a client that asks twice may have lost it against itself.
        published = _is_published(table, producer.snapshot_id)
        if published:
            return producer.snapshot_id
        if published is False and isinstance(problem, CommitFailedException):
            producer._clean_all_uncommitted()
            raise
        raise CommitUnknown(
            f"the catalog did not say whether it took snapshot {producer.snapshot_id} of {'.'.join(table.name())} "
            f"({type(problem).__name__}). Nothing is lost and nothing was deleted; run again: the next run sees "
            "which it is, and what turns out to be unused goes with the orphans."
        ) from problem
    return producer.snapshot_id


def _is_published(table: "Table", snapshot_id: int) -> bool | None:
    """None: that cannot be told now."""
    try:
        table.refresh()
    except Exception:  # noqa: BLE001 (whatever it is: it stays unknown)
        return None
    return any(snapshot.snapshot_id == snapshot_id for snapshot in history.published(table).snapshots)


class _Still(Transaction):
    """PyIceberg copies all metadata of a table whenever a transaction is asked for them, which is often. In this one
    nothing changes."""

    @property
    def table_metadata(self) -> "TableMetadata":
        return self._table.metadata


class _Producer(_SnapshotProducer["_Producer"]):
    def __init__(self, table: "Table", change: FileChange, manifests: Manifests) -> None:
        super().__init__(change.operation, _Still(table), table.io, snapshot_properties=dict(change.properties or {}))
        self._change = change
        self._reader = manifests
        self._removed: list[ManifestEntry] = []

    def _manifests(self) -> list[ManifestFile]:
        untouched: list[ManifestFile] = []
        staying: list[ManifestEntry] = []
        metadata = self._transaction.table_metadata
        parent = metadata.snapshot_by_id(self._parent_snapshot_id) if self._parent_snapshot_id is not None else None
        for manifest in parent.manifests(self._io) if parent else ():
            if not self._change.removed and manifest.manifest_path not in self._change.merged:
                if manifest.has_added_files() or manifest.has_existing_files():
                    untouched.append(manifest)
                continue  # it need not be read
            live = self._reader.live(manifest)
            going = [entry for entry in live if entry.data_file.file_path in self._change.removed]
            if going or manifest.manifest_path in self._change.merged:
                self._removed += going
                staying += [entry for entry in live if entry.data_file.file_path not in self._change.removed]
            elif live:
                untouched.append(manifest)
        self._require_all_found()
        added = [
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                sequence_number=each.sequence_number if metadata.format_version > 1 else None,
                file_sequence_number=None,
                data_file=each.file,
            )
            for each in self._change.added
        ]
        existing = [self._with_status(entry, ManifestEntryStatus.EXISTING) for entry in staying]
        deleted = [self._with_status(entry, ManifestEntryStatus.DELETED) for entry in self._removed]
        written = [file for entries in (added, existing, deleted) for file in self._written(entries)]
        self._require_as_many(written, len(added) + len(staying))
        return written + untouched

    @staticmethod
    def _require_as_many(written: Sequence[ManifestFile], entries: int) -> None:
        there = sum((each.added_files_count or 0) + (each.existing_files_count or 0) for each in written)
        if there != entries:
            raise CompactionError(f"manifests of {there} files were written for {entries}. Nothing was committed.")

    def _require_all_found(self) -> None:
        found = {entry.data_file.file_path for entry in self._removed}
        if missing := self._change.removed - found:
            raise CommitFailedException(f"{len(missing)} files are not in the table any more, such as {min(missing)}")

    def _with_status(self, entry: ManifestEntry, status: ManifestEntryStatus) -> ManifestEntry:
        return ManifestEntry.from_args(
            status=status,
            snapshot_id=self._snapshot_id if status == ManifestEntryStatus.DELETED else entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=entry.data_file,
        )

    def _written(self, entries: Sequence[ManifestEntry]) -> list[ManifestFile]:
        """Manifests of these entries, those of one partition near each other."""
        alike: dict[tuple[int, bool], list[ManifestEntry]] = defaultdict(list)
        for entry in entries:
            alike[entry.data_file.spec_id, entry.data_file.content != DataFileContent.DATA].append(entry)
        made = []
        for (spec_id, are_deletes), some in alike.items():
            some.sort(key=lambda entry: str(entry.data_file.partition))
            for start in range(0, len(some), ENTRIES_PER_MANIFEST):
                made.append(self._write(spec_id, are_deletes, some[start : start + ENTRIES_PER_MANIFEST]))
        return made

    def _write(self, spec_id: int, are_deletes: bool, entries: Sequence[ManifestEntry]) -> ManifestFile:
        metadata = self._transaction.table_metadata
        kind = _WRITERS[metadata.format_version, are_deletes]
        with kind(
            self.spec(spec_id), self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression
        ) as writer:
            for entry in entries:
                writer.add_entry(entry)
        return writer.to_manifest_file()

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        metadata = self._transaction.table_metadata
        specs, schema = metadata.specs(), metadata.schema()
        collector = SnapshotSummaryCollector()
        for each in self._change.added:
            collector.add_file(each.file, schema, specs[each.file.spec_id])
        for entry in self._removed:
            collector.remove_file(entry.data_file, schema, specs[entry.data_file.spec_id])
        parent = metadata.snapshot_by_id(self._parent_snapshot_id) if self._parent_snapshot_id is not None else None
        # PyIceberg adds up totals only for the operations it knows; the sums are the same for all.
        summary = update_snapshot_summaries(
            Summary(operation=Operation.OVERWRITE, **collector.build(), **(snapshot_properties or {})),
            previous_summary=parent.summary if parent is not None else None,
        )
        return Summary(operation=self._change.operation, **summary.additional_properties)

    # What the base class asks for and `_manifests` does all at once.
    def _deleted_entries(self) -> list[ManifestEntry]:
        raise NotImplementedError

    def _existing_manifests(self) -> list[ManifestFile]:
        raise NotImplementedError


class _InOneBlock:
    """PyIceberg writes an Avro block for each entry; readers, and compression, like them together."""

    def _with_partition(self, format_version: Any) -> Schema:
        """PyIceberg writes the columns of equality deletes as longs. They are ints, and other readers fail on longs."""
        written: Schema = super()._with_partition(format_version)  # type: ignore[misc]
        return _with_ints(written)

    def __enter__(self) -> Any:
        entered: Any = super().__enter__()  # type: ignore[misc]
        entered._writer = _Gathering(entered._writer)
        return entered


def _with_ints(entry: Schema) -> Schema:
    def mended(field: NestedField) -> NestedField:
        kind = field.field_type
        if field.field_id == DATA_FILE:
            kind = StructType(*(mended(inner) for inner in kind.fields))  # type: ignore[attr-defined]
        elif field.field_id == EQUALITY_IDS:
            kind = ListType(kind.element_id, IntegerType(), kind.element_required)  # type: ignore[attr-defined]
        return field.model_copy(update={"field_type": kind})

    return Schema(*(mended(field) for field in entry.fields), schema_id=entry.schema_id)


class _Gathering:
    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._waiting: list[ManifestEntry] = []

    def write_block(self, entries: Iterable[ManifestEntry]) -> None:
        self._waiting += entries

    def __exit__(self, *problem: Any) -> None:
        if problem[0] is None:
            self._writer.write_block(self._waiting)
        self._writer.__exit__(*problem)

    @property
    def output_file(self) -> Any:
        return self._writer.output_file


class _V1(_InOneBlock, ManifestWriterV1):
    pass


class _V2(_InOneBlock, ManifestWriterV2):
    pass


class _V2Deletes(_V2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


_WRITERS: dict[tuple[int, bool], type[ManifestWriter]] = {(1, False): _V1, (2, False): _V2, (2, True): _V2Deletes}
