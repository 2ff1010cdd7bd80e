"""Compute bounds and null counts of pages and columns from decoded values; merge what footers claim.

What a damaged footer claims is not published again: everything that is written here was computed.
"""

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import accumulate, pairwise
from typing import Any

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from compaction_platform.lake.parquet.footer import Chunk, Footer, Statistics
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
from compaction_platform.lake.parquet.stitch.rle import Array
from compaction_platform.lake.verification.canonical_form import validity

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


types = pyarrow.types

Extremes = tuple[int, Any, Any]  # nulls, and the lowest and the highest value; None if there is none that compares
_PREFIX = 8  # bytes


def extremes_of(column: pyarrow.Array, counts: Sequence[int]) -> Iterator[Extremes]:
    """Of the first so many rows, of the next, and so on. Values are as the column's own bounds are compared."""
    starts = [0, *accumulate(counts)][:-1]
    if types.is_dictionary(column.type):
        return _of_entries(column, counts, starts)
    comparable = _comparable_value(column.type)
    if not column.null_count and min(counts, default=0) > 0:
        if kind := _numbers(column.type):
            values = _as_numpy(column, kind)
            low, high = (pick.reduceat(values, starts).tolist() for pick in (numpy.fmin, numpy.fmax))
            return ((0, *both) for both in zip(low, high, strict=True))
        if types.is_string(column.type) or types.is_binary(column.type):
            rows = zip(*_rows_of_extremes(*_prefixes(column), starts), strict=True)
            slices = zip(starts, counts, strict=True)
            return (
                _of_slice(column.slice(start, count), comparable)
                if lowest is None or highest is None
                else (0, column[lowest].as_buffer().to_pybytes(), column[highest].as_buffer().to_pybytes())
                for (start, count), (lowest, highest) in zip(slices, rows, strict=True)
            )
    return (_of_slice(column.slice(start, count), comparable) for start, count in zip(starts, counts, strict=True))


def _of_entries(column: pyarrow.DictionaryArray, counts: Sequence[int], starts: Sequence[int]) -> Iterator[Extremes]:
    """By the order of the entries, of which there are few. (Of text: there is nothing in it that has no order.)"""
    kind, entries = column.type.value_type, column.dictionary
    comparable = _comparable_value(kind) if types.is_string(kind) or types.is_binary(kind) else None
    if comparable is None or entries.null_count or not len(entries) or min(counts, default=0) < 1:
        yield from extremes_of(column.dictionary_decode(), counts)
        return
    order = _as_numpy(pyarrow.compute.sort_indices(entries), numpy.dtype("<u8"))
    ranks = numpy.empty(len(entries), "i4")
    ranks[order] = numpy.arange(len(entries))
    indices = column.indices.fill_null(0)
    lowest = highest = rank = ranks[_as_numpy(indices, _numbers(indices.type))]
    nulls = numpy.zeros(len(counts), "i8")
    if column.indices.null_count:
        is_there = validity(column.indices).astype(bool)
        nulls = counts - numpy.add.reduceat(is_there, starts, dtype="i8")
        lowest, highest = numpy.where(is_there, rank, len(entries)), numpy.where(is_there, rank, -1)
    lowest, highest = numpy.minimum.reduceat(lowest, starts), numpy.maximum.reduceat(highest, starts)
    for empty, low, high in zip(nulls.tolist(), lowest.tolist(), highest.tolist(), strict=True):
        if high < 0:
            yield empty, None, None
        else:
            yield empty, *(comparable(entries[int(order[place])]) for place in (low, high))


def _prefixes(column: pyarrow.Array) -> tuple[Array, bool]:
    """How each value begins, as a number that compares like it, short ones filled up with zeros; and whether they are
    told apart by that alone: values of up to seven bytes, with their length behind them."""
    _, ends, data = column.buffers()
    offsets = numpy.frombuffer(ends, "<i4", len(column) + 1, column.offset * 4)
    begins, lengths, size = offsets[:-1], numpy.diff(offsets), int(offsets[-1])
    # So many rows have eight bytes before the end.
    inside = int(numpy.searchsorted(begins, size - _PREFIX, side="right"))
    rest = bytes(memoryview(data)[begins[inside] : size]) if inside < len(begins) and data is not None else b""
    found = numpy.empty(len(begins), "u8")
    if inside:
        anywhere: Array = numpy.ndarray((size - _PREFIX + 1,), ">u8", data, 0, (1,))
        step = int(lengths[0])
        is_even = step and (lengths == step).all()
        found[:inside] = anywhere[begins[0] :: step][:inside] if is_even else anywhere[begins[:inside]]
    if inside < len(begins):
        last: Array = numpy.ndarray((len(rest) + 1,), ">u8", rest + bytes(_PREFIX), 0, (1,))
        found[inside:] = last[begins[inside:] - begins[inside]]
    if lengths.min() < _PREFIX:
        found &= _KEPT[numpy.minimum(lengths, _PREFIX)]
    if lengths.max() < _PREFIX:
        return found | lengths.astype("u8"), True
    return found, False


_KEPT = numpy.array([(1 << 64) - (1 << 8 * (_PREFIX - length)) for length in range(_PREFIX + 1)], "u8")


def _rows_of_extremes(prefixes: Array, told_apart: bool, starts: Sequence[int]) -> Iterator[list[int | None]]:
    """For each slice, which row is the lowest; then, which is the highest. None where several begin alike."""
    counts = numpy.diff([*starts, len(prefixes)])
    for pick in (numpy.minimum, numpy.maximum):
        rows = numpy.flatnonzero(prefixes == numpy.repeat(pick.reduceat(prefixes, starts), counts))
        first = numpy.searchsorted(rows, starts)
        is_only = numpy.diff([*first, len(rows)]) == 1
        yield [int(row) if told_apart or only else None for row, only in zip(rows[first], is_only, strict=True)]


def _as_numpy(array: pyarrow.Array, kind: numpy.dtype[Any] | None) -> Array:
    """Numbers as they lie in memory. (Arrow's own conversion imports pandas: half a second.)"""
    if kind is None:
        raise AssertionError(f"asked for numbers of {array.type}")
    return numpy.frombuffer(array.buffers()[1], kind, len(array), array.offset * kind.itemsize)


def _of_slice(some: pyarrow.Array, comparable: Callable[[Any], Any] | None) -> Extremes:
    if comparable is None or some.null_count == len(some):
        return some.null_count, None, None
    found = pyarrow.compute.min_max(some)
    return some.null_count, comparable(found["min"]), comparable(found["max"])


def _numbers(kind: pyarrow.DataType) -> numpy.dtype[Any] | None:
    """How values lie in memory that are numbers, and compare as such; None if they are others."""
    if types.is_floating(kind) and not types.is_float16(kind):
        letter = "f"
    elif types.is_unsigned_integer(kind):
        letter = "u"
    elif types.is_integer(kind) or types.is_date32(kind) or types.is_time(kind) or types.is_timestamp(kind):
        letter = "i"
    else:
        return None
    return numpy.dtype(f"<{letter}{kind.bit_width // 8}")


def _comparable_value(kind: pyarrow.DataType) -> Callable[[Any], Any] | None:
    """How a value of that type becomes what the column's own bounds are compared by; None if it cannot be said."""
    if types.is_integer(kind) or (types.is_floating(kind) and not types.is_float16(kind)):
        return lambda scalar: scalar.as_py()
    if types.is_date32(kind) or types.is_time(kind) or types.is_timestamp(kind):
        return lambda scalar: scalar.value
    if types.is_string(kind) or types.is_large_string(kind):
        return lambda scalar: scalar.as_buffer().to_pybytes()
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return lambda scalar: scalar.as_buffer().to_pybytes()
    if types.is_decimal(kind):
        return lambda scalar: _unscaled(scalar.as_py())
    if types.is_boolean(kind):
        return lambda scalar: bytes([scalar.as_py()])
    return None


def _unscaled(value: Decimal) -> int:
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)))
    return -number if sign else number


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
    for count, (nulls, low, high) in zip(counts, extremes_of(_comparable_array(values), counts), strict=True):
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


def _comparable_array(array: pyarrow.Array) -> pyarrow.Array:
    """The same values in a form that Arrow compares."""
    if isinstance(array.type, pyarrow.BaseExtensionType):
        return _comparable_array(array.storage)
    if types.is_dictionary(array.type):
        return pyarrow.DictionaryArray.from_arrays(array.indices, _comparable_array(array.dictionary))
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
