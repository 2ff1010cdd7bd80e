"""Whether the hot rows of a range are one whole piece of one chain, before a byte is copied."""

from collections.abc import Mapping, Sequence

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.chain.continuity import (
    BlockLink,
    RangeBoundary,
    orphan_rows,
    problems_of,
    wrong_counts,
)
from compaction_platform.archive.config import ArchivedChain
from compaction_platform.archive.hot.snapshot import HotSnapshot
from compaction_platform.archive.jobs.attempt import TableProgress
from compaction_platform.archive.ledger.ledger import Ledger
from compaction_platform.errors import CompactionError


class SourceUnfit(CompactionError):
    """The hot rows are not one whole piece of one chain. Nothing was archived."""


def require_whole(
    archive: ArchivedChain,
    ledger: Ledger,
    hot: HotSnapshot,
    blocks: BlockRange,
    links: Sequence[BlockLink],
    states: Mapping[str, TableProgress],
) -> None:
    """Before a byte is copied: gaps, duplicates, links also over the seams, counts, rows without a block."""
    problems = problems_of(
        blocks,
        links,
        gaps_allowed=archive.gaps_allowed,
        before=_seam_before(archive, ledger, hot, blocks),
        after=_seam_behind(archive, ledger, hot, blocks),
    )
    numbers = [link.number for link in links]
    for dataset in archive.datasets[1:]:
        rows = states[dataset.name].rows
        problems += orphan_rows(dataset.name, rows, numbers)
        if dataset.counted_by is not None:
            problems += wrong_counts(dataset.name, rows, hot.told_counts(dataset.counted_by, blocks))
    if problems:
        listed = "\n".join(f"- {problem}" for problem in problems)
        raise SourceUnfit(
            f"blocks {blocks.key} (end not included) of chain {archive.chain} cannot be archived:\n{listed}\n"
            "Nothing was archived, nothing deleted. Mend the hot rows, then run again."
        )


def _seam_before(archive: ArchivedChain, ledger: Ledger, hot: HotSnapshot, blocks: BlockRange) -> RangeBoundary | None:
    neighbour = ledger.live_at(blocks.start - 1)
    if neighbour is not None and neighbour.is_valid and neighbour.blocks.end == blocks.start:
        told = neighbour.manifests[archive.blocks.name].last_hash
        if told is not None:
            return RangeBoundary(told, f"archived, {neighbour.blocks.key}")
    link = hot.neighbour(blocks, "before")
    return RangeBoundary(link.hash, f"hot, block {link.number}") if link else None


def _seam_behind(archive: ArchivedChain, ledger: Ledger, hot: HotSnapshot, blocks: BlockRange) -> RangeBoundary | None:
    neighbour = ledger.live_at(blocks.end)
    if neighbour is not None and neighbour.is_valid and neighbour.blocks.start == blocks.end:
        told = neighbour.manifests[archive.blocks.name].first_parent_hash
        if told is not None:
            return RangeBoundary(told, f"archived, {neighbour.blocks.key}")
    link = hot.neighbour(blocks, "behind")
    return RangeBoundary(link.parent, f"hot, block {link.number}") if link else None
