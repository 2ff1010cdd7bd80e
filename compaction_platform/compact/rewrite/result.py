"""What an engine has written, and how it is compared with what was read."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow
import xxhash

from compaction_platform.compact.rewrite.read_inputs import SourceFile
from compaction_platform.compact.rewrite.unify_schema import fitted
from compaction_platform.errors import VerificationFailed
from compaction_platform.lake.parquet.stitch.stitch_plan import ColumnChoice
from compaction_platform.lake.verification.fingerprint import Fingerprint, OrderedFingerprint

Engine = Literal["stitch", "re-encode", "sort", "none"]
Verify = Literal["full", "pages"]  # how copied pages are proved: decoded, or by their checksums where they have them
NOTHING_CHANGED = "Nothing was published and nothing was removed."


@dataclass(frozen=True)
class WrittenOutput:
    rows: int
    engine: Engine
    reason: str
    columns: tuple[ColumnChoice, ...] = ()  # how each was made, where that differs
    stitch_failure: str | None = None  # stitching was tried, and has a defect
    proof_seconds: float = 0.0  # what it took to read and compare, besides writing


def digest_of(rows: Fingerprint) -> bytes:
    """What a compacted file says about its rows, so that they can be proved again later."""
    return json.dumps({"rows": rows.rows, "in_order": rows.digest}).encode()


def bytes_digest(files: Sequence[SourceFile]) -> str:
    """One digest of the bytes of all columns, in their order."""
    digest = xxhash.xxh3_128()
    for each in files:
        data = memoryview(each.data).cast("B")
        for chunk in (chunk for group in each.footer.row_groups for chunk in group.chunks):
            digest.update(data[chunk.start : chunk.start + chunk.compressed])
    return digest.hexdigest()


def read_back(output: SourceFile, schema: pyarrow.Schema | None = None) -> Fingerprint:
    digest = OrderedFingerprint(schema or output.schema)
    for batch in output.decoded():
        digest.update(batch if schema is None else fitted(batch, schema))
    return digest.finish()


def require(holds: bool, what: str) -> None:
    if not holds:
        raise VerificationFailed(f"the {what} that were written are not those that were read. {NOTHING_CHANGED}")
