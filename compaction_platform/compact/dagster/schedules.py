"""The latest partitions that are over, compacted at fixed times; of a directory without partitions, all of it."""

from collections.abc import Sequence

import dagster as dg

from compaction_platform.compact.config import CompactedDataset
from compaction_platform.compact.layout import Layout, Unit
from compaction_platform.compact.plan.changes import DetectedChanges, detect_changes
from compaction_platform.lake.dagster.resources import LakeResource
from compaction_platform.lake.dagster.run_requests import WHOLE, DuePartition, run_requests
from compaction_platform.lake.spark.parallel_map import ParallelMap

LATEST: dict[Unit, int] = {"hour": 48, "day": 3}


def latest(layout: Layout, closed: Sequence[str]) -> Sequence[str]:
    return closed[-LATEST[layout.unit] :]


def due_partitions(dataset: CompactedDataset, layout: Layout | None, found: DetectedChanges) -> DuePartition:
    return DuePartition(
        dataset.subject,
        list(found.due),
        {**found.settled, **found.due},
        lambda partitions: layout.ranges(list(partitions)) if layout else [(each, each) for each in partitions],
        called=f"{layout.unit}s" if layout else "directories",
    )


def compact_schedule(dataset: CompactedDataset, job: object, cron: str) -> dg.ScheduleDefinition:
    layout = dataset.layout
    what = f"the latest {layout.unit}s that are over" if layout else "small files"

    @dg.schedule(
        name=f"compact_{dataset.name}_schedule",
        job=job,  # type: ignore[arg-type]  # an unresolved asset job is one of the kinds this takes
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Compacts {what} of {dataset.directory.uri}.",
    )
    def compact(context: dg.ScheduleEvaluationContext, lake: LakeResource) -> list[dg.RunRequest] | dg.SkipReason:
        run = dataset.run(lake.settings(), ParallelMap, context.log.info)
        partitions = latest(layout, layout.closed(dataset.first, run.now(), dataset.grace)) if layout else [WHOLE]
        found = detect_changes(dataset, run, partitions, {})
        requests, notes = run_requests(due_partitions(dataset, layout, found), context.instance)
        return requests or dg.SkipReason("; ".join(notes) or "there is nothing to compact")

    return compact
