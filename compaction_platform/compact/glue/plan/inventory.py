"""Which partitions there are, what lies at their locations, and what is to be done with each. Nothing is changed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

from compaction_platform.compact.glue.commit.catalog import (
    GlueCatalog,
    GluePartition,
    GlueTable,
    PartitionMissing,
    TableUnsuitable,
    why_not_parquet,
)
from compaction_platform.compact.glue.config import GlueTableConfig, PartitionSurvey
from compaction_platform.compact.glue.lists import Lists, why_not_in
from compaction_platform.compact.glue.names import PartitionNameInvalid, partition_name, partition_values
from compaction_platform.compact.glue.plan.manifest import VersionManifest, VersionManifestUnreadable, read_manifest
from compaction_platform.compact.glue.plan.partition_plan import (
    VERSION,
    PartitionFiles,
    PartitionLocation,
    PartitionPlan,
    PartitionRules,
    overlapping,
    place_of,
    plan_partition,
    why_location_unusable,
)
from compaction_platform.compact.glue.plan.places import PartitionLocations, by_directory
from compaction_platform.compact.glue.plan.predicate import checked_predicate
from compaction_platform.compact.glue.plan.unreferenced_versions import Search
from compaction_platform.compact.plan.copies import copies_of_inputs
from compaction_platform.compact.plan.lineage import read_recorded_inputs
from compaction_platform.compact.rewrite.compatible_inputs import in_one_line
from compaction_platform.lake.storage.threads import map_concurrently
from compaction_platform.persisted_names import GLUE_MANIFEST, GLUE_NOTHING_GAINED
from compaction_platform.settings import Settings

LISTINGS_AT_ONCE = 16
TRIED_AGAIN_AFTER = timedelta(days=1)
MANIFEST_GONE = (
    f"the catalog leads to a version of ours, but its {GLUE_MANIFEST} is gone: what it replaced is not known. Put it "
    "back, or copy its files elsewhere and set the location to that"
)
NOTHING_TO_GAIN = "no two of its small files have exactly the same columns, or can be read"


@dataclass(frozen=True)
class Selection:
    """Which partitions are meant: these names, or a predicate, or (neither) all that are looked after."""

    names: tuple[str, ...] | None = None
    predicate: str | None = None


EVERYTHING = Selection()


@dataclass(frozen=True)
class PartitionInventory:
    kept: GlueTableConfig
    catalog: GlueCatalog
    places: PartitionLocations
    settings: Settings

    @cached_property
    def table(self) -> GlueTable:
        return self.catalog.table(self.kept.database, self.kept.name)

    @cached_property
    def root(self) -> str:
        return self.kept.root(self.table)

    @cached_property
    def lists(self) -> Lists:
        return Lists(self.settings)

    def refuse_listed(self) -> None:
        """Raise KeptByAList if something else lists by name what lies where the table is, or where versions go."""
        for uri in filter(None, (place_of(self.table.location), self._root_if_any)):
            self.lists.refuse(uri)

    @property
    def _root_if_any(self) -> str | None:
        """A table that is compacted in place may be one for which there is none."""
        try:
            return self.root
        except TableUnsuitable:
            return None

    def published(self, selection: Selection) -> dict[str, list[PartitionLocation]]:
        """By partition: versions that the catalog was led to. To be asked before the catalog is."""
        search = self._search
        return search.published(selection.names) if search else {}

    def with_strays(
        self, surveys: Iterable[PartitionSurvey], published: Mapping[str, Sequence[PartitionLocation]]
    ) -> tuple[PartitionSurvey, ...]:
        """These partitions; those of which something that was published is not led to are left alone, and those that
        the catalog does not have are added."""
        astray = self._search.astray(published, self.locations.values()) if self._search else {}
        plans = {name: PartitionPlan(problem=why, why_not=why) for name, why in astray.items()}
        found = [replace(each, plan=plans.pop(each.name, each.plan)) for each in surveys]
        return (
            *found,
            *(problematic(GluePartition(name, (), None), plan.problem or "") for name, plan in plans.items()),
        )

    @cached_property
    def _search(self) -> Search | None:
        root = self._root_if_any
        return Search(self.catalog, self.table, self.places, root) if root else None

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
        return map_concurrently(one, wanted, LISTINGS_AT_ONCE)

    def surveys(
        self, partitions: Iterable[GluePartition], rules: PartitionRules, now: datetime
    ) -> list[PartitionSurvey]:
        self.overlaps  # noqa: B018 (asked for once, not by every thread)
        return map_concurrently(lambda each: self.survey(each, rules, now), partitions, LISTINGS_AT_ONCE)

    def survey(self, partition: GluePartition, rules: PartitionRules, now: datetime) -> PartitionSurvey:
        """What is to be done with one partition; if it cannot be looked at, that is its problem and no other's."""
        if why := self.why_not(partition):
            return problematic(partition, why)
        try:
            return self._survey(partition, rules, now)
        except Exception as error:  # noqa: BLE001 (whatever it is, the others go on)
            return problematic(partition, f"it cannot be looked at: {in_one_line(error)}")

    def _survey(self, partition: GluePartition, rules: PartitionRules, now: datetime) -> PartitionSurvey:
        here = place_of(partition.location or "")
        base = f"{self.root}/{partition.name}"
        around = self.places.look(base)
        versions = {
            uri: PartitionLocation(uri, files, is_ours=True)
            for uri, files in by_directory(base, around.files).items()
            if VERSION.fullmatch(uri.rpartition("/")[2])
        }
        current = versions.get(here) or self.places.look(here)
        manifest = self._manifest(partition, current)
        if manifest is None and (why := MANIFEST_GONE if current.is_ours else self._why_unfinished(current)):
            return problematic(partition, why)
        old = [versions.get(uri) or self.places.look(uri) for uri in (manifest.old_places if manifest else ())]
        if why := self._why_listed(current, old):
            return problematic(partition, why)
        found = PartitionFiles(current, manifest, tuple(old))
        plan = plan_partition(found, rules, now)
        if plan.version and _was_tried(around, plan.version, now):
            plan = replace(plan, bins=(), copies=(), version="", why_not=NOTHING_TO_GAIN)
        return PartitionSurvey(partition, found, plan, tuple(versions.values()))

    def _why_listed(self, current: PartitionLocation, old: Sequence[PartitionLocation]) -> str | None:
        theirs = [place for place in old if not place.is_ours]
        above = None if current.is_ours else self.lists.why_not_above(current.uri)
        return above or why_not_in([current, *theirs])

    def why_not(self, partition: GluePartition) -> str | None:
        """Why a partition cannot be touched, whatever lies there."""
        if not partition.described:
            return "the catalog has no such partition"
        if why := why_location_unusable(partition.location) or self.overlaps.get(partition.name):
            return why
        if why := why_not_parquet(partition.storage):
            return f"it is not of Parquet files: {why}"
        return None

    def _manifest(self, partition: GluePartition, current: PartitionLocation) -> VersionManifest | None:
        if current.find(GLUE_MANIFEST) is None:
            return None
        manifest = read_manifest(self.places.read(current.uri, GLUE_MANIFEST))
        mine = (self.table.database, self.table.name, partition.values, current.uri)
        if current.is_ours and manifest.is_of(*mine):
            return manifest
        raise VersionManifestUnreadable(
            f"{current.uri}/{GLUE_MANIFEST} is not about this partition: its files are somebody else's"
        )

    def _why_unfinished(self, current: PartitionLocation) -> str | None:
        """A run that compacted it in place may have died: rows are there twice until that is finished."""
        told = read_recorded_inputs(self.places.at(current.uri), current.data)
        if told.untold:
            return f"{min(told.untold)}: {told.untold[min(told.untold)]}"
        there = {file.version for file in current.data}
        for name, inputs in told.inputs.items():
            if not there.isdisjoint(inputs):
                return (
                    f"a compaction in place has not ended: {name} has the rows of files beside it. Finish it with "
                    f"`compaction compact {current.uri}`"
                )
        for copy, name in copies_of_inputs(self.places.at(current.uri), current.data, told.ancestors).items():
            return (
                f"{copy} is a copy of a file whose rows are in {name} beside it: a half-finished state that was "
                "restored, or a file that was delivered again. Delete it, or rename it if its rows are to count twice"
            )
        return None


def problematic(partition: GluePartition, why: str) -> PartitionSurvey:
    return PartitionSurvey(partition, PartitionFiles(PartitionLocation("")), PartitionPlan(problem=why, why_not=why))


def _was_tried(around: PartitionLocation, version: str, now: datetime) -> bool:
    """Not long ago, that is: what could not be read then may be readable now."""
    note = around.find(f"{GLUE_NOTHING_GAINED}{version}")
    return note is not None and note.changed_at is not None and now - note.changed_at < TRIED_AGAIN_AFTER
