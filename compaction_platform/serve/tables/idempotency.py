"""Which requests were written to a table before: what its snapshots say, and a bounded memory of this process.

Every commit names its requests in its snapshot's summary, so the snapshots that lead to the current one answer for as
long as they are kept. The memory only adds to that: it still knows requests whose snapshots have expired since, as long
as it is certain that main went on from there.
"""

import hashlib
import json
import struct
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from compaction_platform.lake.iceberg import history
from compaction_platform.persisted_names import SERVE_REQUESTS

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

MOST_REMEMBERED = 100_000  # requests that this process remembers, of all tables together
DIGEST_LENGTH = 16
PACKED = struct.Struct("<8sqI")  # content, snapshot, records


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
class CommittedRequest:
    """A request that was committed."""

    key: Key
    snapshot: int
    records: int
    is_in_main: bool = True  # False: its snapshot is there, but expiry has removed what would show whether main has it

    @property
    def entry(self) -> str:
        """As it is in the summary of its snapshot."""
        return f"{self.key.id}:{self.key.content}:{self.records}"


@dataclass
class _Remembered:
    """Requests of one table, the oldest first. Their snapshots are ancestors of `head`, or it."""

    head: int | None
    requests: dict[bytes, bytes] = field(default_factory=dict)


class RequestIds:
    """All tables of a process."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._tables: dict[UUID, _Remembered] = {}  # the one that was asked about last is the last
        self._count = 0
        self._turn = threading.Lock()

    def find(self, table: "Table", ids: Collection[str]) -> dict[str, CommittedRequest]:
        """Those of these requests that were written to the table as it is now, by id.

        A request that was taken out of the table by a roll back was not written.
        """
        if not ids:
            return {}
        published = history.published(table)
        line = published.snapshots
        found = _in_summaries(table, line, ids)
        with self._turn:
            remembered = self._tables.get(table.metadata.table_uuid)
            if remembered is None:
                return found
            if remembered.head not in published.known_ids:
                self._drop(table.metadata.table_uuid)
                return found
            remembered.head = line[0].snapshot_id
            return {**found, **_of(remembered, ids)}

    def remember(self, table: UUID, base: int | None, snapshot: int, written: Sequence[CommittedRequest]) -> None:
        """These were committed, in a snapshot whose parent is `base`."""
        with self._turn:
            remembered = self._tables.pop(table, None)
            if remembered is not None and remembered.head != base and written:
                self._count -= len(remembered.requests)
                remembered = None
            if remembered is None and written:
                remembered = _Remembered(base)
            if remembered is None:
                return
            self._tables[table] = remembered
            if remembered.head == base:
                remembered.head = snapshot
            for each in written:
                id = bytes.fromhex(each.key.id)
                self._count += id not in remembered.requests
                remembered.requests[id] = PACKED.pack(bytes.fromhex(each.key.content), each.snapshot, each.records)
            self._forget_oldest()

    def _drop(self, table: UUID) -> None:
        self._count -= len(self._tables.pop(table).requests)

    def _forget_oldest(self) -> None:
        """Those of the tables that were not written to for the longest time; some more than needed, to do it rarely."""
        most = MOST_REMEMBERED if self._most is None else self._most
        excess = self._count - most + most // 10 if self._count > most else 0
        while excess > 0:
            table, oldest = next(iter(self._tables.items()))
            if len(oldest.requests) <= excess:
                excess -= len(oldest.requests)
                self._drop(table)
                continue
            for id in list(islice(oldest.requests, excess)):
                del oldest.requests[id]
            self._count -= excess
            return


def _of(remembered: _Remembered, ids: Collection[str]) -> dict[str, CommittedRequest]:
    found = {}
    for id in ids:
        packed = remembered.requests.get(bytes.fromhex(id))
        if packed is not None:
            content, snapshot, records = PACKED.unpack(packed)
            found[id] = CommittedRequest(Key(id, content.hex()), snapshot, records)
    return found


def _in_summaries(table: "Table", line: Sequence["Snapshot"], ids: Collection[str]) -> dict[str, CommittedRequest]:
    found: dict[str, CommittedRequest] = {}
    for snapshot in line:
        for each in _requests_of(snapshot, ids):
            found.setdefault(each.key.id, each)
    for snapshot in _perhaps_in_line(table, line):
        for each in _requests_of(snapshot, ids):
            found.setdefault(each.key.id, replace(each, is_in_main=False))
    return found


def _perhaps_in_line(table: "Table", line: Sequence["Snapshot"]) -> Iterator["Snapshot"]:
    """Snapshots from before the oldest that is known to have led to main. (Some writers remove a parent that has
    expired from its child, so that even a line that seems complete may have begun earlier.)"""
    if len(line) in (0, len(table.metadata.snapshots)):
        return
    known = {snapshot.snapshot_id for snapshot in line}
    begin = line[-1].timestamp_ms
    for snapshot in table.metadata.snapshots:
        if snapshot.timestamp_ms < begin and snapshot.snapshot_id not in known:
            yield snapshot


def _requests_of(snapshot: "Snapshot", ids: Collection[str]) -> Iterator[CommittedRequest]:
    text = snapshot.summary.additional_properties.get(SERVE_REQUESTS) if snapshot.summary else None
    for entry in text.split(",") if text else ():
        if entry[:DIGEST_LENGTH] in ids:
            id, content, records = entry.split(":")
            yield CommittedRequest(Key(id, content), snapshot.snapshot_id, int(records))
