"""What one version of a partition is made of: `_compaction.json` beside its files, written once, before the swap.

A manifest with a field that is not known here is refused: it may mean something that must not be overlooked.
"""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.errors import CompactionError
from compaction_platform.persisted_names import GLUE_ABANDONED, GLUE_BEGUN, GLUE_MANIFEST, GLUE_SWAPPED

OWN_MARKS = (GLUE_SWAPPED, GLUE_MANIFEST, GLUE_BEGUN, GLUE_ABANDONED)


class VersionManifestUnreadable(CompactionError):
    """This is not a manifest, or one of a newer format."""


class VersionManifestModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ManifestInput(VersionManifestModel):
    """A file at a place, in one version."""

    place: str  # s3://bucket/prefix
    name: str
    etag: str
    size: int
    changed_at: datetime | None = None  # None: not told by the first format

    @property
    def listed(self) -> FileVersion:
        return FileVersion(self.name, self.size, self.etag, self.changed_at)


class OutputFile(VersionManifestModel):
    name: str
    etag: str
    size: int
    rows: int | None  # None: it cannot be read, and was carried over as it is
    how: str  # the engine, or "copy"
    reason: str
    inputs: tuple[str, ...]  # names, in the order of their rows
    content: str | None = None  # digest of its bytes; None: not told by the first format


class VersionManifest(VersionManifestModel):
    format_version: Literal[1, 2] = 2  # in the first one, times of files were not part of what `absorbed` names
    database: str
    table: str
    values: tuple[str, ...]
    location: str  # of this version
    replaces: str  # the location that the catalog had before
    home: str  # where the partition was before its first swap; writers may know only that
    planned_against: str  # fingerprint of the partition as the catalog described it
    written_at: datetime  # by the store's clock
    inputs: tuple[ManifestInput, ...]
    outputs: tuple[OutputFile, ...]
    old_places: dict[str, datetime | None]  # where files were before and may still be: since when; None: by this swap
    absorbed: tuple[str, ...]  # digests of all versions of files, at any place, whose rows are in the outputs
    known: dict[str, tuple[str, ...]]  # by old place: names of such files

    @property
    def rows(self) -> int | None:
        rows = [each.rows for each in self.outputs]
        return None if None in rows else sum(each for each in rows if each is not None)

    @property
    def size(self) -> int:
        return sum(each.size for each in self.outputs)

    def is_of(self, database: str, table: str, values: tuple[str, ...], location: str) -> bool:
        return (self.database, self.table, self.values, self.location) == (database, table, values, location)


def read_manifest(content: bytes) -> VersionManifest:
    try:
        return VersionManifest.model_validate_json(content)
    except ValidationError as invalid:
        raise VersionManifestUnreadable(
            f"{GLUE_MANIFEST} cannot be understood ({invalid.error_count()} problems): damaged, or of a newer version "
            "of this program. The partition was left as it is."
        ) from None
