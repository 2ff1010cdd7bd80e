"""Which partitions there are, what lies at their locations, and what is to be done with each. Nothing is changed."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

from compaction_platform.compact.glue.commit.catalog import (
    GlueCatalog,
    GluePartition,
    GlueTable,
    PartitionMissing,
    why_not_parquet,
)
from compaction_platform.compact.glue.config import KeptTable, Surveyed
from compaction_platform.compact.glue.names import PartitionNameInvalid, partition_name, partition_values
from compaction_platform.compact.glue.plan.manifest import (
    MANIFEST,
    NOTHING_GAINED,
    Manifest,
    ManifestUnreadable,
    read_manifest,
)
from compaction_platform.compact.glue.plan.partition_plan import (
    VERSION,
    Found,
    PartitionPlan,
    Place,
    Rules,
    overlapping,
    place_of,
    plan_partition,
    why_location_unusable,
)
from compaction_platform.compact.glue.plan.places import Places, by_directory
from compaction_platform.compact.glue.plan.predicate import checked_predicate
from compaction_platform.compact.plan.lineage import told_inputs
from compaction_platform.compact.rewrite.compatible_inputs import in_one_line

LISTINGS_AT_ONCE = 16
TRIED_AGAIN_AFTER = timedelta(days=1)
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
    places: Places

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

    def partitions(self, selection: Selection) -> list[GluePartition]:
        """What is selected, by the catalog itself; in the order of the names."""
        if selection.names is not None:
            return self._named(selection.names)
        text = selection.predicate if selection.predicate is not None else self.kept.predicate
        expression = checked_predicate(text, self.table.keys) if text else None
        return sorted(self.catalog.partitions(self.table, expression), key=lambda each: each.name)

    def _named(self, names: Sequence[str]) -> list[GluePartition]:
        keys = list(self.table.keys)
        if not names:
            raise PartitionNameInvalid("no partition was named.")

        def one(values: tuple[str, ...]) -> GluePartition:
            try:
                return self.catalog.partition(self.table, values)
            except PartitionMissing:
                return GluePartition(partition_name(keys, values), values, None)

        wanted = [partition_values(keys, name) for name in dict.fromkeys(names)]
        with ThreadPoolExecutor(LISTINGS_AT_ONCE) as pool:
            return list(pool.map(one, wanted))

    def surveys(self, partitions: Iterable[GluePartition], rules: Rules, now: datetime) -> list[Surveyed]:
        self.overlaps  # noqa: B018 (asked for once, not by every thread)
        with ThreadPoolExecutor(LISTINGS_AT_ONCE) as pool:
            return list(pool.map(lambda each: self.survey(each, rules, now), partitions))

    def survey(self, partition: GluePartition, rules: Rules, now: datetime) -> Surveyed:
        """What is to be done with one partition; if it cannot be looked at, that is its problem and no other's."""
        if why := self.why_not(partition):
            return problematic(partition, why)
        try:
            return self._survey(partition, rules, now)
        except Exception as error:  # noqa: BLE001 (whatever it is, the others go on)
            return problematic(partition, f"it cannot be looked at: {in_one_line(error)}")

    def _survey(self, partition: GluePartition, rules: Rules, now: datetime) -> Surveyed:
        here = place_of(partition.location or "")
        base = f"{self.root}/{partition.name}"
        around = self.places.look(base)
        versions = {
            uri: Place(uri, files, is_ours=True)
            for uri, files in by_directory(base, around.files).items()
            if VERSION.fullmatch(uri.rpartition("/")[2])
        }
        current = versions.get(here) or self.places.look(here)
        manifest = self._manifest(partition, current)
        if manifest is None and (why := self._why_unfinished(current)):
            return problematic(partition, why)
        old = [versions.get(uri) or self.places.look(uri) for uri in (manifest.old_places if manifest else ())]
        found = Found(current, manifest, tuple(old))
        plan = plan_partition(found, rules, now)
        if plan.version and _was_tried(around, plan.version, now):
            plan = replace(plan, bins=(), copies=(), version="", why_not=NOTHING_TO_GAIN)
        return Surveyed(partition, found, plan, tuple(versions.values()))

    def why_not(self, partition: GluePartition) -> str | None:
        """Why a partition cannot be touched, whatever lies there."""
        if not partition.described:
            return "the catalog has no such partition"
        if why := why_location_unusable(partition.location) or self.overlaps.get(partition.name):
            return why
        if why := why_not_parquet(partition.storage):
            return f"it is not of Parquet files: {why}"
        return None

    def _manifest(self, partition: GluePartition, current: Place) -> Manifest | None:
        if current.find(MANIFEST) is None:
            return None
        manifest = read_manifest(self.places.read(current.uri, MANIFEST))
        mine = (self.table.database, self.table.name, partition.values, current.uri)
        if current.is_ours and isinstance(manifest, Manifest) and manifest.is_of(*mine):
            return manifest
        raise ManifestUnreadable(f"{current.uri}/{MANIFEST} is not about this partition: its files are somebody else's")

    def _why_unfinished(self, current: Place) -> str | None:
        """A run that compacted it in place may have died: rows are there twice until that is finished."""
        told = told_inputs(self.places.at(current.uri), current.data)
        if told.untold:
            return f"{min(told.untold)}: {told.untold[min(told.untold)]}"
        there = {file.version for file in current.data}
        for name, inputs in told.inputs.items():
            if not there.isdisjoint(inputs):
                return (
                    f"a compaction in place has not ended: {name} has the rows of files beside it. Finish it with "
                    f"`compaction compact {current.uri}`"
                )
        return None


def problematic(partition: GluePartition, why: str) -> Surveyed:
    return Surveyed(partition, Found(Place("")), PartitionPlan(problem=why, why_not=why))


def _was_tried(around: Place, version: str, now: datetime) -> bool:
    """Not long ago, that is: what could not be read then may be readable now."""
    note = around.find(f"{NOTHING_GAINED}{version}")
    return note is not None and note.changed_at is not None and now - note.changed_at < TRIED_AGAIN_AFTER
