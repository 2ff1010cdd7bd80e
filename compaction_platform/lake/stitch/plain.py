"""Strategy D: a dictionary of values most of which are there once costs more than it saves. It is dissolved.

Integers are written as differences where that is smaller, everything else as it is.
"""

import pyarrow

from compaction_platform.lake.parquet_format.pages import DELTA_BINARY_PACKED, PLAIN
from compaction_platform.lake.parquet_format.schema import INT32, INT64
from compaction_platform.lake.stitch import values
from compaction_platform.lake.stitch.column import Column, NewColumn, Piece, span
from compaction_platform.lake.stitch.identity import add_dictionary_as_page, is_identity
from compaction_platform.lake.stitch.raw import copy_page
from compaction_platform.lake.stitch.runs import Array


def dissolved(column: Column, entries: pyarrow.Array, positions: Array, reason: str) -> NewColumn:
    made = NewColumn("plain", reason, column.codec, [])
    is_number = column.leaf.physical in (INT32, INT64)
    encoding: int | None = None if is_number else PLAIN
    for some in column.runs(lambda each: not is_number and is_identity(column, each)):
        if isinstance(some, Piece):
            add_dictionary_as_page(made, column, some)
        elif isinstance(some, tuple):
            copy_page(made, column, *some)
        else:
            part = entries.take(_without_copying(positions[span(some)]))
            if encoding is None and len(part):
                encoding = _smaller(part, column.codec)
            is_plain = encoding in (PLAIN, None) or not len(part)
            payload = values.plain(part) if is_plain else values.deltas(part)
            made.pages.append(column.of_values(some, payload, PLAIN if is_plain else DELTA_BINARY_PACKED))
    return made


def _without_copying(positions: Array) -> pyarrow.Array:
    return pyarrow.Array.from_buffers(pyarrow.int64(), len(positions), [None, pyarrow.py_buffer(positions)])


def _smaller(some: pyarrow.Array, codec: int) -> int:
    sizes = {
        DELTA_BINARY_PACKED: len(values.compressed(values.deltas(some), codec)),
        PLAIN: len(values.compressed(values.plain(some), codec)),
    }
    return min(sizes, key=lambda encoding: sizes[encoding])
