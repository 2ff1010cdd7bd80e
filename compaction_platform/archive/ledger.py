"""The state of every range, kept beside the hot rows in the same database (schema `compaction`).

planned → claimed → staged → committed → purging → purged; a replaced version is superseded, one that was given up
failed. The database holds that ranges do not overlap, that one attempt at a time works on a range, and that one version
of it is live. Every change names the fence its worker got with the claim: a worker that was paused, and whose range
another has taken over, changes nothing. All times are the database's.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, LiteralString

import psycopg

from compaction_platform.archive.finality import Head
from compaction_platform.archive.hot import HotUnreachable, connected
from compaction_platform.archive.manifest import FinalityEvidence, Manifest
from compaction_platform.archive.ranges import BlockRange
from compaction_platform.lake.errors import CompactionError

LEASE = timedelta(minutes=5)
PATIENCE_SECONDS = 60.0  # with a database that restarts, when we must know whether a change was applied
ATTEMPTS = 3
WORKING = ("planned", "claimed", "staged")
LIVE = ("committed", "purging", "purged")

TABLES: tuple[LiteralString, ...] = (
    "CREATE SCHEMA IF NOT EXISTS compaction",
    "CREATE SEQUENCE IF NOT EXISTS compaction.archive_fences",
    """
    CREATE TABLE IF NOT EXISTS compaction.archive_ranges (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        chain_id bigint NOT NULL,
        blocks int8range NOT NULL CHECK (lower_inc(blocks) AND NOT upper_inf(blocks)),
        CONSTRAINT ranges_do_not_overlap
            EXCLUDE USING gist (int8range(chain_id, chain_id, '[]') WITH &&, blocks WITH &&)
    )""",
    """
    CREATE TABLE IF NOT EXISTS compaction.archive_versions (
        range_id bigint NOT NULL REFERENCES compaction.archive_ranges ON DELETE CASCADE,
        version int NOT NULL CHECK (version > 0),
        state text NOT NULL DEFAULT 'planned' CHECK (state IN
            ('planned', 'claimed', 'staged', 'committed', 'purging', 'purged', 'superseded', 'failed')),
        fence bigint NOT NULL DEFAULT nextval('compaction.archive_fences'),
        owner text NOT NULL DEFAULT '',
        lease_until timestamptz NOT NULL DEFAULT '-infinity',
        because text,
        finality jsonb,
        manifests jsonb,
        invalid_because text,
        withheld_because text,
        error text,
        planned_at timestamptz NOT NULL DEFAULT now(),
        changed_at timestamptz NOT NULL DEFAULT now(),
        committed_at timestamptz,
        superseded_at timestamptz,
        forgotten_at timestamptz,
        PRIMARY KEY (range_id, version),
        CHECK (state IN ('planned', 'claimed', 'failed') OR manifests IS NOT NULL)
    )""",
    """
    CREATE UNIQUE INDEX IF NOT EXISTS one_attempt_at_a_time ON compaction.archive_versions (range_id)
        WHERE state IN ('planned', 'claimed', 'staged')""",
    """
    CREATE UNIQUE INDEX IF NOT EXISTS one_live_version ON compaction.archive_versions (range_id)
        WHERE state IN ('committed', 'purging', 'purged')""",
    """
    CREATE TABLE IF NOT EXISTS compaction.archive_purged_files (
        range_id bigint NOT NULL,
        version int NOT NULL,
        dataset text NOT NULL,
        file text NOT NULL,
        rows bigint NOT NULL,
        purged_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (range_id, version, dataset, file),
        FOREIGN KEY (range_id, version) REFERENCES compaction.archive_versions
    )""",
    """
    CREATE TABLE IF NOT EXISTS compaction.archive_heads (
        chain_id bigint PRIMARY KEY,
        number bigint NOT NULL,
        hash text NOT NULL,
        time timestamptz NOT NULL,
        finalized bigint,
        finalized_hash text,
        seen_at timestamptz NOT NULL DEFAULT now()
    )""",
)

VERSION_QUERY: LiteralString = """
    SELECT v.range_id, lower(r.blocks), upper(r.blocks), v.version, v.state, v.fence, v.owner,
           v.lease_until > now() AS is_leased, v.manifests, v.invalid_because, v.withheld_because, v.error,
           v.committed_at, v.changed_at, v.superseded_at
    FROM compaction.archive_versions v JOIN compaction.archive_ranges r ON r.id = v.range_id
    WHERE r.chain_id = %s"""


class RangeBusy(CompactionError):
    """Another run works on this range."""


class RangesOverlap(CompactionError):
    """Ranges of another size or position are archived already."""


class FenceLost(CompactionError):
    """Another run took this range over; what this one still wanted to do was not done."""


class NotAllThere(CompactionError):
    """Rows that were purged are not hot again."""


class MarkedInvalid(CompactionError):
    """What is archived is not the chain any more, by the check no_reorg_after_archiving or a person."""


class NoLedger(CompactionError):
    """The tables that keep the state of ranges are not there."""


@dataclass(frozen=True)
class Version:
    """One version of one range, as the ledger has it."""

    range_id: int
    blocks: BlockRange
    version: int
    state: str
    fence: int
    owner: str
    is_leased: bool
    manifests: Mapping[str, Manifest] = field(repr=False)
    invalid_because: str | None
    withheld_because: str | None  # its hot rows are not to be deleted
    error: str | None
    committed_at: datetime | None
    changed_at: datetime
    superseded_at: datetime | None

    @property
    def is_live(self) -> bool:
        return self.state in LIVE

    @property
    def is_valid(self) -> bool:
        return self.is_live and self.invalid_because is None


@dataclass(frozen=True)
class Ledger:
    """The ranges of one chain."""

    url: str = field(repr=False)
    chain_id: int
    lease: timedelta = LEASE

    def create_tables(self) -> bool:
        """Whether any was missing."""
        with connected(self.url) as connection:
            found = connection.execute("SELECT to_regclass('compaction.archive_heads')").fetchone()
            for statement in TABLES:
                connection.execute(statement)
        return found is None or found[0] is None

    # ------------------------------------------------------------ what is there

    def versions(self, within: BlockRange | None = None, states: Sequence[str] = ()) -> list[Version]:
        """All versions of the ranges that overlap `within`, in order."""
        with self._connected() as connection:
            return self.versions_in(connection, within, states)

    def versions_in(
        self, connection: "psycopg.Connection[Any]", within: BlockRange | None, states: Sequence[str] = ()
    ) -> list[Version]:
        query, values = VERSION_QUERY, [self.chain_id]
        conditions: list[LiteralString] = []
        parameters: list[Any] = list(values)
        if within is not None:
            conditions.append(" AND r.blocks && int8range(%s, %s)")
            parameters += [within.start, within.end]
        if states:
            conditions.append(" AND v.state = ANY(%s)")
            parameters.append(list(states))
        found = connection.execute(f"{query}{''.join(conditions)} ORDER BY lower(r.blocks), v.version", parameters)
        return [_version(row) for row in found]

    def live(self, blocks: BlockRange) -> Version | None:
        """The committed version of exactly this range."""
        return next((each for each in self.versions(blocks, LIVE) if each.blocks == blocks), None)

    def live_at(self, block: int) -> Version | None:
        """The committed version of the range with this block."""
        found = self.versions(BlockRange(block, block + 1), LIVE) if block >= 0 else []
        return found[0] if found else None

    # ------------------------------------------------------------ claims

    def claim(self, blocks: BlockRange, owner: str, because: str | None = None) -> "Claim":
        """The sole right to work on a range, for as long as it is renewed."""
        self._plan(blocks, because)
        with self._connected() as connection:
            range_id = self._lock(connection, blocks)
            row = connection.execute(
                """
                UPDATE compaction.archive_versions v
                SET state = CASE state WHEN 'planned' THEN 'claimed' ELSE state END,
                    fence = nextval('compaction.archive_fences'), owner = %s, lease_until = now() + %s,
                    changed_at = now(), error = NULL
                WHERE range_id = %s AND state IN ('planned', 'claimed', 'staged') AND lease_until <= now()
                  AND NOT EXISTS (SELECT 1 FROM compaction.archive_versions p
                      WHERE p.range_id = v.range_id AND p.state = 'purging' AND p.lease_until > now())
                RETURNING range_id, version, fence""",
                (owner, self.lease, range_id),
            ).fetchone()
            if row is None:
                raise self._busy(connection, blocks)
            # A purge whose lease is over may only be paused: from now on it deletes nothing.
            connection.execute(
                "UPDATE compaction.archive_versions SET fence = nextval('compaction.archive_fences') "
                "WHERE range_id = %s AND state = 'purging'",
                (range_id,),
            )
        return Claim(self, blocks, *row)

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

    def _plan(self, blocks: BlockRange, because: str | None) -> None:
        """A version that can be claimed, if none is under way."""
        with self._connected() as connection:
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
            with_reason = (because, *place)
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
                with_reason,
            )

    def claim_purge(self, version: Version, owner: str, states: Sequence[str] = ("committed", "purging")) -> "Claim":
        """The sole right to delete the hot rows of a committed version, or to bring them back."""
        with self._connected() as connection:
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
                WHERE range_id = %s AND version = %s AND state = ANY(%s) AND lease_until <= now()
                  AND NOT EXISTS (SELECT 1 FROM compaction.archive_versions w
                      WHERE w.range_id = v.range_id AND w.state IN ('planned', 'claimed', 'staged'))
                RETURNING fence""",
                (owner, self.lease, version.range_id, version.version, list(states)),
            ).fetchone()
        if row is None:
            raise RangeBusy(
                f"the hot rows of blocks {version.blocks.key} (end not included) of chain {self.chain_id} cannot be "
                "touched now: another run works on the range, or a newer version of it is staged and must be finished "
                f"first (materialize the range). Nothing was deleted. A dead run's claim ends within {self.lease}."
            )
        return Claim(self, version.blocks, version.range_id, version.version, row[0])

    # ------------------------------------------------------------ remarks

    def mark_invalid(self, version: Version, because: str) -> None:
        with self._connected() as connection:
            connection.execute(
                "UPDATE compaction.archive_versions SET invalid_because = %s, changed_at = now() "
                "WHERE range_id = %s AND version = %s AND invalid_because IS NULL",
                (because, version.range_id, version.version),
            )

    def withhold(self, version: Version, because: str) -> None:
        """Its hot rows are not to be deleted until a person takes this back."""
        with self._connected() as connection:
            connection.execute(
                "UPDATE compaction.archive_versions SET withheld_because = %s, changed_at = now() "
                "WHERE range_id = %s AND version = %s",
                (because, version.range_id, version.version),
            )

    def believe_again(self, version: Version) -> None:
        """A person takes back what was held against a version."""
        with self._connected() as connection:
            connection.execute(
                "UPDATE compaction.archive_versions SET invalid_because = NULL, withheld_because = NULL, "
                "changed_at = now() "
                "WHERE range_id = %s AND version = %s",
                (version.range_id, version.version),
            )

    def expired(self, retention: timedelta) -> list[Version]:
        """Superseded versions whose files need not be kept any longer."""
        with self._connected() as connection:
            found = connection.execute(
                VERSION_QUERY
                + " AND v.state = 'superseded' AND v.forgotten_at IS NULL AND v.superseded_at <= now() - %s",
                (self.chain_id, retention),
            )
            return [_version(row) for row in found]

    def forget(self, version: Version) -> None:
        """The files of a superseded version are gone; its manifest stays here."""
        with self._connected() as connection:
            connection.execute(
                "UPDATE compaction.archive_versions SET forgotten_at = now() WHERE range_id = %s AND version = %s",
                (version.range_id, version.version),
            )

    def purged_files(self, version: Version) -> set[tuple[str, str]]:
        with self._connected() as connection:
            found = connection.execute(
                "SELECT dataset, file FROM compaction.archive_purged_files WHERE range_id = %s AND version = %s",
                (version.range_id, version.version),
            )
            return {(dataset, file) for dataset, file in found}

    def now(self) -> datetime:
        with self._connected() as connection:
            found = connection.execute("SELECT now()").fetchone()
        assert found is not None  # noqa: S101 (for the type checker: there is always one row)
        return found[0]  # type: ignore[no-any-return]

    # ------------------------------------------------------------ the head

    def head(self) -> Head | None:
        """The head that was believed last."""
        with self._connected() as connection:
            row = connection.execute(
                "SELECT number, hash, time, finalized, finalized_hash FROM compaction.archive_heads "
                "WHERE chain_id = %s",
                (self.chain_id,),
            ).fetchone()
        return Head(*row) if row else None

    def remember_head(self, head: Head) -> None:
        with self._connected() as connection:
            connection.execute(
                """
                INSERT INTO compaction.archive_heads (chain_id, number, hash, time, finalized, finalized_hash)
                VALUES (%s, %s, %s, %s, %s, %s)
                ON CONFLICT (chain_id) DO UPDATE SET number = excluded.number, hash = excluded.hash,
                    time = excluded.time, finalized = excluded.finalized, finalized_hash = excluded.finalized_hash,
                    seen_at = now()""",
                (self.chain_id, head.number, head.hash, head.time, head.finalized, head.finalized_hash),
            )

    def forget_head(self) -> bool:
        """Believe the next head whatever it says: for a chain that was begun anew."""
        with self._connected() as connection:
            return (
                connection.execute(
                    "DELETE FROM compaction.archive_heads WHERE chain_id = %s", (self.chain_id,)
                ).rowcount
                > 0
            )

    # ------------------------------------------------------------ connections

    @contextmanager
    def _connected(self) -> Iterator["psycopg.Connection[Any]"]:
        try:
            with connected(self.url) as connection:
                yield connection
        except CompactionError as error:
            if isinstance(error.__cause__, psycopg.errors.UndefinedTable) and "compaction.archive_" in str(error):
                raise NoLedger(
                    "the tables that keep the state of ranges (schema compaction) are not there; run the job `setup`."
                ) from error
            raise

    def look_again(self, range_id: int, version: int) -> Version:
        """What the ledger says, after a connection broke: with patience, as the database may be restarting."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with self._connected() as connection:
                    row = connection.execute(
                        VERSION_QUERY + " AND v.range_id = %s AND v.version = %s", (self.chain_id, range_id, version)
                    ).fetchone()
            except HotUnreachable:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
                continue
            if row is None:
                raise FenceLost(f"version {version} of a range of chain {self.chain_id} is not in the ledger any more.")
            return _version(row)


@dataclass(frozen=True)
class Claim:
    """The right to change one version of a range, until another run has taken it over."""

    ledger: Ledger
    blocks: BlockRange
    range_id: int
    version: int
    fence: int

    def look(self) -> Version:
        return self.ledger.look_again(self.range_id, self.version)

    def renew(self) -> None:
        """Still ours, and for a whole lease from now."""
        with self.ledger._connected() as connection:
            row = connection.execute(
                "UPDATE compaction.archive_versions SET lease_until = now() + %s "
                "WHERE range_id = %s AND version = %s AND fence = %s AND state IN ('claimed', 'staged') RETURNING 1",
                (self.ledger.lease, self.range_id, self.version, self.fence),
            ).fetchone()
        if row is None:
            raise self.lost()

    def stage(self, finality: FinalityEvidence, manifests: Mapping[str, Manifest]) -> None:
        self._change(
            "staged",
            ("claimed",),
            {
                "finality": finality.model_dump_json(),
                "manifests": json.dumps({name: each.model_dump(mode="json") for name, each in manifests.items()}),
            },
        )

    def commit(self) -> None:
        """This version is live from now on, and the one before it superseded."""
        self._change("committed", ("staged",))

    def release(self) -> None:
        """Nothing was to be done: the version that was planned is not needed."""
        with self.ledger._connected() as connection:
            connection.execute(
                "DELETE FROM compaction.archive_versions WHERE range_id = %s AND version = %s AND fence = %s "
                "AND state IN ('planned', 'claimed')",
                (self.range_id, self.version, self.fence),
            )

    def fail(self, error: str) -> None:
        """This attempt is over. Anyone may begin another."""
        with self.ledger._connected() as connection:
            connection.execute(
                "UPDATE compaction.archive_versions SET state = 'failed', error = %s, lease_until = '-infinity', "
                "changed_at = now() WHERE range_id = %s AND version = %s AND fence = %s AND state = 'claimed'",
                (error[:2000], self.range_id, self.version, self.fence),
            )

    def let_go(self, error: str) -> None:
        """What was begun stays to be finished, by anyone, at once."""
        with self.ledger._connected() as connection:
            connection.execute(
                "UPDATE compaction.archive_versions SET error = %s, lease_until = '-infinity', changed_at = now() "
                "WHERE range_id = %s AND version = %s AND fence = %s AND state IN ('staged', 'purging')",
                (error[:2000], self.range_id, self.version, self.fence),
            )

    def give_up_staged(self, error: str) -> None:
        """What was staged is gone: this version will never be committed."""
        with self.ledger._connected() as connection:
            connection.execute(
                "UPDATE compaction.archive_versions SET state = 'failed', error = %s, lease_until = '-infinity', "
                "changed_at = now() WHERE range_id = %s AND version = %s AND fence = %s AND state = 'staged'",
                (error[:2000], self.range_id, self.version, self.fence),
            )

    def purged(self, check: "Callable[[psycopg.Connection[Any]], None]") -> None:
        """The end of a purge, if the check, in the same transaction, finds nothing against it."""
        self._change("purged", ("purging",), check=check)

    def restored(self) -> None:
        """All hot rows are back: as if they had never been deleted. They are not deleted again before a person says so,
        or a new version is committed."""
        with self.held(even_if_invalid=True) as connection:
            left = connection.execute(
                "SELECT DISTINCT dataset FROM compaction.archive_purged_files WHERE range_id = %s AND version = %s",
                (self.range_id, self.version),
            ).fetchall()
            if left:
                raise NotAllThere(
                    f"rows of {', '.join(dataset for (dataset,) in left)} were purged, too, but it is not declared any "
                    "more: declare it again, then restore."
                )
            connection.execute(
                "UPDATE compaction.archive_versions SET state = 'committed', lease_until = '-infinity', "
                "withheld_because = 'its rows were restored', changed_at = now() WHERE range_id = %s AND version = %s",
                (self.range_id, self.version),
            )

    @contextmanager
    def held(self, *, even_if_invalid: bool = False) -> Iterator["psycopg.Connection[Any]"]:
        """One transaction of a purge; it is rolled back if the claim is lost. The row stays locked until it ends, so
        that nobody takes over, or marks the range invalid, in between."""
        with self.ledger._connected() as connection:
            row = connection.execute(
                "UPDATE compaction.archive_versions SET lease_until = now() + %s "
                "WHERE range_id = %s AND version = %s AND fence = %s AND state = 'purging' RETURNING invalid_because",
                (self.ledger.lease, self.range_id, self.version, self.fence),
            ).fetchone()
            if row is None:
                raise self.lost()
            if row[0] is not None and not even_if_invalid:
                raise MarkedInvalid(
                    f"blocks {self.blocks.key} (end not included) of chain {self.ledger.chain_id} were marked invalid "
                    f"({row[0]}); nothing more of them is purged."
                )
            yield connection

    def lost(self) -> FenceLost:
        return FenceLost(
            f"another run took over blocks {self.blocks.key} (end not included) of chain {self.ledger.chain_id}; this "
            "one stops. Nothing is lost: the other one goes on."
        )

    def _change(
        self,
        to: str,
        before: tuple[str, ...],
        columns: Mapping[str, str] | None = None,
        check: "Callable[[psycopg.Connection[Any]], None]" = lambda connection: None,
    ) -> None:
        """One step of the state machine. If the connection breaks, look whether it was taken; if not, take it again."""
        for attempt in range(ATTEMPTS):
            try:
                with self.ledger._connected() as connection:
                    if to == "committed":
                        self._supersede(connection)
                    check(connection)
                    self._take(connection, to, before, columns or {})
                return
            except HotUnreachable:
                now = self.look()
                if (now.state, now.fence) == (to, self.fence):
                    return
                if attempt == ATTEMPTS - 1:
                    raise

    def _take(
        self, connection: "psycopg.Connection[Any]", to: str, before: tuple[str, ...], columns: Mapping[str, str]
    ) -> None:
        row = connection.execute(
            "UPDATE compaction.archive_versions SET state = %(to)s, changed_at = now(), "
            "finality = coalesce(%(finality)s::jsonb, finality), "
            "manifests = coalesce(%(manifests)s::jsonb, manifests), "
            "committed_at = CASE WHEN %(to)s = 'committed' THEN now() ELSE committed_at END, "
            "lease_until = CASE WHEN %(to)s = 'staged' THEN now() + %(lease)s ELSE '-infinity' END "
            "WHERE range_id = %(range_id)s AND version = %(version)s AND fence = %(fence)s "
            "AND state = ANY(%(before)s) RETURNING 1",
            {
                "to": to,
                "finality": None,
                "manifests": None,
                **columns,
                "lease": self.ledger.lease,
                "range_id": self.range_id,
                "version": self.version,
                "fence": self.fence,
                "before": list(before),
            },
        ).fetchone()
        if row is None:
            raise self.lost()

    def _supersede(self, connection: "psycopg.Connection[Any]") -> None:
        """The live version makes room; this is undone with the rest if the claim turns out to be lost."""
        connection.execute(
            "UPDATE compaction.archive_versions SET state = 'superseded', superseded_at = now(), changed_at = now(), "
            "fence = nextval('compaction.archive_fences') WHERE range_id = %s AND version <> %s AND state = ANY(%s)",
            (self.range_id, self.version, list(LIVE)),
        )


def _version(row: Sequence[Any]) -> Version:
    range_id, start, end, number, state, fence, owner, is_leased, manifests, *rest = row
    read = {name: Manifest.model_validate(each) for name, each in (manifests or {}).items()}
    return Version(range_id, BlockRange(start, end), number, state, fence, owner, is_leased, read, *rest)
