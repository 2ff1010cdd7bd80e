"""The footer of a Parquet file: where its columns lie and what is said about them. Read, and written."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compaction_platform.lake.parquet.thrift_compact import (
    BINARY,
    FALSE,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    ListOf,
    Path,
    Reader,
    Struct,
    StructReader,
    ThriftInvalid,
    Values,
    list_head,
    parse,
    parse_list_head,
    parse_value,
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
    is_all_null: bool = False


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
    """Reads footers that have much in common: what is the same byte for byte is read once. (Thrift's values say where
    they end: bytes that begin like a whole value are that value.)"""

    def __init__(self) -> None:
        self._row_group: Mapping[int, Reader] = {slot(1, LIST): self._chunks}
        self._file: Mapping[int, Reader] = {
            slot(_SCHEMA, LIST): _AsWritten().read,
            slot(_ROW_GROUPS, LIST): self._row_groups,
            slot(_COLUMN_ORDERS, LIST): _AsWritten().read,
        }

    def read(self, data: Any) -> Footer:
        """The footer of a file. Raises ThriftInvalid; also for one that is encrypted, or keeps columns elsewhere."""
        view = memoryview(data).cast("B")
        length = int.from_bytes(view[-8:-4], "little")
        if bytes(view[-4:]) != MAGIC or not 0 < length <= len(view) - 12:
            raise ThriftInvalid("it has no footer, or one that is encrypted")
        try:
            return self._footer(bytes(view[-8 - length : -8]))
        except (KeyError, TypeError, AttributeError) as lacking:
            raise ThriftInvalid("its footer lacks a field") from lacking

    def _footer(self, data: bytes) -> Footer:
        found, _ = parse(data, 0, self._file)
        if _ENCRYPTION in found or _SCHEMA not in found or _ROW_GROUPS not in found:
            raise ThriftInvalid("its footer says nothing about rows, or is encrypted")
        pairs = found.get_value(_KEY_VALUES)
        footer = Footer(
            found.get_value(_VERSION, 1),
            found.get_value(_SCHEMA),
            found.get_value(_ROW_GROUPS),
            {each.get_value(1, b""): each.get_value(2, b"") for each in pairs.items} if pairs else {},
            found.get_value(_CREATED_BY, b""),
            found.get_value(_COLUMN_ORDERS, b""),
        )
        texts = (footer.schema, footer.created_by, footer.column_orders, *footer.metadata, *footer.metadata.values())
        right_kinds = [(footer.version, int), (footer.row_groups, list), *((text, bytes) for text in texts)]
        if not all(isinstance(value, kind) for value, kind in right_kinds):
            raise ThriftInvalid("a field of its footer is of another kind than it should be")
        return footer

    def _row_groups(self, data: bytes, place: int) -> tuple[list[RowGroup], int]:
        size, place = _structures(data, place)
        groups = []
        for _ in range(size):
            told, place = parse(data, place, self._row_group)
            chunks = told.get_value(1)
            if not isinstance(chunks, list):
                raise ThriftInvalid("a row group has no columns")
            groups.append(RowGroup(_number(told.get_value(3)), chunks))
        return groups, place

    def _chunks(self, data: bytes, place: int) -> tuple[list[Chunk], int]:
        size, place = _structures(data, place)
        chunks = []
        for _ in range(size):
            told, place = _COLUMN.read(data, place, len(data))
            chunks.append(_chunk(told))
        return chunks, place


_OF_A_COLUMN = {
    (1,): "elsewhere",
    (3, 1): "physical",
    (3, 2): "encodings",
    (3, 3): "path",
    (3, 4): "codec",
    (3, 5): "values",
    (3, 6): "uncompressed",
    (3, 7): "compressed",
    (3, 9): "data_page",
    (3, 11): "dictionary_page",
    (3, 12, 3): "nulls",
    (3, 12, 5): "high",
    (3, 12, 6): "low",
    (3, 12, 7): "high_is_exact",
    (3, 12, 8): "low_is_exact",
    (4,): "offset_index",
    (5,): "offset_index_size",
    (6,): "column_index",
    (7,): "column_index_size",
    (8,): "encrypted",
}


def _chunk(told: Values) -> Chunk:
    if "elsewhere" in told or "encrypted" in told:
        raise ThriftInvalid("a column is encrypted, or in another file")
    get = told.get
    sizes = told["values"], told["compressed"], told["uncompressed"], told["data_page"]
    dictionary_page = get("dictionary_page", 0)
    path, encodings = told["path"], told["encodings"]
    if min(*sizes, dictionary_page) < 0 or not isinstance(path, tuple) or not isinstance(encodings, tuple):
        raise ThriftInvalid("a size is not one, or a list none")
    known = Statistics(get("low"), get("high"), get("low_is_exact"), get("high_is_exact"), get("nulls"))
    chunk = Chunk(path, told["physical"], told["codec"], *sizes, dictionary_page or None, encodings, (), known)
    if "offset_index" in told and "offset_index_size" in told:
        chunk.offset_index = (told["offset_index"], told["offset_index_size"])
    if "column_index" in told and "column_index_size" in told:
        chunk.column_index = (told["column_index"], told["column_index_size"])
    return chunk


def _names(parts: list[bytes]) -> tuple[str, ...]:
    return tuple(part.decode(errors="surrogateescape") for part in parts)


_WHAT_IT_IS: Mapping[Path, Callable[[list[Any]], Any]] = {(3, 2): tuple, (3, 3): _names}
_COLUMN = StructReader(_OF_A_COLUMN, _WHAT_IT_IS)


class _AsWritten:
    """A list, not taken apart. If it is the one that was there before, byte for byte, it is not even read."""

    def __init__(self) -> None:
        self._last = b""

    def read(self, data: bytes, place: int) -> tuple[bytes, int]:
        last = self._last  # another thread may read at the same time
        if last and data.startswith(last, place):
            return last, place + len(last)
        _, end = parse_value(data, LIST, place)
        self._last = found = data[place:end]
        return found, end


def _structures(data: bytes, place: int) -> tuple[int, int]:
    """How many structures a list has, and where the first begins."""
    size, kind, place = parse_list_head(data, place)
    if kind != STRUCT:
        raise ThriftInvalid("a list is not what it should be")
    return size, place


def _number(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ThriftInvalid("a size is not one")
    return value


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


# ---------------------------------------------------------------- page indexes


PageLocation = tuple[int, int, int]  # its place, its size with its header, and its first row


def offset_index_bytes(pages: Sequence[PageLocation]) -> bytes:
    """There is an entry for each page of each column: they are written as they are, without a structure for each."""
    locations = [
        b"\x16%b\x15%b\x16%b" % (varint(place << 1), varint(size << 1), varint(first_row << 1))
        for place, size, first_row in pages
    ]
    return b"\x19" + list_head(len(pages), STRUCT) + b"\0".join((*locations, b"\0"))


def column_index_bytes(pages: Sequence[Statistics], order: int) -> bytes | None:
    """None if something is not known about some page. `order`: 0 none, 1 ascending, 2 descending."""
    if any(not page.is_all_null and (page.low is None or page.high is None) for page in pages):
        return None
    size = len(pages)
    parts = [b"\x19", list_head(size, TRUE), bytes([TRUE if page.is_all_null else FALSE for page in pages])]
    for bounds in ([page.low or b"" for page in pages], [page.high or b"" for page in pages]):
        parts += (b"\x19", list_head(size, BINARY), *[varint(len(bound)) + bound for bound in bounds])
    parts += (b"\x15", zigzag(order))
    nulls = [page.nulls for page in pages]
    if None not in nulls:
        parts += (b"\x19", list_head(size, I64), *[varint((count or 0) << 1) for count in nulls])
    return b"".join((*parts, b"\0"))


def column_orders_bytes(columns: int) -> bytes:
    """Every column is ordered as its type is: so its bounds are computed."""
    type_order = Struct({1: (STRUCT, Struct())})
    return serialize(Struct({1: (LIST, ListOf(STRUCT, [type_order] * columns))}))[1:-1]
