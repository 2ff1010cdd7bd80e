"""What happens to files whose rows are in a compacted file: exactly those versions, and never before it is there."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, Protocol

from compaction_platform.compact.listed import Listed
from compaction_platform.lake.objects import Objects

Originals = Literal["delete", "trash", "keep"]
TRASH = "_compaction/trash"
FOLDER_FORMAT = "%Y%m%dT%H%M%SZ"
ASKED_AT_ONCE = 16
CHUNK = 64  # files are asked for once more, then removed, this many at a time


@dataclass(frozen=True)
class Removal:
    """How one run removes files. What goes to the trash goes into a folder named by the time of the run."""

    originals: Originals
    began: datetime | None = None  # by the store's clock; only the trash needs it

    @property
    def folder(self) -> str:
        if self.began is None:
            raise ValueError("the trash needs the time of the run")
        return f"{TRASH}/{self.began.astimezone(UTC).strftime(FOLDER_FORMAT)}"

    def remove(self, store: Objects, files: Sequence[Listed], proof: "Proves | None") -> dict[str, str]:
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

    def _remove_some(self, store: Objects, files: Sequence[Listed]) -> dict[str, str]:
        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            there = dict(zip(files, pool.map(lambda file: store.stat(file.key), files), strict=True))
            unchanged = [file for file, found in there.items() if found is not None and found.etag == file.etag]
            changed = {
                file.key: "it was replaced meanwhile; its new version is planned by the next run"
                for file, found in there.items()
                if found is not None and found.etag != file.etag
            }
            if self.originals == "trash":
                list(pool.map(lambda file: self._copy_to_trash(store, file), unchanged))
        return changed | store.delete(file.key for file in unchanged)

    def _copy_to_trash(self, store: Objects, file: Listed) -> None:
        """The same version again if it is there already: an attempt before this one may have put it there."""
        store.copy(file.key, f"{self.folder}/{file.key}", overwrite=True)


class Proves(Protocol):
    def missing_for(self, files: Sequence[Listed]) -> dict[str, str]:
        """Why files must stay: what should have their rows is not there, or not any more."""


@dataclass(frozen=True)
class Proof:
    """The compacted files that hold the rows of what is to be removed, by its key."""

    store: Objects
    holders: Mapping[str, Listed]

    def missing_for(self, files: Sequence[Listed]) -> dict[str, str]:
        """Files whose rows are not, or not any more, where they should be."""
        holders = {self.holders[file.key] for file in files if file.key in self.holders}
        sound = {holder for holder in holders if self._is_there(holder)}
        return {
            file.key: "the compacted file with its rows is gone; it stays"
            for file in files
            if self.holders.get(file.key) not in sound
        }

    def _is_there(self, holder: Listed) -> bool:
        found = self.store.stat(holder.key)
        return found is not None and found.etag == holder.etag


def empty_trash(store: Objects, now: Callable[[], datetime], older_than: timedelta) -> tuple[int, dict[str, str]]:
    """Delete what was put into the trash longer ago than this: how many files, and what could not be deleted."""
    trashed = [stored.key for stored in store.list(TRASH)]
    if not trashed:
        return 0, {}
    moment = now()
    keys = [key for key in trashed if _trashed_at(key, moment) < moment - older_than]
    failures = store.delete(keys)
    return len(keys) - len(failures), failures


def _trashed_at(key: str, now: datetime) -> datetime:
    folder = key.removeprefix(f"{TRASH}/").partition("/")[0]
    try:
        return datetime.strptime(folder, FOLDER_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return now  # not put there by us: it stays
