"""The footer of a Parquet file: where its columns lie and what is said about them. Read, and written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compaction_platform.lake.parquet_format.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    ListOf,
    Reader,
    Struct,
    ThriftInvalid,
    list_head,
    parse_fields,
    parse_value,
    parse_varint,
    serialize,
    slot,
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


class FooterReader:
    """Reads footers that have much in common: what was there before, byte for byte, is not read again. (Thrift's values
    say where they end: bytes that begin like a whole value are that value.)"""

    def __init__(self) -> None:
        self._schema = b""
        self._columns: list[_ColumnReader] = []  # by the place of the column
        self._row_group: Mapping[int, Reader] = {slot(1, LIST): self._chunks}
        self._file: Mapping[int, Reader] = {
            slot(_SCHEMA, LIST): self._known_schema,
            slot(_ROW_GROUPS, LIST): self._row_groups,
            slot(_COLUMN_ORDERS, LIST): _as_written,
        }

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
        found, _ = parse_fields(data, 0, self._file)
        if _ENCRYPTION in found or _SCHEMA not in found or _ROW_GROUPS not in found:
            raise ThriftInvalid("its footer says nothing about rows, or is encrypted")
        pairs = found.get(_KEY_VALUES)
        return Footer(
            found.get(_VERSION, 1),
            found[_SCHEMA],
            found[_ROW_GROUPS],
            {each.get_value(1, b""): each.get_value(2, b"") for each in pairs.items} if pairs else {},
            found.get(_CREATED_BY, b""),
            found.get(_COLUMN_ORDERS, b""),
        )

    def _known_schema(self, data: bytes, place: int) -> tuple[bytes, int]:
        schema = self._schema  # another thread may read at the same time
        if schema and data.startswith(schema, place):
            return schema, place + len(schema)
        self._schema, place = found = _as_written(data, place)
        return found

    def _row_groups(self, data: bytes, place: int) -> tuple[list[RowGroup], int]:
        size, place = _list_size(data, place)
        groups = []
        for _ in range(size):
            told, place = parse_fields(data, place, self._row_group)
            if not isinstance(told.get(1), list):
                raise ThriftInvalid("a row group has no columns")
            groups.append(RowGroup(_number(told.get(3)), told[1], told.get(4)))
        return groups, place

    def _chunks(self, data: bytes, place: int) -> tuple[list[Chunk], int]:
        size, place = _list_size(data, place)
        chunks = []
        for number in range(size):
            if number >= len(self._columns):  # a list may claim more than there are
                self._columns.append(_ColumnReader())
            told, place = parse_fields(data, place, self._columns[number].outside)
            chunk = told.get(3)
            if not isinstance(chunk, Chunk) or 1 in told or 8 in told:
                raise ThriftInvalid("a column is encrypted, or in another file")
            if 4 in told and 5 in told:
                chunk.offset_index = (told[4], told[5])
            if 6 in told and 7 in told:
                chunk.column_index = (told[6], told[7])
            chunks.append(chunk)
        return chunks, place


_WHAT_IT_IS = frozenset((1, 2, 3, 4))  # fields of a column's description


@dataclass(frozen=True, slots=True)
class _Head:
    """How the description of a column begins: what it is, its fields 1 to 4."""

    data: bytes  # none if they are not in their usual form
    path: tuple[str, ...]
    physical: int
    encodings: tuple[int, ...]
    codec: int


class _ColumnReader:
    """Reads what is said about one column, in one file after the other."""

    def __init__(self) -> None:
        self.outside: Mapping[int, Reader] = {slot(3, STRUCT): self.read}
        self._inside: Mapping[int, Reader] = {
            slot(12, STRUCT): parse_fields,
            slot(13, LIST): self._known_counts,
            slot(16, STRUCT): _sizes,
        }
        self._head: _Head | None = None
        self._counts = b""  # how many pages of each kind there are

    def read(self, data: bytes, place: int) -> tuple[Chunk, int]:
        head = self._head
        is_known = head is not None and bool(head.data) and data.startswith(head.data, place)
        if head is not None and is_known:
            told, end = parse_fields(data, place + len(head.data), self._inside, 4)
            is_known = told.keys().isdisjoint(_WHAT_IT_IS)  # nothing of it is said again
        if head is None or not is_known:
            told, end = parse_fields(data, place, self._inside)
            head = self._head = _head(data, place, told)
        chunk = Chunk(
            head.path,
            head.physical,
            head.codec,
            _number(told[5]),
            _number(told[7]),
            _number(told[6]),
            _number(told[9]),
            _number(told.get(11) or 0) or None,
            head.encodings,
            sizes=told.get(16),
        )
        if 12 in told:
            _tell(chunk, told[12])
        return chunk, end

    def _known_counts(self, data: bytes, place: int) -> tuple[None, int]:
        counts = self._counts
        if counts and data.startswith(counts, place):
            return None, place + len(counts)
        self._counts, place = _as_written(data, place)
        return None, place


def _head(data: bytes, place: int, told: dict[int, Any]) -> _Head:
    """What a column says about itself."""
    path = tuple(part.decode(errors="surrogateescape") for part in told[3].items)
    encodings = tuple(told[2].items)
    usual = _description(told[1], encodings, path, told[4])
    return _Head(usual if data.startswith(usual, place) else b"", path, told[1], encodings, told[4])


def _as_written(data: bytes, place: int) -> tuple[bytes, int]:
    """A list, not taken apart."""
    _, end = parse_value(data, LIST, place)
    return data[place:end], end


def _sizes(data: bytes, place: int) -> tuple[Sizes, int]:
    told, place = parse_fields(data, place, _HISTOGRAMS)
    return Sizes(told.get(1), told.get(2), told.get(3)), place


def _histogram(data: bytes, place: int) -> tuple[list[int], int]:
    found, place = parse_value(data, LIST, place)
    return found.items, place


_HISTOGRAMS: Mapping[int, Reader] = {slot(2, LIST): _histogram, slot(3, LIST): _histogram}


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


def _tell(chunk: Chunk, told: dict[int, Any]) -> None:
    get = told.get
    chunk.statistics = Statistics(get(6), get(5), get(8), get(7), get(3))
    if 1 in told and 2 in told:
        chunk.old_bounds = (told[2], told[1])


# ---------------------------------------------------------------- writing


def footer_bytes(footer: Footer) -> bytes:
    """The end of a file: the footer, its length and the mark."""
    groups = [_row_group_bytes(number, group) for number, group in enumerate(footer.row_groups)]
    pairs = [Struct({1: (BINARY, key), 2: (BINARY, value)}) for key, value in footer.metadata.items()]
    rest = Struct({_KEY_VALUES: (LIST, ListOf(STRUCT, pairs)), _CREATED_BY: (BINARY, footer.created_by)})
    parts = [b"\x15", zigzag(footer.version), b"\x19", footer.schema]  # the schema as it was
    parts += (b"\x16", zigzag(footer.rows), b"\x19", list_head(len(groups), STRUCT), *groups)
    parts.append(serialize(rest, _ROW_GROUPS)[:-1])
    if footer.column_orders:
        parts += (b"\x19", footer.column_orders)
    whole = b"".join((*parts, b"\0"))
    return whole + len(whole).to_bytes(4, "little") + MAGIC


def _row_group_bytes(number: int, group: RowGroup) -> bytes:
    columns = [_column_bytes(chunk) for chunk in group.chunks]
    parts = [b"\x19", list_head(len(columns), STRUCT), *columns]
    parts += (b"\x16", zigzag(group.uncompressed), b"\x16", zigzag(group.rows))
    step = 2  # fields are told by their distance from the one before; 3 was the last
    if group.sorted_by is not None:
        parts.append(serialize(Struct({4: (LIST, group.sorted_by)}), 3)[:-1])
        step = 1
    if group.chunks:
        parts += (bytes([step << 4 | I64]), zigzag(group.chunks[0].start))
        step = 0
    parts += (bytes([step + 1 << 4 | I64]), zigzag(group.compressed))
    if number < 1 << 15:
        parts += (b"\x14", zigzag(number))
    return b"".join((*parts, b"\0"))


def _description(physical: int, encodings: Sequence[int], path: Sequence[str], codec: int) -> bytes:
    """What a column is: fields 1 to 4."""
    names = [part.encode(errors="surrogateescape") for part in path]
    return b"".join(
        (
            b"\x15",
            zigzag(physical),
            b"\x19",
            list_head(len(encodings), I32),
            *(zigzag(each) for each in encodings),
            b"\x19",
            list_head(len(names), BINARY),
            *(varint(len(name)) + name for name in names),
            b"\x15",
            zigzag(codec),
        )
    )


def _column_bytes(chunk: Chunk) -> bytes:
    """There is one for each column of each row group: written as it is, without a structure for each."""
    parts = [
        b"\x26\x00\x1c",  # field 2, which means nothing any more, and the beginning of field 3
        _description(chunk.physical, chunk.encodings, chunk.path, chunk.codec),
        b"\x16",
        zigzag(chunk.values),
        b"\x16",
        zigzag(chunk.uncompressed),
        b"\x16",
        zigzag(chunk.compressed),
        b"\x26",
        zigzag(chunk.data_page),
    ]
    last = 9
    if chunk.dictionary_page is not None:
        parts += (b"\x26", zigzag(chunk.dictionary_page))
        last = 11
    rest = Struct()
    if told := _statistics_struct(chunk.statistics):
        rest.set_value(12, STRUCT, told)
    if chunk.pages:
        counted = [Struct({1: (I32, kind), 2: (I32, how), 3: (I32, count)}) for kind, how, count in chunk.pages]
        rest.set_value(13, LIST, ListOf(STRUCT, counted))
    if chunk.sizes:
        rest.set_value(16, STRUCT, _sizes_struct(chunk.sizes))
    parts.append(serialize(rest, last))
    outside = Struct()
    for first, index in ((4, chunk.offset_index), (6, chunk.column_index)):
        if index:
            outside.set_value(first, I64, index[0])
            outside.set_value(first + 1, I32, index[1])
    parts.append(serialize(outside, 3))
    return b"".join(parts)


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
