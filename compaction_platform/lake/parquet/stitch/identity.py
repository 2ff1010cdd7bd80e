"""Strategy B: a dictionary that lists every value once, in the order of the rows, is the column itself.

Writers that encode everything by dictionary make such chunks of ids and other unique values. The compressed bytes of
the dictionary become the values of a data page as they are: a page of the second kind, whose levels are not compressed.
"""

import numpy

from compaction_platform.lake.parquet.codecs import UNCOMPRESSED
from compaction_platform.lake.parquet.page_header import DATA_V2, PLAIN, Page
from compaction_platform.lake.parquet.stitch.column_chunks import ColumnChunks, OutputPage, SourceChunk, StitchedColumn
from compaction_platform.lake.parquet.stitch.copy_pages import copy_page, copy_pages
from compaction_platform.lake.parquet.stitch.rle import counts_up


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


def dissolved(column: ColumnChunks, reason: str) -> StitchedColumn:
    """A column of which every chunk has no dictionary, or one that is the values."""
    made = StitchedColumn("identity", reason, column.codec, [])
    for each in column.pieces:
        if each.uses_dictionary:
            add_dictionary_as_page(made, column, each)
        else:
            copy_pages(made, column, each)
    return made
