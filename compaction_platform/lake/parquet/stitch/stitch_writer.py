"""Write a stitched file by its plan: chunk after chunk, then page indexes and a new footer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from compaction_platform.lake.parquet.footer import (
    MAGIC,
    Chunk,
    Footer,
    PageLocation,
    RowGroup,
    column_index_bytes,
    column_orders_bytes,
    footer_bytes,
    offset_index_bytes,
)
from compaction_platform.lake.parquet.page_header import DICTIONARY, RLE, Page, header_of
from compaction_platform.lake.parquet.stitch.column_chunks import (
    ColumnChunks,
    StitchedColumn,
)
from compaction_platform.lake.parquet.stitch.errors import StitchUnsupported, unsupported_if_unreadable
from compaction_platform.lake.parquet.stitch.statistics import Bounds, boundary_order, merged
from compaction_platform.lake.parquet.stitch.stitch_plan import LARGEST_ROW_GROUP, ColumnChoice, Part, StitchPlan
from compaction_platform.lake.parquet.stitch.strategy import Poor, column_of

WRITTEN_AT_ONCE = 1 << 20
LARGE = 64 << 10


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
