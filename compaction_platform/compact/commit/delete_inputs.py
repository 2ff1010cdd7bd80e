"""What happens to files whose rows are in a compacted file: exactly those versions, and never before it is there."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, Protocol

from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.lake.storage.object_store import ObjectMissing, ObjectStore
from compaction_platform.lake.storage.threads import map_concurrently
from compaction_platform.persisted_names import TRASH_DIRECTORY

Originals = Literal["delete", "trash", "keep"]
FOLDER_FORMAT = "%Y%m%dT%H%M%SZ"
FOLDER = re.compile(r"(?P<time>\d{8}T\d{6}Z)(-(?P<hours>\d{1,6})h)?")
ASKED_AT_ONCE = 16
CHUNK = 64  # files are asked for once more, then removed, this many at a time


@dataclass(frozen=True)
class InputDeletion:
    """How one run removes files. What goes to the trash goes into a folder that is named by the time of the run and by
    how long it is kept: whoever empties the trash later may have been told something else."""

    originals: Originals
    began: datetime | None = None  # by the store's clock; only the trash needs it
    kept_for: timedelta | None = None

    @property
    def folder(self) -> str:
        if self.began is None:
            raise ValueError("the trash needs the time of the run")
        name = self.began.astimezone(UTC).strftime(FOLDER_FORMAT)
        hours = "" if self.kept_for is None else f"-{self.kept_for // timedelta(hours=1)}h"
        return f"{TRASH_DIRECTORY}/{name}{hours}"

    def remove(self, store: ObjectStore, files: Sequence[FileVersion], proof: "Proves | None") -> dict[str, str]:
        """Remove these versions, as long as what has their rows is there (no proof: they have none of their own).
        Returns the reason for each that is still there; the next run tries again."""
        if self.originals == "keep":
            return {}
        failures: dict[str, str] = {}
        for start in range(0, len(files), CHUNK):
            some = files[start : start + CHUNK]
            unproved = proof.missing_for(some) if proof else {}
            failures |= unproved | self._remove_some(store, [file for file in some if file.key not in unproved])
        return failures

    def _remove_some(self, store: ObjectStore, files: Sequence[FileVersion]) -> dict[str, str]:
        if self.originals == "trash":
            map_concurrently(lambda file: self._copy_to_trash(store, file), files, ASKED_AT_ONCE)
        return store.delete_versions((file.key, file.etag) for file in files)

    def _copy_to_trash(self, store: ObjectStore, file: FileVersion) -> None:
        """The same version again if it is there already: an attempt before this one may have put it there."""
        with suppress(ObjectMissing):  # another run has removed it
            store.copy(file.key, f"{self.folder}/{file.key}", overwrite=True)


class Proves(Protocol):
    def missing_for(self, files: Sequence[FileVersion]) -> dict[str, str]:
        """Why files must stay: what should have their rows is not there, or not any more."""


@dataclass(frozen=True)
class ReplacementCheck:
    """The compacted files that hold the rows of what is to be removed, by its key."""

    store: ObjectStore
    holders: Mapping[str, FileVersion]

    def missing_for(self, files: Sequence[FileVersion]) -> dict[str, str]:
        """Files whose rows are not, or not any more, where they should be."""
        holders = {self.holders[file.key] for file in files if file.key in self.holders}
        sound = {holder for holder in holders if self._is_there(holder)}
        return {
            file.key: "the compacted file with its rows is gone; it stays"
            for file in files
            if self.holders.get(file.key) not in sound
        }

    def _is_there(self, holder: FileVersion) -> bool:
        found = self.store.stat(holder.key)
        return found is not None and found.etag == holder.etag


def empty_trash(
    store: ObjectStore, now: Callable[[], datetime], undeclared: timedelta | None
) -> tuple[int, dict[str, str]]:
    """Delete what was in the trash for as long as its folder says: how many files, and what could not be deleted.
    `undeclared`: how long folders are kept that say nothing; None: for ever."""
    trashed = list(store.list(TRASH_DIRECTORY))
    if not trashed:
        return 0, {}
    moment = now()
    over = [(stored.key, stored.etag) for stored in trashed if _is_over(stored.key, moment, undeclared)]
    failures = store.delete_versions(over)
    return len(over) - len(failures), failures


def _is_over(key: str, now: datetime, undeclared: timedelta | None) -> bool:
    folder = FOLDER.fullmatch(key.removeprefix(f"{TRASH_DIRECTORY}/").partition("/")[0])
    if folder is None:
        return False  # not put there by us
    kept_for = timedelta(hours=int(folder["hours"])) if folder["hours"] else undeclared
    trashed_at = datetime.strptime(folder["time"], FOLDER_FORMAT).replace(tzinfo=UTC)
    return kept_for is not None and trashed_at < now - kept_for
