"""Files that cannot be compacted: they stay where they are, and a note about each says why.

A note is about one version. Whoever replaces the file, or deletes the note, has it looked at again.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from compaction_platform.compact.plan.listing import FileVersion, Version
from compaction_platform.lake.storage.object_store import ObjectMissing, ObjectStore
from compaction_platform.lake.storage.threads import map_concurrently
from compaction_platform.persisted_names import SET_ASIDE_DIRECTORY

AT_ONCE = 16


@dataclass(frozen=True)
class SkippedFiles:
    """The notes of one directory tree."""

    store: ObjectStore

    def remember(self, files: Mapping[FileVersion, str]) -> None:
        for file, reason in files.items():
            note = {"key": file.key, "version": file.stamp, "size": file.size, "reason": reason}
            self.store.write(f"{SET_ASIDE_DIRECTORY}/{_name(file.key, file.stamp)}.json", json.dumps(note).encode())

    def notes(self) -> list[dict[str, str]]:
        keys = [stored.key for stored in self.store.list(SET_ASIDE_DIRECTORY)]
        return [note for note in map_concurrently(self._note, keys, AT_ONCE) if note is not None]

    def known(self) -> dict[str, set[Version]]:
        """By directory: the versions that were set aside."""
        found: dict[str, set[Version]] = {}
        for note in self.notes():
            directory, _, name = note["key"].rpartition("/")
            found.setdefault(directory, set()).add((name, note["version"]))
        return found

    def _note(self, key: str) -> dict[str, str] | None:
        try:
            note: dict[str, str] = json.loads(bytes(self.store.read(key)))
        except ObjectMissing:
            return None
        return note


def _name(key: str, stamp: str) -> str:
    return hashlib.sha256(f"{key}\n{stamp}".encode()).hexdigest()[:32]
