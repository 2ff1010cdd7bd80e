"""The pages of a column: their headers, read and written. What is inside a page is not looked at."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from compaction_platform.lake.parquet_format.footer import Chunk
from compaction_platform.lake.parquet_format.thrift import Struct, ThriftInvalid, parse, varint, zigzag

DATA, INDEX, DICTIONARY, DATA_V2 = range(4)
PLAIN, PLAIN_DICTIONARY, RLE, BIT_PACKED, DELTA_BINARY_PACKED, RLE_DICTIONARY = 0, 2, 3, 4, 5, 8

_USUAL_HEADER = 256
_LONGEST_HEADER = 1 << 20  # it may hold statistics: two values of any length


class PageDamaged(ThriftInvalid):
    """The bytes of a page are not those that its checksum was made of."""


@dataclass(slots=True)
class Page:
    """A page with its bytes, as they lie in the file: levels and values, compressed or not."""

    kind: int
    values: int
    encoding: int
    uncompressed: int
    data: memoryview
    has_checksum: bool = False
    level_encodings: tuple[int, int] = (RLE, RLE)  # of definitions and repetitions
    nulls: int = 0  # this and what follows: in DATA_V2 only
    rows: int = 0
    definitions: int = 0  # bytes of them
    repetitions: int = 0
    is_compressed: bool = True
    before: bytes = b""  # of a page to be written: what comes before its data, as part of it

    @property
    def uses_dictionary(self) -> bool:
        return self.encoding in (PLAIN_DICTIONARY, RLE_DICTIONARY)

    @property
    def is_data(self) -> bool:
        return self.kind != DICTIONARY

    @property
    def header(self) -> tuple[Any, ...]:
        """All that tells how its bytes are to be read."""
        told = (self.kind, self.values, self.encoding, self.uncompressed, self.level_encodings, self.is_compressed)
        return (*told, self.nulls, self.rows, self.definitions, self.repetitions)


def pages_of(data: memoryview, chunk: Chunk) -> Iterator[Page]:
    """The pages of a column in their order, each with its checksum if it bears one. `data` is the whole file."""
    place = chunk.start
    end = place + chunk.compressed
    if not 4 <= place <= end <= len(data):
        raise ThriftInvalid("a column lies outside of the file")
    values = uncompressed = 0
    while place < end:
        header, begins = _header(data, place, end)
        page = _page(header, data[begins : begins + header.get_value(3, -1)])
        if len(page.data) != header.get_value(3) or begins + len(page.data) > end:
            raise ThriftInvalid("a page is longer than its column")
        if page.has_checksum and zlib.crc32(page.data) != header[4][1] & 0xFFFFFFFF:
            raise PageDamaged("the checksum of a page does not hold")
        values += 0 if page.kind == DICTIONARY else page.values
        uncompressed += begins - place + page.uncompressed
        place = begins + len(page.data)
        yield page
    if values != chunk.values:
        raise ThriftInvalid(f"the pages of a column have {values} values, its footer says {chunk.values}")
    if uncompressed != chunk.uncompressed:
        raise ThriftInvalid("the pages of a column have another size than its footer says")


def _header(data: memoryview, place: int, end: int) -> tuple[Struct, int]:
    head = bytes(data[place : min(end, place + _USUAL_HEADER)])
    try:
        header, length = parse(head)
    except ThriftInvalid:
        header, length = parse(bytes(data[place : min(end, place + _LONGEST_HEADER)]))
    return header, place + length


def _page(header: Struct, data: memoryview) -> Page:
    try:
        kind, uncompressed = header[1][1], header[2][1]
        has_checksum = 4 in header
        if kind == DATA:
            told = header[5][1]
            levels = (told[3][1], told[4][1])
            page = Page(DATA, told[1][1], told[2][1], uncompressed, data, has_checksum, levels)
        elif kind == DATA_V2:
            told = header[8][1]
            page = Page(DATA_V2, told[1][1], told[4][1], uncompressed, data, has_checksum)
            page.nulls, page.rows, page.definitions, page.repetitions = (told[number][1] for number in (2, 3, 5, 6))
            page.is_compressed = told.get_value(7, True)
        elif kind == DICTIONARY:
            told = header[7][1]
            page = Page(DICTIONARY, told[1][1], told[2][1], uncompressed, data, has_checksum)
        else:
            raise ThriftInvalid(f"there is a page of kind {kind}")
    except (KeyError, AttributeError, TypeError) as missing:
        raise ThriftInvalid("a page header lacks a field") from missing
    if min(page.values, page.uncompressed, page.nulls, page.rows, page.definitions, page.repetitions) < 0:
        raise ThriftInvalid("a page header has a negative size")
    if page.definitions + page.repetitions > min(len(data), uncompressed) or page.nulls > page.values:
        raise ThriftInvalid("a page header contradicts itself")
    return page


# ---------------------------------------------------------------- writing


def header_of(page: Page, *, checksum: bool = True) -> bytes:
    """A new header for these bytes, with their checksum and without statistics: those are in the page index."""
    head = _integers((page.kind, page.uncompressed, len(page.before) + len(page.data)))
    if checksum:
        unsigned = zlib.crc32(page.data, zlib.crc32(page.before))
        head += b"\x15" + zigzag(unsigned - (1 << 32) if unsigned >> 31 else unsigned)
    step = 0 if checksum else 1 << 4  # fields are told by their distance from the one before
    if page.kind == DATA:
        head += bytes([0x1C + step]) + _integers((page.values, page.encoding, *page.level_encodings))
    elif page.kind == DATA_V2:
        sizes = (page.values, page.nulls, page.rows, page.encoding, page.definitions, page.repetitions)
        head += bytes([0x4C + step]) + _integers(sizes) + (b"\x11" if page.is_compressed else b"\x12")
    else:
        head += bytes([0x3C + step]) + _integers((page.values, page.encoding))
    return head + b"\0\0"


def _integers(values: Sequence[int]) -> bytes:
    return b"".join(b"\x15" + varint(value << 1) for value in values)
