"""Files below a table's location that nothing refers to: moved to quarantine first, deleted after a grace.

A file is looked at only when it is old enough that no writer can be about to commit it, and only if it is named as
Iceberg's writers name theirs: readers use others that no metadata list (checksums, version hints, markers). What the
table refers to is read again right before each few files are moved or deleted. If a snapshot comes to refer to a file
in quarantine all the same, it is put back.
"""

import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

from compaction_platform.errors import CompactionError
from compaction_platform.lake.iceberg.data_file_reader import bucket_of, key_of
from compaction_platform.lake.storage.conditional_delete import CHANGED, delete_unchanged
from compaction_platform.lake.storage.object_store import (
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    StoredObject,
    StoreRefused,
)
from compaction_platform.persisted_names import QUARANTINE_DIRECTORY

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from compaction_platform.settings import Settings

YOUNGEST = timedelta(hours=24)
PLACES = ("data/", "metadata/")
DATA_FILES = (".parquet", ".orc", ".avro", ".puffin")
TABLE_METADATA = (".metadata.json", ".metadata.json.gz")
METADATA_FILES = (".avro", *TABLE_METADATA)
VERSION_HINT = "metadata/version-hint.text"
OTHER_FORMATS = ("_delta_log/", ".hoodie/")  # they may use the same data files
CHUNK = 100
SHOWN = 3
GZIP = b"\x1f\x8b"
UUID, UUID_WITHIN = re.compile(rb'"table-uuid"\s*:\s*"([^"]+)"'), 4096


class SharedLocation(CompactionError):
    """Another table's files lie here. None was touched."""


class TableReplaced(CompactionError):
    """Another table has this table's name now. What is deleted no more, is not."""


@dataclass(frozen=True)
class OrphanFiles:
    """What lies below a table's location and is nobody's."""

    orphans: tuple[StoredObject, ...] = ()
    to_delete: tuple[StoredObject, ...] = ()  # long enough in quarantine; keys of where they are now
    to_restore: tuple[StoredObject, ...] = ()  # in quarantine, but referred to and missing
    others: tuple[StoredObject, ...] = ()  # nothing refers to them, and Iceberg's writers do not name theirs so

    @property
    def bytes(self) -> int:
        return sum(each.size for each in self.orphans)


@dataclass
class References:
    """Which keys below its location a table refers to; read again when its metadata have changed."""

    table: "Table"
    _read_from: str = ""
    _keys: frozenset[str] = frozenset()

    def now(self) -> frozenset[str]:
        """As of this moment, in the form that `comparable` gives."""
        uuid = self.table.metadata.table_uuid
        self.table.refresh()
        if self.table.metadata.table_uuid != uuid:
            raise TableReplaced(f"{self.table.location()}: another table has its name now. Nothing more was deleted.")
        if self.table.metadata_location != self._read_from:
            self._keys = frozenset(self._below(needed_paths(self.table)))
            self._read_from = self.table.metadata_location
        return self._keys

    def _below(self, paths: Iterable[str]) -> Iterator[str]:
        """The bucket is not compared: it may have several names."""
        prefix = f"{comparable(key_of(str(self.table.location()).rstrip('/')))}/"
        for path in paths:
            key = comparable(key_of(path))
            if key.startswith(prefix):
                yield key.removeprefix(prefix)


@dataclass(frozen=True)
class OrphanRemoval:
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
    def store(self) -> ObjectStore:
        return ObjectStore.at(f"s3://{bucket_of(self._location)}/{key_of(self._location)}".rstrip("/"), self.settings)

    @cached_property
    def _references(self) -> References:
        return References(self.table)

    @property
    def _location(self) -> str:
        return str(self.table.location()).rstrip("/")

    def find(self, now: datetime) -> OrphanFiles:
        """Listing comes first: what is committed after it is known to the metadata that is read then."""
        listed = list(self.store.list())
        needed = self._references.now()
        in_place = {comparable(each.key): each.size for each in listed if each.key.startswith(PLACES)}
        unneeded = [each for each in listed if each.key.startswith(PLACES) and comparable(each.key) not in needed]
        self._require_alone(listed, unneeded)
        old = [each for each in unneeded if each.last_modified < now - self.older_than]
        has_hint = any(each.key == VERSION_HINT for each in listed)
        orphans = [each for each in old if is_named_by_iceberg(each.key, has_hint=has_hint)]
        quarantined = [each for each in listed if each.key.startswith(f"{QUARANTINE_DIRECTORY}/")]
        missed = [each for each in quarantined if _original(each) in needed and _original(each) not in in_place]
        again = {comparable(each.key) for each in orphans}  # what is about to be set aside under the same name
        over = [
            each
            for each in quarantined
            if each.last_modified < now - self.quarantined_for
            and _original(each) not in again
            and (_original(each) not in needed or in_place.get(_original(each)) == each.size)
        ]
        left = [each for each in old if not is_named_by_iceberg(each.key, has_hint=has_hint)]
        others = [each for each in left if not _belongs_to_another(each.key, in_place)]
        return OrphanFiles(tuple(orphans), tuple(over), tuple(missed), tuple(others))

    def clear(self, found: OrphanFiles, say: Callable[[str], None]) -> None:
        store = self.store
        for each in found.to_restore:
            self._put_back(store, each, say)
        for start in range(0, len(found.orphans), CHUNK):
            self._set_aside(store, found.orphans[start : start + CHUNK], say)
        for start in range(0, len(found.to_delete), CHUNK):
            self._delete(store, found.to_delete[start : start + CHUNK], say)
        if found.others:
            names = ", ".join(each.key for each in found.others[:SHOWN])
            say(f"{len(found.others)} files that nothing refers to stay, as they are not named like Iceberg's: {names}")

    def _put_back(self, store: ObjectStore, quarantined: StoredObject, say: Callable[[str], None]) -> None:
        """The copy stays for another grace: a run that has slept may be about to remove the original."""
        original = quarantined.key.removeprefix(f"{QUARANTINE_DIRECTORY}/")
        try:
            store.copy(quarantined.key, original)
            store.copy(original, quarantined.key, overwrite=True)
        except (ObjectExists, ObjectMissing):
            return  # another run was faster
        say(f"{original} was in quarantine and is referred to now: put back")

    def _set_aside(self, store: ObjectStore, orphans: Sequence[StoredObject], say: Callable[[str], None]) -> None:
        """All are copied; then the table is looked at; then those that it still does not refer to are removed."""
        copied: dict[str, str] = {}
        for orphan in orphans:
            try:
                store.copy(orphan.key, f"{QUARANTINE_DIRECTORY}/{orphan.key}", overwrite=True)
            except ObjectMissing:
                continue  # another run was faster
            except StoreRefused as refused:
                say(f"{orphan.key} could not be moved to quarantine and stays: {refused}")
                continue
            copy = store.stat(f"{QUARANTINE_DIRECTORY}/{orphan.key}")
            if copy is not None and copy.size == orphan.size:
                copied[orphan.key] = orphan.etag
        needed = self._references.now()
        going = {key: etag for key, etag in copied.items() if comparable(key) not in needed}
        if len(going) < len(copied):
            say(f"{len(copied) - len(going)} files were committed while they were moved to quarantine; they stay")
        for key, reason in delete_unchanged(store, going).items():
            if reason != CHANGED:  # somebody is writing to it: not an orphan
                say(f"{key} could not be moved to quarantine and stays: {reason}")

    def _delete(self, store: ObjectStore, over: Sequence[StoredObject], say: Callable[[str], None]) -> None:
        needed = self._references.now()
        going = {}
        for each in over:
            original = each.key.removeprefix(f"{QUARANTINE_DIRECTORY}/")
            if comparable(original) not in needed or store.stat(original) is not None:
                going[each.key] = each.etag
        kept = delete_unchanged(store, going)
        if problems := {key: reason for key, reason in kept.items() if reason != CHANGED}:
            say(f"{len(problems)} files in quarantine could not be deleted: {next(iter(problems.values()))}")

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

    def _require_alone(self, listed: Iterable[StoredObject], unneeded: Iterable[StoredObject]) -> None:
        """Metadata of another table, however young, means that its data lie here as well."""
        ours = str(self.table.metadata.table_uuid)
        for each in listed:
            if each.key.startswith(OTHER_FORMATS):
                raise SharedLocation(
                    f"{self._location} is also a table of another format ({each.key}), which may use the same data "
                    "files. Nothing was moved or deleted; switch orphans off for this table."
                )
        for each in unneeded:
            if not each.key.endswith(TABLE_METADATA):
                continue
            uuid = self._table_of(each)
            if uuid not in (ours, None):
                raise SharedLocation(
                    f"{self._location} also holds files of another table ({each.key} is of table {uuid}). What is "
                    "nobody's cannot be told there. Nothing was moved or deleted; switch orphans off for this table."
                )


def is_named_by_iceberg(key: str, *, has_hint: bool = False) -> bool:
    """Whether Iceberg's writers name data, delete or metadata files like this. Where there is a version hint, readers
    find table metadata by it: then those are left."""
    place, *folders, name = key.split("/")
    if name.startswith((".", "_")) or any(map(_is_hidden, folders)):
        return False
    if place == "data":
        return name.endswith(DATA_FILES)
    return not folders and name.endswith(METADATA_FILES) and not (has_hint and name.endswith(TABLE_METADATA))


def _is_hidden(folder: str) -> bool:
    return folder.startswith(".") or (folder.startswith("_") and "=" not in folder)


def _belongs_to_another(key: str, there: Iterable[str]) -> bool:
    """A checksum of a file that is there, or the version hint: nobody wonders about them."""
    folder, _, name = key.rpartition("/")
    checked = f"{folder}/{name.removeprefix('.').removesuffix('.crc')}"
    return key == VERSION_HINT or (name.endswith(".crc") and comparable(checked) in there)


def comparable(key: str) -> str:
    """Keys that may mean the same object become equal, whether a writer has encoded them, or doubled a slash."""
    return re.sub("/+", "/", unquote_plus(key))


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
    return comparable(quarantined.key.removeprefix(f"{QUARANTINE_DIRECTORY}/"))
