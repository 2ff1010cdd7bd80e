"""The state of every range, kept beside the hot rows in the same database (schema `compaction`).

planned → claimed → staged → committed → purging → purged; a replaced version is superseded, one that was given up
failed. The database holds that ranges do not overlap, that one attempt at a time works on a range, and that one version
of it is live. Every change names the fence its worker got with the claim: a worker that was paused, and whose range
another has taken over, changes nothing. All times are the database's.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, LiteralString

import psycopg

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.chain.finality import Head
from compaction_platform.archive.hot.snapshot import HotUnreachable
from compaction_platform.archive.hot.snapshot import connected as connected_to
from compaction_platform.archive.ledger.lease import LeaseLost, RangeLease
from compaction_platform.archive.ledger.range_version import LIVE, VERSION_QUERY, WORKING, RangeVersion, version_from
from compaction_platform.archive.ledger.schema import TABLES
from compaction_platform.errors import CompactionError

LEASE = timedelta(minutes=5)
PLANNING_TIMEOUT: LiteralString = "30s"
PATIENCE_SECONDS = 60.0  # with a database that restarts, when we must know whether a change was applied


class RangeBusy(CompactionError):
    """Another run works on this range."""


class RangesOverlap(CompactionError):
    """Ranges of another size or position are archived already."""


class NoLedger(CompactionError):
    """The tables that keep the state of ranges are not there."""


@dataclass(frozen=True)
class Ledger:
    """The ranges of one chain."""

    url: str = field(repr=False)
    chain_id: int
    lease: timedelta = LEASE

    def create_tables(self) -> bool:
        """Whether any was missing."""
        with connected_to(self.url) as connection:
            found = connection.execute("SELECT to_regclass('compaction.archive_roots')").fetchone()
            for statement in TABLES:
                connection.execute(statement)
        return found is None or found[0] is None

    def identity(self) -> str:
        """Return the UUID that this ledger got with its tables."""
        with self.connected() as connection:
            found = connection.execute("SELECT id::text FROM compaction.archive_ledger").fetchone()
        if found is None:
            raise NoLedger("compaction.archive_ledger is empty; run the job `setup`.")
        return str(found[0])

    # ------------------------------------------------------------ what is there

    def versions(self, within: BlockRange | None = None, states: Sequence[str] = ()) -> list[RangeVersion]:
        """All versions of the ranges that overlap `within`, in order."""
        with self.connected() as connection:
            return self.versions_in(connection, within, states)

    def versions_in(
        self, connection: "psycopg.Connection[Any]", within: BlockRange | None, states: Sequence[str] = ()
    ) -> list[RangeVersion]:
        conditions: list[LiteralString] = []
        parameters: list[Any] = [self.chain_id]
        if within is not None:
            conditions.append(" AND r.blocks && int8range(%s, %s)")
            parameters += [within.start, within.end]
        if states:
            conditions.append(" AND v.state = ANY(%s)")
            parameters.append(list(states))
        found = connection.execute(
            f"{VERSION_QUERY}{''.join(conditions)} ORDER BY lower(r.blocks), v.version", parameters
        )
        return [version_from(row) for row in found]

    def live(self, blocks: BlockRange) -> RangeVersion | None:
        """The committed version of exactly this range."""
        return next((each for each in self.versions(blocks, LIVE) if each.blocks == blocks), None)

    def live_at(self, block: int) -> RangeVersion | None:
        """The committed version of the range with this block."""
        found = self.versions(BlockRange(block, block + 1), LIVE) if block >= 0 else []
        return found[0] if found else None

    # ------------------------------------------------------------ claims

    def claim(self, blocks: BlockRange, owner: str, because: str | None = None) -> "RangeLease":
        """The sole right to work on a range, for as long as it is renewed. Who has it already, and comes again (a run
        that died and is tried again), gets it anew, and its former self loses it."""
        self._plan(blocks, because)
        with self.connected() as connection:
            range_id = self._lock(connection, blocks)
            row = connection.execute(
                """
                UPDATE compaction.archive_versions v
                SET state = CASE state WHEN 'planned' THEN 'claimed' ELSE state END,
                    fence = nextval('compaction.archive_fences'), owner = %s, lease_until = now() + %s,
                    changed_at = now(), error = NULL
                WHERE range_id = %s AND state IN ('planned', 'claimed', 'staged')
                  AND (lease_until <= now() OR owner <> '' AND owner = %s)
                  AND NOT EXISTS (SELECT 1 FROM compaction.archive_versions p
                      WHERE p.range_id = v.range_id AND p.state = 'purging' AND p.lease_until > now()
                        AND (p.owner = '' OR p.owner <> %s))
                RETURNING range_id, version, fence""",
                (owner, self.lease, range_id, owner, owner),
            ).fetchone()
            if row is None:
                raise self._busy(connection, blocks)
            # A purge whose lease is over, or that was this run's own, may only be paused: it deletes nothing more.
            connection.execute(
                "UPDATE compaction.archive_versions SET fence = nextval('compaction.archive_fences') "
                "WHERE range_id = %s AND state = 'purging'",
                (range_id,),
            )
        return RangeLease(self, blocks, *row)

    def _lock(self, connection: "psycopg.Connection[Any]", blocks: BlockRange) -> int:
        """Whoever claims a range, for archiving or for purging, waits here for the other."""
        found = connection.execute(
            "SELECT id FROM compaction.archive_ranges WHERE chain_id = %s AND blocks = int8range(%s, %s) FOR UPDATE",
            (self.chain_id, blocks.start, blocks.end),
        ).fetchone()
        if found is None:
            raise RangeBusy(f"blocks {blocks.key} (end not included) of chain {self.chain_id} changed; run again.")
        return int(found[0])

    def _busy(self, connection: "psycopg.Connection[Any]", blocks: BlockRange) -> RangeBusy:
        working = [
            each
            for each in self.versions_in(connection, blocks, (*WORKING, "purging"))
            if each.blocks == blocks and each.is_leased
        ]
        who = f"run {working[0].owner or 'without a name'} has it ({working[0].state})" if working else "it changed"
        return RangeBusy(
            f"blocks {blocks.key} (end not included) of chain {self.chain_id} are being worked on: {who}. Nothing was "
            f"done here. If that run is dead, its claim ends by itself within {self.lease}."
        )

    def _wait_for_our_turn(self, connection: "psycopg.Connection[Any]") -> None:
        """Ranges are planned one at a time: of two rows that exclude each other, inserted at once, PostgreSQL ends one
        as a deadlock. Nobody waits longer than PLANNING_TIMEOUT, and who sleeps in its turn loses it."""
        connection.execute(f"SET LOCAL lock_timeout = '{PLANNING_TIMEOUT}'")
        connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{PLANNING_TIMEOUT}'")
        try:
            connection.execute("SELECT id FROM compaction.archive_ledger FOR UPDATE")
        except psycopg.errors.LockNotAvailable:
            raise RangeBusy(
                f"other runs have planned ranges for {PLANNING_TIMEOUT}. Nothing was done here; run again."
            ) from None

    def _plan(self, blocks: BlockRange, because: str | None) -> None:
        """A version that can be claimed, if none is under way."""
        with self.connected() as connection:
            self._wait_for_our_turn(connection)
            # Ranges of another size that came to nothing stand in nobody's way.
            connection.execute(
                """
                DELETE FROM compaction.archive_ranges r
                WHERE r.chain_id = %(chain)s AND r.blocks && int8range(%(start)s, %(end)s)
                  AND r.blocks <> int8range(%(start)s, %(end)s)
                  AND NOT EXISTS (SELECT 1 FROM compaction.archive_versions v WHERE v.range_id = r.id
                      AND (v.state NOT IN ('planned', 'claimed', 'failed') OR v.lease_until > now()
                          OR v.state = 'planned' AND v.planned_at > now() - %(lease)s))""",
                {"chain": self.chain_id, "start": blocks.start, "end": blocks.end, "lease": self.lease},
            )
            place = (self.chain_id, blocks.start, blocks.end)
            try:
                with connection.transaction():
                    connection.execute(
                        """
                        INSERT INTO compaction.archive_ranges (chain_id, blocks)
                        SELECT %s, int8range(%s, %s) WHERE NOT EXISTS (SELECT 1 FROM compaction.archive_ranges
                            WHERE chain_id = %s AND blocks = int8range(%s, %s))""",
                        (*place, *place),
                    )
            except psycopg.errors.ExclusionViolation:
                others = {each.blocks for each in self.versions_in(connection, blocks)}
                if others - {blocks}:
                    listed = ", ".join(other.key for other in sorted(others - {blocks}))
                    raise RangesOverlap(
                        f"blocks {blocks.key} (end not included) of chain {self.chain_id} overlap {listed}, which were "
                        "archived or are being archived. Nothing was done. Was range_size changed? Ranges that exist "
                        "keep their size."
                    ) from None
            connection.execute(
                """
                INSERT INTO compaction.archive_versions (range_id, version, because)
                SELECT r.id, 1 + coalesce((SELECT max(version) FROM compaction.archive_versions WHERE range_id = r.id),
                       0), %s
                FROM compaction.archive_ranges r
                WHERE r.chain_id = %s AND r.blocks = int8range(%s, %s)
                  AND NOT EXISTS (SELECT 1 FROM compaction.archive_versions v
                      WHERE v.range_id = r.id AND v.state IN ('planned', 'claimed', 'staged'))
                ON CONFLICT DO NOTHING""",
                (because, *place),
            )

    def claim_purge(
        self, version: RangeVersion, owner: str, states: Sequence[str] = ("committed", "purging")
    ) -> "RangeLease":
        """The sole right to delete the hot rows of a committed version, or to bring them back."""
        with self.connected() as connection:
            self._lock(connection, version.blocks)
            # An attempt whose lease is over may only be paused: what it has copied must not replace what is purged.
            connection.execute(
                "UPDATE compaction.archive_versions "
                "SET state = 'failed', fence = nextval('compaction.archive_fences'), "
                "error = 'given up: the range is being purged', changed_at = now() "
                "WHERE range_id = %s AND state IN ('planned', 'claimed') AND lease_until <= now()",
                (version.range_id,),
            )
            row = connection.execute(
                """
                UPDATE compaction.archive_versions v
                SET state = 'purging', fence = nextval('compaction.archive_fences'), owner = %s,
                    lease_until = now() + %s, changed_at = now(), error = NULL
                WHERE range_id = %s AND version = %s AND state = ANY(%s)
                  AND (lease_until <= now() OR owner <> '' AND owner = %s)
                  AND NOT EXISTS (SELECT 1 FROM compaction.archive_versions w
                      WHERE w.range_id = v.range_id AND w.state IN ('planned', 'claimed', 'staged'))
                RETURNING fence""",
                (owner, self.lease, version.range_id, version.version, list(states), owner),
            ).fetchone()
        if row is None:
            raise RangeBusy(
                f"the hot rows of blocks {version.blocks.key} (end not included) of chain {self.chain_id} cannot be "
                "touched now: another run works on the range, or a newer version of it is staged and must be finished "
                f"first (materialize the range). Nothing was deleted. A dead run's claim ends within {self.lease}."
            )
        return RangeLease(self, version.blocks, version.range_id, version.version, row[0])

    # ------------------------------------------------------------ remarks

    def mark_invalid(self, version: RangeVersion, because: str) -> None:
        with self.connected() as connection:
            connection.execute(
                "UPDATE compaction.archive_versions SET invalid_because = %s, changed_at = now() "
                "WHERE range_id = %s AND version = %s AND invalid_because IS NULL",
                (because, version.range_id, version.version),
            )

    def withhold(self, version: RangeVersion, because: str) -> None:
        """Its hot rows are not to be deleted until a person takes this back. Waits for a deletion that is under way;
        raises RangeBusy if the version was replaced or wholly purged meanwhile."""
        with self.connected() as connection:
            row = connection.execute(
                "UPDATE compaction.archive_versions SET withheld_because = %s, changed_at = now() "
                "WHERE range_id = %s AND version = %s AND state IN ('committed', 'purging') RETURNING 1",
                (because, version.range_id, version.version),
            ).fetchone()
        if row is None:
            raise RangeBusy(
                f"version {version.version} of blocks {version.blocks.key} (end not included) was purged, or replaced "
                "by another. Nothing was changed. Look at `compaction archive status`."
            )

    def believe_again(self, version: RangeVersion) -> None:
        """Take back what is held against a version, if that is still what the person has seen; raises RangeBusy."""
        with self.connected() as connection:
            row = connection.execute(
                "UPDATE compaction.archive_versions SET invalid_because = NULL, withheld_because = NULL, "
                "changed_at = now() WHERE range_id = %s AND version = %s AND state = ANY(%s) "
                "AND invalid_because IS NOT DISTINCT FROM %s AND withheld_because IS NOT DISTINCT FROM %s RETURNING 1",
                (
                    version.range_id,
                    version.version,
                    list(LIVE),
                    version.invalid_because,
                    version.withheld_because,
                ),
            ).fetchone()
        if row is None:
            raise RangeBusy(
                f"what is held against blocks {version.blocks.key} (end not included) has just changed. Nothing was "
                "taken back. Look at `compaction archive status`, then decide again."
            )

    def expired(self, retention: timedelta) -> list[RangeVersion]:
        """Superseded versions whose files need not be kept any longer."""
        with self.connected() as connection:
            taken_over = connection.execute(
                "SELECT taken_over_at FROM compaction.archive_roots WHERE chain_id = %s", (self.chain_id,)
            ).fetchone()
            # What was committed before this ledger took the files over may be another database's only copy.
            found = connection.execute(
                VERSION_QUERY
                + " AND v.state = 'superseded' AND v.forgotten_at IS NULL AND v.superseded_at <= now() - %s "
                "AND v.committed_at > coalesce(%s, '-infinity'::timestamptz)",
                (self.chain_id, retention, taken_over[0] if taken_over else None),
            )
            return [version_from(row) for row in found]

    def forget(self, version: RangeVersion) -> None:
        """The files of a superseded version are gone; its manifest stays here."""
        with self.connected() as connection:
            connection.execute(
                "UPDATE compaction.archive_versions SET forgotten_at = now() WHERE range_id = %s AND version = %s",
                (version.range_id, version.version),
            )

    def purged_files(self, version: RangeVersion) -> set[tuple[str, str]]:
        with self.connected() as connection:
            found = connection.execute(
                "SELECT dataset, file FROM compaction.archive_purged_files WHERE range_id = %s AND version = %s",
                (version.range_id, version.version),
            )
            return {(dataset, file) for dataset, file in found}

    def now(self) -> datetime:
        with self.connected() as connection:
            found = connection.execute("SELECT now()").fetchone()
        assert found is not None  # noqa: S101 (for the type checker: there is always one row)
        return found[0]  # type: ignore[no-any-return]

    # ------------------------------------------------------------ the head

    def head(self) -> Head | None:
        """The head that was believed last."""
        with self.connected() as connection:
            row = connection.execute(
                "SELECT number, hash, time, finalized, finalized_hash FROM compaction.archive_heads "
                "WHERE chain_id = %s",
                (self.chain_id,),
            ).fetchone()
        return Head(*row) if row else None

    def remember_head(self, head: Head) -> None:
        with self.connected() as connection:
            connection.execute(
                """
                INSERT INTO compaction.archive_heads (chain_id, number, hash, time, finalized, finalized_hash)
                VALUES (%s, %s, %s, %s, %s, %s)
                ON CONFLICT (chain_id) DO UPDATE SET number = excluded.number, hash = excluded.hash,
                    time = excluded.time, finalized = excluded.finalized, finalized_hash = excluded.finalized_hash,
                    seen_at = now() WHERE archive_heads.number <= excluded.number""",
                (self.chain_id, head.number, head.hash, head.time, head.finalized, head.finalized_hash),
            )

    def forget_head(self) -> bool:
        """Believe the next head whatever it says: for a chain that was begun anew."""
        with self.connected() as connection:
            return (
                connection.execute(
                    "DELETE FROM compaction.archive_heads WHERE chain_id = %s", (self.chain_id,)
                ).rowcount
                > 0
            )

    # ------------------------------------------------------------ connections

    @contextmanager
    def connected(self) -> Iterator["psycopg.Connection[Any]"]:
        try:
            with connected_to(self.url) as connection:
                yield connection
        except CompactionError as error:
            if isinstance(error.__cause__, psycopg.errors.UndefinedTable) and "compaction.archive_" in str(error):
                raise NoLedger(
                    "the tables that keep the state of ranges (schema compaction) are not there; run the job `setup`."
                ) from error
            raise

    def look_again(self, range_id: int, version: int) -> RangeVersion:
        """What the ledger says, after a connection broke: with patience, as the database may be restarting."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with self.connected() as connection:
                    row = connection.execute(
                        VERSION_QUERY + " AND v.range_id = %s AND v.version = %s", (self.chain_id, range_id, version)
                    ).fetchone()
            except HotUnreachable:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
                continue
            if row is None:
                raise LeaseLost(f"version {version} of a range of chain {self.chain_id} is not in the ledger any more.")
            return version_from(row)
