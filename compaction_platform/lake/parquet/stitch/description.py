"""What the footers of several files say about them besides their columns, as one file says it."""

import base64
from collections.abc import Mapping, Sequence

import pyarrow

from compaction_platform.lake.parquet.stitch.errors import StitchUnsupported

ARROW = b"ARROW:schema"
PANDAS = b"pandas"  # it tells about rows, and those are others now


def agreed(metadata: Sequence[Mapping[bytes, bytes]]) -> dict[bytes, bytes]:
    """What all of them say."""
    first = metadata[0]
    same = {key: value for key, value in first.items() if all(each.get(key) == value for each in metadata[1:])}
    return {key: value for key, value in same.items() if key not in (ARROW, PANDAS)} | arrow_schema(metadata)


def arrow_schema(metadata: Sequence[Mapping[bytes, bytes]]) -> dict[bytes, bytes]:
    """What Arrow has noted about the columns, without what pandas has noted there about rows."""
    notes = {each.get(ARROW) for each in metadata}
    schemas = {None if note is None else _decoded(note) for note in notes}
    if len(schemas) > 1:
        raise StitchUnsupported("Arrow's own descriptions of the columns differ")
    (schema,) = schemas
    return {} if schema is None else {ARROW: base64.b64encode(schema)}


def _decoded(note: bytes) -> bytes:
    try:
        schema = pyarrow.ipc.read_schema(pyarrow.BufferReader(base64.b64decode(note)))
    except (ValueError, OSError, pyarrow.ArrowException) as invalid:
        raise StitchUnsupported("Arrow's own description of the columns cannot be read") from invalid
    return bytes(schema.remove_metadata().serialize())
