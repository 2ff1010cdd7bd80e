"""The inputs of a bin become one file that is proved to hold their rows: by joining pages, by encoding them, or sorted.

An engine writes into a file that nobody sees yet and compares what is in it with what was read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from typing import Any

import pyarrow
import pyarrow.parquet

from compaction_platform.compact.plan.lineage import ancestors, content_digest, described
from compaction_platform.compact.rewrite import stitch
from compaction_platform.compact.rewrite.read_inputs import SourceFile
from compaction_platform.compact.rewrite.result import Verify, WrittenOutput, digest_of, read_back, require
from compaction_platform.compact.rewrite.unify_schema import Unified, carried_over, fitted
from compaction_platform.lake.parquet.external_sort import is_sorted, sorted_row_groups
from compaction_platform.lake.parquet.stitch.errors import StitchFailed, StitchUnsupported
from compaction_platform.lake.parquet.writer import ParquetOutput, WriterOptions, row_groups
from compaction_platform.lake.storage.staged_upload import StagedUpload
from compaction_platform.lake.verification.fingerprint import OrderedFingerprint, UnorderedFingerprint
from compaction_platform.lake.verification.timer import Timer
from compaction_platform.persisted_names import FOOTER_INPUTS, FOOTER_ROWS


def write(
    inputs: Sequence[SourceFile], unified: Unified, encoding: WriterOptions, sink: StagedUpload, verify: Verify = "full"
) -> WrittenOutput:
    """Write one file by the engine that suits these inputs, and prove it."""
    metadata = {**unified.metadata, FOOTER_INPUTS: described(_description(each, unified) for each in inputs)}
    if encoding.sort_by:
        return _sort(inputs, unified.schema, encoding, metadata, sink)
    try:
        return stitch.write(inputs, encoding, metadata, sink, verify)
    except StitchUnsupported as cannot:
        sink.seek(0)
        sink.truncate()
        made = _reencode(inputs, unified.schema, encoding, metadata, sink, f"not stitched: {cannot}")
        return replace(made, stitch_failure=str(cannot) if isinstance(cannot, StitchFailed) else None)


def _reencode(
    inputs: Sequence[SourceFile],
    schema: pyarrow.Schema,
    encoding: WriterOptions,
    metadata: dict[bytes, bytes],
    sink: StagedUpload,
    reason: str,
) -> WrittenOutput:
    digest = OrderedFingerprint(schema)

    def digested() -> Iterator[pyarrow.Table]:
        for rows in row_groups(_fitting(inputs, schema), schema, encoding.row_group_bytes):
            digest.update(rows)
            yield rows

    with ParquetOutput(schema, encoding, sink, int96=inputs[0].has_int96) as output:
        output.write(digested())
        expected = digest.finish()
        output.describe({**metadata, FOOTER_ROWS: digest_of(expected)})
    with Timer() as proof:
        require(read_back(SourceFile(inputs[0].file, sink.mapped()), schema) == expected, "rows, in their order,")
    return WrittenOutput(expected.rows, "re-encode", reason, proof_seconds=proof.seconds)


def _sort(
    inputs: Sequence[SourceFile],
    schema: pyarrow.Schema,
    encoding: WriterOptions,
    metadata: dict[bytes, bytes],
    sink: StagedUpload,
) -> WrittenOutput:
    expected, written = UnorderedFingerprint(schema), OrderedFingerprint(schema)

    def digested() -> Iterator[pyarrow.Table]:
        for rows in sorted_row_groups(lambda: _fitting(inputs, schema), schema, encoding):
            written.update(rows)
            yield rows

    for batch in _fitting(inputs, schema):
        expected.update(batch)
    with ParquetOutput(schema, encoding, sink, int96=inputs[0].has_int96) as output:
        output.write(digested())
        output.describe({**metadata, FOOTER_ROWS: digest_of(written.finish())})
    found = UnorderedFingerprint(schema)
    keys = []
    with Timer() as proof:
        for batch in SourceFile(inputs[0].file, sink.mapped()).decoded():
            found.update(fitted(batch, schema))
            keys.append(batch.select(encoding.sort_by))
        require(found.finish() == expected.finish(), "rows")
        require(is_sorted(keys), "rows, sorted,")
    reason = f"sorted by {', '.join(encoding.sort_by)}"
    return WrittenOutput(found.finish().rows, "sort", reason, proof_seconds=proof.seconds)


def _fitting(inputs: Sequence[SourceFile], schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    for each in inputs:
        for batch in each.decoded():
            yield fitted(batch, schema)


def _description(each: SourceFile, unified: Unified) -> dict[str, Any]:
    """An input as its output lists it, with the metadata in which it differs from the others."""
    described_as: dict[str, Any] = {
        "name": each.file.name,
        "version": each.file.stamp,
        "size": each.file.size,
        "content": content_digest(each.data),
    }
    footer = each.metadata.metadata or {}
    if FOOTER_INPUTS in footer:
        described_as["inputs"] = [astuple(one) for one in ancestors(footer[FOOTER_INPUTS])]
    keys = carried_over(footer)
    own = {name: value for name, value in keys.items() if name in unified.differing}
    if own:
        described_as["metadata"] = {
            name.decode(errors="backslashreplace"): value.decode(errors="backslashreplace")
            for name, value in own.items()
        }
    return described_as
