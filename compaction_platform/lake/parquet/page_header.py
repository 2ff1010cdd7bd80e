"""The pages of a column: their headers, read and written. What is inside a page is not looked at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isal.isal_zlib import crc32

from compaction_platform.lake.parquet.footer import Chunk
from compaction_platform.lake.parquet.thrift_compact import StructReader, ThriftInvalid, Values, varint, zigzag

DATA, INDEX, DICTIONARY, DATA_V2 = range(4)
PLAIN, PLAIN_DICTIONARY, RLE, BIT_PACKED, DELTA_BINARY_PACKED, RLE_DICTIONARY = 0, 2, 3, 4, 5, 8

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


def pages_of(data: memoryview, chunk: Chunk, *, check: bool = True) -> list[Page]:
    """The pages of a column in their order. Checksums are checked where there are any; unless whoever decodes the pages
    does that. `data` is the whole file."""
    place = chunk.start
    end = place + chunk.compressed
    if not 4 <= place <= end <= len(data):
        raise ThriftInvalid("a column lies outside of the file")
    pages = []
    values = uncompressed = 0
    while place < end:
        told, begins = _HEADER.read(data, place, min(end, place + _LONGEST_HEADER))
        page = _page(told, data, begins, end)
        if check and page.has_checksum and crc32(page.data) != told["checksum"] & 0xFFFFFFFF:
            raise PageDamaged("the checksum of a page does not hold")
        values += 0 if page.kind == DICTIONARY else page.values
        uncompressed += begins - place + page.uncompressed
        place = begins + len(page.data)
        pages.append(page)
    if values != chunk.values:
        raise ThriftInvalid(f"the pages of a column have {values} values, its footer says {chunk.values}")
    if uncompressed != chunk.uncompressed:
        raise ThriftInvalid("the pages of a column have another size than its footer says")
    return pages


def _page(told: Values, data: memoryview, begins: int, end: int) -> Page:
    try:
        kind, uncompressed, size, has_checksum = told["kind"], told["uncompressed"], told["size"], "checksum" in told
        if not 0 <= size <= end - begins or not isinstance(told.get("checksum", 0), int):
            raise ThriftInvalid("a page is longer than its column, or has no checksum where one is told")
        body = data[begins : begins + size]
        if kind == DATA:
            levels = (told["definition_levels"], told["repetition_levels"])
            page = Page(DATA, told["values"], told["encoding"], uncompressed, body, has_checksum, levels)
            smallest = min(page.values, uncompressed)
        elif kind == DATA_V2:
            page = Page(DATA_V2, told["values_2"], told["encoding_2"], uncompressed, body, has_checksum)
            page.nulls, page.rows = told["nulls"], told["rows"]
            page.definitions, page.repetitions = told["definitions"], told["repetitions"]
            page.is_compressed = told.get("is_compressed", True)
            smallest = min(page.values, uncompressed, page.nulls, page.rows, page.definitions, page.repetitions)
        elif kind == DICTIONARY:
            page = Page(DICTIONARY, told["entries"], told["encoding_of_entries"], uncompressed, body, has_checksum)
            smallest = min(page.values, uncompressed)
        else:
            raise ThriftInvalid("a page is of no known kind")
    except (KeyError, TypeError) as missing:
        raise ThriftInvalid("a page header lacks a field") from missing
    if smallest < 0:
        raise ThriftInvalid("a page header has a negative size")
    if page.definitions + page.repetitions > min(size, uncompressed) or page.nulls > page.values:
        raise ThriftInvalid("a page header contradicts itself")
    return page


_OF_A_PAGE = {
    (1,): "kind",
    (2,): "uncompressed",
    (3,): "size",
    (4,): "checksum",
    (5, 1): "values",
    (5, 2): "encoding",
    (5, 3): "definition_levels",
    (5, 4): "repetition_levels",
    (7, 1): "entries",
    (7, 2): "encoding_of_entries",
    (8, 1): "values_2",
    (8, 2): "nulls",
    (8, 3): "rows",
    (8, 4): "encoding_2",
    (8, 5): "definitions",
    (8, 6): "repetitions",
    (8, 7): "is_compressed",
}
_HEADER = StructReader(_OF_A_PAGE)


# ---------------------------------------------------------------- writing


def header_of(page: Page, *, checksum: bool = True) -> bytes:
    """A new header for these bytes, with their checksum and without statistics: those are in the page index."""
    head = _integers((page.kind, page.uncompressed, len(page.before) + len(page.data)))
    if checksum:
        unsigned = crc32(page.data, crc32(page.before)) if page.before else crc32(page.data)
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
