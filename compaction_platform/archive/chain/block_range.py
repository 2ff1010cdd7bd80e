"""Ranges of blocks. The end is never part of a range, here and in every message: 1000000-1010000 ends with 1009999."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from compaction_platform.errors import CompactionError

KEY = re.compile(r"(0|[1-9][0-9]*)-([1-9][0-9]*)")
MOST_RANGES = 1_000_000
MOST_BLOCKS = 2**63 - 1  # what Postgres's bigint can count


class RangeInvalid(CompactionError):
    """This is not a range of blocks as the dataset cuts them."""


@dataclass(frozen=True, order=True)
class BlockRange:
    """Blocks from `start` up to, not including, `end`."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end <= MOST_BLOCKS:
            raise RangeInvalid(f"{self.start}-{self.end} is not a range: the start is included, the end is not.")

    @property
    def key(self) -> str:
        return f"{self.start}-{self.end}"

    @property
    def last(self) -> int:
        return self.end - 1

    @property
    def blocks(self) -> int:
        return self.end - self.start

    def overlaps(self, other: "BlockRange") -> bool:
        return self.start < other.end and other.start < self.end

    @classmethod
    def parsed(cls, key: str) -> "BlockRange":
        match = KEY.fullmatch(key)
        if not match:
            raise RangeInvalid(f"{key!r} is not a range of blocks; example: 1000000-1010000 (the end not included).")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def from_key(cls, key: str, size: int) -> "BlockRange":
        """The range a partition key names, if it is one of the aligned ones."""
        found = cls.parsed(key)
        if found.start % size or found.blocks != size:
            near = found.start // size * size
            raise RangeInvalid(
                f"{key} is not one of the ranges of {size:,} blocks; the one with block {found.start} is "
                f"{near}-{near + size}."
            )
        return found


def final_ranges(first_block: int, finalized: int, size: int) -> list[BlockRange]:
    """All aligned ranges, from the first that lies wholly behind `first_block`, of which every block is final."""
    first = -(-first_block // size)
    if (finalized + 1) // size - first > MOST_RANGES:
        raise RangeInvalid(
            f"there would be more than {MOST_RANGES:,} ranges from block {first_block} to {finalized}: is the head "
            "real, and range_size as meant?"
        )
    return [BlockRange(number * size, (number + 1) * size) for number in range(first, (finalized + 1) // size)]


def uncovered(blocks: BlockRange, others: Iterable[BlockRange]) -> list[BlockRange]:
    """What is left of a range without the others."""
    left = []
    start = blocks.start
    for other in sorted(others):
        if other.overlaps(blocks):
            if other.start > start:
                left.append(BlockRange(start, other.start))
            start = max(start, other.end)
    if start < blocks.end:
        left.append(BlockRange(start, blocks.end))
    return left


def is_final(blocks: BlockRange, finalized: int) -> bool:
    return blocks.last <= finalized
