"""The inventory of a directory as a Dagster asset."""

from typing import Any

import dagster as dg
from compaction_platform.new_verb.config import NewVerbConfig
from compaction_platform.new_verb.job import NewVerbJob
from pydantic import Field

from compaction_platform.lake.dagster.resources import LakeResource, SparkResource


class NewVerbRunConfig(dg.Config):
    """How to run."""

    dry_run: bool = Field(default=False, description="Show what would be done; change nothing at all.")


def new_verb_asset(declared: NewVerbConfig) -> dg.AssetsDefinition:
    @dg.asset(
        key=dg.AssetKey(["new_verb", declared.name]),
        group_name="new_verb",
        kinds={"parquet"},
        description=f"The inventory of {declared.uri}.",
    )
    def inventory(
        context: dg.AssetExecutionContext, config: NewVerbRunConfig, lake: LakeResource, spark: SparkResource
    ) -> dg.MaterializeResult[Any]:
        job = NewVerbJob(declared, lake.settings(), spark.spread)
        if config.dry_run:
            plan = job.plan()
            return dg.MaterializeResult(metadata={"to_read": len(plan.to_read), "skipped": len(plan.skipped)})
        report = job.run()
        if report.failed:
            raise dg.Failure(f"{len(report.failed)} files could not be read", metadata={"failed": report.failed})
        return dg.MaterializeResult(metadata={"rows": sum(report.rows.values()), "files": len(report.rows)})

    return inventory
