"""The right to change one version of a range.

Every change names the fence that came with the claim. Whoever has lost it, because another run took the range over
while this one was paused, changes nothing and is told so.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.cold.manifest import FinalityEvidence, RangeManifest
from compaction_platform.archive.hot.snapshot import HotUnreachable
from compaction_platform.archive.ledger.range_version import LIVE, RangeVersion
from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage.retry import attempts

if TYPE_CHECKING:
    from compaction_platform.archive.ledger.ledger import Ledger

ATTEMPTS = 3


class LeaseLost(CompactionError):
    """Another run took this range over; what this one still wanted to do was not done."""


class NotAllThere(CompactionError):
    """Rows that were purged are not hot again."""


class MarkedInvalid(CompactionError):
    """What is archived is not the chain any more, by the check no_reorg_after_archiving or a person."""


class Withheld(CompactionError):
    """A person wants the hot rows kept."""


@dataclass(frozen=True)
class RangeLease:
    """The right to change one version of a range, until another run has taken it over."""

    ledger: "Ledger"
    blocks: BlockRange
    range_id: int
    version: int
    fence: int

    def look(self) -> RangeVersion:
        return self.ledger.look_again(self.range_id, self.version)

    def renew(self) -> None:
        """Still ours, and for a whole lease from now."""
        with self.ledger.connected() as connection:
            row = connection.execute(
                "UPDATE compaction.archive_versions SET lease_until = now() + %s "
                "WHERE range_id = %s AND version = %s AND fence = %s AND state IN ('claimed', 'staged') RETURNING 1",
                (self.ledger.lease, self.range_id, self.version, self.fence),
            ).fetchone()
        if row is None:
            raise self.lost()

    def stage(self, finality: FinalityEvidence, manifests: Mapping[str, RangeManifest]) -> None:
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
        with self.ledger.connected() as connection:
            connection.execute(
                "DELETE FROM compaction.archive_versions WHERE range_id = %s AND version = %s AND fence = %s "
                "AND state IN ('planned', 'claimed')",
                (self.range_id, self.version, self.fence),
            )

    def fail(self, error: str) -> None:
        """This attempt is over. Anyone may begin another."""
        with self.ledger.connected() as connection:
            connection.execute(
                "UPDATE compaction.archive_versions SET state = 'failed', error = %s, lease_until = '-infinity', "
                "changed_at = now() WHERE range_id = %s AND version = %s AND fence = %s AND state = 'claimed'",
                (error[:2000], self.range_id, self.version, self.fence),
            )

    def let_go(self, error: str) -> None:
        """What was begun stays to be finished, by anyone, at once."""
        with self.ledger.connected() as connection:
            connection.execute(
                "UPDATE compaction.archive_versions SET error = %s, lease_until = '-infinity', changed_at = now() "
                "WHERE range_id = %s AND version = %s AND fence = %s AND state IN ('staged', 'purging')",
                (error[:2000], self.range_id, self.version, self.fence),
            )

    def give_up_staged(self, error: str) -> None:
        """What was staged is gone: this version will never be committed."""
        with self.ledger.connected() as connection:
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
        with self.held(deleting=False) as connection:
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
    def held(self, *, deleting: bool = True) -> Iterator["psycopg.Connection[Any]"]:
        """One transaction of a purge; it is rolled back if the claim is lost. The row stays locked until it ends, so
        that nobody takes over, or marks the range invalid or withholds it, in between."""
        with self.ledger.connected() as connection:
            row = connection.execute(
                "UPDATE compaction.archive_versions SET lease_until = now() + %s "
                "WHERE range_id = %s AND version = %s AND fence = %s AND state = 'purging' "
                "RETURNING invalid_because, withheld_because",
                (self.ledger.lease, self.range_id, self.version, self.fence),
            ).fetchone()
            if row is None:
                raise self.lost()
            invalid, withheld = row
            if deleting and invalid is not None:
                raise MarkedInvalid(
                    f"blocks {self.blocks.key} (end not included) of chain {self.ledger.chain_id} were marked invalid "
                    f"({invalid}); nothing more of them is purged."
                )
            if deleting and withheld is not None:
                raise Withheld(
                    f"the purge of blocks {self.blocks.key} (end not included) of chain {self.ledger.chain_id} is "
                    f"withheld ({withheld}); nothing more is purged. `compaction archive believe` takes it back."
                )
            yield connection

    def lost(self) -> LeaseLost:
        return LeaseLost(
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
        for attempt in attempts(ATTEMPTS):
            try:
                with self.ledger.connected() as connection:
                    if to == "committed":
                        self._supersede(connection)
                    check(connection)
                    self._take(connection, to, before, columns or {})
                return
            except HotUnreachable:
                now = self.look()
                if (now.state, now.fence) == (to, self.fence):
                    return
                if attempt == ATTEMPTS:
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
