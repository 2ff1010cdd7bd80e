"""A Glue table that is kept compact: what its declaration, or the command, says; as plain values."""

from dataclasses import dataclass, field
from typing import Literal

from compaction_platform.compact.glue.commit.catalog import GluePartition, GlueTable, TableUnsuitable
from compaction_platform.compact.glue.plan.partition_plan import (
    PartitionFiles,
    PartitionLocation,
    PartitionPlan,
    PartitionRules,
    overlap,
    place_of,
    why_location_unusable,
)
from compaction_platform.lake.storage.sizes import FileSizes
from compaction_platform.lake.verification.extent import Extent

Publish = Literal["swap_location", "in_place"]


@dataclass(frozen=True)
class GlueTableConfig:
    database: str
    name: str
    predicate: str | None = None
    publish: Publish = "swap_location"
    target: str | None = None  # where versions go
    rules: PartitionRules = field(default_factory=PartitionRules)
    second_reader: Extent = "sample"  # how much another Parquet decoder reads as well

    @property
    def called(self) -> str:
        """Where only letters, digits and underscores may stand."""
        return f"{self.database}_{self.name}".replace("-", "_")

    @property
    def subject(self) -> str:
        return f"glue.{self.database}.{self.name}"

    def root(self, table: GlueTable) -> str:
        """Where versions of this table's partitions go."""
        if why := why_location_unusable(table.location):
            raise TableUnsuitable(f"table {table.called}: {why}. Nothing was done.")
        place = place_of(table.location)
        if self.target is None:
            if "/" not in place.removeprefix("s3://"):
                raise TableUnsuitable(
                    f"table {table.called} is a whole bucket ({place}): say where compacted files shall go "
                    "(target_s3_path). Nothing was done."
                )
            return f"{place}-compacted"
        if why := why_location_unusable(self.target):
            raise TableUnsuitable(f"target_s3_path: {why}. Nothing was done.")
        if overlap(place_of(self.target), place):
            raise TableUnsuitable(
                f"target_s3_path {self.target} and the location of {table.called}, {place}, lie inside one another: "
                "crawlers and MSCK REPAIR TABLE would take compacted files for partitions. Choose another place. "
                "Nothing was done."
            )
        return f"{place_of(self.target)}/{self.database}/{self.name}"  # two tables may have the same target


@dataclass(frozen=True)
class PartitionSurvey:
    """One partition: what there is, and what is to be done."""

    partition: GluePartition
    found: PartitionFiles
    plan: PartitionPlan
    versions: tuple[PartitionLocation, ...] = ()  # directories of this partition where versions go, whatever they are

    @property
    def name(self) -> str:
        return self.partition.name

    @property
    def sizes(self) -> FileSizes:
        return FileSizes.of(file.size for file in self.found.current.data)
