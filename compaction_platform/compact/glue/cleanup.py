"""What was replaced is removed when its grace is over; what dead runs have left, a day later. Nothing else is."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from compaction_platform.compact.glue.manifest import (
    MANIFEST,
    SWAPPED,
    Abandoned,
    File,
    Manifest,
    ManifestUnreadable,
    read_manifest,
)
from compaction_platform.compact.glue.plan import (
    COPIED,
    VERSION,
    Found,
    Place,
    absorbed,
    is_version,
    missing_outputs,
    version_digest,
)
from compaction_platform.compact.glue.swap import Swap
from compaction_platform.compact.glue.table import Surveyed
from compaction_platform.compact.listed import Listed
from compaction_platform.compact.originals import Removal
from compaction_platform.compact.plan import OWN_NAME
from compaction_platform.lake.objects import ObjectExists

ABANDONED_AFTER = timedelta(days=1)


@dataclass(frozen=True)
class StillPublished:
    """The partition leads to files that have the rows of what is to be removed from one place."""

    swap: Swap
    surveyed: Surveyed
    place: str

    def missing_for(self, files: Sequence[Listed]) -> dict[str, str]:
        manifest = self.surveyed.found.manifest
        current = self.surveyed.found.current.uri
        if manifest is None or self.swap.location(self.surveyed.partition) != current:
            return {
                file.key: "the catalog does not lead to the files with its rows any more; it stays" for file in files
            }
        now = self.swap.look(current)
        if missing_outputs(manifest, now):
            return {file.key: "files with its rows are gone; it stays" for file in files}
        known = absorbed(Found(now, manifest))
        return {
            file.key: "the file with its rows is gone; it stays"
            for file in files
            if version_digest(self.place, file.key, file.etag) not in known
        }


@dataclass(frozen=True)
class Cleanup:
    swap: Swap

    def remove_replaced(self, surveyed: Surveyed, files: Sequence[File]) -> tuple[int, dict[str, str]]:
        """How many were removed, and why others are still there."""
        removed = 0
        failures: dict[str, str] = {}
        for place in dict.fromkeys(file.place for file in files):
            some = [Listed(file.name, file.size, file.etag) for file in files if file.place == place]
            proof = StillPublished(self.swap, surveyed, place)
            kept = Removal("delete").remove(self.swap.at(place), some, proof)
            failures |= {f"{place}/{name}": why for name, why in kept.items()}
            removed += len(some) - len(kept)
            if is_version(place) and not self.swap.look(place).data:
                self._delete(place, [SWAPPED, MANIFEST])
        return removed, failures

    def remove_leftovers(
        self, surveyed: Surveyed, locations: Iterable[str], now: datetime
    ) -> tuple[int, dict[str, str]]:
        """Directories of this partition that a dead run has left. `locations` is what any partition leads to."""
        wanted = set(locations) | {surveyed.found.current.uri, *(place.uri for place in surveyed.found.old)}
        removed = 0
        notes: dict[str, str] = {}
        for place in surveyed.versions:
            is_old = all(file.changed_at and now - file.changed_at > ABANDONED_AFTER for file in place.files)
            if place.uri in wanted or not is_old or not VERSION.fullmatch(place.uri.rpartition("/")[2]):
                continue
            if why := self._why_kept(surveyed, place):
                notes[place.uri] = why
            else:
                removed += self._remove(place)
        return removed, notes

    def _why_kept(self, surveyed: Surveyed, place: Place) -> str | None:
        if place.find(SWAPPED):
            return "the catalog led here once and was changed by somebody else since; look at it, then delete it"
        if place.find(MANIFEST) is None:
            return None  # the catalog cannot ever have led here
        try:
            manifest = read_manifest(bytes(self.swap.at(place.uri).read(MANIFEST)))
        except ManifestUnreadable as unreadable:
            return str(unreadable)
        if isinstance(manifest, Abandoned) or self._inputs_are_safe(surveyed.found, manifest):
            return None
        return "it was about to be published, and what went into it is not where it was; look at it"

    def _inputs_are_safe(self, found: Found, manifest: Manifest) -> bool:
        """Whether all that went into a version is in the partition as it is now."""
        known = absorbed(found) | {found.current.digest(file.key, file.etag) for file in found.current.data}
        return all(version_digest(file.place, file.name, file.etag) in known for file in manifest.inputs)

    def _remove(self, place: Place) -> int:
        """From the moment in which it is marked, no run publishes it; the mark goes last."""
        if place.find(MANIFEST) is None:
            with suppress(ObjectExists):
                self.swap.at(place.uri).create(MANIFEST, Abandoned().model_dump_json().encode())
                return self._remove_files(place)
            return 0  # a run is about to publish it after all
        return self._remove_files(place)

    def _remove_files(self, place: Place) -> int:
        ours = [file.key for file in place.data if OWN_NAME.fullmatch(file.key) or COPIED.fullmatch(file.key)]
        hidden = [file.key for file in place.files if file.key.startswith("_") and file.key != MANIFEST]
        self._delete(place.uri, [*ours, *hidden])
        if not self.swap.look(place.uri).data:
            self._delete(place.uri, [MANIFEST])
        return 1

    def _delete(self, place: str, names: Iterable[str]) -> None:
        self.swap.at(place).delete(names)
