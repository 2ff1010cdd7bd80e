"""Do the bounds hold that inputs tell about their values, and the number of nulls? A file's own statistics bear no
checksum, and a reader who believes wrong ones misses rows.

Each input's bounds are held against its own rows, as they are read back from the output: so those of pages hold, too.
"""

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import accumulate
from typing import Any

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from compaction_platform.lake.stitch.column import Piece
from compaction_platform.lake.stitch.file import Plan

types = pyarrow.types

Extremes = tuple[int, Any, Any]  # nulls, and the lowest and the highest value; None if there is none that compares


def wrong_bounds(plan: Plan, number: int, rows: pyarrow.Table) -> list[str]:
    """Columns of a row group for which some input says what is not so."""
    found = []
    for place, leaf in enumerate(plan.leaves):
        if leaf.repetition or leaf.path[0] not in rows.schema.names:
            continue
        column = rows.column(leaf.path[0])
        for part in leaf.path[1:]:
            column = pyarrow.compute.struct_field(column, part)
        pieces = plan.pieces(number, place)
        array = _that_compares(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())
        extremes = _extremes(array, [each.rows for each in pieces])
        if not all(_hold(each, *seen) for each, seen in zip(pieces, extremes, strict=True)):
            found.append(".".join(leaf.path))
    return found


def _that_compares(array: pyarrow.Array) -> pyarrow.Array:
    """The same values in a form that Arrow compares."""
    if isinstance(array.type, pyarrow.BaseExtensionType):
        return _that_compares(array.storage)
    if types.is_dictionary(array.type):
        return _that_compares(array.dictionary_decode())
    if types.is_string_view(array.type) or types.is_binary_view(array.type):
        return array.cast(pyarrow.large_binary())
    return array.cast(pyarrow.int64()) if types.is_duration(array.type) else array


def _hold(each: Piece, nulls: int, lowest: Any, highest: Any) -> bool:
    known, order = each.known, each.leaf.order
    if known.nulls is not None and known.nulls != nulls:
        return False
    if order is None or lowest is None or known.low is None or known.high is None:
        return True
    return not (lowest < order(known.low) or highest > order(known.high))  # what is not a number is neither


def _extremes(column: pyarrow.Array, counts: Sequence[int]) -> Iterator[Extremes]:
    """For so many rows at a time."""
    starts = [0, *accumulate(counts)][:-1]
    if (kind := _numbers(column.type)) and not column.null_count:
        values = numpy.frombuffer(column.buffers()[1], kind, len(column), column.offset * kind.itemsize)
        low, high = (pick.reduceat(values, starts).tolist() for pick in (numpy.fmin, numpy.fmax))
        return ((0, *both) for both in zip(low, high, strict=True))
    comparable = _comparable(column.type)
    return (_extremes_of(column.slice(start, count), comparable) for start, count in zip(starts, counts, strict=True))


def _extremes_of(some: pyarrow.Array, comparable: Callable[[Any], Any] | None) -> Extremes:
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
