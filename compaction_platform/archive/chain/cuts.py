"""Where a dataset's range is cut into files. Pure: rows per block in, cuts out."""

from collections.abc import Sequence
from dataclasses import dataclass

from compaction_platform.archive.chain.block_range import BlockRange


@dataclass(frozen=True)
class FileCut:
    """One file: all rows of these blocks. The cuts of a range cover it without gaps, empty blocks included."""

    number: int
    blocks: BlockRange
    rows: int


def cut(blocks: BlockRange, numbers: Sequence[int], counts: Sequence[int], chunk_rows: int) -> list[FileCut]:
    """Cuts between blocks, each as near to `chunk_rows` as whole blocks allow. `numbers` are sorted."""
    cuts: list[FileCut] = []
    start, rows = blocks.start, 0
    for number, count in zip(numbers, counts, strict=True):
        # Before this block, if that is nearer to the wished size than after it.
        if rows and abs(rows - chunk_rows) <= abs(rows + count - chunk_rows):
            cuts.append(FileCut(len(cuts), BlockRange(start, number), rows))
            start, rows = number, 0
        rows += count
    cuts.append(FileCut(len(cuts), BlockRange(start, blocks.end), rows))
    return cuts
