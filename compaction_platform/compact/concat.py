"""Row groups that are large already are copied byte for byte under a new footer: nothing is decoded to be written.

Only offsets change: those of the row groups and columns, and those inside the offset indexes. Everything else in the
inputs' footers is carried over as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow
import xxhash

from compaction_platform.compact.inputs import Input, Unusable
from compaction_platform.lake.parquet_format.footer import MAGIC
from compaction_platform.lake.parquet_format.pages import pages_of
from compaction_platform.lake.parquet_format.thrift import (
    BINARY,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    ListOf,
    Struct,
    ThriftInvalid,
    parse,
    serialize,
)
from compaction_platform.lake.spool import Spool

LARGE_ROW_GROUP_BYTES = 8 << 20

# Numbers of fields in parquet.thrift.
SCHEMA, FILE_ROWS, ROW_GROUPS, KEY_VALUES, CREATED_BY, COLUMN_ORDERS = 2, 3, 4, 5, 6, 7
COLUMNS, GROUP_ROWS, GROUP_OFFSET, GROUP_COMPRESSED, GROUP_ORDINAL = 1, 3, 5, 6, 7
FILE_PATH, CHUNK_OFFSET, CHUNK_META, OFFSET_INDEX, OFFSET_INDEX_SIZE, COLUMN_INDEX, COLUMN_INDEX_SIZE = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
)
CRYPTO = 8
COMPRESSED, DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, BLOOM, BLOOM_SIZE = 7, 9, 10, 11, 14, 15
PAGE_LOCATIONS, PAGE_OFFSET = 1, 1


@dataclass(frozen=True)
class Chunk:
    """Where the bytes of one column of one row group were, and where they are now."""

    input: Input = field(repr=False)
    start: int
    size: int
    copied_to: int


def footer_of(data: pyarrow.Buffer) -> Struct:
    """The footer as plain values."""
    length = int.from_bytes(data.slice(data.size - 8, 4).to_pybytes(), "little")
    if not 0 < length <= data.size - 12:
        raise Unusable("its footer has an impossible length")
    footer, _ = parse(memoryview(data)[data.size - 8 - length : data.size - 8])
    return footer


def why_not(inputs: Sequence[Input]) -> str | None:
    """Why these files cannot be joined like this; None if they can."""
    for each in inputs:  # a cheap look first: most files that we meet are small
        for number in range(each.metadata.num_row_groups):
            group = each.metadata.row_group(number)
            if group.total_byte_size < LARGE_ROW_GROUP_BYTES:  # before compression, and that is not smaller
                return f"row groups are small: one of {each.file.name} has {group.total_byte_size:,} bytes"
    first = footer_of(inputs[0].data)
    for each in inputs:
        footer = footer_of(each.data)
        for number, what in ((SCHEMA, "schemas"), (COLUMN_ORDERS, "column orders"), (CREATED_BY, "writers")):
            if _serialized(footer, number) != _serialized(first, number):
                return f"{what} differ"
        for group in footer.get_value(ROW_GROUPS).items:
            size = group.get_value(GROUP_COMPRESSED) or sum(
                chunk.get_value(CHUNK_META).get_value(COMPRESSED) for chunk in group.get_value(COLUMNS).items
            )
            if size < LARGE_ROW_GROUP_BYTES:
                return f"row groups are small: one of {each.file.name} has {size:,} bytes"
            for chunk in group.get_value(COLUMNS).items:
                if chunk.get(FILE_PATH) or chunk.get(CRYPTO) or chunk.get(CHUNK_META) is None:
                    return f"{each.file.name} keeps columns elsewhere, or encrypted"
    return None


def rows_by_checksums(each: Input) -> int | None:
    """How many rows a file has, if every page bears a checksum that holds; None if it must be decoded to know.

    A page whose checksum holds is what its writer wrote: it need not be decoded to be copied.
    """
    data = memoryview(each.data).cast("B")
    try:
        chunks = [chunk for group in each.footer.row_groups for chunk in group.chunks]
        sound = all(page.has_checksum for chunk in chunks for page in pages_of(data, chunk))
    except ThriftInvalid:
        return None
    return each.footer.rows if sound else None


def write(inputs: Sequence[Input], metadata: dict[bytes, bytes], sink: Spool) -> list[Chunk]:
    """Copy all row groups, in order; returns where each piece went, to be verified."""
    sink.write(MAGIC)
    place = len(MAGIC)
    chunks: list[Chunk] = []
    groups: list[Struct] = []
    indexes: list[tuple[Struct, Input, int]] = []
    for each in inputs:
        for group in footer_of(each.data).get_value(ROW_GROUPS).items:
            group_start = place
            for column in group.get_value(COLUMNS).items:
                meta = column.get_value(CHUNK_META)
                start = _start(meta)
                size = meta.get_value(COMPRESSED)
                sink.write(memoryview(each.data)[start : start + size])
                chunks.append(Chunk(each, start, size, place))
                _moved(column, meta, place - start)
                indexes.append((column, each, place - start))
                place += size
            group.set_value(GROUP_OFFSET, I64, group_start)
            if GROUP_ORDINAL in group:
                group.set_value(GROUP_ORDINAL, I16, len(groups))
            groups.append(group)
    place = _copy_indexes(indexes, place, sink)
    footer = footer_of(inputs[0].data)
    footer.set_value(ROW_GROUPS, LIST, ListOf(STRUCT, groups))
    footer.set_value(FILE_ROWS, I64, sum(group.get_value(GROUP_ROWS) for group in groups))
    footer.set_value(KEY_VALUES, LIST, ListOf(STRUCT, [_key_value(*item) for item in metadata.items()]))
    encoded = serialize(footer)
    sink.write(encoded + len(encoded).to_bytes(4, "little") + MAGIC)
    return chunks


def digest_of(inputs: Sequence[Input]) -> str:
    """One digest of all columns' bytes, in their order."""
    digest = xxhash.xxh3_128()
    for each in inputs:
        data = memoryview(each.data).cast("B")
        for group in footer_of(each.data).get_value(ROW_GROUPS).items:
            for column in group.get_value(COLUMNS).items:
                meta = column.get_value(CHUNK_META)
                digest.update(data[_start(meta) : _start(meta) + meta.get_value(COMPRESSED)])
    return digest.hexdigest()


def _serialized(footer: Struct, number: int) -> bytes:
    return serialize(Struct({number: footer[number]})) if number in footer else b""


def _start(meta: Struct) -> int:
    """The first byte of a column chunk. (Some writers say 0 for a dictionary page that is where data pages begin.)"""
    places = [meta.get_value(number) for number in (DATA_PAGE, DICTIONARY_PAGE)]
    return min(int(place) for place in places if place)


def _moved(column: Struct, meta: Struct, by: int) -> None:
    for number in (DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE):
        if meta.get_value(number):
            meta.set_value(number, I64, meta.get_value(number) + by)
    for number in (BLOOM, BLOOM_SIZE):
        meta.pop(number, None)  # a filter lies elsewhere in the file; queries do without
    if column.get_value(CHUNK_OFFSET):
        column.set_value(CHUNK_OFFSET, I64, column.get_value(CHUNK_OFFSET) + by)


def _copy_indexes(indexes: Sequence[tuple[Struct, Input, int]], place: int, sink: Spool) -> int:
    """Page indexes: column indexes as they are, offset indexes with the places their pages have now."""
    for column, each, _ in indexes:
        if column.get_value(COLUMN_INDEX) and column.get_value(COLUMN_INDEX_SIZE):
            start, size = column.get_value(COLUMN_INDEX), column.get_value(COLUMN_INDEX_SIZE)
            sink.write(memoryview(each.data)[start : start + size])
            column.set_value(COLUMN_INDEX, I64, place)
            place += size
    for column, each, by in indexes:
        if column.get_value(OFFSET_INDEX) and column.get_value(OFFSET_INDEX_SIZE):
            index, _ = parse(each.data, column.get_value(OFFSET_INDEX))
            for location in index.get_value(PAGE_LOCATIONS).items:
                location.set_value(PAGE_OFFSET, I64, location.get_value(PAGE_OFFSET) + by)
            encoded = serialize(index)
            sink.write(encoded)
            column.set_value(OFFSET_INDEX, I64, place)
            column.set_value(OFFSET_INDEX_SIZE, I32, len(encoded))
            place += len(encoded)
    return place


def _key_value(name: bytes, value: bytes) -> Struct:
    return Struct({1: (BINARY, name), 2: (BINARY, value)})


def differences(chunks: Sequence[Chunk], output: pyarrow.Buffer) -> list[str]:
    """What of the output is not, byte for byte, what the inputs have. Empty if all is well."""
    return [
        f"{chunk.input.file.name} at {chunk.start}"
        for chunk in chunks
        if not output.slice(chunk.copied_to, chunk.size).equals(chunk.input.data.slice(chunk.start, chunk.size))
    ]
