"""Copy pages as they are, with the bytes of a dictionary as values where it lists every value once.

A chunk without a dictionary is a run of pages that need nothing else. A dictionary that lists every value once, in the
order of the rows, is the column itself: writers that encode everything by dictionary make such chunks of ids and other
unique values. Its compressed bytes become the values of a data page as they are: a page of the second kind, whose
levels are not compressed.
"""

import numpy

from compaction_platform.lake.parquet.codecs import UNCOMPRESSED
from compaction_platform.lake.parquet.page_header import DATA_V2, PLAIN, Page
from compaction_platform.lake.parquet.stitch.column_chunks import (
    ColumnChunks,
    OutputPage,
    SourceChunk,
    StitchedColumn,
    compressed_again,
)
from compaction_platform.lake.parquet.stitch.rle import counts_up


def copied(column: ColumnChunks, reason: str) -> StitchedColumn:
    """All pages, one after the other. A lone chunk keeps its dictionary."""
    first = column.pieces[0]
    lone = first.dictionary if len(column.pieces) == 1 and first.uses_dictionary else None
    if lone is not None and first.chunk.codec != column.codec:
        lone = compressed_again(lone, first.chunk.codec, column.codec)
    made = StitchedColumn("raw", reason, column.codec, [], lone)
    for each in column.pieces:
        copy_pages(made, column, each)
    return made


def copy_pages(made: StitchedColumn, column: ColumnChunks, each: SourceChunk) -> None:
    for page in each.pages:
        copy_page(made, column, each, page)


def copy_page(made: StitchedColumn, column: ColumnChunks, each: SourceChunk, page: Page) -> None:
    made.pages.append(column.copied(each, page))


def is_identity(column: ColumnChunks, each: SourceChunk) -> bool:
    """Whether the coded pages of a chunk come first and have the entries of its dictionary one after the other. Mostly
    that is seen in their bytes."""
    if not _could_be(column, each):
        return False
    if len(each.taken) == 1 and counts_up(each.taken[0].indices, each.taken[0].present):
        return True
    return decoded_is_identity(column, each)


def decoded_is_identity(column: ColumnChunks, each: SourceChunk) -> bool:
    """The same, by the indices that Arrow decodes: the proof does not rely on how they were looked at before."""
    if not _could_be(column, each):
        return False
    first = each.taken[0].first
    return bool((column.indices[first : first + each.entries] == numpy.arange(each.entries)).all())


def _could_be(column: ColumnChunks, each: SourceChunk) -> bool:
    if column.leaf.repetition or each.chunk.codec != column.codec or not each.taken:
        return False
    present = sum(taken.present for taken in each.taken)
    return present == each.entries and all(page.uses_dictionary for page in each.pages[: len(each.taken)])


def add_dictionary_as_page(made: StitchedColumn, column: ColumnChunks, each: SourceChunk) -> None:
    """The dictionary of a chunk as the page of values that it is, and the chunk's other pages as they are."""
    if each.dictionary is None:
        raise AssertionError("asked for a chunk without a dictionary")
    levels = column.merged_definitions(each.taken)
    count = sum(taken.page.values for taken in each.taken)
    page = Page(DATA_V2, count, PLAIN, len(levels) + each.dictionary.uncompressed, each.dictionary.data, before=levels)
    page.nulls, page.rows, page.definitions = count - each.entries, count, len(levels)
    page.is_compressed = column.codec != UNCOMPRESSED
    made.pages.append(OutputPage(page, count))
    for rest in each.pages[len(each.taken) :]:
        copy_page(made, column, each, rest)


def dictionary_as_values(column: ColumnChunks, reason: str) -> StitchedColumn:
    """A column of which every chunk has no dictionary, or one that is the values."""
    made = StitchedColumn("identity", reason, column.codec, [])
    for each in column.pieces:
        if each.uses_dictionary:
            add_dictionary_as_page(made, column, each)
        else:
            copy_pages(made, column, each)
    return made
