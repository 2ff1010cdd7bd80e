"""Are the rows of a compacted file still those that were verified when it was made? Read all of it and see."""

import json
from dataclasses import dataclass
from typing import Any

import pyarrow

from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.compact.rewrite.read_inputs import UNREADABLE, SourceFile, refuse_exhaustion
from compaction_platform.compact.rewrite.result import bytes_digest, digest_of, read_back
from compaction_platform.lake.parquet.second_reader import ReadersDisagree, SecondReaderRefused, verify_sample
from compaction_platform.lake.parquet.stitch.statistics import untrue_bounds
from compaction_platform.lake.storage.object_store import ObjectChanged, ObjectMissing, ObjectStore
from compaction_platform.persisted_names import FOOTER_ROWS


@dataclass(frozen=True)
class AuditedOutput:
    rows: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class OutputAudit:
    """It travels to where the work is done."""

    store: ObjectStore

    def __call__(self, file: FileVersion) -> AuditedOutput:
        try:
            return self.judged(file, pyarrow.py_buffer(self.store.read(file.key, file.etag)))
        except (ObjectChanged, ObjectMissing):
            return AuditedOutput()  # compacted again meanwhile

    def judged(self, file: FileVersion, data: pyarrow.Buffer) -> AuditedOutput:
        """What the bytes of a compacted file say of themselves, and what is in them."""
        try:
            output = SourceFile(file, data)
            said = json.loads((output.metadata.metadata or {}).get(FOOTER_ROWS, b"{}"))
            found = _found(output, by_bytes="bytes" in said)
        except UNREADABLE as error:
            refuse_exhaustion(error)
            return AuditedOutput(problem=f"it cannot be read: {error}")
        if said != found:
            return AuditedOutput(found["rows"], f"its rows are not those that were verified: {found}, said: {said}")
        return AuditedOutput(found["rows"], _problem(output))


def _problem(output: SourceFile) -> str | None:
    """What other readers would get wrong, although the rows are right."""
    if untrue := untrue_bounds(output.footer, output.opened):
        return f"its footer claims bounds or nulls that its rows do not have: {', '.join(untrue)}"
    try:
        verify_sample(output.data, output.file.key, "all")
    except (SecondReaderRefused, ReadersDisagree) as reason:
        return str(reason)
    return None


def _found(output: SourceFile, *, by_bytes: bool) -> dict[str, Any]:
    """What the file should say about its rows."""
    if by_bytes:
        return {"rows": output.metadata.num_rows, "bytes": bytes_digest([output])}
    found: dict[str, Any] = json.loads(digest_of(read_back(output)))
    return found
