"""The pages of a column: their headers, read and written. What is inside a page is not looked at."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compaction_platform.lake.parquet_format.footer import Chunk
from compaction_platform.lake.parquet_format.thrift import (
    STRUCT,
    Reader,
    ThriftInvalid,
    parse_fields,
    slot,
    varint,
    zigzag,
)

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


def pages_of(data: memoryview, chunk: Chunk, *, check: bool = True) -> Iterator[Page]:
    """The pages of a column in their order. Checksums are checked where there are any; unless whoever decodes the pages
    does that. `data` is the whole file."""
    place = chunk.start
    end = place + chunk.compressed
    if not 4 <= place <= end <= len(data):
        raise ThriftInvalid("a column lies outside of the file")
    values = uncompressed = 0
    while place < end:
        header, begins = _header(data, place, end)
        size, checksum = header.get(3), header.get(4, 0)
        if not isinstance(size, int) or not isinstance(checksum, int) or not 0 <= size <= end - begins:
            raise ThriftInvalid("a page is longer than its column, or does not say how long it is")
        page = _page(header, data[begins : begins + size])
        if check and page.has_checksum and zlib.crc32(page.data) != checksum & 0xFFFFFFFF:
            raise PageDamaged("the checksum of a page does not hold")
        values += 0 if page.kind == DICTIONARY else page.values
        uncompressed += begins - place + page.uncompressed
        place = begins + len(page.data)
        yield page
    if values != chunk.values:
        raise ThriftInvalid(f"the pages of a column have {values} values, its footer says {chunk.values}")
    if uncompressed != chunk.uncompressed:
        raise ThriftInvalid("the pages of a column have another size than its footer says")


def _header(data: memoryview, place: int, end: int) -> tuple[dict[int, Any], int]:
    for most in (_USUAL_HEADER, _LONGEST_HEADER):
        try:
            header, length = parse_fields(bytes(data[place : min(end, place + most)]), 0, _INSIDE)
        except (IndexError, ThriftInvalid):
            continue
        return header, place + length
    raise ThriftInvalid("the header of a page is cut off, or none")


def _page(header: dict[int, Any], data: memoryview) -> Page:
    try:
        kind, uncompressed = header[1], header[2]
        has_checksum = 4 in header
        told = header[_ABOUT.get(kind, 0)]
        if not isinstance(told, dict):
            raise ThriftInvalid("a page header is not one")
        if kind == DATA:
            page = Page(DATA, told[1], told[2], uncompressed, data, has_checksum, (told[3], told[4]))
            smallest = min(page.values, uncompressed)
        elif kind == DATA_V2:
            page = Page(DATA_V2, told[1], told[4], uncompressed, data, has_checksum)
            page.nulls, page.rows, page.definitions, page.repetitions = told[2], told[3], told[5], told[6]
            page.is_compressed = told.get(7, True)
            smallest = min(page.values, uncompressed, page.nulls, page.rows, page.definitions, page.repetitions)
        else:
            page = Page(DICTIONARY, told[1], told[2], uncompressed, data, has_checksum)
            smallest = min(page.values, uncompressed)
    except (KeyError, AttributeError, TypeError) as missing:
        raise ThriftInvalid("a page header lacks a field") from missing
    if smallest < 0:
        raise ThriftInvalid("a page header has a negative size")
    if page.definitions + page.repetitions > min(len(data), uncompressed) or page.nulls > page.values:
        raise ThriftInvalid("a page header contradicts itself")
    return page


def _inside(data: bytes, place: int) -> tuple[dict[int, Any], int]:
    """What is said about a page of one kind, and statistics, which are not used: they are in the footer, too."""
    return parse_fields(data, place, _STATISTICS)


_STATISTICS: Mapping[int, Reader] = {slot(5, STRUCT): parse_fields, slot(8, STRUCT): parse_fields}
_ABOUT = {DATA: 5, DICTIONARY: 7, DATA_V2: 8}  # the field that says more about a page of that kind
_INSIDE: Mapping[int, Reader] = {slot(number, STRUCT): _inside for number in _ABOUT.values()}


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
    return b"".join([_FIELDS.get(value) or b"\x15" + varint(value << 1) for value in values])


_FIELDS = {value: b"\x15" + varint(value << 1) for value in range(1 << 13)}  # most numbers are small
