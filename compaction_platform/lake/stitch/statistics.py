"""What is known about the values of several chunks together."""

import math
from collections.abc import Sequence
from itertools import pairwise

from compaction_platform.lake.parquet_format.footer import Chunk, Sizes, Statistics
from compaction_platform.lake.parquet_format.schema import DOUBLE, FLOAT, INT32, INT64, Key, Leaf

_ZEROS = {FLOAT: (b"\x00\x00\x00\x80", bytes(4)), DOUBLE: (bytes(7) + b"\x80", bytes(8))}


def told(chunk: Chunk, leaf: Leaf, *, ordered: bool) -> Statistics:
    """What a chunk says that can be relied on. `ordered`: the file says that its bounds follow the type's order."""
    if leaf.repetition:
        return Statistics()  # writers do not agree on what counts there, and it is not checked
    said = chunk.statistics
    kept = Statistics(nulls=said.nulls if said.nulls is not None and 0 <= said.nulls <= chunk.values else None)
    bounds = (said.low, said.high) if ordered else (None, None)
    if bounds == (None, None) and chunk.old_bounds and leaf.physical in (INT32, INT64):
        bounds = chunk.old_bounds  # in signed order; right where that is the column's own
        if leaf.order is None or leaf.order(b"\xff" * leaf.length) >= 0:
            return kept
    low, high = bounds
    if low is None or high is None or leaf.order is None or not _is_sound(low, high, leaf):
        return kept
    kept.low, kept.high = _without_zero_signs(low, high, leaf)
    kept.low_is_exact, kept.high_is_exact = said.low_is_exact, said.high_is_exact
    return kept


def _is_sound(low: bytes, high: bytes, leaf: Leaf) -> bool:
    """Bounds of the right size, neither of them not a number, the lower one not above."""
    if leaf.order is None or (leaf.length and not leaf.length == len(low) == len(high)):
        return False
    one, other = leaf.order(low), leaf.order(high)
    if isinstance(one, float) and (math.isnan(one) or math.isnan(other)):
        return False
    return bool(one <= other)


def _without_zero_signs(low: bytes, high: bytes, leaf: Leaf) -> tuple[bytes, bytes]:
    """Writers did not agree on how zeros compare: a bound of zero includes both."""
    if leaf.physical not in _ZEROS:
        return low, high
    negative, positive = _ZEROS[leaf.physical]
    return negative if low == positive else low, positive if high == negative else high


def is_all_null(known: Statistics, values: int) -> bool:
    return known.nulls is not None and known.nulls == values


def merged(parts: Sequence[tuple[Statistics, int]], order: Key | None) -> Statistics:
    """What holds for all of them; each comes with how many values it is about, nulls included."""
    nulls = [part.nulls for part, _ in parts if part.nulls is not None]
    found = Statistics(nulls=sum(nulls) if len(nulls) == len(parts) else None)
    bounded = [part for part, values in parts if not is_all_null(part, values)]
    if order is None or not bounded:
        return found
    for part in bounded:
        if part.low is None or part.high is None:
            return found
    lowest = min(bounded, key=lambda part: order(part.low or b""))
    highest = max(bounded, key=lambda part: order(part.high or b""))
    found.low, found.low_is_exact = lowest.low, lowest.low_is_exact
    found.high, found.high_is_exact = highest.high, highest.high_is_exact
    return found


def merged_sizes(parts: Sequence[Sizes | None]) -> Sizes | None:
    known = [part for part in parts if part is not None]
    if not known or len(known) != len(parts):
        return None
    unencoded = [part.unencoded for part in known if part.unencoded is not None]
    return Sizes(
        sum(unencoded) if len(unencoded) == len(known) else None,
        _added([part.repetitions for part in known]),
        _added([part.definitions for part in known]),
    )


def _added(histograms: Sequence[list[int] | None]) -> list[int] | None:
    known = [each for each in histograms if each is not None]
    if len(known) != len(histograms) or len({len(each) for each in known}) != 1:
        return None
    return [sum(counts) for counts in zip(*known, strict=True)]


def boundary_order(pages: Sequence[Statistics], order: Key) -> int:
    """1: neither bound ever goes down, 2: neither goes up, 0: neither."""
    bounds = [(order(page.low), order(page.high)) for page in pages if page.low is not None and page.high is not None]
    pairs = list(pairwise(bounds))
    if all(one[0] <= next_[0] and one[1] <= next_[1] for one, next_ in pairs):
        return 1
    return 2 if all(one[0] >= next_[0] and one[1] >= next_[1] for one, next_ in pairs) else 0
