"""Strategy E: what cannot be taken apart here is decoded and encoded by Arrow, this one column of it."""

from collections.abc import Sequence

import pyarrow
import pyarrow.parquet

from compaction_platform.lake.parquet.codecs import LZ4_RAW, NAMES
from compaction_platform.lake.parquet.footer import FooterReader
from compaction_platform.lake.parquet.page_header import DICTIONARY, pages_of
from compaction_platform.lake.parquet.schema_elements import INT32, INT64, INT96, Leaf, columns_of
from compaction_platform.lake.parquet.stitch.column_chunks import ColumnChunks, OutputPage, StitchedColumn
from compaction_platform.lake.parquet.stitch.errors import StitchUnsupported
from compaction_platform.lake.parquet.stitch.stitch_plan import Part, decoded

_OLD_LZ4 = 5  # a framing that nobody writes any more
_WRITTEN_BY = NAMES | {_OLD_LZ4: NAMES[LZ4_RAW]}


def encoded(column: ColumnChunks, parts: Sequence[Part], reason: str) -> StitchedColumn:
    """The column of these row groups, decoded and written."""
    leaf = column.leaf
    if leaf.physical == INT96 or column.codec not in _WRITTEN_BY:
        raise StitchUnsupported(f"{'.'.join(leaf.path)}: {reason}")
    tables = decoded(parts, leaf.path[0], ".".join(leaf.path))
    table = pyarrow.concat_tables(tables, promote_options="default").combine_chunks()  # null where some may be
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(
        table,
        sink,
        row_group_size=max(1, table.num_rows),
        compression=_WRITTEN_BY[column.codec],
        store_schema=False,
        write_statistics=False,
        store_decimal_as_integer=leaf.physical in (INT32, INT64),
    )
    data = memoryview(sink.getvalue()).cast("B")
    footer = FooterReader().read(data)
    found = columns_of(footer.schema)
    if len(found) != 1 or len(footer.row_groups) != 1 or not _is_same(found[0], leaf):
        raise StitchUnsupported(f"{'.'.join(leaf.path)}: {reason}, and Arrow would write it as another type")
    (chunk,) = footer.row_groups[0].chunks
    if chunk.values != sum(each.chunk.values for each in column.pieces):
        raise StitchUnsupported(f"{'.'.join(leaf.path)}: {reason}, and Arrow would write it with other levels")
    pages = pages_of(data, chunk)
    dictionary = pages.pop(0) if pages[0].kind == DICTIONARY else None
    rows = [table.num_rows] if len(pages) == 1 else [None if leaf.repetition else page.values for page in pages]
    made = [OutputPage(page, count) for page, count in zip(pages, rows, strict=True)]
    return StitchedColumn("anew", reason, chunk.codec, made, dictionary)


def _is_same(one: Leaf, other: Leaf) -> bool:
    return (one.physical, one.length, one.definition, one.repetition) == (
        other.physical,
        other.length,
        other.definition,
        other.repetition,
    )
