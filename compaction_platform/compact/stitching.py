"""Pages of many files become large columns of one, and are proved: copies by their bytes, the rest by its values."""

import base64
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import IO

import pyarrow

from compaction_platform.compact import concat
from compaction_platform.compact.inputs import Input
from compaction_platform.compact.outputs import ROWS_KEY
from compaction_platform.compact.schemas import Unified, fitted
from compaction_platform.compact.written import Verify, Written, digest_of, mapped
from compaction_platform.lake.fingerprint import Fingerprint, InOrder
from compaction_platform.lake.parquet_format.thrift import ThriftInvalid
from compaction_platform.lake.parquet_output import Encoding
from compaction_platform.lake.stitch.bounds import wrong_bounds
from compaction_platform.lake.stitch.errors import CannotStitch
from compaction_platform.lake.stitch.file import Stitched, planned, written
from compaction_platform.lake.stitch.proof import copied

log = logging.getLogger(__name__)

ARROW = b"ARROW:schema"


def write(
    inputs: Sequence[Input],
    unified: Unified,
    encoding: Encoding,
    metadata: Mapping[bytes, bytes],
    sink: IO[bytes],
    verify: Verify,
) -> Written:
    """Raises CannotStitch if these files need another engine."""
    try:
        footers = [each.footer for each in inputs]
    except ThriftInvalid as invalid:
        raise CannotStitch(str(invalid)) from invalid
    plan = planned([each.data for each in inputs], footers, encoding.row_group_bytes)
    metadata = {**_arrow_schema(inputs), **metadata}
    made = written(plan, metadata, sink)
    output = Input(inputs[0].file, mapped(sink))
    made.describe({**metadata, ROWS_KEY: _proved(inputs, unified.schema, made, output, verify)})
    if Input(inputs[0].file, mapped(sink)).metadata.num_rows != plan.rows:
        raise CannotStitch("the footer has another number of rows than the inputs")
    return Written(plan.rows, "stitch", _told(made))


def _proved(inputs: Sequence[Input], schema: pyarrow.Schema, made: Stitched, output: Input, verify: Verify) -> bytes:
    """What to say about the rows, once it is certain that they are those of the inputs. A column of which every page is
    an input's own, with all that tells how to read it, has the same values: it is decoded once, in the output. All
    others are decoded on both sides."""
    same = copied(made.plan, made.choices, output.data)
    others = [name for name in schema.names if name not in same.columns]
    sound = same.with_checksums if verify == "pages" else frozenset()
    expected = _of_inputs(inputs, schema, others)
    found = _of_output(output, schema, made, [name for name in schema.names if name not in sound])
    decoded = dict(found.columns)
    differing = [name for name, digest in expected.columns if decoded[name] != digest]
    if differing or expected.rows != made.plan.rows or found.rows != made.plan.rows:
        raise CannotStitch(f"what was written was not what was read: {', '.join(differing) or 'the number of rows'}")
    if verify == "pages":
        return json.dumps({"rows": found.rows, "bytes": concat.digest_of([output])}).encode()
    return digest_of(found)


def _of_inputs(inputs: Sequence[Input], schema: pyarrow.Schema, names: Sequence[str]) -> Fingerprint:
    """What the inputs hold in these columns, read from each of them."""
    if not names:
        return Fingerprint(sum(group_rows(each) for each in inputs), ())
    part = pyarrow.schema([schema.field(name) for name in names])
    digest = InOrder(part)
    for each in inputs:
        for batch in each.decoded(names):
            digest.update(fitted(batch, part))
    return digest.finish()


def _of_output(output: Input, schema: pyarrow.Schema, made: Stitched, names: Sequence[str]) -> Fingerprint:
    """What the output holds in these columns. What it says about them must be so, too."""
    if not names:
        return Fingerprint(group_rows(output), ())
    part = pyarrow.schema([schema.field(name) for name in names])
    digest = InOrder(part)
    for number, rows in enumerate(output.row_groups(names)):
        if wrong := wrong_bounds(made.plan, number, rows):
            raise CannotStitch(f"what inputs say about their values is wrong: {', '.join(wrong)}")
        for batch in rows.to_batches():
            digest.update(fitted(batch, part))
    return digest.finish()


def group_rows(each: Input) -> int:
    return sum(each.metadata.row_group(number).num_rows for number in range(each.metadata.num_row_groups))


def _arrow_schema(inputs: Sequence[Input]) -> dict[bytes, bytes]:
    """What Arrow has noted about the columns, without what pandas has noted there about rows."""
    notes = {(each.metadata.metadata or {}).get(ARROW) for each in inputs}
    schemas = {None if note is None else _decoded(note) for note in notes}
    if len(schemas) > 1:
        raise CannotStitch("Arrow's own descriptions of the columns differ")
    (schema,) = schemas
    return {} if schema is None else {ARROW: base64.b64encode(schema)}


def _decoded(note: bytes) -> bytes:
    try:
        schema = pyarrow.ipc.read_schema(pyarrow.BufferReader(base64.b64decode(note)))
    except (ValueError, OSError, pyarrow.ArrowException) as invalid:
        raise CannotStitch("Arrow's own description of the columns cannot be read") from invalid
    return bytes(schema.remove_metadata().serialize())


def _told(made: Stitched) -> str:
    """How many columns were made in which way. Which ones, and why, is logged."""
    chosen: dict[str, tuple[str, str]] = {}
    for choice in made.choices:
        chosen.setdefault(choice.column, (choice.strategy, choice.reason))
    for name, (strategy, reason) in chosen.items():
        log.info("stitch %s: %s (%s)", name, strategy, reason)
    counts = Counter(strategy for strategy, _ in chosen.values())
    return "pages are joined; columns: " + ", ".join(
        f"{count} {strategy}" for strategy, count in sorted(counts.items())
    )
