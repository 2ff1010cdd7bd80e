"""Do the bounds hold that inputs tell about their values, and the number of nulls? A file's own statistics bear no
checksum, and a reader who believes wrong ones misses rows.

Each input's bounds are held against its own rows, as they are read back from the output: so those of pages hold, too.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from compaction_platform.lake.parquet_format.schema import Leaf
from compaction_platform.lake.stitch.file import Plan, Source
from compaction_platform.lake.stitch.statistics import told

types = pyarrow.types


def wrong_bounds(plan: Plan, number: int, rows: pyarrow.Table) -> list[str]:
    """Columns of a row group for which some input says what is not so."""
    found = []
    for place, leaf in enumerate(plan.leaves):
        if leaf.repetition or leaf.path[0] not in rows.schema.names:
            continue
        column = rows.column(leaf.path[0])
        for part in leaf.path[1:]:
            column = pyarrow.compute.struct_field(column, part)
        if types.is_duration(column.type):
            column = column.cast(pyarrow.int64())  # Arrow does not compare them
        if not _hold(plan.groups[number], place, leaf, column, _comparable(column.type)):
            found.append(".".join(leaf.path))
    return found


def _hold(
    group: Sequence[tuple[Source, int]],
    place: int,
    leaf: Leaf,
    column: pyarrow.ChunkedArray,
    comparable: Callable[[Any], Any] | None,
) -> bool:
    first = 0
    order = leaf.order
    for source, number in group:
        part = source.footer.row_groups[number]
        known = told(part.chunks[place], source.leaves[place], ordered=source.ordered[place])
        mine = column.slice(first, part.rows)
        first += part.rows
        if known.nulls is not None and known.nulls != mine.null_count:
            return False
        if order is None or comparable is None or known.low is None or known.high is None:
            continue
        if mine.null_count == len(mine):
            continue
        extremes = pyarrow.compute.min_max(mine)
        low, high = comparable(extremes["min"]), comparable(extremes["max"])
        if low < order(known.low) or high > order(known.high):
            return False
    return True


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
