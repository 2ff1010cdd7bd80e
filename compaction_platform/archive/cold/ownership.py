"""Which ledger may change a chain's cold files: a log in the store, of which each ledger knows its own last entry.

Two databases can have one chain and one `uri`: synced again, staging, blue/green, restored from a backup, cloned. So
whatever could destroy the other's only copy is announced first, as the next entry of the log `<chain>/_ledger/`: an
object that only one can create. A ledger that finds the next entry made by another is refused from then on. An entry is
written to the ledger before it is created, so that a process that died in between is finished by the next one.

What a person adopts counts from the entry on: the old ledger's next announcement fails. What it had announced before,
it may still do, however late; the new ledger reads those announcements and relies on nothing that they name.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import uuid4

from pydantic import ValidationError

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.cold.manifest import RangeManifest, RangeManifestModel
from compaction_platform.archive.cold.publish import success_mark
from compaction_platform.archive.ledger.ledger import Ledger
from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage.object_store import ObjectExists, ObjectMissing, ObjectStore
from compaction_platform.lake.storage.retry import attempts
from compaction_platform.lake.storage.threads import map_concurrently
from compaction_platform.persisted_names import LEDGER_LOG_DIRECTORY, RANGE_SUCCESS

READS_AT_ONCE = 16
ROUNDS = 100

Act = Literal["publish", "purge", "adopt", "rebuild"]


class RootNotOurs(CompactionError):
    """The cold files belong to another ledger, or to a later state of this one. Nothing was changed."""


class LogEntry(RangeManifestModel):
    """One announcement. `nonce` tells it from what another would have written in its place."""

    format_version: Literal[1] = 1
    number: int
    nonce: str
    ledger: str
    database: str
    at: datetime  # by the database's clock
    act: Act
    blocks: str | None = None
    version: int | None = None
    manifests: Mapping[str, str] = {}  # their sha256, by dataset

    def to_bytes(self) -> bytes:
        return self.model_dump_json(indent=1).encode()


@dataclass(frozen=True)
class KnownOwner:
    """What the ledger knows of the log: its own last entry, and the one it is about to make."""

    number: int = 0
    nonce: str = ""
    pending: LogEntry | None = None


@dataclass(frozen=True)
class Ownership:
    """The right of one ledger to change the cold files of one chain."""

    ledger: Ledger
    store: ObjectStore

    def require(self) -> None:
        """Raise RootNotOurs if another ledger has made the next entry, or the log is not the one that we know."""
        for _ in attempts(ROUNDS):
            known = self._known()
            self._require_own_last(known)
            following = self.entry(known.number + 1)
            if following is None or (known.pending is not None and following.nonce == known.pending.nonce):
                return
            if self._known() == known:  # else a process of ours went on meanwhile
                raise self._not_ours(following)
        raise RootNotOurs(f"the log {self._log} kept changing; nothing was changed here. Run again.")

    def announce(
        self, act: Act, blocks: BlockRange, version: int, manifests: Mapping[str, RangeManifest] | None = None
    ) -> None:
        """Create the next entry: from now on this may be done, and everybody knows of it."""
        self.require()
        shas = {name: manifest.sha256 for name, manifest in (manifests or {}).items()}
        nonce = uuid4().hex
        for _ in attempts(ROUNDS):
            pending = self._pending(nonce, act, blocks, version, shas)
            self._create(pending)
            if pending.nonce == nonce:
                return
        raise RootNotOurs(f"the log {self._log} kept changing; nothing was changed here. Run again.")

    def history(self) -> list[LogEntry]:
        """Return all entries, in order."""
        names = (stored.key.rpartition("/")[2] for stored in self.store.list_directory(self._directory))
        numbers = sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit())
        entries = map_concurrently(self.entry, numbers, READS_AT_ONCE)
        return [entry for entry in entries if entry is not None]

    def entry(self, number: int) -> LogEntry | None:
        try:
            content = bytes(self.store.read(self._key(number)))
        except ObjectMissing:
            return None
        try:
            return LogEntry.model_validate_json(content)
        except ValidationError:
            raise RootNotOurs(
                f"{self.store.uri}/{self._key(number)} cannot be read as an entry of this version of the platform. "
                "Nothing was changed. Was it written by a newer version, or by hand?"
            ) from None

    # ------------------------------------------------------------ taking over

    def begin_taking_over(self, act: Act) -> LogEntry:
        """Create the next entry as ours, whoever made the last one: that ledger is refused from now on. So is ours,
        until `end_taking_over`."""
        history = self.history()
        number = max((each.number for each in history), default=0) + 1
        with self.ledger.connected() as connection:
            entry = self._new_entry(connection, number, uuid4().hex, act)
        try:
            self.store.create(self._key(entry.number), entry.to_bytes())
        except ObjectExists:
            raise RootNotOurs(
                f"entry {entry.number} of the log {self._log} was made by another process right now. Nothing was "
                "changed here. Look who works there; then run again."
            ) from None
        return entry

    def end_taking_over(self, entry: LogEntry) -> None:
        with self.ledger.connected() as connection:
            connection.execute(
                "INSERT INTO compaction.archive_roots (chain_id, number, nonce, taken_over_at) "
                "VALUES (%s, %s, %s, now()) ON CONFLICT (chain_id) DO UPDATE SET number = excluded.number, "
                "nonce = excluded.nonce, taken_over_at = now(), pending = NULL",
                (self.ledger.chain_id, entry.number, entry.nonce),
            )

    # ------------------------------------------------------------ entries

    @property
    def _directory(self) -> str:
        return f"{self.ledger.chain_id}/{LEDGER_LOG_DIRECTORY}"

    @property
    def _log(self) -> str:
        return f"{self.store.uri}/{self._directory}"

    def _key(self, number: int) -> str:
        return f"{self._directory}/{number:08d}.json"

    def _known(self) -> KnownOwner:
        with self.ledger.connected() as connection:
            row = connection.execute(
                "SELECT number, nonce, pending FROM compaction.archive_roots WHERE chain_id = %s",
                (self.ledger.chain_id,),
            ).fetchone()
        return KnownOwner() if row is None else KnownOwner(row[0], row[1], row[2] and LogEntry.model_validate(row[2]))

    def _new_entry(self, connection: Any, number: int, nonce: str, act: Act, **about: Any) -> LogEntry:
        ledger, database, at = connection.execute(
            "SELECT id::text, current_database(), now() FROM compaction.archive_ledger"
        ).fetchone()
        return LogEntry(number=number, nonce=nonce, ledger=ledger, database=database, at=at, act=act, **about)

    def _pending(self, nonce: str, act: Act, blocks: BlockRange, version: int, shas: Mapping[str, str]) -> LogEntry:
        """The entry to be made now: another process's that is not finished, or else this one, written down first."""
        with self.ledger.connected() as connection:
            connection.execute(
                "INSERT INTO compaction.archive_roots (chain_id) VALUES (%s) ON CONFLICT DO NOTHING",
                (self.ledger.chain_id,),
            )
            row = connection.execute(
                "SELECT number, pending FROM compaction.archive_roots WHERE chain_id = %s FOR UPDATE",
                (self.ledger.chain_id,),
            ).fetchone()
            assert row is not None  # noqa: S101 (for the type checker: it was inserted)
            number, pending = row
            if pending is not None:
                return LogEntry.model_validate(pending)
            about = {"blocks": blocks.key, "version": version, "manifests": shas}
            entry = self._new_entry(connection, number + 1, nonce, act, **about)
            connection.execute(
                "UPDATE compaction.archive_roots SET pending = %s::jsonb WHERE chain_id = %s",
                (entry.model_dump_json(), self.ledger.chain_id),
            )
            return entry

    def _create(self, entry: LogEntry) -> None:
        """Of all who want to make the entry of this number, one does; and who finds its own there has made it."""
        try:
            self.store.create(self._key(entry.number), entry.to_bytes())
        except ObjectExists:
            there = self.entry(entry.number)
            if there is None or there.nonce != entry.nonce:
                raise self._not_ours(there) from None
        with self.ledger.connected() as connection:
            connection.execute(
                "UPDATE compaction.archive_roots SET number = %s, nonce = %s, pending = NULL "
                "WHERE chain_id = %s AND number = %s AND pending->>'nonce' = %s",
                (entry.number, entry.nonce, self.ledger.chain_id, entry.number - 1, entry.nonce),
            )

    # ------------------------------------------------------------ refusals

    def _require_own_last(self, known: KnownOwner) -> None:
        if known.number == 0:
            if self.entry(1) is None:
                self._require_no_strangers()
            return
        last = self.entry(known.number)
        if last is None or last.nonce != known.nonce:
            raise RootNotOurs(
                f"the log {self._log} is not the one that this ledger has kept (its entry {known.number} is "
                f"{'missing' if last is None else 'another'}). Nothing was changed. Was `uri` changed? Files are not "
                "moved by that: change it back, or move them there, the log included. If the files here are the right "
                f"ones: `compaction archive rebuild {self.ledger.chain_id}`."
            )

    def _require_no_strangers(self) -> None:
        """Where there is no log yet, what is published must be ours: it was begun before there were logs."""
        known = {
            success_mark(manifest) for version in self.ledger.versions() for manifest in version.manifests.values()
        }
        for key, mark in self._marks():
            if mark not in known:
                raise RootNotOurs(
                    f"{self.store.uri}/{key} belongs to a version that this ledger does not know: another database "
                    "has archived the chain here, or this one was set back. Nothing was changed. Give this database "
                    f"a `uri` of its own, or, if it is to take the files over: `compaction archive adopt "
                    f"{self.ledger.chain_id}`."
                )

    def _marks(self) -> Iterator[tuple[str, bytes]]:
        keys = [
            stored.key
            for stored in self.store.list(str(self.ledger.chain_id))
            if stored.key.endswith(f"/{RANGE_SUCCESS}") and "/range=" in stored.key
        ]
        with ThreadPoolExecutor(READS_AT_ONCE) as pool:
            yield from zip(keys, pool.map(lambda key: bytes(self.store.read(key)), keys), strict=True)

    def _not_ours(self, entry: LogEntry | None) -> RootNotOurs:
        ours = self.ledger.identity()
        chain = self.ledger.chain_id
        if entry is None:
            return RootNotOurs(f"the log {self._log} changed right now. Nothing was changed here. Run again.")
        what = f"{entry.act} of blocks {entry.blocks}" if entry.blocks else entry.act
        told = f"entry {entry.number} of the log {self._log} ({what}, {entry.at:%Y-%m-%d %H:%M:%S} UTC)"
        if entry.ledger == ours:
            return RootNotOurs(
                f"{told} was made by a copy or a later state of this ledger ({ours}): this database was set back to a "
                "backup, or another one was made from it. Nothing was changed here. If it was set back: `compaction "
                f"archive rebuild {chain}`. If it is a copy, give it a `uri` of its own."
            )
        return RootNotOurs(
            f"{told} was made by ledger {entry.ledger} of the database {entry.database}; this one is {ours}. Nothing "
            "was changed here. Two databases cannot archive one chain to one `uri`: give this one its own; or, if it "
            f"is to take over from the other one for good: `compaction archive adopt {chain}`."
        )
