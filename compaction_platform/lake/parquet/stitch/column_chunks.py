"""One column of one new row group: the chunks it is made of, taken apart only as far as a strategy needs it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy
import pyarrow

from compaction_platform.lake.parquet.codecs import UNCOMPRESSED
from compaction_platform.lake.parquet.footer import Chunk
from compaction_platform.lake.parquet.page_header import (
    BIT_PACKED,
    DATA,
    DATA_V2,
    DICTIONARY,
    PLAIN,
    PLAIN_DICTIONARY,
    RLE,
    Page,
    pages_of,
)
from compaction_platform.lake.parquet.schema_elements import Leaf
from compaction_platform.lake.parquet.stitch import arrow_values
from compaction_platform.lake.parquet.stitch.errors import StitchUnsupported
from compaction_platform.lake.parquet.stitch.rle import Array, constant, packed_levels, runs_end_with
from compaction_platform.lake.parquet.stitch.statistics import claimed_nulls

VALUES_PER_PAGE = 20_000
_AS_RUNS = (RLE, RLE)

Strategy = Literal["raw", "identity", "dictionary", "plain", "anew"]


@dataclass(slots=True)
class DecodedPage:
    """A page that uses a dictionary, taken apart."""

    page: Page
    repetitions: Any
    definitions: Any
    indices: Any  # with the byte that tells their width
    has_nulls: bool
    levels: Array | None = None  # the definitions, where some are nulls
    present: int = 0  # values that are not null
    first: int = 0  # where its indices begin among those of the column


@dataclass(slots=True)
class SourceChunk:
    """One chunk of one file."""

    chunk: Chunk
    leaf: Leaf  # as that file has it: it may say that there are no nulls
    rows: int
    nulls: int | None  # as the footer claims; the proof compares it with the rows
    dictionary: Page | None
    pages: list[Page]
    uses_dictionary: bool  # in some of the pages
    taken: list[DecodedPage] = field(default_factory=list)  # by the column that it is part of

    @property
    def decoded_bytes(self) -> int:
        """About how much memory its values take."""
        width = max(self.leaf.length, 4)
        if self.uses_dictionary and self.dictionary is not None:
            width = max(width, self.dictionary.uncompressed // max(1, self.dictionary.values))
        return max(self.chunk.uncompressed, self.chunk.values * width)

    @property
    def entries(self) -> int:
        return self.dictionary.values if self.dictionary else 0


@dataclass(slots=True)
class OutputPage:
    """A page of the output."""

    page: Page
    rows: int | None  # None: only its levels tell


@dataclass(slots=True)
class StitchedColumn:
    """A column of the output, not yet at its place."""

    strategy: Strategy
    reason: str
    codec: int
    pages: list[OutputPage]
    dictionary: Page | None = None


Run = list[tuple[SourceChunk, DecodedPage]]


def read_source_chunk(file: memoryview, chunk: Chunk, leaf: Leaf, rows: int) -> SourceChunk:
    """A chunk with its pages, their checksums checked."""
    pages = [
        _with_sound_emptiness(page, chunk.codec)
        for page in pages_of(file, chunk)
        if page.values or page.kind == DICTIONARY
    ]
    dictionary = None
    if pages and pages[0].kind == DICTIONARY:
        dictionary = pages.pop(0)
        if dictionary.encoding not in (PLAIN, PLAIN_DICTIONARY):
            raise StitchUnsupported("a dictionary is encoded in an unknown way")
        if dictionary.values * (leaf.length or 4) > dictionary.uncompressed:
            raise StitchUnsupported("a dictionary claims more entries than it has bytes for")
    uses_dictionary = False
    for page in pages:
        if page.kind == DICTIONARY:
            raise StitchUnsupported("a dictionary is not where it should be")
        uses_dictionary = uses_dictionary or page.uses_dictionary
    if uses_dictionary and dictionary is None:
        raise StitchUnsupported("a dictionary is missing")
    if not leaf.repetition and chunk.values != rows:
        raise StitchUnsupported("a column has another number of values than there are rows")
    nulls = claimed_nulls(chunk, leaf)
    _require_consistent(pages, chunk, leaf, nulls)
    return SourceChunk(chunk, leaf, rows, nulls, dictionary, pages, uses_dictionary)


def _require_consistent(pages: Sequence[Page], chunk: Chunk, leaf: Leaf, nulls: int | None) -> None:
    """Page headers bear no checksum. What they say is said elsewhere, too."""
    for page in pages:
        _require_levels_that_end_with_the_page(page, leaf)
        if page.encoding not in chunk.encodings:
            raise StitchUnsupported("a page is encoded in a way that its column does not have")
        if page.level_encodings == _AS_RUNS:
            continue
        for packing, largest in zip(page.level_encodings, (leaf.definition, leaf.repetition), strict=True):
            if packing != RLE and (largest or packing != BIT_PACKED):  # said also of levels that are not there
                raise StitchUnsupported("levels are packed in the old way")
    if nulls is None or leaf.repetition or any(page.kind != DATA_V2 for page in pages):
        return
    if sum(page.nulls for page in pages) != nulls or any(page.rows != page.values for page in pages):
        raise StitchUnsupported("pages have another number of nulls or rows than their column")


def _with_sound_emptiness(page: Page, codec: int) -> Page:
    """An empty dictionary and a page of nothing but nulls have no values. Bytes in their place are decompressed by
    some readers only: those without a checksum must be right, or go where they stand for nothing."""
    if page.kind == DICTIONARY and not page.uncompressed:
        return replace(page, data=arrow_values.compressed(b"", codec))
    levels = page.repetitions + page.definitions
    if page.kind != DATA_V2 or page.nulls < page.values or page.has_checksum or len(page.data) == levels:
        return page
    if page.uncompressed == levels:
        return replace(page, data=page.data[:levels], is_compressed=False)
    try:
        arrow_values.decompressed(
            page.data[levels:], codec if page.is_compressed else UNCOMPRESSED, page.uncompressed - levels
        )
    except (OSError, pyarrow.ArrowInvalid) as damaged:
        raise StitchUnsupported("what is in the place of values that are all null cannot be decompressed") from damaged
    return page


def _require_levels_that_end_with_the_page(page: Page, leaf: Leaf) -> None:
    """Readers disagree about a run of levels that is longer than its page: some read values that are not there, and
    then those of the next page wrongly. A checksum would have told, and compressed levels are not looked at."""
    if page.kind != DATA_V2 or page.has_checksum:
        return
    repetitions = page.data[: page.repetitions]
    definitions = page.data[page.repetitions : page.repetitions + page.definitions]
    for levels, largest in ((repetitions, leaf.repetition), (definitions, leaf.definition)):
        if largest and not runs_end_with(levels, page.values, largest.bit_length()):
            raise StitchUnsupported("levels of a page without a checksum are more or less than its values")


@dataclass
class ColumnChunks:
    """All chunks of a column that become one. `leaf` is what it becomes."""

    leaf: Leaf
    pieces: list[SourceChunk]
    codec: int  # what the output is compressed by

    @classmethod
    def of(cls, leaf: Leaf, pieces: Sequence[SourceChunk], codec: int) -> "ColumnChunks":
        """These chunks to be taken apart. What is found in them takes memory, and goes with the column."""
        return cls(leaf, [replace(each) if each.uses_dictionary else each for each in pieces], codec)

    @cached_property
    def coded(self) -> list[DecodedPage]:
        """All pages that use a dictionary."""
        found = [taken for each in self.pieces for taken in self._take_apart(each)]
        unsure = [taken for taken in found if taken.has_nulls]
        if unsure:
            streams = [(taken.definitions, taken.page.values) for taken in unsure]
            found_levels = arrow_values.levels(streams, self.leaf.definition).astype("u1")
            begins = 0
            for taken, (_, count) in zip(unsure, streams, strict=True):
                taken.levels = found_levels[begins : begins + count]
                taken.present = int(numpy.count_nonzero(taken.levels == self.leaf.definition))
                begins += count
        first = 0
        for taken in found:
            taken.first = first
            first += taken.present
        return found

    @cached_property
    def indices(self) -> Array:
        """Indices of all coded pages, each into the dictionary of its own chunk."""
        most = max(each.entries for each in self.pieces)
        found = arrow_values.integers([(taken.indices, taken.present) for taken in self.coded], most)
        for each in self.pieces:
            if each.taken:
                some = found[each.taken[0].first : each.taken[-1].first + each.taken[-1].present]
                if len(some) and int(some.max()) >= each.entries:
                    raise StitchUnsupported("an index points outside of its dictionary")
        return found

    def _take_apart(self, each: SourceChunk) -> list[DecodedPage]:
        each.taken = [_taken(page, each, self.leaf) for page in each.pages if page.uses_dictionary]
        return each.taken

    # ------------------------------------------------------------ new pages

    def copied(self, each: SourceChunk, page: Page) -> OutputPage:
        """A page as it is. Where its file says that there are no nulls and others have some, with levels before it;
        where it is compressed in another way than the others, compressed anew."""
        new = page
        if each.chunk.codec != self.codec:
            new = compressed_again(new, each.chunk.codec, self.codec)
        if each.leaf.definition < self.leaf.definition:
            new = _saying_that_none_is_null(new, self.leaf)
        return OutputPage(new, self._rows(page, each, alone=len(each.pages) == 1))

    def _rows(self, page: Page, each: SourceChunk, *, alone: bool) -> int | None:
        if not self.leaf.repetition:
            return page.values
        return each.rows if alone else None

    def of_values(self, run: "Run", payload: Any, encoding: int) -> OutputPage:
        """A page with new values in the places of old ones: levels stay as they are."""
        taken = [one for _, one in run]
        count = sum(one.page.values for one in taken)
        repetitions = self._merged_repetitions(taken)
        definitions = self.merged_definitions(taken)
        body = b"".join((_with_length(repetitions), _with_length(definitions), payload))
        page = Page(DATA, count, encoding, len(body), arrow_values.compressed(body, self.codec))
        pieces = list({id(each): each for each, _ in run}.values())
        rows: int | None = count
        if self.leaf.repetition:
            whole = sum(len(each.pages) for each in pieces) == len(run)
            rows = sum(each.rows for each in pieces) if whole else None
        return OutputPage(page, rows)

    def runs(
        self, whole: Callable[[SourceChunk], bool] = lambda _: False
    ) -> Iterator["SourceChunk | tuple[SourceChunk, Page] | Run"]:
        """All pages in their order: pieces that are `whole` as they are, pages to be copied, and runs of pages that use
        a dictionary, as many as make a good page."""
        run: Run = []
        size = 0
        for each in self.pieces:
            if whole(each):
                if run:
                    yield run
                run, size = [], 0
                yield each
                continue
            taken = iter(each.taken)
            for page in each.pages:
                if run and (not page.uses_dictionary or size + page.values > VALUES_PER_PAGE):
                    yield run
                    run, size = [], 0
                if page.uses_dictionary:
                    run.append((each, next(taken)))
                    size += page.values
                else:
                    yield each, page
        if run:
            yield run

    def merged_definitions(self, taken: Sequence[DecodedPage]) -> bytes:
        """Definition levels of several pages as those of one."""
        largest = self.leaf.definition
        if largest and all(one.present == one.page.values for one in taken):
            return constant(largest, sum(one.page.values for one in taken))
        if not largest:
            return b""
        if len(taken) == 1:
            return bytes(taken[0].definitions)
        known = [numpy.full(one.page.values, largest, "u1") if one.levels is None else one.levels for one in taken]
        return packed_levels(numpy.concatenate(known), largest)

    def _merged_repetitions(self, taken: Sequence[DecodedPage]) -> bytes:
        largest = self.leaf.repetition
        if not largest:
            return b""  # whatever a page says: readers pass over it
        if len(taken) == 1:
            return bytes(taken[0].repetitions)
        streams = [(one.repetitions, one.page.values) for one in taken]
        return packed_levels(arrow_values.levels(streams, largest), largest)


def span(run: Run) -> slice:
    """The place of a run's values among the indices of its column."""
    _, first = run[0]
    _, last = run[-1]
    return slice(first.first, last.first + last.present)


def _taken(page: Page, each: SourceChunk, leaf: Leaf) -> DecodedPage:
    repetitions: Any = b""
    definitions: Any = b""
    if page.kind == DATA_V2:
        first, second = page.repetitions, page.repetitions + page.definitions
        repetitions, definitions, rest = page.data[:first], page.data[first:second], page.data[second:]
        if page.is_compressed:
            rest = arrow_values.decompressed(rest, each.chunk.codec, page.uncompressed - second)
    else:
        rest = arrow_values.decompressed(page.data, each.chunk.codec, page.uncompressed)
        if leaf.repetition:
            repetitions, rest = _cut_off(rest)
        if each.leaf.definition:
            definitions, rest = _cut_off(rest)
    full = constant(leaf.definition, page.values) if leaf.definition else b""
    if not each.leaf.definition:
        definitions = full
    has_nulls = bytes(definitions) != full
    return DecodedPage(page, repetitions, definitions, rest, has_nulls, present=0 if has_nulls else page.values)


def _cut_off(data: memoryview) -> tuple[memoryview, memoryview]:
    """Levels of a page of the first kind, with their length before them, and what follows."""
    length = int.from_bytes(data[:4], "little")
    if length > len(data) - 4:
        raise StitchUnsupported("levels are longer than their page")
    return data[4 : 4 + length], data[4 + length :]


def _with_length(levels: bytes) -> bytes:
    return len(levels).to_bytes(4, "little") + levels if levels else b""


def compressed_again(page: Page, before: int, now: int) -> Page:
    """A page, its values compressed by another codec."""
    levels = page.repetitions + page.definitions
    if page.kind != DATA_V2 or page.is_compressed:
        rest = arrow_values.decompressed(page.data[levels:], before, page.uncompressed - levels)
    else:
        rest = page.data[levels:]
    data = memoryview(b"".join((page.data[:levels], arrow_values.compressed(rest, now))))
    return replace(page, data=data, is_compressed=now != UNCOMPRESSED)


def _saying_that_none_is_null(page: Page, leaf: Leaf) -> Page:
    """A page of a column that has no nulls, in one that may have some: only pages of the second kind have their levels
    outside of what is compressed."""
    levels = constant(leaf.definition, page.values)
    return Page(
        DATA_V2,
        page.values,
        page.encoding,
        page.uncompressed + len(levels),
        page.data,
        rows=page.values,
        definitions=len(levels),
        is_compressed=page.is_compressed,
        before=levels,
    )
