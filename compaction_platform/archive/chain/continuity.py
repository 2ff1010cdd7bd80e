"""Whether the blocks of a range are one piece of one chain. Pure.

Everything is told, not only the first thing: whoever mends the source wants to see the whole of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from compaction_platform.archive.chain.block_range import BlockRange

SHOWN = 5


@dataclass(frozen=True)
class BlockLink:
    """A block's own place in the chain."""

    number: int
    hash: str
    parent: str


@dataclass(frozen=True)
class RangeBoundary:
    """A block of a neighbour range, and who tells of it."""

    hash: str
    told_by: str


def problems_of(
    blocks: BlockRange,
    links: Sequence[BlockLink],  # sorted by number
    *,
    gaps_allowed: bool,
    before: RangeBoundary | None = None,  # the last block before the range
    after: RangeBoundary | None = None,  # the parent hash of the first block behind it
) -> list[str]:
    """Gaps, duplicates, broken links, also over the seams to the neighbours."""
    problems = []
    numbers = [link.number for link in links]
    twice = sorted({one for one, two in pairwise(numbers) if one == two})
    if twice:
        problems.append(f"{_some(twice, 'block')} there more than once")
    missing = [] if gaps_allowed else _missing(blocks, numbers)
    if missing:
        count = sum(gap.blocks for gap in missing)
        shown = ", ".join(gap.key if gap.blocks > 1 else str(gap.start) for gap in missing[:SHOWN])
        more = f" and {len(missing) - SHOWN} more gaps" if len(missing) > SHOWN else ""
        problems.append(f"{count:,} of {blocks.blocks:,} blocks are missing: {shown}{more} (ends not included)")
    nameless = [link.number for link in links if not link.hash or not link.parent]
    if nameless:
        problems.append(f"{_some(nameless, 'block')} without hash or parent hash")
    if not links:
        return problems or ["there is no block in the range"]
    broken = [
        f"block {two.number} says its parent is {two.parent}, but block {one.number} is {one.hash}"
        for one, two in pairwise(links)
        if one.number != two.number and two.parent != one.hash and (gaps_allowed or two.number == one.number + 1)
    ]
    problems += _first(broken)
    if before is not None and before.hash != links[0].parent:
        problems.append(
            f"block {links[0].number} says its parent is {links[0].parent}, but the block before it is {before.hash} "
            f"({before.told_by})"
        )
    if after is not None and after.hash != links[-1].hash:
        problems.append(
            f"block {links[-1].number} is {links[-1].hash}, but the block behind it says its parent is {after.hash} "
            f"({after.told_by})"
        )
    return problems


def orphan_rows(dataset: str, rows: Mapping[int, int], blocks: Sequence[int]) -> list[str]:
    """Rows of blocks that are not there."""
    homeless = sorted(rows.keys() - set(blocks))
    return [f"{dataset}: {_some(homeless, 'block')} not there, but rows of it are"] if homeless else []


def wrong_counts(dataset: str, rows: Mapping[int, int], told: Mapping[int, int | None]) -> list[str]:
    """Blocks that say another number of rows than there are."""
    return _first(
        [
            f"{dataset}: block {block} says it has {count}, there are {rows.get(block, 0)}"
            for block, count in told.items()
            if count is not None and count != rows.get(block, 0)
        ]
    )


def _missing(blocks: BlockRange, numbers: Sequence[int]) -> list[BlockRange]:
    gaps = []
    expected = blocks.start
    for number in numbers:
        if number > expected:
            gaps.append(BlockRange(expected, number))
        expected = max(expected, number + 1)
    if expected < blocks.end:
        gaps.append(BlockRange(expected, blocks.end))
    return gaps


def _first(problems: list[str]) -> list[str]:
    hidden = len(problems) - SHOWN
    return problems[:SHOWN] + ([f"… and {hidden:,} more like the last"] if hidden > 0 else [])


def _some(numbers: Sequence[int], noun: str) -> str:
    shown = ", ".join(str(number) for number in numbers[:SHOWN])
    if len(numbers) == 1:
        return f"{noun} {shown} is"
    return f"{len(numbers):,} {noun}s ({shown}{', …' if len(numbers) > SHOWN else ''}) are"
