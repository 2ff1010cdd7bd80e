"""The lowest and the highest value of so many rows at a time, and how many of them are null.

Arrow finds them for one slice after the other. Where values lie one behind the other, they are found for all at once.
"""

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import accumulate
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from compaction_platform.lake.parquet.stitch.rle import Array
from compaction_platform.lake.verification.canonical_form import validity

types = pyarrow.types

Extremes = tuple[int, Any, Any]  # nulls, and the lowest and the highest value; None if there is none that compares
_PREFIX = 8  # bytes


def extremes_of(column: pyarrow.Array, counts: Sequence[int]) -> Iterator[Extremes]:
    """Of the first so many rows, of the next, and so on. Values are as the column's own bounds are compared."""
    starts = [0, *accumulate(counts)][:-1]
    if types.is_dictionary(column.type):
        return _of_entries(column, counts, starts)
    comparable = _comparable(column.type)
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
    comparable = _comparable(kind) if types.is_string(kind) or types.is_binary(kind) else None
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


def _comparable(kind: pyarrow.DataType) -> Callable[[Any], Any] | None:
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
