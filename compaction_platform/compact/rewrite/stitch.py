"""Pages of many files become large columns of one, and are proved: copies by their bytes, the rest by its values."""

import json
from collections.abc import Mapping, Sequence

from compaction_platform.compact.rewrite.read_inputs import Input
from compaction_platform.compact.rewrite.result import Verify, Written, bytes_digest, digest_of
from compaction_platform.lake.parquet.stitch.description import arrow_schema
from compaction_platform.lake.parquet.stitch.errors import CannotStitch, refusing_what_is_unfit
from compaction_platform.lake.parquet.stitch.stitch_plan import planned, written
from compaction_platform.lake.parquet.stitch.verify import proved
from compaction_platform.lake.parquet.writer import Encoding
from compaction_platform.lake.storage.staged_upload import Spool
from compaction_platform.lake.verification.timer import Stopwatch
from compaction_platform.persisted_names import FOOTER_ROWS


@refusing_what_is_unfit()
def write(
    inputs: Sequence[Input],
    encoding: Encoding,
    metadata: Mapping[bytes, bytes],
    sink: Spool,
    verify: Verify,
) -> Written:
    """Raises CannotStitch if these files need another engine."""
    footers = [each.footer for each in inputs]
    plan = planned([each.data for each in inputs], footers, encoding.row_group_bytes)
    metadata = {**arrow_schema([footer.metadata for footer in footers]), **metadata}
    made = written(plan, metadata, sink)
    output = Input(inputs[0].file, sink.mapped())
    with Stopwatch() as proof:
        found = proved(plan, made.choices, output.data, by_checksums=verify == "pages")
    rows = digest_of(found.rows) if verify == "full" else _by_bytes(output)
    made.describe({**metadata, FOOTER_ROWS: rows}, found.bounds)
    if Input(inputs[0].file, sink.mapped()).metadata.num_rows != plan.rows:
        raise CannotStitch("the footer has another number of rows than the inputs")
    return Written(plan.rows, "stitch", made.told(), made.columns, proof.seconds)


def _by_bytes(output: Input) -> bytes:
    return json.dumps({"rows": output.metadata.num_rows, "bytes": bytes_digest([output])}).encode()
