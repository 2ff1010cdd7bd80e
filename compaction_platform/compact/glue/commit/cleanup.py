"""What was replaced is removed when its grace is over; what dead runs have left, a day later. Nothing else is."""

from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from compaction_platform.compact.commit.delete_inputs import InputDeletion
from compaction_platform.compact.glue.commit.swap_location import LocationSwap
from compaction_platform.compact.glue.config import PartitionSurvey
from compaction_platform.compact.glue.plan.manifest import (
    OWN_MARKS,
    ManifestInput,
    VersionManifest,
    VersionManifestUnreadable,
    read_manifest,
)
from compaction_platform.compact.glue.plan.partition_plan import (
    COPIED,
    PartitionFiles,
    PartitionLocation,
    absorbed,
    missing_outputs,
    version_digest,
)
from compaction_platform.compact.glue.plan.unreferenced_versions import lineage_of
from compaction_platform.compact.plan.bin_packing import OWN_NAME
from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage.object_store import ObjectExists, ObjectMissing
from compaction_platform.persisted_names import GLUE_ABANDONED, GLUE_MANIFEST, GLUE_SWAPPED

ABANDONED_AFTER = timedelta(days=1)


@dataclass(frozen=True)
class StillPublished:
    """The partition leads to files that have the rows of what is to be removed from one place."""

    swap: LocationSwap
    surveyed: PartitionSurvey
    place: PartitionLocation

    def missing_for(self, files: Sequence[FileVersion]) -> dict[str, str]:
        manifest = self.surveyed.found.manifest
        current = self.surveyed.found.current.uri
        if manifest is None or self.swap.location(self.surveyed.partition) != current:
            return {file.key: "the catalog does not lead to its rows any more; it stays" for file in files}
        now = self.swap.places.look(current, is_ours=True)
        if missing_outputs(manifest, now):
            return {file.key: "files with its rows are gone; it stays" for file in files}
        known = absorbed(PartitionFiles(now, manifest, (self.place,)))
        there = {file.version for file in self.swap.places.look(self.place.uri).files}
        again = {file.key: "it was delivered again meanwhile; it stays" for file in files if file.version not in there}
        return again | {
            file.key: "the file with its rows is gone; it stays"
            for file in files
            if not known & {self.place.digest(file), self.place.identity(file)}
        }


@dataclass(frozen=True)
class OldVersionCleanup:
    swap: LocationSwap

    def remove_replaced(self, surveyed: PartitionSurvey, files: Sequence[ManifestInput]) -> tuple[int, dict[str, str]]:
        """How many were removed, and why others are still there."""
        removed = 0
        failures: dict[str, str] = {}
        for place in surveyed.found.old:
            some = [file.listed for file in files if file.place == place.uri]
            if not some:
                continue
            proof = StillPublished(self.swap, surveyed, place)
            kept = InputDeletion("delete").remove(self.swap.places.at(place.uri), some, proof)
            failures |= {f"{place.uri}/{name}": why for name, why in kept.items()}
            removed += len(some) - len(kept)
            failures |= self._led_back(surveyed, place.uri) if len(kept) < len(some) else {}
            if place.is_ours:
                self._delete_marks(place.uri)
        return removed, failures

    def _led_back(self, surveyed: PartitionSurvey, place: str) -> dict[str, str]:
        """Nothing can keep a person from leading the partition to files while they are being removed; so it is said.
        What has their rows stays, and every plan names it."""
        current = surveyed.found.current.uri
        now = self.swap.location(surveyed.partition)
        if current in lineage_of(self.swap.places, now):
            return {}
        return {
            place: f"while files were being removed here, the partition was led to {now}. Their rows are in {current}: "
            "lead it there"
        }

    def discard(self, surveyed: PartitionSurvey, target: str, names: Iterable[str]) -> None:
        """What this very run has made and not published, as the catalog says; otherwise it goes with the leftovers."""
        with suppress(CompactionError):
            place = self.swap.places.look(target)
            if place.find(GLUE_SWAPPED) is None and self.swap.location(surveyed.partition) != target:
                self._delete(place, [*names, *OWN_MARKS])

    # ------------------------------------------------------------ what dead runs have left

    def remove_leftovers(
        self, surveyed: PartitionSurvey, wanted: Set[str], now: datetime
    ) -> tuple[int, dict[str, str]]:
        """Directories of this partition that nothing leads to; and why some are kept. `wanted` is what any partition
        leads to."""
        in_use = {surveyed.found.current.uri, *(place.uri for place in surveyed.found.old)}
        removed = 0
        notes: dict[str, str] = {}
        for place in surveyed.versions:
            is_old = all(file.changed_at and now - file.changed_at > ABANDONED_AFTER for file in place.files)
            if place.uri in in_use or place.uri in wanted or not is_old:
                continue
            if why := self._why_kept(surveyed, place):
                notes[place.uri] = why
            elif self._remove(surveyed, place):
                removed += 1
        return removed, notes

    def _why_kept(self, surveyed: PartitionSurvey, place: PartitionLocation) -> str | None:
        if not place.data:
            return None
        if theirs := [file.key for file in place.data if not _is_named_as_ours(file)]:
            return f"{theirs[0]} was put there by somebody else; look at it"
        if place.find(GLUE_SWAPPED):
            return "the catalog led here once and was changed by somebody else since; look at it, then delete it"
        if place.find(GLUE_MANIFEST) is None:
            return None  # the catalog cannot ever have led here
        try:
            manifest = read_manifest(self.swap.places.read(place.uri, GLUE_MANIFEST))
        except VersionManifestUnreadable as unreadable:
            return str(unreadable)
        except ObjectMissing:
            return None
        if place.find(GLUE_ABANDONED) or _inputs_are_safe(surveyed.found, manifest):
            return None
        return "it was about to be published, and what went into it is not where it was; look at it"

    def _remove(self, surveyed: PartitionSurvey, place: PartitionLocation) -> bool:
        """From the moment in which it is marked, the run that made it does not publish it, or takes that back; so the
        catalog is asked after it is marked. The mark goes last, and is never taken away from files that are there:
        another process may have looked before."""
        with suppress(ObjectExists):
            self.swap.places.at(place.uri).create(GLUE_ABANDONED, b"being removed; nothing may lead here any more\n")
        now = self.swap.places.look(place.uri)
        if (now.find(GLUE_SWAPPED) and now.data) or self.swap.location(surveyed.partition) == place.uri:
            return False
        self._delete(now, [file.key for file in now.data if _is_named_as_ours(file)])
        self._delete_marks(place.uri)
        return True

    def _delete_marks(self, uri: str) -> None:
        """Of a directory that has no data any more."""
        place = self.swap.places.look(uri)
        if not place.data:
            for name in OWN_MARKS:
                self._delete(place, [name])

    def _delete(self, place: PartitionLocation, names: Iterable[str]) -> None:
        """Exactly the versions that were listed."""
        wanted = set(names)
        versions = [(file.key, file.etag) for file in place.files if file.key in wanted]
        self.swap.places.at(place.uri).delete_versions(versions)


def _is_named_as_ours(file: FileVersion) -> bool:
    return bool(OWN_NAME.fullmatch(file.key) or COPIED.fullmatch(file.key))


def _inputs_are_safe(found: PartitionFiles, manifest: VersionManifest) -> bool:
    """Whether all that went into a version is in the partition as it is now."""
    known = absorbed(found) | {found.current.digest(file) for file in found.current.data}
    return all(version_digest(file.place, file.name, file.listed.stamp) in known for file in manifest.inputs)
