"""Values and levels decoded and encoded by Arrow, many pages in one call.

Arrow reads Parquet files, not pages: so the pages are put into a small file in memory that has one required column,
with no type but the physical one. Numbers are taken as their bits: a float as an integer, INT96 as twelve bytes.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet

from compaction_platform.lake.parquet.codecs import GZIP, LZ4_RAW, NAMES, UNCOMPRESSED, ZSTD
from compaction_platform.lake.parquet.footer import MAGIC, Chunk, Footer, FooterReader, RowGroup, footer_bytes
from compaction_platform.lake.parquet.page_header import (
    DATA,
    DICTIONARY,
    PLAIN,
    RLE_DICTIONARY,
    Page,
    header_of,
    pages_of,
)
from compaction_platform.lake.parquet.schema_elements import (
    DOUBLE,
    FIXED_LEN_BYTE_ARRAY,
    FLOAT,
    INT32,
    INT64,
    INT96,
    Leaf,
    schema_bytes,
)
from compaction_platform.lake.parquet.stitch.errors import StitchUnsupported
from compaction_platform.lake.parquet.stitch.rle import Array
from compaction_platform.lake.parquet.thrift_compact import BINARY, I32, Struct

_BITS = {FLOAT: INT32, DOUBLE: INT64, INT96: FIXED_LEN_BYTE_ARRAY}
_ONE_PAGE = 1 << 30
_SMALL_PAGE = 16 << 10
_SMALL_PAGES = 512  # that are remembered


@cache
def codec(number: int) -> pyarrow.Codec | None:
    """None where pages are not compressed."""
    if number == UNCOMPRESSED:
        return None
    if number not in NAMES:
        raise StitchUnsupported(f"pages are compressed by a codec that cannot be used alone (number {number})")
    level = 1 if number in (ZSTD, GZIP) else None
    return pyarrow.Codec("lz4_raw" if number == LZ4_RAW else NAMES[number], compression_level=level)


def decompressed(data: memoryview, number: int, size: int) -> memoryview:
    """What a page holds. Small ones are remembered: unique columns of a file all have the same indices, 0, 1, 2, …"""
    return _remembered(bytes(data), number, size) if size <= _SMALL_PAGE else _decompressed(data, number, size)


def _decompressed(data: bytes | memoryview, number: int, size: int) -> memoryview:
    how = codec(number)
    if how is None:
        if len(data) != size:
            raise StitchUnsupported("a page that is not compressed has another size than it says")
        return memoryview(data)
    if not size:
        return memoryview(b"")
    found = memoryview(how.decompress(data, decompressed_size=size)).cast("B")
    if len(found) != size:
        raise StitchUnsupported("a page has another size than it says")
    return found


_remembered = lru_cache(maxsize=_SMALL_PAGES)(_decompressed)


def compressed(data: bytes | memoryview, number: int) -> memoryview:
    how = codec(number)
    return memoryview(data if how is None else how.compress(data)).cast("B")


# ---------------------------------------------------------------- reading


def integers(streams: Sequence[tuple[Any, int]], entries: int) -> Array:
    """What these runs of small numbers hold, each stream with how many there are; all of them below `entries`. A stream
    begins with the byte that tells how many bits a number has."""
    pages = [
        Page(DATA, count, RLE_DICTIONARY, len(stream), memoryview(stream).cast("B"))
        for stream, count in streams
        if count
    ]
    if not pages:
        return numpy.empty(0, numpy.int32)
    counted = _counting(max(1, entries - 1).bit_length())
    dictionary = Page(DICTIONARY, len(counted) // 4, PLAIN, len(counted), memoryview(counted))
    found = _read(INT32, 0, UNCOMPRESSED, [dictionary, *pages])
    numbers = as_numpy(found)
    if int(numbers.max()) >= entries:
        raise StitchUnsupported("a number is larger than any that there is")
    return numbers


def levels(streams: Sequence[tuple[Any, int]], largest: int) -> Array:
    """Definition or repetition levels, each stream with how many there are."""
    width = bytes([largest.bit_length()])
    return integers([(width + bytes(stream), count) for stream, count in streams], largest + 1)


def plain_values(pages: Sequence[Page], leaf: Leaf, number: int) -> pyarrow.Array:
    """The values of pages that hold nothing else, dictionary pages above all; all compressed by the same codec."""
    as_data = [Page(DATA, page.values, PLAIN, page.uncompressed, page.data) for page in pages if page.values]
    if not as_data:
        return pyarrow.array([], pyarrow.binary())
    return _read(leaf.physical, leaf.length, number, as_data)


@cache
def _counting(bits: int) -> bytes:
    """0, 1, 2, … as far as so many bits go."""
    return numpy.arange(1 << bits, dtype="<i4").tobytes()


def _read(physical: int, length: int, number: int, pages: Sequence[Page]) -> pyarrow.Array:
    parts: list[Any] = [MAGIC]
    for page in pages:
        parts += (header_of(page, checksum=False), page.data)
    body = b"".join(parts)
    has_dictionary = pages[0].kind == DICTIONARY
    values = sum(page.values for page in pages[has_dictionary:])
    begins = 4 + (len(parts[1]) + len(parts[2]) if has_dictionary else 0)
    kind = _BITS.get(physical, physical)
    chunk = Chunk(("v",), kind, number, values, len(body) - 4, len(body) - 4, begins, 4 if has_dictionary else None)
    footer = Footer(1, _schema(kind, length), [RowGroup(values, [chunk])], {})
    whole = body + footer_bytes(footer)
    table = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(whole)).read(use_threads=False)
    if table.num_rows != values:
        raise StitchUnsupported("pages have fewer values than they say")
    column = table.column(0)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


@cache
def _schema(physical: int, length: int) -> bytes:
    root = Struct({4: (BINARY, b"m"), 5: (I32, 1)})
    column = Struct({1: (I32, physical), 3: (I32, 0), 4: (BINARY, b"v")})
    if physical == FIXED_LEN_BYTE_ARRAY:
        column.set_value(2, I32, length)
    return schema_bytes([root, column])


# ---------------------------------------------------------------- writing


def plain(array: pyarrow.Array) -> Any:
    """These values as a plain page holds them."""
    if not len(array):
        return b""
    if pyarrow.types.is_binary(array.type) or pyarrow.types.is_large_binary(array.type):
        return b"".join(_written([array], "PLAIN"))
    width = array.type.bit_width // 8
    return memoryview(array.buffers()[1]).cast("B")[array.offset * width : (array.offset + len(array)) * width]


def deltas(arrays: Sequence[pyarrow.Array]) -> list[memoryview]:
    """These integers as pages of differences hold them, a page for each array."""
    pages = _written(arrays, "DELTA_BINARY_PACKED")
    if len(pages) != len(arrays):
        raise StitchUnsupported("Arrow makes several pages of what is to be one")
    return pages


def _written(arrays: Sequence[pyarrow.Array], encoding: str) -> list[memoryview]:
    """What is in the pages that Arrow makes of these values, each in a row group of its own."""
    schema = pyarrow.schema([pyarrow.field("v", arrays[0].type, nullable=False)])
    sink = pyarrow.BufferOutputStream()
    with pyarrow.parquet.ParquetWriter(
        sink,
        schema,
        compression="none",
        use_dictionary=False,
        column_encoding={"v": encoding},
        data_page_size=_ONE_PAGE,
        max_rows_per_page=_ONE_PAGE,
        write_statistics=False,
        store_schema=False,
    ) as writer:
        for array in arrays:
            writer.write_table(pyarrow.Table.from_arrays([array], schema=schema), row_group_size=max(1, len(array)))
    data = memoryview(sink.getvalue()).cast("B")
    return [page.data for group in FooterReader().read(data).row_groups for page in pages_of(data, group.chunks[0])]


def as_numpy(array: pyarrow.Array) -> Array:
    """32-bit integers without nulls. (Arrow's own conversion imports pandas: half a second.)"""
    return numpy.frombuffer(array.buffers()[1], "<i4", len(array), array.offset * 4)
