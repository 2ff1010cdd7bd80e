"""Which partitions there are, what lies at their locations, and what is to be done with each. Nothing is changed."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from compaction_platform.compact.glue.catalog import GlueCatalog, GluePartition, GlueTable, why_not_parquet
from compaction_platform.compact.glue.manifest import (
    MANIFEST,
    NOTHING_GAINED,
    Manifest,
    ManifestUnreadable,
    read_manifest,
)
from compaction_platform.compact.glue.names import PartitionNameInvalid, partition_values
from compaction_platform.compact.glue.plan import (
    Found,
    PartitionPlan,
    Place,
    Rules,
    overlapping,
    place_of,
    plan_partition,
    why_location_unusable,
)
from compaction_platform.compact.glue.predicate import checked_predicate
from compaction_platform.compact.glue.table import KeptTable, Surveyed
from compaction_platform.compact.listed import Listed
from compaction_platform.compact.outputs import listed
from compaction_platform.lake.objects import ObjectMissing, Objects

LISTINGS_AT_ONCE = 16
NOTHING_TO_GAIN = "no two of its small files have exactly the same columns, or can be read"


@dataclass(frozen=True)
class Selection:
    """Which partitions are meant: these names, or a predicate, or (neither) all that are looked after."""

    names: tuple[str, ...] | None = None
    predicate: str | None = None


EVERYTHING = Selection()


@dataclass(frozen=True)
class Surveyor:
    kept: KeptTable
    catalog: GlueCatalog
    objects: Objects  # its options lead to all places

    @cached_property
    def table(self) -> GlueTable:
        return self.catalog.table(self.kept.database, self.kept.name)

    @cached_property
    def root(self) -> str:
        return self.kept.root(self.table)

    @cached_property
    def locations(self) -> dict[str, str]:
        """Of all partitions that have a usable one, by name."""
        return {
            each.name: each.location
            for each in self.catalog.partitions(self.table)
            if each.location and not why_location_unusable(each.location)
        }

    @cached_property
    def overlaps(self) -> dict[str, str]:
        return overlapping(self.locations)

    def at(self, uri: str) -> Objects:
        return replace(self.objects, uri=uri)

    def partitions(self, selection: Selection) -> list[GluePartition]:
        """What is selected, by the catalog itself; in the order of the names."""
        if selection.names is not None:
            return self._named(selection.names)
        text = selection.predicate if selection.predicate is not None else self.kept.predicate
        expression = checked_predicate(text, self.table.keys) if text else None
        return sorted(self.catalog.partitions(self.table, expression), key=lambda each: each.name)

    def _named(self, names: Sequence[str]) -> list[GluePartition]:
        values = [partition_values(list(self.table.keys), name) for name in dict.fromkeys(names)]
        if not values:
            raise PartitionNameInvalid("no partition was named.")
        with ThreadPoolExecutor(LISTINGS_AT_ONCE) as pool:
            return list(pool.map(lambda some: self.catalog.partition(self.table, some), values))

    def surveys(self, partitions: Iterable[GluePartition], rules: Rules, now: datetime) -> list[Surveyed]:
        self.overlaps  # noqa: B018 (asked for once, not by every thread)
        with ThreadPoolExecutor(LISTINGS_AT_ONCE) as pool:
            return list(pool.map(lambda each: self.survey(each, rules, now), partitions))

    def survey(self, partition: GluePartition, rules: Rules, now: datetime) -> Surveyed:
        if why := self.why_not(partition):
            return Surveyed(partition, Found(Place("")), PartitionPlan(problem=why, why_not=why))
        here = place_of(partition.location or "")
        base = f"{self.root}/{partition.name}"
        around = tuple(listed(self.at(base)))
        versions = _by_directory(base, around)
        current = versions.get(here) or self._place(here)
        try:
            manifest = self._manifest(partition, current)
        except ManifestUnreadable as unreadable:
            plan = PartitionPlan(problem=str(unreadable), why_not=str(unreadable))
            return Surveyed(partition, Found(current), plan, tuple(versions.values()))
        old = tuple(versions.get(uri) or self._place(uri) for uri in (manifest.old_places if manifest else ()))
        found = Found(current, manifest, old)
        plan = plan_partition(found, rules, now)
        if plan.version and any(file.key == f"{NOTHING_GAINED}{plan.version}" for file in around):
            plan = replace(plan, bins=(), copies=(), version="", why_not=NOTHING_TO_GAIN)
        return Surveyed(partition, found, plan, tuple(versions.values()))

    def why_not(self, partition: GluePartition) -> str | None:
        """Why a partition cannot be touched, whatever lies there."""
        if why := why_location_unusable(partition.location) or self.overlaps.get(partition.name):
            return why
        if why := why_not_parquet(partition.storage):
            return f"it is not of Parquet files: {why}"
        return None

    def _place(self, uri: str) -> Place:
        return Place(uri, tuple(file for file in listed(self.at(uri)) if file.key))

    def _manifest(self, partition: GluePartition, current: Place) -> Manifest | None:
        if current.find(MANIFEST) is None:
            return None
        try:
            manifest = read_manifest(bytes(self.at(current.uri).read(MANIFEST)))
        except ObjectMissing:
            return None
        if isinstance(manifest, Manifest) and manifest.is_of(
            self.table.database, self.table.name, partition.values, current.uri
        ):
            return manifest
        raise ManifestUnreadable(
            f"{current.uri}/{MANIFEST} is not about this partition: its files belong to somebody else. The partition "
            "was left as it is."
        )


def _by_directory(base: str, files: Iterable[Listed]) -> dict[str, Place]:
    """What lies in the directories below, by their addresses."""
    found: dict[str, list[Listed]] = {}
    for file in files:
        directory, slash, name = file.key.partition("/")
        if slash:
            found.setdefault(f"{base}/{directory}", []).append(replace(file, key=name))
    return {uri: Place(uri, tuple(some)) for uri, some in found.items()}
