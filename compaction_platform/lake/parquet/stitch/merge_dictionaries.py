"""Make one dictionary of many, or none where it would not pay: pages get new indices, or the values themselves.

Every entry is there once: readers that hand out indices rely on it. Values of a dissolved dictionary are written as
differences where they are integers and that is smaller, otherwise as they are.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import pyarrow

from compaction_platform.lake.parquet.codecs import BROTLI, GZIP, UNCOMPRESSED, ZSTD
from compaction_platform.lake.parquet.page_header import DELTA_BINARY_PACKED, DICTIONARY, PLAIN, RLE_DICTIONARY, Page
from compaction_platform.lake.parquet.schema_elements import INT32, INT64
from compaction_platform.lake.parquet.stitch import arrow_values
from compaction_platform.lake.parquet.stitch.column_chunks import ColumnChunks, SourceChunk, StitchedColumn, span
from compaction_platform.lake.parquet.stitch.copy_pages import add_dictionary_as_page, copy_page, is_identity
from compaction_platform.lake.parquet.stitch.rle import Array, packed_indices

_ENTROPY_CODED = frozenset((GZIP, BROTLI, ZSTD))


def entries_of(column: ColumnChunks) -> pyarrow.Array:
    """The entries of all dictionaries, one after the other."""
    pieces = [each for each in column.pieces if each.taken]
    codecs = {each.chunk.codec for each in pieces}
    pages = [each.dictionary for each in pieces if each.dictionary is not None]
    if len(codecs) == 1:
        return arrow_values.plain_values(pages, column.leaf, codecs.pop())
    plain = [_decompressed(page, each.chunk.codec) for page, each in zip(pages, pieces, strict=True)]
    return arrow_values.plain_values(plain, column.leaf, UNCOMPRESSED)


def _decompressed(page: Page, codec: int) -> Page:
    data = arrow_values.decompressed(page.data, codec, page.uncompressed)
    return Page(DICTIONARY, page.values, PLAIN, page.uncompressed, data)


def positions_of(column: ColumnChunks) -> Array:
    """For each coded value, where it is among the entries of all dictionaries."""
    positions = column.indices.astype(numpy.int64)
    offset = 0
    for each in column.pieces:
        if each.taken:
            last = each.taken[-1]
            positions[each.taken[0].first : last.first + last.present] += offset
            offset += each.entries
    return positions


def one_dictionary(
    column: ColumnChunks, entries: pyarrow.Array, encoded: pyarrow.DictionaryArray, positions: Array, reason: str
) -> StitchedColumn:
    """`encoded`: the entries of all dictionaries, each by its number in one dictionary."""
    distinct = encoded.dictionary
    made = StitchedColumn("dictionary", reason, column.codec, [], _dictionary_page(column, entries, distinct))
    indices = positions
    if len(distinct) < len(entries):
        indices = arrow_values.as_numpy(encoded.indices)[positions]
    in_bytes = column.codec in _ENTROPY_CODED
    for some in column.runs():
        if isinstance(some, list):
            payload = packed_indices(indices[span(some)], len(distinct), in_bytes=in_bytes)
            made.pages.append(column.of_values(some, payload, RLE_DICTIONARY))
        elif isinstance(some, tuple):
            copy_page(made, column, *some)
    return made


def _dictionary_page(column: ColumnChunks, entries: pyarrow.Array, distinct: pyarrow.Array) -> Page:
    """Where no entry is there twice, compressed dictionaries of zstd are one as they are, one behind the other."""
    pages = [each.dictionary for each in column.pieces if each.taken and each.dictionary]
    same_codec = all(each.chunk.codec == column.codec for each in column.pieces)
    if len(distinct) == len(entries) and same_codec and column.codec in (ZSTD, UNCOMPRESSED):
        data: Any = memoryview(b"".join(page.data for page in pages))
        return Page(DICTIONARY, len(entries), PLAIN, sum(page.uncompressed for page in pages), data)
    payload = arrow_values.plain(distinct)
    return Page(DICTIONARY, len(distinct), PLAIN, len(payload), arrow_values.compressed(payload, column.codec))


MOSTLY = 0.9  # of the values: if so many are in dictionaries that are the values, those stay as they are


def without_dictionary(column: ColumnChunks, entries: pyarrow.Array, positions: Array, reason: str) -> StitchedColumn:
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
