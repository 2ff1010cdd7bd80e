"""Strategy A: a chunk without a dictionary is a run of pages that need nothing else. They are copied."""

from compaction_platform.lake.parquet.page_header import Page
from compaction_platform.lake.parquet.stitch.column_chunks import (
    ColumnChunks,
    SourceChunk,
    StitchedColumn,
    compressed_again,
)


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
