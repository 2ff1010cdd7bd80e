"""Which ranges of a chain need a run, and how the chain stands as a whole."""

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from psycopg import sql

from compaction_platform.archive.chain import Archive
from compaction_platform.archive.hot import connected, hot_snapshot, table_of
from compaction_platform.archive.ledger import LIVE, Ledger, Version
from compaction_platform.archive.observe import Observed, observe
from compaction_platform.archive.ranges import BlockRange, final_ranges


@dataclass(frozen=True)
class Standing:
    """A chain at one moment."""

    observed: Observed
    final: tuple[BlockRange, ...]  # final ranges that were ever seen whole, archived or not
    live: dict[BlockRange, Version] = field(repr=False)
    hot_blocks: dict[BlockRange, int] = field(repr=False)  # by final range

    @property
    def missing(self) -> list[BlockRange]:
        return [blocks for blocks in self.final if blocks not in self.live]

    @property
    def still_hot(self) -> list[BlockRange]:
        """Archived, but their hot rows are still there."""
        return [blocks for blocks in self.live if self.hot_blocks.get(blocks)]

    def digest(self, blocks: BlockRange) -> str:
        """Of what a run would find: another digest means that another attempt may end differently."""
        version = self.live.get(blocks)
        archived = (version.version, version.state) if version else None
        return hashlib.sha256(repr((blocks.key, self.hot_blocks.get(blocks, 0), archived)).encode()).hexdigest()


def look(archive: Archive, url: str) -> Standing:
    ledger = Ledger(url, archive.chain_id)
    observed = observe(archive, url, ledger)
    live = {version.blocks: version for version in ledger.versions(states=LIVE)}
    hot_blocks = _hot_blocks(archive, url)
    final: list[BlockRange] = []
    if observed.finalized is not None:
        lowest = [blocks.start for blocks in live]
        if observed.first_hot is not None:
            lowest.append(observed.first_hot)
        final = final_ranges(min(lowest), observed.finalized, archive.range_size)
    return Standing(observed, tuple(final), live, hot_blocks)


def due_ranges(archive: Archive, standing: Standing) -> list[BlockRange]:
    """Final ranges to archive; and archived ones to purge, where that is asked for."""
    due = [blocks for blocks in standing.missing if standing.hot_blocks.get(blocks)]
    if archive.purge:
        due += [blocks for blocks, version in standing.live.items() if version.state != "purged" and version.is_valid]
    return sorted(due)


def tip_time(archive: Archive, url: str) -> datetime | None:
    """When the newest hot block was made, by the chain."""
    with hot_snapshot(archive, url) as hot:
        head = hot.edge(last=True)
    return head.time if head else None


def _hot_blocks(archive: Archive, url: str) -> dict[BlockRange, int]:
    dataset, size = archive.blocks, archive.range_size
    query = sql.SQL("SELECT {block} / {size}, count(*) FROM {table} WHERE {chain} = {chain_id} GROUP BY 1").format(
        block=sql.Identifier(dataset.block),
        size=sql.Literal(size),
        table=table_of(dataset),
        chain=sql.Identifier(dataset.chain),
        chain_id=sql.Literal(archive.chain_id),
    )
    with connected(url) as connection:
        found: list[Any] = connection.execute(query).fetchall()
    return {BlockRange(number * size, (number + 1) * size): count for number, count in found}
