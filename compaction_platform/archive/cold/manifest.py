"""What was archived: one manifest for each dataset of a range. `_manifest.json` beside the files is this, as JSON.

A manifest with a field that is not known here is refused: it may mean something that must not be overlooked.
"""

import hashlib
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, model_serializer

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.cold.paths import attempt_name
from compaction_platform.errors import CompactionError

FORMAT = 1


class RangeManifestUnreadable(CompactionError):
    """This is not a manifest, or one of a newer format."""


class RangeManifestModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FinalityEvidence(RangeManifestModel):
    """Why the range was taken for final."""

    mode: str
    why: str
    finalized: int
    finalized_hash: str | None
    head: int
    head_hash: str
    head_time: datetime
    judged_at: datetime  # by the database's clock


class Digest(RangeManifestModel):
    """Rows as PostgreSQL digests them: their number, and the sum of hash_record_extended over whole rows."""

    rows: int
    sum: str

    def plus(self, other: "Digest") -> "Digest":
        return Digest(rows=self.rows + other.rows, sum=str(int(self.sum) + int(other.sum)))


NOTHING = Digest(rows=0, sum="0")


class ManifestSource(RangeManifestModel):
    table: str
    server: int  # PostgreSQL's major version: its digests hold within one
    digest: Digest


class ManifestFile(RangeManifestModel):
    """One data file. The ranges of a manifest's files cover its range, empty blocks included."""

    name: str
    size: int
    sha256: str
    rows: int
    start_block: int
    end_block: int  # not included
    fingerprint: str  # of the values of all columns, in order: see docs/fingerprints.md
    source: Digest

    @property
    def blocks(self) -> BlockRange:
        return BlockRange(self.start_block, self.end_block)


class ManifestColumn(RangeManifestModel):
    name: str
    source_type: str
    type: str


class Superseded(RangeManifestModel):
    dataset_version: int
    manifest_sha256: str
    because: str


class RangeManifest(RangeManifestModel):
    format_version: Literal[1] = 1
    dataset_uuid: str
    dataset_version: int
    chain_id: int
    dataset: str
    partition_key: str
    start_block: int
    end_block: int  # not included
    attempt: int  # the fence of the claim that wrote it
    token: str | None = None  # with the fence, the name of the attempt; none before tokens were introduced
    ledger: str | None = None  # the ledger that wrote it
    written_at: datetime
    finality: FinalityEvidence
    source: ManifestSource
    columns: tuple[ManifestColumn, ...]
    files: tuple[ManifestFile, ...]
    first_parent_hash: str | None
    last_block: int | None  # the last one that there is, where the chain skips numbers
    last_hash: str | None
    config_hash: str
    schema_hash: str
    supersedes: Superseded | None = None

    @model_serializer(mode="wrap")
    def _as_written(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what manifests of older versions of the platform have not: their sha256 stays what it was."""
        values: dict[str, Any] = dump(self)
        return {name: each for name, each in values.items() if each is not None or name not in ("token", "ledger")}

    @property
    def attempt_name(self) -> str:
        return str(self.attempt) if self.token is None else attempt_name(self.attempt, self.token)

    @property
    def blocks(self) -> BlockRange:
        return BlockRange(self.start_block, self.end_block)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def fingerprint(self) -> str:
        """Of all files together: the same rows in other files have another."""
        return hashlib.sha256("".join(file.fingerprint for file in self.files).encode()).hexdigest()

    @property
    def data_version(self) -> str:
        return f"{self.dataset_version}-{self.fingerprint[:16]}"

    def to_bytes(self) -> bytes:
        return self.model_dump_json(indent=1).encode()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def from_bytes(cls, content: bytes, where: str) -> "RangeManifest":
        try:
            return cls.model_validate_json(content)
        except ValidationError as invalid:
            first = invalid.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise RangeManifestUnreadable(
                f"{where} cannot be read as a manifest of format {FORMAT} ({field}: {first['msg']}). Nothing was "
                "changed. Was it written by a newer version of this platform, or by hand?"
            ) from None
