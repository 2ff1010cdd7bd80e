"""What is known about the values of several pages together."""

from collections.abc import Sequence
from itertools import pairwise

from compaction_platform.lake.parquet.footer import Chunk, Statistics
from compaction_platform.lake.parquet.schema_elements import Key, Leaf

Bounds = dict[tuple[int, int], list[Statistics]]  # by row group and place of the column: for each page


def claimed_nulls(chunk: Chunk, leaf: Leaf) -> int | None:
    """How many nulls the footer claims. (Writers do not agree on what counts in a column that repeats.)"""
    nulls = chunk.statistics.nulls
    return nulls if nulls is not None and not leaf.repetition and 0 <= nulls <= chunk.values else None


def merged(pages: Sequence[Statistics], order: Key | None) -> Statistics:
    """What holds for all of these pages."""
    nulls = [page.nulls for page in pages if page.nulls is not None]
    found = Statistics(nulls=sum(nulls) if pages and len(nulls) == len(pages) else None)
    bounded = [page for page in pages if not page.is_all_null]
    if order is None or not bounded:
        return found
    for page in bounded:
        if page.low is None or page.high is None:
            return found
    lowest = min(bounded, key=lambda page: order(page.low or b""))
    highest = max(bounded, key=lambda page: order(page.high or b""))
    found.low, found.low_is_exact = lowest.low, lowest.low_is_exact
    found.high, found.high_is_exact = highest.high, highest.high_is_exact
    return found


def boundary_order(pages: Sequence[Statistics], order: Key) -> int:
    """1: neither bound ever goes down, 2: neither goes up, 0: neither."""
    bounds = [(order(page.low), order(page.high)) for page in pages if page.low is not None and page.high is not None]
    pairs = list(pairwise(bounds))
    if all(one[0] <= next_[0] and one[1] <= next_[1] for one, next_ in pairs):
        return 1
    return 2 if all(one[0] >= next_[0] and one[1] >= next_[1] for one, next_ in pairs) else 0
