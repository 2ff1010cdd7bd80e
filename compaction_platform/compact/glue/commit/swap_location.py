"""The commit: a partition's location changes to its new files, in one call, if nothing has changed since the plan."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from compaction_platform.compact.glue.commit.catalog import CatalogRefused, GlueCatalog, GluePartition, GlueTable
from compaction_platform.compact.glue.config import PartitionSurvey
from compaction_platform.compact.glue.plan.manifest import OutputFile, VersionManifest, read_manifest
from compaction_platform.compact.glue.plan.partition_plan import (
    PartitionFiles,
    PartitionLocation,
    absorbed,
    file_at,
    place_of,
)
from compaction_platform.compact.glue.plan.places import PartitionLocations, by_directory
from compaction_platform.compact.glue.plan.unreferenced_versions import was_published
from compaction_platform.errors import CompactionError, VerificationFailed
from compaction_platform.lake.storage.object_store import ObjectExists
from compaction_platform.lake.storage.retry import attempts
from compaction_platform.persisted_names import GLUE_ABANDONED, GLUE_BEGUN, GLUE_MANIFEST, GLUE_SWAPPED

# Refreshed if they are there; the first three in any case. (A crawler writes the others.)
COUNTS = {"numFiles": "files", "totalSize": "size", "numRows": "rows"}
OF_CRAWLERS = {"objectCount": "files", "sizeKey": "size", "recordCount": "rows"}
THROTTLED = {"ThrottlingException", "Throttling", "RequestLimitExceeded"}  # certainly not done
UPDATES = 6  # attempts, each after a new look
WAIT_SECONDS = 0.2  # doubled each time


class SwapConflict(CompactionError):
    """Somebody changed the partition meanwhile. It is as they left it; the next run plans anew."""


class SwapUncertain(CompactionError):
    """The catalog was told, and what it leads to now is not what it should be."""


@dataclass(frozen=True)
class LocationSwap:
    catalog: GlueCatalog
    table: GlueTable
    places: PartitionLocations

    def commit(
        self, surveyed: PartitionSurvey, target: str, outputs: Sequence[OutputFile], now: datetime
    ) -> VersionManifest:
        """The partition leads to these outputs afterwards, or an error says why not."""
        _require_all_inputs(surveyed, outputs)
        before = self.catalog.partition(self.table, surveyed.partition.values)
        self._require_same_location(surveyed, before)
        manifest = self._manifest(surveyed, before, target, outputs, now)
        self.places.at(target).create(GLUE_MANIFEST, manifest.model_dump_json(indent=1).encode())
        self._update(surveyed, before, manifest)
        self._confirm(before, manifest)
        self.note(manifest)
        return manifest

    def _update(self, surveyed: PartitionSurvey, before: GluePartition, manifest: VersionManifest) -> None:
        """One call. If it is refused for being too fast, everything is looked at again before the next."""
        described = before.moved(_like(before.location or "", manifest.location), _counts(before, manifest))
        for attempt in attempts(UPDATES, first_wait=WAIT_SECONDS):
            self._require_unchanged(surveyed, manifest)
            self._require_same(before, self.catalog.partition(self.table, before.values))
            try:
                self.catalog.update(self.table, before.values, described)
                return
            except CatalogRefused as refused:
                # The answer may be what was lost, and not the change.
                if self.location(before) == manifest.location:
                    return
                if refused.code not in THROTTLED or attempt == UPDATES:
                    raise

    def begin(self, target: str) -> None:
        """Before anything is put there."""
        self.places.at(target).create(GLUE_BEGUN, b"a run makes files here; without this, they are not published\n")

    def note(self, manifest: VersionManifest) -> None:
        """From now on, by the store's clock, the grace of what was replaced runs."""
        try:
            self.places.at(manifest.location).create(GLUE_SWAPPED, b"the catalog leads here\n")
        except ObjectExists:
            return  # another run has noted it

    def location(self, partition: GluePartition) -> str | None:
        """Where the catalog leads now."""
        location = self.catalog.partition(self.table, partition.values).location
        return location and place_of(location)

    def _manifest(
        self,
        surveyed: PartitionSurvey,
        before: GluePartition,
        target: str,
        outputs: Sequence[OutputFile],
        now: datetime,
    ) -> VersionManifest:
        found = surveyed.found
        current, earlier = found.current, found.manifest
        inputs = [file_at(current.uri, file) for file in sorted(current.data)]
        digests = absorbed(found) | {current.digest(file) for file in current.data}
        return VersionManifest(
            database=self.table.database,
            table=self.table.name,
            values=surveyed.partition.values,
            location=target,
            replaces=current.uri,
            home=earlier.home if earlier else current.uri,
            planned_against=before.fingerprint,
            written_at=now,
            inputs=tuple(inputs),
            outputs=tuple(sorted(outputs, key=lambda each: each.name)),
            old_places=_old_places(found),
            absorbed=tuple(sorted(digests)),
            known=_known_names(found, digests),
        )

    # ------------------------------------------------------------ guards

    def _require_same_location(self, surveyed: PartitionSurvey, now: GluePartition) -> None:
        if now.location != surveyed.partition.location:
            raise SwapConflict(
                f"partition {now.name} was led to {now.location} by somebody else meanwhile. It is as they left it; "
                "the next run plans anew."
            )

    def _require_same(self, before: GluePartition, now: GluePartition) -> None:
        if now.fingerprint != before.fingerprint:
            raise SwapConflict(
                f"partition {now.name} was altered by somebody else meanwhile. It is as they left it; the next run "
                "plans anew."
            )

    def _require_unchanged(self, surveyed: PartitionSurvey, manifest: VersionManifest) -> None:
        planned = {file.version for file in surveyed.found.current.data}
        there = {file.version for file in self.places.look(surveyed.found.current.uri).data}
        if there != planned:
            names = sorted({name for name, _ in planned ^ there})
            raise SwapConflict(
                f"files of partition {surveyed.name} came, went or changed meanwhile ({', '.join(names[:3])}). It is "
                "as it was; the next run plans anew."
            )
        if others := self._published_meanwhile(manifest):
            raise SwapConflict(
                f"{others[-1].location} was published by another run, and the catalog led away from it again, "
                "meanwhile. The partition is as it was; the next run plans anew."
            )
        if problem := self._why_not_whole(manifest):
            raise SwapConflict(f"{problem}. The partition is as it was; the next run plans anew.")

    def _why_not_whole(self, manifest: VersionManifest) -> str | None:
        """Whether exactly the published files are at the new location, and it is not being removed."""
        place = self.places.look(manifest.location)
        if place.find(GLUE_BEGUN) is None or place.find(GLUE_ABANDONED):
            return f"{manifest.location} was taken for abandoned and is being removed"
        there = {(file.name, file.etag) for file in place.data}
        if wrong := there ^ {(each.name, each.etag) for each in manifest.outputs}:
            return f"{manifest.location}/{min(wrong)[0]} is gone, changed, or was not made by this run"
        return None if place.find(GLUE_MANIFEST) else f"{manifest.location}/{GLUE_MANIFEST} is gone"

    def _published_meanwhile(self, manifest: VersionManifest) -> list[VersionManifest]:
        """Versions that others have published since the plan: a run that was held up for long would lead the partition
        away from their rows. What was published before is an old place, or would have been in the plan's way."""
        base = manifest.location.rpartition("/")[0]
        around = by_directory(base, self.places.look(base).files)
        known = {manifest.location, *manifest.old_places}
        others = [
            uri
            for uri, files in around.items()
            if uri not in known and was_published(PartitionLocation(uri, files, True))
        ]
        theirs = [read_manifest(self.places.read(uri, GLUE_MANIFEST)) for uri in others]
        return [
            each for each in theirs if each.is_of(self.table.database, self.table.name, manifest.values, each.location)
        ]

    def _confirm(self, before: GluePartition, manifest: VersionManifest) -> None:
        """What the catalog tells now, and what lies where it leads."""
        location = self.location(before)
        if location != manifest.location:
            raise SwapUncertain(
                f"partition {before.name} was led to {manifest.location}, but the catalog says {location}: somebody "
                f"else changed it in that moment. Nothing was removed; its files before are in {manifest.replaces}."
            )
        others = self._published_meanwhile(manifest)
        followed = {place for each in others for place in each.old_places}
        last = [each for each in others if each.location not in followed]
        if len(last) == 1:
            self._lead_to(before, last[0])
            raise SwapUncertain(
                f"this run was held up right before the swap, and another has published {last[0].location} meanwhile. "
                "The partition leads there again; nothing was removed."
            )
        if problem := self._why_not_whole(manifest):
            self.catalog.update(self.table, before.values, before.moved(before.location or "", {}))
            raise SwapUncertain(
                f"{problem}, in the moment of the swap. The partition was led back to {manifest.replaces}, where its "
                "files are."
            )

    def _lead_to(self, before: GluePartition, published: VersionManifest) -> None:
        now = self.catalog.partition(self.table, before.values)
        location = _like(before.location or "", published.location)
        self.catalog.update(self.table, before.values, now.moved(location, _counts(now, published)))


def _old_places(found: PartitionFiles) -> dict[str, datetime | None]:
    """Where files of the partition were before, and since when; where they are now is replaced by the swap to come."""
    earlier = found.manifest
    if earlier is None:
        return {found.current.uri: None}
    swapped = next((file.changed_at for file in found.current.files if file.key == GLUE_SWAPPED), None)
    still_there = {place.uri for place in found.old if place.data}
    before = {
        uri: since or swapped for uri, since in earlier.old_places.items() if uri == earlier.home or uri in still_there
    }
    return {**before, found.current.uri: None}


def _known_names(found: PartitionFiles, digests: set[str]) -> dict[str, tuple[str, ...]]:
    names = {place: set(some) for place, some in (found.manifest.known if found.manifest else {}).items()}
    names.setdefault(found.current.uri, set()).update(file.key for file in found.current.data)
    for place in found.old:
        taken = {file.key for file in place.data if digests & {place.digest(file), place.identity(file)}}
        names.setdefault(place.uri, set()).update(taken)
    return {place: tuple(sorted(some)) for place, some in sorted(names.items())}


def _require_all_inputs(surveyed: PartitionSurvey, outputs: Iterable[OutputFile]) -> None:
    """Every file of the partition is in exactly one of the new ones."""
    taken = sorted(name for each in outputs for name in each.inputs)
    if taken != sorted(file.key for file in surveyed.found.current.data):
        raise VerificationFailed(f"{surveyed.name}: not every file is in exactly one new one. Nothing was changed.")


def _like(before: str, place: str) -> str:
    """The address in the way the catalog had it: scheme, and slash at the end."""
    scheme = before.partition("://")[0]
    return f"{scheme}://{place.removeprefix('s3://')}{'/' if before.endswith('/') else ''}"


def _counts(before: GluePartition, manifest: VersionManifest) -> dict[str, str]:
    figures = {"files": len(manifest.outputs), "size": manifest.size, "rows": manifest.rows}
    there = before.described.get("Parameters") or {}
    wanted = {**COUNTS, **{name: what for name, what in OF_CRAWLERS.items() if name in there}}
    return {name: str(figures[what]) for name, what in wanted.items() if figures[what] is not None}
