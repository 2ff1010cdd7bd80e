"""Records become rows: writes of one table that come at the same time share one file and one commit.

Whoever gets the table's turn takes along all that is waiting; the others find their write done. An answer is given only
after the commit.
"""

import hashlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table.snapshots import Operation

from compaction_platform.lake import history
from compaction_platform.lake.catalog import open_catalog
from compaction_platform.lake.data_files import DataFiles, NotWritable
from compaction_platform.lake.objects import StoreRefused
from compaction_platform.lake.replace import Added, Change, CommitUnknown, commit_change
from compaction_platform.lake.settings import Settings
from compaction_platform.lake.table_entries import Manifests
from compaction_platform.serve.problems import (
    InvalidRecords,
    LakeUnavailable,
    Problem,
    RequestIdReused,
    TableNotFound,
    WriteConflict,
    WriteUnknown,
)
from compaction_platform.serve.tables import Tables, Where, reachable
from compaction_platform.serve.values import as_arrow

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

REQUESTS = "serve.requests"  # in a snapshot's summary: id:content:records of every request that has an id
ATTEMPTS = 20
MOST_ROWS = 200_000  # of one commit
DIGEST_LENGTH = 16


@dataclass(frozen=True)
class Key:
    """A request that may come again: its id and its content, as digests."""

    id: str
    content: str

    @classmethod
    def of(cls, request_id: str | None, records: Sequence[Mapping[str, Any]]) -> "Key | None":
        if request_id is None:
            return None
        return cls(_digest(request_id), _digest(json.dumps(records, sort_keys=True)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


@dataclass(frozen=True)
class Done:
    snapshot: int
    records: int
    repeated: bool = False


@dataclass
class Pending:
    """One caller's write, waiting for its turn."""

    records: Sequence[Mapping[str, Any]]
    key: Key | None
    rows: pyarrow.Table
    table_uuid: str
    schema_id: int
    done: Done | None = None
    problem: Exception | None = None

    @property
    def is_over(self) -> bool:
        return self.done is not None or self.problem is not None


@dataclass
class TableWriter:
    """All writes of one table by this process go through here."""

    where: Where
    settings: Settings
    group_seconds: float
    writes: int = 0  # acknowledged
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _door: threading.Lock = field(default_factory=threading.Lock)
    _waiting: list[Pending] = field(default_factory=list)
    _table: "Table | None" = None
    _manifests: Manifests | None = None
    _seen: dict[str, tuple[str, Done]] = field(default_factory=dict)  # by request id: its content
    _looked_at: set[int] = field(default_factory=set)  # snapshots whose requests are known

    def write(self, pending: Pending) -> Done:
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
            some: list[Pending] = []
            rows = 0
            while waiting and (not some or rows + waiting[0].rows.num_rows <= MOST_ROWS):
                rows += waiting[0].rows.num_rows
                some.append(waiting.pop(0))
            self._commit(some)

    def _commit(self, some: Sequence[Pending]) -> None:
        try:
            self._commit_together(some)
        except NotWritable as reason:
            if len(some) > 1:  # one of them; the others are not to suffer
                for each in some:
                    self._commit([each])
            else:
                _fail(some, InvalidRecords(f"the records cannot be written: {reason}"))
        except Problem as problem:
            _fail(some, problem)
        except (StoreRefused, OSError) as error:
            _fail(some, LakeUnavailable(f"the store does not answer ({type(error).__name__}). Nothing was written."))
        except NoSuchTableError:
            self._table = None
            _fail(some, TableNotFound(f"there is no table {self.where.name} in this namespace."))
        except Exception as error:  # noqa: BLE001 (everybody who waits gets an answer)
            self._table = None
            _fail(some, error)

    def _commit_together(self, some: Sequence[Pending]) -> None:
        files: list[DataFile] = []
        written_for: tuple[Any, ...] = ()
        try:
            self._catch_up(some)
            for _ in range(ATTEMPTS):
                table = self._current()
                fresh = self._not_written_yet([each for each in some if not each.is_over], table)
                if not fresh:
                    return
                shape = (table.metadata.table_uuid, *_shape(table), tuple(map(id, fresh)))
                if shape != written_for:
                    self._writer(table).discard(files)
                    files = []  # so that they are not discarded twice
                    fresh = self._fitting(fresh, table)
                    if not fresh:
                        return
                    shape = (*shape[:-1], tuple(map(id, fresh)))
                    files, written_for = self._writer(table).write(pyarrow.concat_tables(e.rows for e in fresh)), shape
                try:
                    snapshot = commit_change(table, _change(files, fresh), self._reader(table))
                except CommitFailedException:
                    table.refresh()
                    continue
                files = []
                self._acknowledge(fresh, snapshot)
                return
            raise WriteConflict("other writers were faster too many times. Nothing was written; send it again.")
        except CommitUnknown as unknown:
            files = []  # they may be part of the table
            self._table = None
            if isinstance(unknown.__cause__, NoSuchTableError):
                raise TableNotFound(f"table {self.where.name} was dropped meanwhile. Nothing was written.") from None
            raise WriteUnknown(
                "the catalog did not say whether it took the write. Send it again with the same request_id: it is "
                "written once. Without a request_id, look before you repeat it."
            ) from None
        finally:
            if files and self._table is not None:
                self._writer(self._table).discard(files)

    # ------------------------------------------------------------ the table

    def _catch_up(self, some: Sequence[Pending]) -> None:
        """Callers have just looked at the table: it may be another one of this name, or have other columns now."""
        now = self._current().metadata
        if any(each.table_uuid != str(now.table_uuid) for each in some):
            self._table = None
            self._seen.clear()
            self._looked_at.clear()
        elif any(each.schema_id != now.current_schema_id for each in some):
            self._current().refresh()

    def _current(self) -> "Table":
        if self._table is None:
            with reachable():
                self._table = open_catalog(self.settings).load_table(self.where.identifier)
            self._manifests = None
        return self._table

    def _reader(self, table: "Table") -> Manifests:
        if self._manifests is None:
            self._manifests = Manifests(table.io)
        return self._manifests

    def _writer(self, table: "Table") -> DataFiles:
        return DataFiles.of(table, self.settings)

    def _fitting(self, some: Sequence[Pending], table: "Table") -> list[Pending]:
        """Whose records are still what the table's columns hold, if those were changed by somebody else."""
        fitting = []
        for each in some:
            if each.schema_id != table.metadata.current_schema_id:
                try:
                    each.rows = as_arrow(each.records, table.schema())
                    each.schema_id = table.metadata.current_schema_id
                except Problem as problem:
                    each.problem = problem
                    continue
            fitting.append(each)
        return fitting

    # ------------------------------------------------------------ requests that come again

    def _not_written_yet(self, some: Sequence[Pending], table: "Table") -> list[Pending]:
        self._learn(table)
        fresh: list[Pending] = []
        taken: dict[str, Pending] = {}
        for each in some:
            if each.key is None:
                fresh.append(each)
            elif each.key.id in self._seen:
                self._answer_again(each, *self._seen[each.key.id])
            elif each.key.id in taken:
                _fail([each], _reused() if taken[each.key.id].key != each.key else WriteConflict(TWICE))
            else:
                taken[each.key.id] = each
                fresh.append(each)
        return fresh

    def _answer_again(self, pending: Pending, content: str, done: Done) -> None:
        if pending.key is not None and pending.key.content == content:
            pending.done = Done(done.snapshot, done.records, repeated=True)
        else:
            pending.problem = _reused()

    def _learn(self, table: "Table") -> None:
        """The requests of snapshots that are new to us, other processes' too."""
        for snapshot in history.published(table).snapshots:
            if snapshot.snapshot_id in self._looked_at:
                break
            self._looked_at.add(snapshot.snapshot_id)
            said = snapshot.summary.additional_properties.get(REQUESTS, "") if snapshot.summary else ""
            for entry in filter(None, said.split(",")):
                identity, content, records = entry.split(":")
                self._seen.setdefault(identity, (content, Done(snapshot.snapshot_id, int(records))))

    def _acknowledge(self, some: Sequence[Pending], snapshot: int) -> None:
        self._looked_at.add(snapshot)
        for each in some:
            each.done = Done(snapshot, len(each.records))
            self.writes += 1
            if each.key is not None:
                self._seen[each.key.id] = (each.key.content, each.done)


TWICE = "the same request came twice at once; the other one is being written. Send it again."


def _reused() -> RequestIdReused:
    return RequestIdReused("this request_id was used for other records. Nothing was written; choose another id.")


def _fail(some: Sequence[Pending], problem: Exception) -> None:
    for each in some:
        if not each.is_over:
            each.problem = problem


def _shape(table: "Table") -> tuple[int, int]:
    return table.metadata.current_schema_id, table.metadata.default_spec_id


def _change(files: "Sequence[DataFile]", some: Sequence[Pending]) -> Change:
    said = [f"{each.key.id}:{each.key.content}:{len(each.records)}" for each in some if each.key]
    properties = {REQUESTS: ",".join(said)} if said else {}
    return Change([Added(file) for file in files], operation=Operation.APPEND, properties=properties)


@dataclass
class Writes:
    settings: Settings
    tables: Tables
    group_seconds: float
    _writers: dict[Where, TableWriter] = field(default_factory=dict)
    _door: threading.Lock = field(default_factory=threading.Lock)

    def write(self, where: Where, records: Sequence[Mapping[str, Any]], request_id: str | None) -> tuple[Done, int]:
        """What was done, and the how manieth acknowledged write of this table by this process it is."""
        table = self.tables.load(where)
        pending = Pending(
            records,
            Key.of(request_id, records),
            as_arrow(records, table.schema()),
            str(table.metadata.table_uuid),
            table.metadata.current_schema_id,
        )
        writer = self._writer(where)
        return writer.write(pending), writer.writes

    def _writer(self, where: Where) -> TableWriter:
        with self._door:
            if where not in self._writers:
                self._writers[where] = TableWriter(where, self.settings, self.group_seconds)
            return self._writers[where]
