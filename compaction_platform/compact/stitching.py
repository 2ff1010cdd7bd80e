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
from compaction_platform.compact.written import Verify, Written, digest_of, mapped
from compaction_platform.lake.parquet_format.thrift import ThriftInvalid
from compaction_platform.lake.parquet_output import Encoding
from compaction_platform.lake.stitch.errors import CannotStitch
from compaction_platform.lake.stitch.file import Stitched, planned, written
from compaction_platform.lake.stitch.proof import proved

log = logging.getLogger(__name__)

ARROW = b"ARROW:schema"


def write(
    inputs: Sequence[Input],
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
    found = proved(plan, made.choices, output.data, by_checksums=verify == "pages")
    said = json.dumps({"rows": found.rows, "bytes": concat.digest_of([output])}).encode()
    made.describe({**metadata, ROWS_KEY: digest_of(found) if verify == "full" else said})
    if Input(inputs[0].file, mapped(sink)).metadata.num_rows != plan.rows:
        raise CannotStitch("the footer has another number of rows than the inputs")
    return Written(plan.rows, "stitch", _told(made))


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
