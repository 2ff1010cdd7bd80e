"""The footer of a Parquet file: where its columns lie and what is said about them. Read, and written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compaction_platform.lake.parquet_format.thrift import (
    BINARY,
    FALSE,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    ListOf,
    Struct,
    ThriftInvalid,
    list_head,
    parse_field,
    parse_value,
    parse_varint,
    serialize,
    varint,
    zigzag,
)

MAGIC = b"PAR1"

# Numbers of fields of FileMetaData.
_VERSION, _SCHEMA, _ROWS, _ROW_GROUPS, _KEY_VALUES, _CREATED_BY, _COLUMN_ORDERS, _ENCRYPTION = range(1, 9)


@dataclass(slots=True)
class Statistics:
    """What is said about the values of a column, or of a page. Bounds are as they are written, and hold for all."""

    low: bytes | None = None
    high: bytes | None = None
    low_is_exact: bool | None = None  # None: nobody says
    high_is_exact: bool | None = None
    nulls: int | None = None


@dataclass(slots=True)
class Sizes:
    """How large values are, and how often each level occurs."""

    unencoded: int | None = None
    repetitions: list[int] | None = None
    definitions: list[int] | None = None


@dataclass(slots=True)
class Chunk:
    """One column of one row group."""

    path: tuple[str, ...]
    physical: int
    codec: int
    values: int
    compressed: int
    uncompressed: int
    data_page: int
    dictionary_page: int | None = None
    encodings: tuple[int, ...] = ()
    pages: tuple[tuple[int, int, int], ...] = ()  # of each kind of page and encoding, how many
    statistics: Statistics = field(default_factory=Statistics)
    old_bounds: tuple[bytes, bytes] | None = None  # lowest and highest in signed order, as old writers told
    sizes: Sizes | None = None
    column_index: tuple[int, int] | None = None  # place and length
    offset_index: tuple[int, int] | None = None

    @property
    def start(self) -> int:
        """Its first byte. (Some writers say 0 for a dictionary page that is where data pages begin.)"""
        return min(self.data_page, self.dictionary_page or self.data_page)


@dataclass(slots=True)
class RowGroup:
    rows: int
    chunks: list[Chunk]
    sorted_by: ListOf | None = None

    @property
    def uncompressed(self) -> int:
        return sum(chunk.uncompressed for chunk in self.chunks)

    @property
    def compressed(self) -> int:
        return sum(chunk.compressed for chunk in self.chunks)


@dataclass(slots=True)
class Footer:
    version: int
    schema: bytes  # as it is written
    row_groups: list[RowGroup]
    metadata: Mapping[bytes, bytes]
    created_by: bytes = b""
    column_orders: bytes = b""  # as they are written

    @property
    def rows(self) -> int:
        """By its row groups: what a footer says about the file has been seen wrong."""
        return sum(group.rows for group in self.row_groups)


@dataclass(frozen=True, slots=True)
class _Head:
    """How the description of a column begins."""

    data: bytes
    path: tuple[str, ...]
    physical: int
    encodings: tuple[int, ...]
    codec: int


class FooterReader:
    """Reads footers that have much in common: what was there before, byte for byte, is not read again. (Thrift's values
    say where they end: bytes that begin like a whole value are that value.)"""

    def __init__(self) -> None:
        self._schema = b""
        self._heads: dict[int, _Head] = {}
        self._counts: dict[int, bytes] = {}  # of columns: how many pages of each kind there are

    def read(self, data: Any) -> Footer:
        """The footer of a file. Raises ThriftInvalid; also for one that is encrypted, or keeps columns elsewhere."""
        view = memoryview(data).cast("B")
        length = int.from_bytes(view[-8:-4], "little")
        if bytes(view[-4:]) != MAGIC or not 0 < length <= len(view) - 12:
            raise ThriftInvalid("it has no footer, or one that is encrypted")
        try:
            return self._footer(bytes(view[-8 - length : -8]))
        except (IndexError, KeyError, TypeError, AttributeError) as lacking:
            raise ThriftInvalid("its footer is cut off, or lacks a field") from lacking

    def _footer(self, data: bytes) -> Footer:
        place = number = 0
        schema = self._schema  # another thread may read at the same time
        found: dict[int, Any] = {}
        while True:
            number, kind, place = parse_field(data, place, number)
            if not kind:
                break
            begins = place
            if number == _ROW_GROUPS and kind == LIST:
                found[number], place = self._row_groups(data, place)
            elif number == _SCHEMA and schema and data.startswith(schema, place):
                place += len(schema)
                found[number] = schema
            else:
                found[number], place = _value_of(data, kind, place)
                if number in (_SCHEMA, _COLUMN_ORDERS):
                    found[number] = data[begins:place]
        if _ENCRYPTION in found or _SCHEMA not in found or _ROW_GROUPS not in found:
            raise ThriftInvalid("its footer says nothing about rows, or is encrypted")
        self._schema = found[_SCHEMA]
        pairs = found.get(_KEY_VALUES)
        return Footer(
            found.get(_VERSION, 1),
            found[_SCHEMA],
            found[_ROW_GROUPS],
            {each.get_value(1, b""): each.get_value(2, b"") for each in pairs.items} if pairs else {},
            found.get(_CREATED_BY, b""),
            found.get(_COLUMN_ORDERS, b""),
        )

    def _row_groups(self, data: bytes, place: int) -> tuple[list[RowGroup], int]:
        size, place = _list_size(data, place)
        groups = []
        for _ in range(size):
            number = 0
            chunks: list[Chunk] | None = None
            told: dict[int, Any] = {}
            while True:
                number, kind, place = parse_field(data, place, number)
                if not kind:
                    break
                if number == 1 and kind == LIST:
                    chunks, place = self._chunks(data, place)
                else:
                    told[number], place = _value_of(data, kind, place)
            if chunks is None:
                raise ThriftInvalid("a row group has no columns")
            groups.append(RowGroup(_number(told.get(3)), chunks, told.get(4)))
        return groups, place

    def _chunks(self, data: bytes, place: int) -> tuple[list[Chunk], int]:
        size, place = _list_size(data, place)
        chunks = []
        for column in range(size):
            number = 0
            chunk: Chunk | None = None
            told: dict[int, Any] = {}
            while True:
                number, kind, place = parse_field(data, place, number)
                if not kind:
                    break
                if number == 3 and kind == STRUCT:
                    chunk, place = self._chunk(data, place, column)
                else:
                    told[number], place = _value_of(data, kind, place)
            if chunk is None or 1 in told or 8 in told:
                raise ThriftInvalid("a column is encrypted, or in another file")
            if 4 in told and 5 in told:
                chunk.offset_index = (told[4], told[5])
            if 6 in told and 7 in told:
                chunk.column_index = (told[6], told[7])
            chunks.append(chunk)
        return chunks, place

    def _chunk(self, data: bytes, place: int, column: int) -> tuple[Chunk, int]:
        told: dict[int, Any] = {}
        number = 0
        head = self._heads.get(column)
        begins = place
        if head and data.startswith(head.data, place):
            number, place = 4, place + len(head.data)
        else:
            head = None
        while True:
            number, kind, place = parse_field(data, place, number)
            if not kind:
                break
            counts = self._counts.get(column)
            if number == 13 and counts and data.startswith(counts, place):
                place += len(counts)
                continue
            start = place
            told[number], place = _value_of(data, kind, place)
            if number == 4 and told.keys() == {1, 2, 3, 4}:
                path = tuple(part.decode(errors="surrogateescape") for part in told[3].items)
                head = self._heads[column] = _Head(data[begins:place], path, told[1], tuple(told[2].items), told[4])
            elif number == 13:
                self._counts[column] = data[start:place]
        if head is None:
            raise ThriftInvalid("a column does not say what it is")
        values, uncompressed, compressed, data_page = (_number(told[field]) for field in (5, 6, 7, 9))
        dictionary_page = told.get(11) or None
        sizes = (values, compressed, uncompressed)
        chunk = Chunk(head.path, head.physical, head.codec, *sizes, data_page, dictionary_page, head.encodings)
        _tell(chunk, told.get(12))
        if lengths := told.get(16):
            lists = (lengths.get_value(number) for number in (2, 3))
            chunk.sizes = Sizes(lengths.get_value(1), *(each.items if each else None for each in lists))
        return chunk, place


def _value_of(data: bytes, kind: int, place: int) -> tuple[Any, int]:
    """A field's value. Truth values are in their field's head."""
    return (kind == TRUE, place) if kind <= FALSE else parse_value(data, kind, place)


def _list_size(data: bytes, place: int) -> tuple[int, int]:
    """How many structures a list has, and where the first begins."""
    size, kind = data[place] >> 4, data[place] & 0x0F
    place += 1
    if size == 15:
        size, place = parse_varint(data, place)
    if kind != STRUCT or size > len(data) - place:
        raise ThriftInvalid("a list is not what it should be")
    return size, place


def _number(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ThriftInvalid("a size is not one")
    return value


def _tell(chunk: Chunk, told: Struct | None) -> None:
    if not told:
        return
    chunk.statistics = Statistics(
        told.get_value(6), told.get_value(5), told.get_value(8), told.get_value(7), told.get_value(3)
    )
    if 1 in told and 2 in told:
        chunk.old_bounds = (told[2][1], told[1][1])


# ---------------------------------------------------------------- writing


def footer_bytes(footer: Footer) -> bytes:
    """The end of a file: the footer, its length and the mark."""
    groups = [_row_group_struct(number, group) for number, group in enumerate(footer.row_groups)]
    head = b"\x15" + zigzag(footer.version) + b"\x19" + footer.schema  # fields 1 and 2; the schema as it was
    rest = Struct({_ROWS: (I64, footer.rows), _ROW_GROUPS: (LIST, ListOf(STRUCT, groups))})
    pairs = [Struct({1: (BINARY, key), 2: (BINARY, value)}) for key, value in footer.metadata.items()]
    rest.set_value(_KEY_VALUES, LIST, ListOf(STRUCT, pairs))
    rest.set_value(_CREATED_BY, BINARY, footer.created_by)
    encoded = serialize(rest)
    # The first field of `rest` is 3 behind nothing; here it comes behind field 2. Column orders follow field 6.
    encoded = bytes([encoded[0] - (_SCHEMA << 4)]) + encoded[1:-1]
    orders = b"\x19" + footer.column_orders if footer.column_orders else b""
    whole = head + encoded + orders + b"\x00"
    return whole + len(whole).to_bytes(4, "little") + MAGIC


def _row_group_struct(number: int, group: RowGroup) -> Struct:
    columns = [_column_struct(chunk) for chunk in group.chunks]
    made = Struct(
        {
            1: (LIST, ListOf(STRUCT, columns)),
            2: (I64, group.uncompressed),
            3: (I64, group.rows),
            6: (I64, group.compressed),
        }
    )
    if group.sorted_by is not None:
        made.set_value(4, LIST, group.sorted_by)
    if group.chunks:
        made.set_value(5, I64, group.chunks[0].start)
    if number < 1 << 15:
        made.set_value(7, I16, number)
    return made


def _column_struct(chunk: Chunk) -> Struct:
    names = [part.encode(errors="surrogateescape") for part in chunk.path]
    meta = Struct(
        {
            1: (I32, chunk.physical),
            2: (LIST, ListOf(I32, list(chunk.encodings))),
            3: (LIST, ListOf(BINARY, names)),
            4: (I32, chunk.codec),
            5: (I64, chunk.values),
            6: (I64, chunk.uncompressed),
            7: (I64, chunk.compressed),
            9: (I64, chunk.data_page),
        }
    )
    if chunk.dictionary_page is not None:
        meta.set_value(11, I64, chunk.dictionary_page)
    if told := _statistics_struct(chunk.statistics):
        meta.set_value(12, STRUCT, told)
    if chunk.pages:
        counted = [Struct({1: (I32, kind), 2: (I32, how), 3: (I32, count)}) for kind, how, count in chunk.pages]
        meta.set_value(13, LIST, ListOf(STRUCT, counted))
    if chunk.sizes:
        meta.set_value(16, STRUCT, _sizes_struct(chunk.sizes))
    column = Struct({2: (I64, 0), 3: (STRUCT, meta)})
    for first, index in ((4, chunk.offset_index), (6, chunk.column_index)):
        if index:
            column.set_value(first, I64, index[0])
            column.set_value(first + 1, I32, index[1])
    return column


def _statistics_struct(statistics: Statistics) -> Struct:
    told = Struct()
    if statistics.nulls is not None:
        told.set_value(3, I64, statistics.nulls)
    if statistics.low is not None and statistics.high is not None:
        told.set_value(5, BINARY, statistics.high)
        told.set_value(6, BINARY, statistics.low)
        for number, is_exact in ((7, statistics.high_is_exact), (8, statistics.low_is_exact)):
            if is_exact is not None:
                told.set_value(number, TRUE, is_exact)
    return told


def _sizes_struct(sizes: Sizes) -> Struct:
    made = Struct()
    if sizes.unencoded is not None:
        made.set_value(1, I64, sizes.unencoded)
    for number, histogram in ((2, sizes.repetitions), (3, sizes.definitions)):
        if histogram is not None:
            made.set_value(number, LIST, ListOf(I64, histogram))
    return made


# ---------------------------------------------------------------- page indexes


@dataclass(slots=True)
class PageLocation:
    place: int
    size: int  # with its header
    first_row: int


def offset_index_bytes(pages: Sequence[PageLocation]) -> bytes:
    """There is an entry for each page of each column: they are written as they are, without a structure for each."""
    locations = [
        b"\x16" + varint(page.place << 1) + b"\x15" + varint(page.size << 1) + b"\x16" + varint(page.first_row << 1)
        for page in pages
    ]
    return b"\x19" + list_head(len(pages), STRUCT) + b"\0".join((*locations, b"\0"))


def column_index_bytes(pages: Sequence[Statistics], is_null: Sequence[bool], order: int) -> bytes:
    """`order`: 0 none, 1 ascending, 2 descending."""
    index = Struct(
        {
            1: (LIST, ListOf(TRUE, list(is_null))),
            2: (LIST, ListOf(BINARY, [page.low or b"" for page in pages])),
            3: (LIST, ListOf(BINARY, [page.high or b"" for page in pages])),
            4: (I32, order),
        }
    )
    if all(page.nulls is not None for page in pages):
        index.set_value(5, LIST, ListOf(I64, [page.nulls for page in pages]))
    return serialize(index)
