"""Which ranges of a chain need a run, and how the chain stands as a whole."""

import hashlib
from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import islice, takewhile
from typing import Any

from psycopg import sql

from compaction_platform.archive.chain.block_range import BlockRange, final_ranges, uncovered
from compaction_platform.archive.chain.head_tracker import HeadObservation, observe_head
from compaction_platform.archive.config import ArchivedChain
from compaction_platform.archive.hot.snapshot import connected, hot_snapshot, table_of
from compaction_platform.archive.ledger.ledger import Ledger
from compaction_platform.archive.ledger.range_version import RangeVersion

TRIED_AGAIN_AFTER_SECONDS = 6 * 3600


@dataclass(frozen=True)
class ChainStatus:
    """A chain at one moment."""

    observed: HeadObservation
    final: tuple[BlockRange, ...]  # final ranges that were ever seen whole, archived or not
    live: dict[BlockRange, RangeVersion] = field(repr=False)
    hot_blocks: dict[BlockRange, int] = field(repr=False)  # by aligned range
    staged: frozenset[BlockRange] = frozenset()  # begun, and to be finished
    busy: frozenset[BlockRange] = frozenset()  # a run has them
    window: int = 0  # of time: what failed in an earlier one is tried again

    @cached_property
    def missing(self) -> list[BlockRange]:
        """Final ranges that are not archived; of those that are in part, in ranges of another size, what is left."""
        return [left for blocks in self.final for left in uncovered(blocks, self._overlapping(blocks))]

    def _overlapping(self, blocks: BlockRange) -> list[BlockRange]:
        first = max(0, bisect_left(self._ordered, blocks) - 1)
        return list(takewhile(lambda other: other.start < blocks.end, islice(self._ordered, first, None)))

    @cached_property
    def _ordered(self) -> list[BlockRange]:
        return sorted(self.live)

    def has_hot_blocks(self, blocks: BlockRange, size: int) -> bool:
        start = blocks.start // size * size
        return bool(self.hot_blocks.get(BlockRange(start, start + size)))

    def digest(self, blocks: BlockRange) -> str:
        """Of what a run would find: another digest means that another attempt may end differently."""
        version = self.live.get(blocks)
        archived = (version.version, version.state) if version else None
        seen = (blocks.key, self.hot_blocks.get(blocks, 0), archived, self.window)
        return hashlib.sha256(repr(seen).encode()).hexdigest()


def chain_status(archive: ArchivedChain, url: str, *, remember: bool = True) -> ChainStatus:
    ledger = Ledger(url, archive.chain_id)
    observed = observe_head(archive, url, ledger, remember=remember)
    versions = ledger.versions()
    live = {version.blocks: version for version in versions if version.is_live}
    now = ledger.now()
    final: list[BlockRange] = []
    if observed.finalized is not None:
        lowest = [blocks.start for blocks in live]
        if observed.first_hot is not None:
            lowest.append(observed.first_hot)
        final = final_ranges(min(lowest), observed.finalized, archive.range_size)
    return ChainStatus(
        observed,
        tuple(final),
        live,
        _hot_blocks(archive, url),
        staged=frozenset(version.blocks for version in versions if version.state == "staged"),
        busy=frozenset(version.blocks for version in versions if version.is_leased),
        window=int(now.timestamp()) // TRIED_AGAIN_AFTER_SECONDS,
    )


def due_ranges(archive: ArchivedChain, standing: ChainStatus) -> list[BlockRange]:
    """Final ranges to archive, what was begun, and archived ones to purge, where that is asked for."""
    due = {blocks for blocks in standing.missing if standing.has_hot_blocks(blocks, archive.range_size)}
    due |= standing.staged
    if archive.purge:
        due |= {
            blocks
            for blocks, version in standing.live.items()
            if version.state != "purged" and version.is_valid and version.withheld_because is None
        }
    return sorted(due - standing.busy)


def tip_time(archive: ArchivedChain, url: str) -> datetime | None:
    """When the newest hot block was made, by the chain."""
    with hot_snapshot(archive, url) as hot:
        head = hot.edge(last=True)
    return head.time if head else None


def rows_still_hot(archive: ArchivedChain, url: str, standing: ChainStatus) -> dict[BlockRange, dict[str, int]]:
    """Hot rows of ranges that are archived, by dataset."""
    found: dict[BlockRange, dict[str, int]] = {}
    with hot_snapshot(archive, url) as hot:
        for blocks in sorted(standing.live):
            counts = {each.name: sum(hot.rows_per_block(each, blocks).values()) for each in archive.datasets}
            if any(counts.values()):
                found[blocks] = {name: count for name, count in counts.items() if count}
    return found


def _hot_blocks(archive: ArchivedChain, url: str) -> dict[BlockRange, int]:
    dataset, size = archive.blocks, archive.range_size
    query = sql.SQL(
        "SELECT {block} / {size}, count(*) FROM {table} "
        "WHERE {chain} = {chain_id} AND {block} BETWEEN 0 AND {most} GROUP BY 1"
    ).format(
        block=sql.Identifier(dataset.block),
        size=sql.Literal(size),
        most=sql.Literal(2**62),
        table=table_of(dataset),
        chain=sql.Identifier(dataset.chain),
        chain_id=sql.Literal(archive.chain_id),
    )
    with connected(url) as connection:
        found: list[Any] = connection.execute(query).fetchall()
    return {BlockRange(number * size, (number + 1) * size): count for number, count in found}
