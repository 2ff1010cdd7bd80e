"""Pages of many files become large columns of one, and are proved: copies by their bytes, the rest by its values."""

import json
from collections.abc import Mapping, Sequence

from compaction_platform.compact.rewrite.read_inputs import SourceFile
from compaction_platform.compact.rewrite.result import Verify, WrittenOutput, bytes_digest, digest_of
from compaction_platform.lake.parquet.stitch.errors import StitchFailed, unsupported_if_unreadable
from compaction_platform.lake.parquet.stitch.stitch_plan import arrow_schema, plan_stitch
from compaction_platform.lake.parquet.stitch.stitch_writer import write_stitched
from compaction_platform.lake.parquet.stitch.verify import verify_stitched
from compaction_platform.lake.parquet.writer import WriterOptions
from compaction_platform.lake.storage.staged_upload import StagedUpload
from compaction_platform.lake.verification.timer import Timer
from compaction_platform.persisted_names import FOOTER_ROWS


@unsupported_if_unreadable()
def write(
    inputs: Sequence[SourceFile],
    encoding: WriterOptions,
    metadata: Mapping[bytes, bytes],
    sink: StagedUpload,
    verify: Verify,
) -> WrittenOutput:
    """Raises StitchUnsupported if these files need another engine."""
    footers = [each.footer for each in inputs]
    plan = plan_stitch([each.data for each in inputs], footers, encoding.row_group_bytes)
    metadata = {**arrow_schema([footer.metadata for footer in footers]), **metadata}
    made = write_stitched(plan, metadata, sink)
    output = SourceFile(inputs[0].file, sink.mapped())
    with Timer() as proof:
        found = verify_stitched(plan, made.choices, output.data, by_checksums=verify == "pages")
    rows = digest_of(found.rows) if verify == "full" else _by_bytes(output)
    made.describe({**metadata, FOOTER_ROWS: rows}, found.bounds)
    if SourceFile(inputs[0].file, sink.mapped()).metadata.num_rows != plan.rows:
        raise StitchFailed("the footer has another number of rows than the inputs")
    return WrittenOutput(plan.rows, "stitch", made.told(), made.columns, proof_seconds=proof.seconds)


def _by_bytes(output: SourceFile) -> bytes:
    return json.dumps({"rows": output.metadata.num_rows, "bytes": bytes_digest([output])}).encode()
