"""Is a column without dictionaries better with one? Copied, a column stays as its writer made it: values that repeat
take much more space than they need, in the new file and in each query. That is judged by some rows."""

from collections.abc import Sequence

import pyarrow
import pyarrow.parquet

from compaction_platform.lake.parquet.codecs import NAMES
from compaction_platform.lake.parquet.page_header import PLAIN
from compaction_platform.lake.parquet.schema_elements import BOOLEAN, INT96
from compaction_platform.lake.parquet.stitch.column_chunks import ColumnChunks
from compaction_platform.lake.parquet.stitch.source import Part, decoded

LARGE = 0.1  # of a row group: what is smaller is not worth the work
REPEATS = 0.5  # of the values, so many at most are different
SAVES = 0.5  # of its bytes, so many at least, for the work
SAMPLED = 2  # row groups


def why_poor(column: ColumnChunks, parts: Sequence[Part]) -> str | None:
    """Why a column is better encoded anew; None if it is not."""
    leaf = column.leaf
    whole = sum(source.footer.row_groups[number].compressed for source, number in parts)
    mine = sum(each.chunk.compressed for each in column.pieces)
    encodings = {page.encoding for each in column.pieces for page in each.pages}
    if mine < whole * LARGE or encodings != {PLAIN} or column.codec not in NAMES:
        return None
    if len(leaf.path) > 1 or leaf.repetition or leaf.physical in (BOOLEAN, INT96):
        return None
    values = pyarrow.concat_tables(decoded(parts[:SAMPLED], leaf.path[0]), promote_options="default")
    if len(values.column(0).unique()) > values.num_rows * REPEATS:
        return None
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(values, sink, row_group_size=values.num_rows, compression=NAMES[column.codec])
    trial = pyarrow.parquet.read_metadata(pyarrow.BufferReader(sink.getvalue())).row_group(0).column(0)
    before = sum(each.chunk.compressed for each in column.pieces[:SAMPLED])
    after = trial.total_compressed_size
    if after > before * (1 - SAVES):
        return None
    return f"values repeat: with a dictionary {after / before:.0%} of the bytes"
