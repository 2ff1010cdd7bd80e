"""Files below a table's location that nothing refers to: moved to quarantine first, deleted after a grace.

A file is looked at only when it is old enough that no writer can be about to commit it. If a snapshot comes to refer
to a file in quarantine all the same, it is put back.
"""

import gzip
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from compaction_platform.lake.data_file_rows import bucket_of, key_of
from compaction_platform.lake.errors import CompactionError
from compaction_platform.lake.objects import ObjectMissing, Objects, StoredObject, StoreRefused

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from compaction_platform.lake.settings import Settings

QUARANTINE = "_compaction/quarantine"
YOUNGEST = timedelta(hours=24)
PLACES = ("data/", "metadata/")
GZIP = b"\x1f\x8b"
UUID, UUID_WITHIN = re.compile(rb'"table-uuid"\s*:\s*"([^"]+)"'), 4096


class SharedLocation(CompactionError):
    """Another table's files lie here. None was touched."""


@dataclass(frozen=True)
class Found:
    """What lies below a table's location and is nobody's."""

    orphans: tuple[StoredObject, ...] = ()
    to_delete: tuple[StoredObject, ...] = ()  # long enough in quarantine; keys of where they are now
    to_restore: tuple[StoredObject, ...] = ()  # in quarantine, but referred to

    @property
    def bytes(self) -> int:
        return sum(each.size for each in self.orphans)


@dataclass(frozen=True)
class Orphans:
    table: "Table"
    settings: "Settings"
    older_than: timedelta
    quarantined_for: timedelta

    def __post_init__(self) -> None:
        if self.older_than < YOUNGEST:
            raise CompactionError(
                f"orphans younger than {YOUNGEST} may be what a writer is about to commit: older_than must be at least "
                f"that, not {self.older_than}. Nothing was done."
            )

    @property
    def store(self) -> Objects:
        return Objects.at(f"s3://{bucket_of(self._location)}/{key_of(self._location)}".rstrip("/"), self.settings)

    @property
    def _location(self) -> str:
        return str(self.table.location()).rstrip("/")

    def find(self, now: datetime) -> Found:
        """Listing comes first: what is committed after it is known to the metadata that is read then."""
        listed = list(self.store.list())
        self.table.refresh()
        needed = self._needed()
        old = [
            each
            for each in listed
            if each.key.startswith(PLACES) and each.key not in needed and each.last_modified < now - self.older_than
        ]
        self._require_alone(each for each in listed if each.key.startswith(PLACES) and each.key not in needed)
        quarantined = [each for each in listed if each.key.startswith(f"{QUARANTINE}/")]
        missed = [each for each in quarantined if _original(each) in needed]
        again = {each.key for each in old}  # what is about to be set aside under the same name
        over = [
            each
            for each in quarantined
            if _original(each) not in needed | again and each.last_modified < now - self.quarantined_for
        ]
        return Found(tuple(old), tuple(over), tuple(missed))

    def clear(self, found: Found, say: Callable[[str], None]) -> None:
        store = self.store
        for each in found.to_restore:
            original = _original(each)
            if store.stat(original) is None:
                store.copy(each.key, original)
                say(f"{original} was in quarantine and is referred to now: put back")
            store.delete([each.key])
        for each in found.orphans:
            try:
                self._set_aside(store, each)
            except ObjectMissing:
                continue  # another run was faster
            except StoreRefused as refused:
                say(f"{each.key} could not be moved to quarantine and stays: {refused}")
        if problems := store.delete(each.key for each in found.to_delete):
            say(f"{len(problems)} files in quarantine could not be deleted: {next(iter(problems.values()))}")

    def _set_aside(self, store: Objects, orphan: StoredObject) -> None:
        target = f"{QUARANTINE}/{orphan.key}"
        store.copy(orphan.key, target, overwrite=True)
        copied, now = store.stat(target), store.stat(orphan.key)
        if copied is None or now is None or now.etag != orphan.etag or copied.size != orphan.size:
            return  # it is being written to: not an orphan
        store.delete([orphan.key])

    def _needed(self) -> set[str]:
        return set(self._relative(needed_paths(self.table)))

    def _relative(self, paths: Iterable[str]) -> Iterable[str]:
        bucket, prefix = bucket_of(self._location), f"{key_of(self._location)}/"
        for path in paths:
            if bucket_of(path) == bucket and key_of(path).startswith(prefix):
                yield key_of(path).removeprefix(prefix)

    def _table_of(self, metadata: StoredObject) -> str | None:
        """Whose metadata this is; None if it has just been removed."""
        try:
            first = (
                bytes(self.store.read_range(metadata.key, 0, min(metadata.size, UUID_WITHIN))) if metadata.size else b""
            )
            if found := UUID.search(first):  # writers put it near the top
                return found[1].decode()
            content = bytes(self.store.read(metadata.key))
        except ObjectMissing:
            return None
        try:
            found = UUID.search(gzip.decompress(content) if content[:2] == GZIP else content)
        except (OSError, EOFError, zlib.error):
            found = None
        return found[1].decode() if found else "unknown"

    def _require_alone(self, unneeded: Iterable[StoredObject]) -> None:
        """Metadata of another table, however young, means that its data lie here as well."""
        ours = str(self.table.metadata.table_uuid)
        for each in unneeded:
            if not each.key.endswith((".metadata.json", ".metadata.json.gz")):
                continue
            uuid = self._table_of(each)
            if uuid not in (ours, None):
                raise SharedLocation(
                    f"{self._location} also holds files of another table ({each.key} is of table {uuid}). What is "
                    "nobody's cannot be told there. Nothing was moved or deleted; switch orphans off for this table."
                )


def needed_paths(table: "Table") -> set[str]:
    """All files that any snapshot, and the table itself, refer to."""
    metadata = table.metadata
    return {
        *snapshot_paths(table),
        str(table.metadata_location),
        *(entry.metadata_file for entry in metadata.metadata_log),
        *(each.statistics_path for each in metadata.statistics),
        *(each.statistics_path for each in metadata.partition_statistics),
    }


def snapshot_paths(table: "Table") -> set[str]:
    """All files that some snapshot needs to be read."""
    paths: set[str] = set()
    for snapshot in table.metadata.snapshots:
        paths.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in paths:
                paths.add(manifest.manifest_path)
                paths.update(entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))
    return paths


def _original(quarantined: StoredObject) -> str:
    return quarantined.key.removeprefix(f"{QUARANTINE}/")
