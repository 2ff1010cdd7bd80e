"""Versions that a swap has published and that the catalog does not lead to any more: somebody has set a location back,
or dropped a partition. Their rows may be nowhere else, so they are named until a person has decided."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from compaction_platform.compact.glue.commit.catalog import GlueCatalog, GlueTable, PartitionMissing
from compaction_platform.compact.glue.names import PartitionNameInvalid, partition_values
from compaction_platform.compact.glue.plan.manifest import VersionManifest, VersionManifestUnreadable, read_manifest
from compaction_platform.compact.glue.plan.partition_plan import (
    VERSION,
    PartitionLocation,
    place_of,
    why_location_unusable,
)
from compaction_platform.compact.glue.plan.places import PartitionLocations
from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.compact.rewrite.compatible_inputs import in_one_line
from compaction_platform.lake.storage.object_store import ObjectMissing
from compaction_platform.lake.storage.threads import map_concurrently
from compaction_platform.persisted_names import GLUE_MANIFEST, GLUE_SWAPPED

LOOKS_AT_ONCE = 16


@dataclass(frozen=True)
class Stray:
    """A version that was published, and what its manifest says; None: that cannot be understood."""

    place: PartitionLocation
    manifest: VersionManifest | None

    @property
    def contents(self) -> str:
        files = f"{len(self.place.data):,} files"
        rows = self.manifest.rows if self.manifest else None
        return files if rows is None else f"{files}, {rows:,} rows"


@dataclass(frozen=True)
class Search:
    """For versions of one table. What a swap publishes while we look is not taken for one of them: the places are
    listed first, and for each that is suspected the catalog is asked once more."""

    catalog: GlueCatalog
    table: GlueTable
    places: PartitionLocations
    root: str

    def published(self, names: Sequence[str] | None) -> dict[str, list[PartitionLocation]]:
        """By partition: versions with rows that the catalog was led to; of all partitions in one listing, or of these
        names."""
        if names is None:
            found = versions_below(self.root, self.places.look(self.root).files)
        else:
            looks = map_concurrently(lambda name: self.places.look(f"{self.root}/{name}").files, names, LOOKS_AT_ONCE)
            parts = (
                versions_below(self.root, (replace(file, key=f"{name}/{file.key}") for file in files))
                for name, files in zip(names, looks, strict=True)
            )
            found = {name: some for part in parts for name, some in part.items()}
        return {name: kept for name, some in found.items() if (kept := [each for each in some if was_published(each)])}

    def astray(self, published: Mapping[str, Sequence[PartitionLocation]], locations: Iterable[str]) -> dict[str, str]:
        """By partition: which of these versions no location leads to, and what to do about it."""
        wanted = {place_of(location) for location in locations}
        suspected = {name: rest for name, some in published.items() if (rest := _not_in(some, wanted))}
        answers = map_concurrently(lambda each: self._judged(*each), suspected.items(), LOOKS_AT_ONCE)
        return {name: why for name, why in zip(suspected, answers, strict=True) if why}

    def _judged(self, name: str, places: Sequence[PartitionLocation]) -> str | None:
        try:
            location = self._location(name)
            strays = list(self._strays(places, lineage_of(self.places, location)))
            return self._explained(strays, location) if strays else None
        except Exception as error:  # noqa: BLE001 (whatever it is, the others are looked at)
            return f"it cannot be said whether the catalog leads to {places[-1].uri}: {in_one_line(error)}"

    def _location(self, name: str) -> str | None:
        """Where the catalog leads now; None: there is no such partition."""
        try:
            location = self.catalog.partition(self.table, partition_values(list(self.table.keys), name)).location
        except (PartitionMissing, PartitionNameInvalid):
            return None
        return None if why_location_unusable(location) else place_of(location or "")

    def _strays(self, places: Sequence[PartitionLocation], lineage: Collection[str]) -> Iterator[Stray]:
        for each in _not_in(places, lineage):
            now = self.places.look(each.uri, is_ours=True)
            if not was_published(now):
                continue
            try:
                manifest = read_manifest(self.places.read(each.uri, GLUE_MANIFEST))
            except ObjectMissing:
                continue
            except VersionManifestUnreadable:
                yield Stray(now, None)
                continue
            if (manifest.database, manifest.table) == (self.table.database, self.table.name):
                yield Stray(now, manifest)

    # ------------------------------------------------------------ what a person is told

    def _explained(self, strays: Sequence[Stray], location: str | None) -> str:
        followed = {uri for each in strays if each.manifest for uri in each.manifest.old_places}
        last = [each for each in strays if each.place.uri not in followed] or list(strays)
        contents = ", ".join(f"{each.place.uri} ({each.contents})" for each in last)
        leads = f"leads to {location}" if location else "has no such partition, or no usable location for it"
        to_see = "set the partition's location" if location else "add the partition, or set its location,"
        return (
            f"a swap has published {contents}, but the catalog {leads}: somebody has changed that since. "
            f"{self._what_is_missing(last, location)}. To see its rows, {to_see} to {last[-1].place.uri}. If they are "
            f"not wanted there, delete {', '.join(sorted(each.place.uri for each in strays))}. Until then it is left "
            "alone"
        )

    def _what_is_missing(self, last: Sequence[Stray], location: str | None) -> str:
        if location is None or not all(self._is_made_of(each, location) for each in last):
            return "Rows of it may be nowhere else"
        return "All files that it was made of are where the catalog leads, and no others came to it"

    def _is_made_of(self, stray: Stray, location: str) -> bool:
        """Whether a version holds nothing but the rows of files that are at this location."""
        if stray.manifest is None:
            return False
        there = {(location, *file.version) for file in self.places.look(location).data}
        took = {(file.place, *file.listed.version) for file in stray.manifest.inputs}
        has = {(file.key, file.etag) for file in stray.place.data}
        return took <= there and has <= {(each.name, each.etag) for each in stray.manifest.outputs}


def lineage_of(places: PartitionLocations, location: str | None) -> frozenset[str]:
    """Where the catalog leads, and all places whose files the version there takes along."""
    if location is None:
        return frozenset()
    try:
        manifest = read_manifest(places.read(location, GLUE_MANIFEST))
    except (ObjectMissing, VersionManifestUnreadable):
        return frozenset({location})
    return frozenset({location, *manifest.old_places})


def was_published(place: PartitionLocation) -> bool:
    return bool(place.find(GLUE_SWAPPED) and place.find(GLUE_MANIFEST) and place.data)


def versions_below(root: str, files: Iterable[FileVersion]) -> dict[str, list[PartitionLocation]]:
    """What lies in directories of versions, by the name of their partition."""
    found: dict[tuple[str, str], list[FileVersion]] = {}
    for file in files:
        parts = file.key.split("/")
        depth = next((place for place, part in enumerate(parts[:-1]) if VERSION.fullmatch(part)), 0)
        if depth:
            named = "/".join(parts[:depth]), parts[depth]
            found.setdefault(named, []).append(replace(file, key="/".join(parts[depth + 1 :])))
    places: dict[str, list[PartitionLocation]] = {}
    for (name, version), some in sorted(found.items()):
        places.setdefault(name, []).append(PartitionLocation(f"{root}/{name}/{version}", tuple(some), is_ours=True))
    return places


def _not_in(places: Iterable[PartitionLocation], uris: Collection[str]) -> list[PartitionLocation]:
    return [each for each in places if each.uri not in uris]
