"""Files become one: which row groups go together, their columns one after the other, page indexes and a new footer."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from compaction_platform.lake.parquet.codecs import NAMES, NUMBERS, UNCOMPRESSED
from compaction_platform.lake.parquet.footer import (
    MAGIC,
    Chunk,
    Footer,
    FooterReader,
    PageLocation,
    RowGroup,
    column_index_bytes,
    column_orders_bytes,
    footer_bytes,
    offset_index_bytes,
)
from compaction_platform.lake.parquet.page_header import DATA_V2, DICTIONARY, RLE, HeaderReader, Page, header_of
from compaction_platform.lake.parquet.schema_elements import (
    INT96,
    Leaf,
    columns_of,
    elements_of,
    schema_bytes,
    with_nulls,
)
from compaction_platform.lake.parquet.stitch.column_chunks import (
    ColumnChunks,
    SourceChunk,
    StitchedColumn,
    Strategy,
    read_source_chunk,
)
from compaction_platform.lake.parquet.stitch.errors import StitchUnsupported, unsupported_if_unreadable
from compaction_platform.lake.parquet.stitch.source import Part, StitchSource
from compaction_platform.lake.parquet.stitch.statistics import Bounds, boundary_order, merged
from compaction_platform.lake.parquet.stitch.strategy import Poor, column_of

FEWEST_ROWS = 512  # of a row group, on average: what is smaller makes pages that are too small for any reader
LARGEST_ROW_GROUP = 512 << 20  # decoded; to be verified it is held in memory
MOST_CHUNKS = 200_000  # what is known about each takes about 2 KB
WRITTEN_AT_ONCE = 1 << 20
LARGE = 64 << 10
DENIES_COMPRESSION = b"parquet-cpp version "  # as Arrow called itself then; readers know, and believe it nothing
CREATED_BY = b"compaction_platform version 0.1.0 (build stitch)"


@dataclass(frozen=True)
class StitchPlan:
    """Which row groups (of which source, with which number) become one, and the columns they then have."""

    sources: tuple[StitchSource, ...]
    groups: tuple[tuple[Part, ...], ...]
    schema: bytes
    leaves: tuple[Leaf, ...]
    _pieces: dict[tuple[int, int], list[SourceChunk]] = field(default_factory=dict, repr=False, compare=False)
    _headers: dict[int, HeaderReader] = field(default_factory=dict, repr=False, compare=False)

    def pieces(self, group: int, place: int) -> list[SourceChunk]:
        """The chunks that become one, by the number of the new row group and the place of the column. They are looked
        at once: to be written, and to be held against what was written."""
        if (group, place) not in self._pieces:
            headers = self._headers.setdefault(place, HeaderReader())
            self._pieces[group, place] = [
                _piece_of(source, number, place, headers) for source, number in self.groups[group]
            ]
        return self._pieces[group, place]

    @cached_property
    def codecs(self) -> tuple[int, ...]:
        """What each column is compressed by: as most of its values are, and the same in all row groups. (Some readers
        take the first row group's codec for the others.)"""
        sizes: list[Counter[int]] = [Counter() for _ in self.leaves]
        for source, number in (part for group in self.groups for part in group):
            for counted, chunk in zip(sizes, source.footer.row_groups[number].chunks, strict=True):
                counted[chunk.codec] += chunk.uncompressed
        return tuple(counted.most_common(1)[0][0] if counted else UNCOMPRESSED for counted in sizes)

    @property
    def created_by(self) -> bytes:
        """Readers look at who has written INT96 timestamps: that stays."""
        writers = {source.footer.created_by for source in self.sources}
        has_int96 = any(leaf.physical == INT96 for leaf in self.leaves)
        alike = len(writers) == 1 or all(each.startswith(b"parquet-mr") for each in writers)
        return min(writers) if has_int96 and alike else CREATED_BY

    @property
    def rows(self) -> int:
        return sum(source.footer.rows for source in self.sources)


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """Why a column of a new row group was made as it was."""

    column: str
    strategy: Strategy
    reason: str

    def __str__(self) -> str:
        return f"{self.column}: {self.strategy} ({self.reason})"


ColumnStrategies = tuple[tuple[str, Strategy], ...]


def column_strategies(columns: Sequence[ColumnChoice]) -> ColumnStrategies:
    """Outputs whose columns were made in the same ways need not all be told about."""
    return tuple((each.column, each.strategy) for each in columns)


def footers_of(files: Sequence[Any]) -> list[Footer]:
    """The footers of these files. Raises StitchUnsupported if one of them has none that can be read."""
    reader = FooterReader()
    with unsupported_if_unreadable():
        return [reader.read(data) for data in files]


@unsupported_if_unreadable()
def plan_stitch(
    files: Sequence[Any],
    footers: Sequence[Footer],
    row_group_bytes: int,
    fewest_rows: int = FEWEST_ROWS,
    codec: str | None = None,
) -> StitchPlan:
    """Plan how these files can be joined. `codec`: the only one by which the output may be compressed; otherwise it is
    as the inputs are. Raises StitchUnsupported with the reason if they cannot."""
    schema = _one_schema(footers)
    leaves = columns_of(schema)
    sources = _sources(files, footers)
    columns = [(leaf.path, leaf.physical) for leaf in leaves]
    codecs: set[int] = set()
    for group in (group for footer in footers for group in footer.row_groups):
        if [(chunk.path, chunk.physical) for chunk in group.chunks] != columns:
            raise StitchUnsupported("a row group has other columns than its schema")
        codecs.update([chunk.codec for chunk in group.chunks])
    if codec is not None and codecs - {NUMBERS[codec]}:
        others = ", ".join(sorted(NAMES.get(number, str(number)) for number in codecs - {NUMBERS[codec]}))
        raise StitchUnsupported(f"files are compressed by {others}, and {codec} is wanted")
    if any(group.uncompressed > LARGEST_ROW_GROUP for footer in footers for group in footer.row_groups):
        raise StitchUnsupported("a row group is too large to be held in memory")
    if sum(len(footer.row_groups) for footer in footers) * len(leaves) > MOST_CHUNKS:
        raise StitchUnsupported("there are too many columns in too many row groups to be held in memory")
    groups = tuple(_grouped(sources, row_group_bytes))
    count = sum(len(group) for group in groups)
    rows = sum(footer.rows for footer in footers)
    if rows < count * fewest_rows:
        raise StitchUnsupported(f"row groups have {rows // max(1, count):,} rows on average: pages would be too small")
    return StitchPlan(sources, groups, schema, leaves)


def _one_schema(footers: Sequence[Footer]) -> bytes:
    schemas = list(dict.fromkeys(footer.schema for footer in footers))
    if len(schemas) == 1:
        return schemas[0]
    merged = elements_of(schemas[0])
    for schema in schemas[1:]:
        both = with_nulls(merged, elements_of(schema))
        if both is None:
            raise StitchUnsupported("schemas differ")
        merged = both
    return schema_bytes(merged)


def _sources(files: Sequence[Any], footers: Sequence[Footer]) -> tuple[StitchSource, ...]:
    return tuple(
        StitchSource(memoryview(data).cast("B"), footer, columns_of(footer.schema))
        for data, footer in zip(files, footers, strict=True)
    )


def _grouped(sources: Sequence[StitchSource], row_group_bytes: int) -> Iterator[tuple[Part, ...]]:
    waiting: list[Part] = []
    size = 0
    for source in sources:
        for number, group in enumerate(source.footer.row_groups):
            if not group.rows:
                continue
            mine = group.uncompressed
            if waiting and size + mine > row_group_bytes:
                yield tuple(waiting)
                waiting, size = [], 0
            waiting.append((source, number))
            size += mine
    if waiting:
        yield tuple(waiting)


def _piece_of(source: StitchSource, number: int, place: int, headers: HeaderReader) -> SourceChunk:
    """One column of one row group of a file, with its pages."""
    group = source.footer.row_groups[number]
    found = read_source_chunk(source.data, group.chunks[place], source.leaves[place], group.rows, headers)
    in_doubt = source.footer.created_by.startswith(DENIES_COMPRESSION) and found.chunk.codec != UNCOMPRESSED
    if in_doubt and any(page.kind == DATA_V2 and not page.is_compressed for page in found.pages):
        raise StitchUnsupported("an old writer says of compressed pages that they are not (ARROW-10353)")
    return found


# ---------------------------------------------------------------- writing


class Sink(Protocol):
    """What a file is written to. Only one that is described twice is ever gone back in."""

    def write(self, data: Any, /) -> Any: ...

    def flush(self) -> Any: ...

    def seek(self, place: int, /) -> Any: ...

    def truncate(self) -> Any: ...


class Stitched:
    """A file in the making: all rows, in their order. What its footer says besides can be said again, after it was
    looked at."""

    def __init__(self, plan: StitchPlan, sink: Sink) -> None:
        self.plan, self.sink, self.place = plan, sink, 0
        self.choices: list[ColumnChoice] = []
        self._waiting: list[Any] = []
        self._size = 0
        self._groups: list[RowGroup] = []
        self._locations: list[list[list[PageLocation]]] = []  # by row group and column
        self._poor: Poor = {}
        self.metadata: Mapping[bytes, bytes] | None = None  # as it was described

    def _write(self, data: Any) -> None:
        """What is small waits for what comes behind it; what is large is not copied once more."""
        self.place += len(data)
        if len(data) >= LARGE:
            self._flush()
            self.sink.write(data)
            return
        self._waiting.append(data)
        self._size += len(data)
        if self._size >= WRITTEN_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self.sink.write(b"".join(self._waiting))
        self._waiting, self._size = [], 0

    def _row_group(self, new: int, group: Sequence[Part]) -> None:
        chunks, locations = [], []
        decoded = 0
        rows = sum(source.footer.row_groups[number].rows for source, number in group)
        for place, leaf in enumerate(self.plan.leaves):
            column = ColumnChunks.of(leaf, self.plan.pieces(new, place), self.plan.codecs[place])
            decoded += sum(each.decoded_bytes for each in column.pieces)
            if decoded > LARGEST_ROW_GROUP:
                raise StitchUnsupported("decoded, a row group would be too large to be held in memory")
            made = column_of(column, group, self._poor)
            name = ".".join(leaf.path)
            self.choices.append(ColumnChoice(name, made.strategy, made.reason))
            chunk, pages = self._chunk(column, made)
            chunks.append(chunk)
            locations.append(pages)
        self._groups.append(RowGroup(rows, chunks))
        self._locations.append(locations)

    def _chunk(self, column: ColumnChunks, made: StitchedColumn) -> tuple[Chunk, list[PageLocation]]:
        """Write a column. Returns it with the place of each page, empty if the rows of a page are not known."""
        begins = self.place
        uncompressed = 0
        counted: dict[tuple[int, int], int] = {}
        if made.dictionary is not None:
            uncompressed += self._page(made.dictionary)
            counted[DICTIONARY, made.dictionary.encoding] = 1
        data_page = self.place
        locations: list[PageLocation] = []
        first_row: int | None = 0
        for new in made.pages:
            start = self.place
            uncompressed += self._page(new.page)
            kind = new.page.kind, new.page.encoding
            counted[kind] = counted.get(kind, 0) + 1
            if first_row is not None:
                locations.append((start, self.place - start, first_row))
                first_row = None if new.rows is None else first_row + new.rows
        has_rows = len(locations) == len(made.pages)
        encodings = {RLE} if column.leaf.definition or column.leaf.repetition else set()
        chunk = Chunk(
            column.leaf.path,
            column.leaf.physical,
            made.codec,
            sum(new.page.values for new in made.pages),
            self.place - begins,
            uncompressed,
            data_page,
            None if made.dictionary is None else begins,
            tuple(sorted(encodings | {encoding for _, encoding in counted})),
            tuple((kind, encoding, count) for (kind, encoding), count in counted.items()),
        )
        return chunk, locations if has_rows else []

    def _page(self, page: Page) -> int:
        """Write a page; returns what it takes when it is not compressed."""
        header = header_of(page)
        self._write(header + page.before)
        self._write(page.data)
        return len(header) + page.uncompressed

    @unsupported_if_unreadable()
    def describe(self, metadata: Mapping[bytes, bytes], bounds: Bounds | None = None) -> None:
        """Write the page indexes and the footer, in place of those that are there. `bounds` are published as they are:
        they come from the proof, never from the inputs."""
        if self.metadata is not None:
            self.sink.seek(self.place)
            self.sink.truncate()
        self.metadata = metadata
        end = self.place
        self._index(bounds or {})
        self.place = end  # whoever describes it again begins here
        footer = Footer(
            max(source.footer.version for source in self.plan.sources),
            self.plan.schema,
            self._groups,
            metadata,
            self.plan.created_by,
            column_orders_bytes(len(self.plan.leaves)),
        )
        self.sink.write(footer_bytes(footer))
        self.sink.flush()

    def publish(self, bounds: Bounds) -> None:
        """Describe it once more, with the bounds that its proof has computed."""
        self.describe(self.metadata or {}, bounds)

    def _index(self, bounds: Bounds) -> None:
        places = [(number, place) for number, group in enumerate(self._groups) for place in range(len(group.chunks))]
        for number, place in places:
            chunk, locations = self._groups[number].chunks[place], self._locations[number][place]
            pages, order = bounds.get((number, place), []), self.plan.leaves[place].order
            chunk.statistics = merged(pages, order)
            index = None
            if order is not None and locations and len(pages) == len(locations):
                index = column_index_bytes(pages, boundary_order(pages, order))
            chunk.column_index = None if index is None else self._indexed(index)
        for number, place in places:
            locations = self._locations[number][place]
            offsets = self._indexed(offset_index_bytes(locations)) if locations else None
            self._groups[number].chunks[place].offset_index = offsets
        self._flush()

    def _indexed(self, index: bytes) -> tuple[int, int]:
        place = self.place
        self._write(index)
        return place, len(index)

    @property
    def columns(self) -> tuple[ColumnChoice, ...]:
        """How each column was made, in most of the row groups, and why."""
        found: dict[str, list[ColumnChoice]] = {}
        for choice in self.choices:
            found.setdefault(choice.column, []).append(choice)
        return tuple(_usual(choices) for choices in found.values())

    def told(self) -> str:
        """How many columns were made in which way."""
        counts = Counter(choice.strategy for choice in self.columns)
        ways = ", ".join(f"{count} {strategy}" for strategy, count in sorted(counts.items()))
        return f"pages are joined; columns: {ways}"

    @unsupported_if_unreadable()
    def write(self) -> None:
        """Raises StitchUnsupported if it turns out that it cannot be done."""
        self._write(MAGIC)
        for new, group in enumerate(self.plan.groups):
            self._row_group(new, group)
        self._flush()


def _usual(choices: Sequence[ColumnChoice]) -> ColumnChoice:
    ((strategy, _),) = Counter(choice.strategy for choice in choices).most_common(1)
    return next(choice for choice in choices if choice.strategy == strategy)


def write_stitched(plan: StitchPlan, metadata: Mapping[bytes, bytes], sink: Sink) -> Stitched:
    """One file by this plan. Raises StitchUnsupported if it turns out that it cannot be done."""
    made = Stitched(plan, sink)
    made.write()
    made.describe(metadata)  # without bounds: they are known when it is proved
    return made
