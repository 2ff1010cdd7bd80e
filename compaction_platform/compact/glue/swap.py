"""The commit: a partition's location changes to its new files, in one call, if nothing has changed since the plan."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from compaction_platform.compact.engines import OutputDiffers
from compaction_platform.compact.glue.catalog import CatalogRefused, GlueCatalog, GluePartition, GlueTable
from compaction_platform.compact.glue.manifest import (
    MANIFEST,
    SWAPPED,
    Abandoned,
    File,
    Manifest,
    OutputFile,
    read_manifest,
)
from compaction_platform.compact.glue.plan import Place, absorbed, missing_outputs, place_of
from compaction_platform.compact.glue.table import Surveyed
from compaction_platform.compact.outputs import listed
from compaction_platform.lake.errors import CompactionError
from compaction_platform.lake.objects import ObjectExists, Objects

# Refreshed if they are there; the first three in any case. (A crawler writes the others.)
COUNTS = {"numFiles": "files", "totalSize": "size", "numRows": "rows"}
OF_CRAWLERS = {"objectCount": "files", "sizeKey": "size", "recordCount": "rows"}


class SwapConflict(CompactionError):
    """Somebody changed the partition meanwhile. It is as they left it; the next run plans anew."""


class SwapUncertain(CompactionError):
    """The catalog was told, and what it leads to now is not what it should be."""


@dataclass(frozen=True)
class Swap:
    catalog: GlueCatalog
    table: GlueTable
    objects: Objects  # its options lead to all places

    def at(self, uri: str) -> Objects:
        return replace(self.objects, uri=uri)

    def look(self, uri: str) -> Place:
        return Place(uri, tuple(listed(self.at(uri))))

    def commit(self, surveyed: Surveyed, target: str, outputs: Sequence[OutputFile], now: datetime) -> Manifest:
        """The partition leads to these outputs afterwards, or an error says why not."""
        _require_all_inputs(surveyed, outputs)
        before = self.catalog.partition(self.table, surveyed.partition.values)
        self._require_same_location(surveyed, before)
        manifest = self._written(self._manifest(surveyed, before, target, outputs, now))
        self._require_unchanged(surveyed, manifest)
        described = before.moved(_like(before.location or "", manifest.location), _counts(before, manifest))
        self._require_same(before, self.catalog.partition(self.table, before.values))
        try:
            self.catalog.update(self.table, before.values, described)
        except CatalogRefused:
            # The answer may be what was lost, and not the change.
            if self.location(before) != manifest.location:
                raise
        self._confirm(before, manifest)
        self.note(manifest)
        return manifest

    def note(self, manifest: Manifest) -> None:
        """From now on, by the store's clock, the grace of what was replaced runs."""
        with suppress(ObjectExists):
            self.at(manifest.location).create(SWAPPED, b"the catalog leads here\n")

    # ------------------------------------------------------------ the manifest

    def _manifest(
        self, surveyed: Surveyed, before: GluePartition, target: str, outputs: Sequence[OutputFile], now: datetime
    ) -> Manifest:
        found = surveyed.found
        current, earlier = found.current, found.manifest
        inputs = tuple(
            File(place=current.uri, name=file.key, etag=file.etag, size=file.size)
            for file in sorted(surveyed.found.current.data)
        )
        home = earlier.home if earlier else current.uri
        still_there = [place.uri for place in found.old if place.data]
        digests = absorbed(found) | {current.digest(file.name, file.etag) for file in inputs}
        names = {place: set(some) for place, some in (earlier.known if earlier else {}).items()}
        names.setdefault(current.uri, set()).update(file.name for file in inputs)
        for place in found.old:
            names.setdefault(place.uri, set()).update(
                file.key for file in place.data if place.digest(file.key, file.etag) in digests
            )
        return Manifest(
            database=self.table.database,
            table=self.table.name,
            values=surveyed.partition.values,
            location=target,
            replaces=current.uri,
            home=home,
            planned_against=before.fingerprint,
            written_at=now,
            inputs=inputs,
            outputs=tuple(sorted(outputs, key=lambda each: each.name)),
            old_places=tuple(dict.fromkeys([home, current.uri, *still_there])),
            absorbed=tuple(sorted(digests)),
            known={place: tuple(sorted(some)) for place, some in sorted(names.items())},
        )

    def _written(self, manifest: Manifest) -> Manifest:
        """This manifest, or the one of a run that died before its swap, if it says the same."""
        store = self.at(manifest.location)
        try:
            store.create(MANIFEST, manifest.model_dump_json(indent=1).encode())
        except ObjectExists:
            there = read_manifest(bytes(store.read(MANIFEST)))
            if isinstance(there, Abandoned):
                raise SwapConflict(
                    f"{manifest.location} was taken for abandoned and is being removed. Run again."
                ) from None
            same = {"written_at": there.written_at, "planned_against": there.planned_against}
            if [(each.name, each.etag) for each in there.outputs] != [
                (each.name, each.etag) for each in manifest.outputs
            ] or there.model_copy(update={"outputs": ()}) != manifest.model_copy(update={"outputs": (), **same}):
                raise SwapConflict(
                    f"{manifest.location}/{MANIFEST} tells of other files. Nothing was changed. It is removed in a "
                    "day, if nothing leads there."
                ) from None
            return there
        return manifest

    # ------------------------------------------------------------ guards

    def _require_same_location(self, surveyed: Surveyed, now: GluePartition) -> None:
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

    def _require_unchanged(self, surveyed: Surveyed, manifest: Manifest) -> None:
        planned = {file.version for file in surveyed.found.current.data}
        there = {file.version for file in self.look(surveyed.found.current.uri).data}
        if there != planned:
            names = sorted({name for name, _ in planned ^ there})
            raise SwapConflict(
                f"files of partition {surveyed.name} came, went or changed meanwhile ({', '.join(names[:3])}). It is "
                "as it was; the next run plans anew."
            )
        if lost := missing_outputs(manifest, self.look(manifest.location)):
            raise SwapConflict(f"{manifest.location}/{lost[0]} is gone or changed. The partition is as it was.")

    def location(self, partition: GluePartition) -> str | None:
        location = self.catalog.partition(self.table, partition.values).location
        return location and place_of(location)

    def _confirm(self, before: GluePartition, manifest: Manifest) -> None:
        """What the catalog tells now, and what lies where it leads."""
        location = self.location(before)
        if location != manifest.location:
            raise SwapUncertain(
                f"partition {before.name} was led to {manifest.location}, but the catalog says {location}: somebody "
                f"else changed it in that moment. Nothing was removed; its files before are in {manifest.replaces}."
            )
        if lost := missing_outputs(manifest, self.look(manifest.location)):
            self.catalog.update(self.table, before.values, before.moved(before.location or "", {}))
            raise SwapUncertain(
                f"{manifest.location}/{lost[0]} went away in the moment of the swap. The partition was led back to "
                f"{manifest.replaces}, where its files are."
            )


def _require_all_inputs(surveyed: Surveyed, outputs: Iterable[OutputFile]) -> None:
    """Every file of the partition is in exactly one of the new ones."""
    taken = sorted(name for each in outputs for name in each.inputs)
    if taken != sorted(file.key for file in surveyed.found.current.data):
        raise OutputDiffers(
            f"partition {surveyed.name}: not every file is in exactly one new one. Nothing was changed."
        )


def _like(before: str, place: str) -> str:
    """The address in the way the catalog had it: scheme, and slash at the end."""
    scheme = before.partition("://")[0]
    return f"{scheme}://{place.removeprefix('s3://')}{'/' if before.endswith('/') else ''}"


def _counts(before: GluePartition, manifest: Manifest) -> dict[str, str]:
    figures = {"files": len(manifest.outputs), "size": manifest.size, "rows": manifest.rows}
    there = before.described.get("Parameters") or {}
    wanted = {**COUNTS, **{name: what for name, what in OF_CRAWLERS.items() if name in there}}
    return {name: str(figures[what]) for name, what in wanted.items() if figures[what] is not None}
