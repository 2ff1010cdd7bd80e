"""Records become rows: writes of one table that come at the same time share one file and one commit.

Whoever gets the table's turn takes along all that is waiting; the others find their write done. An answer is given only
after the commit.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table.snapshots import Operation

from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.lake.iceberg.data_file_writer import DataFileWriter, NotWritable
from compaction_platform.lake.iceberg.replace_files import AddedFile, CommitUnknown, FileChange, commit_change
from compaction_platform.lake.iceberg.snapshot_files import Manifests
from compaction_platform.lake.storage.object_store import StoreRefused
from compaction_platform.lake.storage.retry import attempts
from compaction_platform.maintain.table_state import TableState
from compaction_platform.persisted_names import SERVE_REQUESTS
from compaction_platform.serve.http.errors import (
    InvalidRecords,
    LakeUnavailable,
    Problem,
    RequestIdReused,
    TableNotFound,
    WriteConflict,
    WriteUnknown,
)
from compaction_platform.serve.tables.idempotency import CommittedRequest, Key, RequestIds
from compaction_platform.serve.tables.json_values import as_arrow
from compaction_platform.serve.tables.tenant_tables import TableRef, TenantTables, reachable
from compaction_platform.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

ATTEMPTS = 20
MOST_ROWS = 200_000  # of one commit
MOST_WRITERS = 1000
MOST_SNAPSHOTS_HELD = 50_000  # in the metadata of all tables that are held: some 100 MB


@dataclass(frozen=True)
class WriteResult:
    snapshot: int
    records: int
    repeated: bool = False
    number: int = 0  # of the acknowledged writes of this table by this process


@dataclass
class PendingWrite:
    """One caller's write, waiting for its turn."""

    records: Sequence[Mapping[str, Any]]
    key: Key | None
    rows: pyarrow.Table
    made_for: tuple[str, int]  # the table's identity and that of its columns
    done: WriteResult | None = None
    problem: Exception | None = None
    twins: "list[PendingWrite]" = field(default_factory=list)  # the same request, at the same time

    @property
    def is_over(self) -> bool:
        return self.done is not None or self.problem is not None


@dataclass
class TableWriter:
    """All writes of one table by this process go through here."""

    where: TableRef
    settings: Settings
    group_seconds: float
    requests: RequestIds
    writes: int = 0  # acknowledged
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _door: threading.Lock = field(default_factory=threading.Lock)
    _waiting: list[PendingWrite] = field(default_factory=list)
    _looking: threading.Lock = field(default_factory=threading.Lock)
    _manifests: Manifests | None = None
    _catalog: "Catalog | None" = None
    _table: "Table | None" = None

    def look(self) -> TableState | None:
        """The table as this writer last saw it, with its files. Manifests that were read before are not read again."""
        with self._looking:
            table = self._table
            if table is None:
                return None
            if self._manifests is None:
                self._manifests = Manifests(table.io)
            look = TableState.at(table, self._manifests)
            self._manifests.forget_others(look.files.manifests)
            return look

    @property
    def metadata(self) -> "TableMetadata | None":
        """The table as this writer last saw it."""
        table = self._table  # it may be gone in the next moment
        return table.metadata if table is not None else None

    def forget_table(self) -> None:
        """Free the metadata, unless they are being looked at; the next write reads them."""
        if self._looking.acquire(blocking=False):
            self._table = self._manifests = None
            self._looking.release()

    def write(self, pending: PendingWrite) -> WriteResult:
        with self._door:
            self._waiting.append(pending)
        with self._turn:
            if not pending.is_over:
                time.sleep(self.group_seconds)  # for those who are about to come
                self._take_all()
        if pending.problem is not None:
            raise pending.problem
        assert pending.done is not None  # noqa: S101 (for the type checker)
        return pending.done

    def _take_all(self) -> None:
        """In portions that make a file of a good size at the most."""
        with self._door:
            waiting, self._waiting = self._waiting, []
        while waiting:
            some: list[PendingWrite] = []
            rows = 0
            while waiting and (not some or rows + waiting[0].rows.num_rows <= MOST_ROWS):
                rows += waiting[0].rows.num_rows
                some.append(waiting.pop(0))
            self._commit(some)

    def _commit(self, some: Sequence[PendingWrite]) -> None:
        try:
            self._commit_together(some)
        except _NotMade as failed:
            if len(some) > 1:  # one of them, perhaps; the others are not to suffer
                for each in some:
                    self._commit([each])
            else:
                _fail(some, failed.problem)
        except (StoreRefused, OSError) as error:
            _fail(some, LakeUnavailable(f"the lake does not answer ({type(error).__name__}). Send it again."))
        except NoSuchTableError:
            _fail(some, TableNotFound(f"there is no table {self.where.name} in this namespace."))
        except Exception as error:  # noqa: BLE001 (everybody who waits gets an answer)
            _fail(some, error)

    def _commit_together(self, some: Sequence[PendingWrite]) -> None:
        made: _Made | None = None  # files that no snapshot refers to
        try:
            for _ in attempts(ATTEMPTS, first_wait=0.01, longest_wait=0.5):
                table = self._reloaded()
                base = table.metadata.current_snapshot_id
                fresh = self._fitting(self._not_written_yet(some, table), table)
                if not fresh:
                    return
                if made is None or not made.is_for(table, fresh):
                    self._discard(made)
                    made = None
                    made = self._made(table, fresh)
                try:
                    snapshot = commit_change(table, _change(made.files, fresh), Manifests(table.io))
                except CommitFailedException:
                    continue
                except BaseException as problem:
                    made = None  # they may be part of the table; what is not goes with the orphans
                    if isinstance(problem, CommitUnknown):
                        raise WriteUnknown(UNKNOWN) from None
                    raise
                made = None
                self._acknowledge(fresh, snapshot)
                self.requests.remember(table.metadata.table_uuid, base, snapshot, _written(fresh, snapshot))
                return
            raise WriteConflict("other writers were faster too many times. Nothing was written; send it again.")
        finally:
            self._discard(made)

    def _made(self, table: "Table", some: Sequence[PendingWrite]) -> "_Made":
        try:
            return _Made(table, tuple(some), self._files(table).write(pyarrow.concat_tables(e.rows for e in some)))
        except (NotWritable, pyarrow.ArrowException) as reason:
            raise _NotMade(InvalidRecords(f"the records cannot be written: {reason}")) from None
        except (StoreRefused, OSError) as error:
            problem = LakeUnavailable(f"the store refuses ({type(error).__name__}). Nothing was written.")
            raise _NotMade(problem) from error
        except Exception as error:
            raise _NotMade(error) from error

    def _discard(self, made: "_Made | None") -> None:
        if made is not None:
            self._files(made.table).discard(made.files)

    # ------------------------------------------------------------ the table

    def _reloaded(self) -> "Table":
        """As it is now: dropped and made again, rolled back, with other columns, whatever others have done."""
        self._table = None
        with reachable():
            if self._catalog is None:
                self._catalog = open_catalog(self.settings)  # of its own: a connection is not made to be shared
            self._table = self._catalog.load_table(self.where.identifier)
        return self._table

    def _files(self, table: "Table") -> DataFileWriter:
        return DataFileWriter.of(table, self.settings)

    def _fitting(self, some: Sequence[PendingWrite], table: "Table") -> list[PendingWrite]:
        """Whose records are what the table's columns hold, if those are not the ones that the caller saw."""
        now = _identity(table)
        fitting = []
        for each in some:
            if each.made_for != now:
                try:
                    each.rows, each.made_for = as_arrow(each.records, table.schema()), now
                except Problem as problem:
                    each.problem = problem
                    continue
            fitting.append(each)
        return fitting

    # ------------------------------------------------------------ requests that come again

    def _not_written_yet(self, some: Sequence[PendingWrite], table: "Table") -> list[PendingWrite]:
        written = self.requests.find(table, {each.key.id for each in some if each.key and not each.is_over})
        fresh: list[PendingWrite] = []
        taken: dict[str, PendingWrite] = {}
        for each in some:
            if each.is_over:
                continue
            if each.key is None:
                fresh.append(each)
            elif each.key.id in written:
                _answer_again(each, written[each.key.id])
            elif each.key.id not in taken:
                taken[each.key.id] = each
                each.twins.clear()
                fresh.append(each)
            elif taken[each.key.id].key == each.key:
                taken[each.key.id].twins.append(each)
            else:
                each.problem = _reused()
        return fresh

    def _acknowledge(self, some: Sequence[PendingWrite], snapshot: int) -> None:
        for each in some:
            self.writes += 1
            each.done = WriteResult(snapshot, len(each.records), number=self.writes)
            for twin in each.twins:
                twin.done = WriteResult(snapshot, len(each.records), repeated=True)


@dataclass(frozen=True)
class _Made:
    """Files that were written for some callers, and for the table as it was."""

    table: "Table"
    some: tuple[PendingWrite, ...]
    files: "list[DataFile]"

    def is_for(self, table: "Table", some: Sequence[PendingWrite]) -> bool:
        same = self.table.metadata.table_uuid == table.metadata.table_uuid and _shape(self.table) == _shape(table)
        return same and len(self.some) == len(some) and all(a is b for a, b in zip(self.some, some, strict=True))


UNKNOWN = (
    "the catalog did not say whether it took the write. Send it again with the same request_id: it is written once. "
    "Without a request_id, look before you repeat it."
)


def _reused() -> RequestIdReused:
    return RequestIdReused("this request_id was used for other records. Nothing was written; choose another id.")


def _answer_again(pending: PendingWrite, written: CommittedRequest) -> None:
    if pending.key != written.key:
        pending.problem = _reused()
    elif written.is_in_main:
        pending.done = WriteResult(written.snapshot, written.records, repeated=True)
    else:
        pending.problem = RequestIdReused(
            f"this request was written in snapshot {written.snapshot}, and what followed has expired: it cannot be "
            "told whether the table still has its records. Nothing was written. Look for them; to write them again, "
            "choose another id."
        )


class _NotMade(Exception):
    """Files could not be written; nothing was committed."""

    def __init__(self, problem: Exception) -> None:
        super().__init__(str(problem))
        self.problem = problem


def _fail(some: Sequence[PendingWrite], problem: Exception) -> None:
    for each in some:
        if not each.is_over:
            each.problem = problem


def _identity(table: "Table") -> tuple[str, int]:
    return str(table.metadata.table_uuid), table.metadata.current_schema_id


def _shape(table: "Table") -> tuple[int, int]:
    return table.metadata.current_schema_id, table.metadata.default_spec_id


def _written(some: Sequence[PendingWrite], snapshot: int) -> list[CommittedRequest]:
    return [CommittedRequest(each.key, snapshot, len(each.records)) for each in some if each.key]


def _change(files: "Sequence[DataFile]", some: Sequence[PendingWrite]) -> FileChange:
    requests = ",".join(each.entry for each in _written(some, snapshot=0))
    properties = {SERVE_REQUESTS: requests} if requests else {}
    return FileChange([AddedFile(file) for file in files], operation=Operation.APPEND, properties=properties)


def _pending(records: Sequence[Mapping[str, Any]], request_id: str | None, known: "TableMetadata") -> PendingWrite:
    key = Key.of(request_id, records)
    return PendingWrite(
        records, key, as_arrow(records, known.schema()), (str(known.table_uuid), known.current_schema_id)
    )


@dataclass
class Writes:
    settings: Settings
    tables: TenantTables
    group_seconds: float
    _requests: RequestIds = field(default_factory=RequestIds)
    _writers: dict[TableRef, TableWriter] = field(default_factory=dict)
    _door: threading.Lock = field(default_factory=threading.Lock)

    def write(self, where: TableRef, records: Sequence[Mapping[str, Any]], request_id: str | None) -> WriteResult:
        writer = self._writer(where)
        known = writer.metadata
        try:
            pending = _pending(records, request_id, known) if known else self._looked_up(where, records, request_id)
        except InvalidRecords:  # unless the table has other columns by now
            pending = self._looked_up(where, records, request_id)
        done = writer.write(pending)
        self._hold_few()
        return done

    def _looked_up(self, where: TableRef, records: Sequence[Mapping[str, Any]], request_id: str | None) -> PendingWrite:
        return _pending(records, request_id, self.tables.load(where).metadata)

    def look(self, where: TableRef) -> TableState | None:
        return self._writer(where).look()

    def _writer(self, where: TableRef) -> TableWriter:
        with self._door:
            writer = self._writers.pop(where, None)
            writer = writer or TableWriter(where, self.settings, self.group_seconds, self._requests)
            self._writers[where] = writer  # the one that was asked for last is the last to be forgotten
            if len(self._writers) > MOST_WRITERS:
                del self._writers[next(iter(self._writers))]
            return writer

    def _hold_few(self) -> None:
        """Tables that were not asked for lately are not held in memory."""
        held = 0
        with self._door:
            writers = list(self._writers.values())
        for number, writer in enumerate(reversed(writers)):
            metadata = writer.metadata
            held += len(metadata.snapshots) if metadata is not None else 0
            if number and metadata is not None and held > MOST_SNAPSHOTS_HELD:
                writer.forget_table()
