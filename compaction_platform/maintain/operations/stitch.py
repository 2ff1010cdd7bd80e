"""Data files whose pages can be joined as they are become few: nothing is deleted from them, and they have the columns
that the table has now. Whatever does not fit is told by StitchUnsupported, and is rewritten in the usual way."""

from collections.abc import Iterator, Sequence

import pyarrow
import pyarrow.parquet
from pyiceberg.manifest import DataFile

from compaction_platform.lake.iceberg.projection import is_same_column
from compaction_platform.lake.parquet.stitch.errors import StitchUnsupported, unsupported_if_unreadable
from compaction_platform.lake.parquet.stitch.stitch_plan import agreed, footers_of, plan_stitch
from compaction_platform.lake.parquet.stitch.stitch_writer import Stitched, write_stitched
from compaction_platform.lake.parquet.writer import WriterOptions
from compaction_platform.lake.storage.staged_upload import StagedUpload
from compaction_platform.maintain.plan.file_groups import RewritePolicy


def cut(files: Sequence[DataFile], policy: RewritePolicy) -> Iterator[list[DataFile]]:
    """Files that become one, of about the target size. A rest that would be small again stays in the last."""
    some: list[DataFile] = []
    size = 0
    still_to_come = sum(file.file_size_in_bytes for file in files)
    for file in files:
        some.append(file)
        size += file.file_size_in_bytes
        still_to_come -= file.file_size_in_bytes
        if size >= policy.target_bytes and still_to_come >= policy.smallest_rest:
            yield some
            some, size = [], 0
    if some:
        yield some


@unsupported_if_unreadable()
def stitched(
    files: Sequence[DataFile],
    contents: Sequence[pyarrow.Buffer],
    schema: pyarrow.Schema,
    encoding: WriterOptions,
    sink: StagedUpload,
) -> Stitched:
    """One file of these, not proved yet. Raises StitchUnsupported."""
    footers = footers_of(contents)
    for file, footer, content in zip(files, footers, contents, strict=True):
        by_arrow = pyarrow.parquet.read_metadata(pyarrow.BufferReader(content)).num_rows
        if not footer.rows == by_arrow == file.record_count:
            raise StitchUnsupported("a file has another number of rows than the table's metadata say")
    plan = plan_stitch(contents, footers, encoding.row_group_bytes, codec=encoding.compression)
    for kind in {footer.schema: content for footer, content in zip(footers, contents, strict=True)}.values():
        found = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(kind)).schema_arrow
        if len(found) != len(schema):
            raise StitchUnsupported("files have other columns than the table has now")
        for ours, wanted in zip(found, schema, strict=True):
            if not is_same_column(ours, wanted):
                raise StitchUnsupported(
                    f"files have another column in the place of {wanted.name} than the table has now"
                )
    return write_stitched(plan, agreed([footer.metadata for footer in footers]), sink)
