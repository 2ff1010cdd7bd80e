"""Compute the bounds and null counts that a new file publishes, from its decoded rows.

What an input's footer claims about its values bears no checksum, and a reader who believes a wrong bound misses rows:
nothing of it is published again.
"""

import math
import struct
from collections.abc import Sequence
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from compaction_platform.lake.parquet.footer import Footer, Statistics
from compaction_platform.lake.parquet.schema_elements import (
    BYTE_ARRAY,
    DOUBLE,
    FIXED_LEN_BYTE_ARRAY,
    FLOAT,
    INT32,
    INT64,
    Key,
    Leaf,
    columns_of,
)
from compaction_platform.lake.parquet.stitch.extremes import extremes_of

types = pyarrow.types

LONGEST = 128  # bytes of a bound; longer ones are cut
_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_FLOATS = {FLOAT: "<f", DOUBLE: "<d"}


def leaf_values(leaf: Leaf, rows: pyarrow.Table) -> pyarrow.Array:
    """The values of a leaf that does not repeat, from its top-level column."""
    column = rows.column(leaf.path[0])
    for part in leaf.path[1:]:
        column = pyarrow.compute.struct_field(column, part)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def page_bounds(leaf: Leaf, described: Any, values: pyarrow.Array, counts: Sequence[int]) -> list[Statistics]:
    """The bounds of pages with so many values each. `described`: the leaf as Arrow's Parquet schema has it."""
    has_order = leaf.order is not None and _has_physical_values(values.type, described)
    is_text = _is_text(values.type)
    found = []
    for count, (nulls, low, high) in zip(counts, extremes_of(_comparable(values), counts), strict=True):
        page = Statistics(nulls=nulls, is_all_null=nulls == count)
        if has_order and low is not None and high is not None:
            _set_bounds(page, leaf, low, high, is_text=is_text)
        found.append(page)
    return found


def untrue_bounds(footer: Footer, file: pyarrow.parquet.ParquetFile) -> list[str]:
    """Columns of which a footer claims bounds or a number of nulls that the rows of some row group do not have."""
    found: list[str] = []
    for place, leaf in enumerate(columns_of(footer.schema)):
        described = file.metadata.schema.column(place)
        for number, group in enumerate(footer.row_groups):
            claimed = group.chunks[place].statistics
            if leaf.repetition or (claimed.nulls is None and claimed.low is None):
                continue
            rows = file.read_row_group(number, columns=[leaf.path[0]], use_threads=False)
            (true,) = page_bounds(leaf, described, leaf_values(leaf, rows), [group.rows])
            if not _hold(claimed, true, leaf):
                found.append(".".join(leaf.path))
                break
    return found


def _hold(claimed: Statistics, true: Statistics, leaf: Leaf) -> bool:
    if claimed.nulls is not None and claimed.nulls != true.nulls:
        return False
    if None in (leaf.order, claimed.low, claimed.high, true.low, true.high):
        return True
    order: Key = leaf.order or bytes
    low, high = order(claimed.low or b""), order(claimed.high or b"")
    # A true bound that was cut is no value; what is exact must be one.
    return not (
        (low > order(true.low or b"") and true.low_is_exact is not False)
        or (high < order(true.high or b"") and true.high_is_exact is not False)
        or (claimed.low_is_exact is True and true.low_is_exact is True and claimed.low != true.low)
        or (claimed.high_is_exact is True and true.high_is_exact is True and claimed.high != true.high)
    )


def count_nulls(values: pyarrow.Array, counts: Sequence[int]) -> list[int]:
    """How many nulls each slice of so many values has."""
    if not values.null_count:
        return [0] * len(counts)
    found, start = [], 0
    for count in counts:
        found.append(values.slice(start, count).null_count)
        start += count
    return found


def _comparable(array: pyarrow.Array) -> pyarrow.Array:
    """The same values in a form that Arrow compares."""
    if isinstance(array.type, pyarrow.BaseExtensionType):
        return _comparable(array.storage)
    if types.is_dictionary(array.type):
        return pyarrow.DictionaryArray.from_arrays(array.indices, _comparable(array.dictionary))
    if types.is_string_view(array.type) or types.is_binary_view(array.type):
        return array.cast(pyarrow.large_binary())
    return array.cast(pyarrow.int64()) if types.is_duration(array.type) else array


def _is_text(kind: pyarrow.DataType) -> bool:
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _has_physical_values(kind: pyarrow.DataType, described: Any) -> bool:
    """Whether Arrow's numbers are those in the file. (An Arrow schema in the footer may ask for another unit.)"""
    if types.is_timestamp(kind) or types.is_time(kind):
        text = str(described.logical_type)
        return any(f"timeUnit={name}" in text and unit == kind.unit for name, unit in _UNITS.items())
    return True


def _set_bounds(page: Statistics, leaf: Leaf, low: Any, high: Any, *, is_text: bool) -> None:
    if leaf.physical in _FLOATS:
        if not (math.isnan(low) or math.isnan(high)):  # a page of nothing but NaN has no bounds
            # Writers did not agree on how zeros compare: a bound of zero includes both. So it is not exact.
            page.low = struct.pack(_FLOATS[leaf.physical], -0.0 if low == 0 else low)
            page.high = struct.pack(_FLOATS[leaf.physical], 0.0 if high == 0 else high)
        return
    first, last = _encoded(low, leaf), _encoded(high, leaf)
    if first is None or last is None:
        return
    upper = last if len(last) <= LONGEST else _cut_above(last, is_text=is_text)
    if upper is None:
        return
    page.low, page.low_is_exact = _cut(first, is_text=is_text), len(first) <= LONGEST
    page.high, page.high_is_exact = upper, len(last) <= LONGEST


def _encoded(value: Any, leaf: Leaf) -> bytes | None:
    """A value as statistics hold it; None for one that does not fit the column."""
    if isinstance(value, bytes):
        return value if leaf.physical not in (INT32, INT64) else None
    try:
        if leaf.physical in (INT32, INT64):
            return int(value % (1 << 8 * leaf.length)).to_bytes(leaf.length, "little")
        if leaf.physical == FIXED_LEN_BYTE_ARRAY:
            return int(value).to_bytes(leaf.length, "big", signed=True)
        if leaf.physical == BYTE_ARRAY:
            return int(value).to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
    except (OverflowError, TypeError):
        pass
    return None


def _cut(bound: bytes, *, is_text: bool) -> bytes:
    """A value that is not above this one."""
    some = bound[:LONGEST]
    return some.decode(errors="ignore").encode() if is_text and len(some) < len(bound) else some


def _cut_above(bound: bytes, *, is_text: bool) -> bytes | None:
    """A short value above all that begin like this one; None if there is none."""
    some = _cut(bound, is_text=is_text)
    if is_text:
        letters = some.decode()
        for place in range(len(letters) - 1, -1, -1):
            following = ord(letters[place]) + 1
            following = 0xE000 if following == 0xD800 else following  # surrogates are no text
            if following <= 0x10FFFF:
                return (letters[:place] + chr(following)).encode()
        return None
    for place in range(len(some) - 1, -1, -1):
        if some[place] < 0xFF:
            return some[:place] + bytes([some[place] + 1])
    return None
