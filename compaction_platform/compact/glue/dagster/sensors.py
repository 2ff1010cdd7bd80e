"""The table's partitions as dynamic partitions, and a run over all of them at fixed times."""

from typing import Any

import dagster as dg

from compaction_platform.compact.glue.config import GlueTableConfig
from compaction_platform.compact.glue.dagster.assets import OP_PREFIX, partitions_of
from compaction_platform.compact.glue.job import GlueRun
from compaction_platform.compact.glue.plan.inventory import EVERYTHING
from compaction_platform.lake.dagster.resources import LakeResource
from compaction_platform.lake.dagster.run_requests import UNFINISHED
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.persisted_names import SUBJECT_TAG

AT_ONCE = 10_000  # partitions that one tick adds


def partitions_sensor(kept: GlueTableConfig) -> dg.SensorDefinition:
    partitions = partitions_of(kept)

    @dg.sensor(
        name=f"partitions_{kept.called}",
        minimum_interval_seconds=300,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Finds the partitions of {kept.database}.{kept.name} in the Glue Data Catalog.",
    )
    def find(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult:
        run = GlueRun(kept, lake.settings(), ParallelMap, context.log.info)
        there = [each.name for each in run.surveyor.partitions(EVERYTHING)]
        known = set(context.instance.get_dynamic_partitions(str(partitions.name)))
        new = [name for name in there if name not in known]
        gone = sorted(known - set(there))
        requests: list[Any] = [
            *([partitions.build_add_request(new[:AT_ONCE])] if new else []),
            *([partitions.build_delete_request(gone)] if gone else []),
        ]
        said = f"{len(there):,} partitions, {len(new):,} new, {len(gone):,} not in the catalog any more"
        return dg.SensorResult(dynamic_partitions_requests=requests, skip_reason=dg.SkipReason(said))

    return find


def compact_schedule(kept: GlueTableConfig, job: object, cron: str) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=f"compact_{kept.called}_schedule",
        job=job,  # type: ignore[arg-type]  # an unresolved asset job is one of the kinds this takes
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Compacts the partitions of {kept.database}.{kept.name} that need it.",
    )
    def compact(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        unfinished = dg.RunsFilter(tags={SUBJECT_TAG: kept.subject}, statuses=UNFINISHED)
        if context.instance.get_runs(unfinished, limit=1):
            return dg.SkipReason("the last run is not over")
        return dg.RunRequest(run_config={"ops": {f"{OP_PREFIX}{kept.called}": {"config": {}}}})

    return compact
