"""The inputs of a bin become one file that is proved to hold their rows: by joining pages, by encoding them, or sorted.

An engine writes into a file that nobody sees yet and compares what is in it with what was read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import Any

import pyarrow
import pyarrow.parquet

from compaction_platform.compact.plan.lineage import ancestors, content_digest, described
from compaction_platform.compact.rewrite import stitch
from compaction_platform.compact.rewrite.read_inputs import Input
from compaction_platform.compact.rewrite.result import Verify, Written, digest_of, read_back, require
from compaction_platform.compact.rewrite.unify_schema import Unified, carried_over, fitted
from compaction_platform.lake.parquet.external_sort import is_sorted, sorted_row_groups
from compaction_platform.lake.parquet.stitch.errors import CannotStitch
from compaction_platform.lake.parquet.writer import Encoding, Output, row_groups
from compaction_platform.lake.storage.staged_upload import Spool
from compaction_platform.lake.verification.fingerprint import AnyOrder, InOrder
from compaction_platform.lake.verification.timer import Stopwatch
from compaction_platform.persisted_names import FOOTER_INPUTS, FOOTER_ROWS


def write(
    inputs: Sequence[Input], unified: Unified, encoding: Encoding, sink: Spool, verify: Verify = "full"
) -> Written:
    """Write one file by the engine that suits these inputs, and prove it."""
    metadata = {**unified.metadata, FOOTER_INPUTS: described(_description(each, unified) for each in inputs)}
    if encoding.sort_by:
        return _sort(inputs, unified.schema, encoding, metadata, sink)
    try:
        return stitch.write(inputs, encoding, metadata, sink, verify)
    except CannotStitch as cannot:
        sink.seek(0)
        sink.truncate()
        return _reencode(inputs, unified.schema, encoding, metadata, sink, f"not stitched: {cannot}")


def _reencode(
    inputs: Sequence[Input],
    schema: pyarrow.Schema,
    encoding: Encoding,
    metadata: dict[bytes, bytes],
    sink: Spool,
    reason: str,
) -> Written:
    digest = InOrder(schema)

    def digested() -> Iterator[pyarrow.Table]:
        for rows in row_groups(_fitting(inputs, schema), schema, encoding.row_group_bytes):
            digest.update(rows)
            yield rows

    with Output(schema, encoding, sink, int96=inputs[0].has_int96) as output:
        output.write(digested())
        expected = digest.finish()
        output.describe({**metadata, FOOTER_ROWS: digest_of(expected)})
    with Stopwatch() as proof:
        require(read_back(Input(inputs[0].file, sink.mapped()), schema) == expected, "rows, in their order,")
    return Written(expected.rows, "re-encode", reason, proof_seconds=proof.seconds)


def _sort(
    inputs: Sequence[Input], schema: pyarrow.Schema, encoding: Encoding, metadata: dict[bytes, bytes], sink: Spool
) -> Written:
    expected, written = AnyOrder(schema), InOrder(schema)

    def digested() -> Iterator[pyarrow.Table]:
        for rows in sorted_row_groups(lambda: _fitting(inputs, schema), schema, encoding):
            written.update(rows)
            yield rows

    for batch in _fitting(inputs, schema):
        expected.update(batch)
    with Output(schema, encoding, sink, int96=inputs[0].has_int96) as output:
        output.write(digested())
        output.describe({**metadata, FOOTER_ROWS: digest_of(written.finish())})
    found = AnyOrder(schema)
    keys = []
    with Stopwatch() as proof:
        for batch in Input(inputs[0].file, sink.mapped()).decoded():
            found.update(fitted(batch, schema))
            keys.append(batch.select(encoding.sort_by))
        require(found.finish() == expected.finish(), "rows")
        require(is_sorted(keys), "rows, sorted,")
    reason = f"sorted by {', '.join(encoding.sort_by)}"
    return Written(found.finish().rows, "sort", reason, proof_seconds=proof.seconds)


def _fitting(inputs: Sequence[Input], schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    for each in inputs:
        for batch in each.decoded():
            yield fitted(batch, schema)


def _description(each: Input, unified: Unified) -> dict[str, Any]:
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
