"""Columns of a stitched file whose bytes are the inputs' own, held against the inputs page by page.

They are told to be the same only if everything that a reader goes by is: then they need not be decoded twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy
import pyarrow

from compaction_platform.lake.parquet.codecs import UNCOMPRESSED
from compaction_platform.lake.parquet.footer import Chunk, Footer
from compaction_platform.lake.parquet.page_header import DATA_V2, PLAIN, Page, pages_of
from compaction_platform.lake.parquet.stitch.arrow_values import levels
from compaction_platform.lake.parquet.stitch.column_chunks import ColumnChunks, SourceChunk
from compaction_platform.lake.parquet.stitch.errors import StitchFailed
from compaction_platform.lake.parquet.stitch.identity import decoded_is_identity
from compaction_platform.lake.parquet.stitch.stitch_plan import ColumnChoice, StitchPlan

Place = tuple[int, str]  # a row group by its number, and the name of a whole column, whatever is nested in it


@dataclass(frozen=True)
class Copied:
    """Where the bytes of a column are the inputs' own."""

    places: frozenset[Place]
    with_checksums: frozenset[Place]  # of those, the ones whose pages had checksums, and they hold


def copied(plan: StitchPlan, choices: Sequence[ColumnChoice], output: Any, footer: Footer, *, check: bool) -> Copied:
    """A column is told to be copied only if everything that a reader goes by is the same: type, levels, codec, and of
    each page its header and its bytes; or if its values are a dictionary's own bytes, and the pages that used it had
    its entries one after the other. `check`: checksums of the output, if it is not decoded afterwards."""
    if len(footer.row_groups) != len(plan.groups):
        raise StitchFailed("there are other row groups than were to be made")
    pages = partial(pages_of, memoryview(output).cast("B"), check=check)
    chosen = iter(choices)  # for each column of each row group, in their order
    kept: dict[Place, bool] = {}
    checked: dict[Place, bool] = {}
    for number, made in enumerate(footer.row_groups):
        for place, leaf in enumerate(plan.leaves):
            here = number, leaf.path[0]
            # Where a row ends and the next begins is in the values of a column that repeats: they are always decoded.
            is_copy = next(chosen).strategy in ("raw", "identity") and not leaf.repetition
            same, has_checksums = False, False
            if is_copy and kept.get(here, True):
                same, has_checksums = _is_same(plan, number, place, made.chunks[place], pages)
            kept[here] = same
            checked[here] = checked.get(here, True) and has_checksums
    places = frozenset(here for here, same in kept.items() if same)
    return Copied(places, frozenset(here for here in places if checked[here]))


def _is_same(
    plan: StitchPlan, number: int, place: int, chunk: Chunk, pages: Callable[[Chunk], list[Page]]
) -> tuple[bool, bool]:
    """Whether a chunk has the pages of the inputs, and whether all of those had checksums."""
    leaf, pieces = plan.leaves[place], plan.pieces(number, place)
    if any(each.leaf != leaf or each.chunk.codec != chunk.codec for each in pieces):
        return False, False
    if not _is_made_of(ColumnChunks.of(leaf, pieces, chunk.codec), pages(chunk)):
        return False, False
    old = [page for each in pieces for page in (*each.pages, each.dictionary) if page is not None]
    return True, all(page.has_checksum for page in old)


def _is_made_of(column: ColumnChunks, new: list[Page]) -> bool:
    """Whether these pages are those of the chunks, in their order."""
    is_coded = any(each.uses_dictionary for each in column.pieces)
    if len(column.pieces) == 1 and is_coded:
        (only,) = column.pieces
        dictionary, *new = new
        if only.dictionary is None or not _is_same_page(only.dictionary, dictionary):
            return False
        return len(new) == len(only.pages) and all(map(_is_same_page, only.pages, new))
    coded = len(column.coded) if is_coded else 0  # taken apart, that they can be looked at
    place = 0
    for each in column.pieces:
        rest = each.pages
        if coded and each.uses_dictionary:
            if place >= len(new) or not _is_dictionary_of(column, each, new[place]):
                return False
            rest, place = each.pages[len(each.taken) :], place + 1
        mine = new[place : place + len(rest)]
        if len(mine) != len(rest) or not all(map(_is_same_page, rest, mine)):
            return False
        place += len(rest)
    return place == len(new)


def _is_dictionary_of(column: ColumnChunks, each: SourceChunk, page: Page) -> bool:
    """Whether a page has the values of a chunk that had each entry of its dictionary once, in their order."""
    if each.dictionary is None or not decoded_is_identity(column, each):
        return False
    count = sum(taken.page.values for taken in each.taken)
    facts = (page.kind, page.encoding, page.values, page.nulls, page.rows, page.repetitions)
    if facts != (DATA_V2, PLAIN, count, count - each.entries, count, 0):
        return False
    if page.uncompressed - page.definitions != each.dictionary.uncompressed:
        return False
    if page.is_compressed != (column.codec != UNCOMPRESSED):
        return False
    if not _has_levels_of(column, each, page):
        return False
    return bool(pyarrow.py_buffer(page.data[page.definitions :]).equals(pyarrow.py_buffer(each.dictionary.data)))


def _has_levels_of(column: ColumnChunks, each: SourceChunk, page: Page) -> bool:
    largest = column.leaf.definition
    if not largest:
        return page.definitions == 0
    now = bytes(page.data[: page.definitions])
    if len(each.taken) == 1 and now == bytes(each.taken[0].definitions):
        return True
    before = levels([(taken.definitions, taken.page.values) for taken in each.taken], largest)
    return bool(numpy.array_equal(before, levels([(now, page.values)], largest)))


def _is_same_page(one: Page, other: Page) -> bool:
    return bool(one.header == other.header and pyarrow.py_buffer(one.data).equals(pyarrow.py_buffer(other.data)))
