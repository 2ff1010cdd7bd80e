"""Strategy D: a dictionary of values most of which are there once costs more than it saves. It is dissolved.

Integers are written as differences where that is smaller, everything else as it is.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow

from compaction_platform.lake.parquet.page_header import DELTA_BINARY_PACKED, PLAIN
from compaction_platform.lake.parquet.schema_elements import INT32, INT64
from compaction_platform.lake.parquet.stitch import arrow_values
from compaction_platform.lake.parquet.stitch.column_chunks import ColumnChunks, SourceChunk, StitchedColumn, span
from compaction_platform.lake.parquet.stitch.copy_pages import copy_page
from compaction_platform.lake.parquet.stitch.identity import add_dictionary_as_page, is_identity
from compaction_platform.lake.parquet.stitch.rle import Array

MOSTLY = 0.9  # of the values: if so many are in dictionaries that are the values, those stay as they are


def dissolved(column: ColumnChunks, entries: pyarrow.Array, positions: Array, reason: str) -> StitchedColumn:
    made = StitchedColumn("plain", reason, column.codec, [])
    is_number = column.leaf.physical in (INT32, INT64)
    kept = [each for each in column.pieces if is_identity(column, each)]
    if is_number and sum(each.entries for each in kept) < len(positions) * MOSTLY:
        kept = []  # differences may be smaller
    ids = {id(each) for each in kept}
    runs = list(column.runs(lambda each: id(each) in ids))
    parts = [entries.take(_without_copying(positions[span(some)])) for some in runs if isinstance(some, list)]
    payloads = iter(_payloads(parts, column.codec, is_number=is_number))
    for some in runs:
        if isinstance(some, SourceChunk):
            add_dictionary_as_page(made, column, some)
        elif isinstance(some, tuple):
            copy_page(made, column, *some)
        else:
            made.pages.append(column.of_values(some, *next(payloads)))
    return made


def _payloads(parts: Sequence[pyarrow.Array], codec: int, *, is_number: bool) -> Iterator[tuple[Any, int]]:
    """What is in the pages of these values, and how it is encoded: all of them in the way that suits the first."""
    some = [part for part in parts if len(part)]
    if not is_number or not some or not _is_smaller_by_deltas(some[0], codec):
        return ((arrow_values.plain(part), PLAIN) for part in parts)
    deltas = iter(arrow_values.deltas(some))
    return ((next(deltas), DELTA_BINARY_PACKED) if len(part) else (b"", PLAIN) for part in parts)


def _without_copying(positions: Array) -> pyarrow.Array:
    return pyarrow.Array.from_buffers(pyarrow.int64(), len(positions), [None, pyarrow.py_buffer(positions)])


def _is_smaller_by_deltas(some: pyarrow.Array, codec: int) -> bool:
    (deltas,) = arrow_values.deltas([some])
    return len(arrow_values.compressed(deltas, codec)) < len(arrow_values.compressed(arrow_values.plain(some), codec))
