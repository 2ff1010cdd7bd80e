"""`CompactedGlueTable` as users write it in YAML. Checks what can be checked without touching anything."""

import re
from typing import Annotated, Literal

import dagster as dg
from pydantic import AfterValidator, Field, model_validator

from compaction_platform.compact.glue.config import GlueTableConfig, Publish
from compaction_platform.compact.glue.dagster.assets import compact_job, glue_asset
from compaction_platform.compact.glue.dagster.sensors import compact_schedule, partitions_sensor
from compaction_platform.compact.glue.plan.partition_plan import PartitionRules, place_of, why_location_unusable
from compaction_platform.compact.glue.plan.predicate import PredicateInvalid, checked_grammar
from compaction_platform.compact.plan.bin_packing import PackingPolicy
from compaction_platform.lake.dagster.component_base import ComponentBase, Cron, Duration, SecondReader, as_timedelta
from compaction_platform.lake.storage.sizes import MB


def _glue_name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9_][a-z0-9_-]{0,254}", name):
        raise ValueError(f"{name!r} is not a name in Glue: lower-case letters, digits, underscores and hyphens")
    return name


def _predicate(text: str) -> str:
    try:
        return checked_grammar(text)
    except PredicateInvalid as invalid:
        raise ValueError(str(invalid)) from None


def _s3_path(text: str) -> str:
    if why := why_location_unusable(text):
        raise ValueError(f"{text!r} is no place for files: {why}; example: s3://my-lake/compacted/clicks")
    return place_of(text)


GlueName = Annotated[str, AfterValidator(_glue_name)]
Predicate = Annotated[str, AfterValidator(_predicate)]
S3Path = Annotated[str, AfterValidator(_s3_path)]


class CompactedGlueTable(ComponentBase):
    """Partitions of a Glue table switch from many small Parquet files to few large ones, in one step, with proof."""

    database_name: Annotated[GlueName, Field(description="The database in the Glue Data Catalog.")]
    table_name: Annotated[GlueName, Field(description="The table; its asset is warehouse/<database>/<table>.")]
    partition_predicate: Annotated[
        Predicate | None,
        Field(description="Which partitions are looked after: year='2023' AND month='05'. Evaluated by Glue."),
    ] = None
    publish: Annotated[
        Publish,
        Field(
            description="swap_location: new files go to a new place, then the partition's location is changed in one "
            "step. in_place: they appear beside the originals, which are deleted."
        ),
    ] = "swap_location"
    target_s3_path: Annotated[
        S3Path | None,
        Field(description="Where compacted files go; default: <the table's location>-compacted."),
    ] = None
    delete_original_files: Annotated[
        bool, Field(description="Whether originals are deleted, once the grace after the swap is over.")
    ] = False
    grace: Annotated[
        Duration, Field(description="How long originals stay after the swap, so that running queries finish.")
    ] = "1d"
    target_file_size_mb: Annotated[Literal[128, 256], Field(description="About how large files become.")] = 128
    min_files: Annotated[
        int, Field(ge=2, le=10_000, description="Fewer small files than this are left as they are.")
    ] = 2
    quiet_for: Annotated[
        Duration, Field(description="A partition in which a file changed within this time is left to its writers.")
    ] = "10m"
    second_reader: SecondReader = "sample"
    schedule: Annotated[
        Cron | None, Field(description="When all partitions of the predicate are looked at; a cron, in UTC.")
    ] = "30 * * * *"
    enabled: Annotated[bool, Field(description="No: neither schedule nor sensor; a person can still materialize.")] = (
        True
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> "CompactedGlueTable":
        if self.publish == "in_place" and not self.delete_original_files:
            raise ValueError("delete_original_files: in_place needs true, or all rows would be there twice")
        if self.publish == "in_place" and self.target_s3_path is not None:
            raise ValueError("target_s3_path: with in_place, files go where the originals are")
        return self

    def kept(self) -> GlueTableConfig:
        return GlueTableConfig(
            self.database_name,
            self.table_name,
            self.partition_predicate,
            self.publish,
            self.target_s3_path,
            PartitionRules(
                PackingPolicy.for_target(self.target_file_size_mb * MB, self.min_files),
                self.delete_original_files,
                as_timedelta(self.grace),
                as_timedelta(self.quiet_for),
            ),
            self.second_reader,
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return self.definitions()

    def definitions(self) -> dg.Definitions:
        kept = self.kept()
        job = compact_job(kept)
        scheduled = [compact_schedule(kept, job, self.schedule)] if self.enabled and self.schedule else []
        return dg.Definitions(
            assets=[glue_asset(kept)],
            jobs=[job],
            schedules=scheduled,
            sensors=[partitions_sensor(kept)] if self.enabled else [],
        )
