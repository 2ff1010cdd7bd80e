"""Do the bounds hold that inputs tell about their values, and the number of nulls? A file's own statistics bear no
checksum, and a reader who believes wrong ones misses rows.

Each input's bounds are held against its own rows, as they are read back from the output: so those of pages hold, too.
"""

from typing import Any

import pyarrow
import pyarrow.compute

from compaction_platform.lake.stitch.column import Piece
from compaction_platform.lake.stitch.extremes import extremes_of
from compaction_platform.lake.stitch.file import Plan

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
        pieces = plan.pieces(number, place)
        array = _that_compares(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())
        extremes = extremes_of(array, [each.rows for each in pieces])
        if not all(_hold(each, *seen) for each, seen in zip(pieces, extremes, strict=True)):
            found.append(".".join(leaf.path))
    return found


def _that_compares(array: pyarrow.Array) -> pyarrow.Array:
    """The same values in a form that Arrow compares."""
    if isinstance(array.type, pyarrow.BaseExtensionType):
        return _that_compares(array.storage)
    if types.is_dictionary(array.type):
        entries = _that_compares(array.dictionary)
        return pyarrow.DictionaryArray.from_arrays(array.indices, entries)
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
