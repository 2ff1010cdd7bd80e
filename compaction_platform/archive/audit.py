"""Cold files read again, long after they were committed: in Spark tasks, every byte and every value."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow
import pyarrow.parquet

from compaction_platform.archive.chain import Archive, Dataset
from compaction_platform.archive.copy_task import fingerprint_of_file
from compaction_platform.archive.hot import as_text, as_time
from compaction_platform.archive.layout import NOT_DATA, Place
from compaction_platform.archive.links import Link
from compaction_platform.archive.manifest import ManifestFile
from compaction_platform.archive.version import Version
from compaction_platform.lake.errors import CompactionError
from compaction_platform.lake.objects import ObjectMissing, Objects


class ColdFileUnreadable(CompactionError):
    """A cold file is gone or damaged."""


@dataclass(frozen=True)
class AuditItem:
    key: str
    file: ManifestFile


@dataclass(frozen=True)
class Audit:
    """What is wrong with a file, or None."""

    store: Objects

    def __call__(self, item: AuditItem) -> str | None:
        try:
            content = self.store.read(item.key)
        except ObjectMissing:
            return "is gone"
        if hashlib.sha256(content).hexdigest() != item.file.sha256:
            return f"is not the file that was committed: its sha256 is not {item.file.sha256[:12]}…"
        if fingerprint_of_file(content).digest != item.file.fingerprint:
            return "decodes to other values than were committed"
        return None


def audit_items(archive: Archive, version: Version, dataset: Dataset) -> list[AuditItem]:
    place = Place(archive.chain, dataset.name, version.blocks)
    return [AuditItem(place.visible(file.name), file) for file in version.manifests[dataset.name].files]


def unlisted(archive: Archive, store: Objects, version: Version, dataset: Dataset) -> list[str]:
    """Files that readers see and the manifest does not list."""
    place = Place(archive.chain, dataset.name, version.blocks)
    listed = {file.name for file in version.manifests[dataset.name].files} | set(NOT_DATA)
    found = (stored.key for stored in store.list_directory(place.directory))
    return [f"{store.uri}/{key} is not in the manifest" for key in found if key.rpartition("/")[2] not in listed]


def cold_links(archive: Archive, store: Objects, version: Version) -> list[Link]:
    """The blocks of a range as the cold files have them."""
    dataset = archive.blocks
    names = [dataset.block, str(dataset.hash), str(dataset.parent_hash)]
    return [
        Link(number, as_text(own), as_text(parent))
        for item in audit_items(archive, version, dataset)
        for number, own, parent in zip(*(column.to_pylist() for column in _columns(store, item, names)), strict=True)
    ]


def last_block_time(archive: Archive, store: Objects, version: Version) -> datetime | None:
    for item in reversed(audit_items(archive, version, archive.blocks)):
        if item.file.rows:
            (times,) = _columns(store, item, [str(archive.blocks.time)])
            return as_time(times[-1].as_py())
    return None


def _columns(store: Objects, item: AuditItem, names: Sequence[str]) -> list[pyarrow.ChunkedArray]:
    try:
        content = pyarrow.BufferReader(pyarrow.py_buffer(store.read(item.key)))
        rows = pyarrow.parquet.read_table(content, columns=list(names), page_checksum_verification=True)
    except (pyarrow.ArrowException, OSError, CompactionError) as error:
        raise ColdFileUnreadable(f"{store.uri}/{item.key} cannot be read: {str(error).splitlines()[0]}") from error
    return [rows[name] for name in names]
