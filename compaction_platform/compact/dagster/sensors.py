"""Old partitions that need compaction again: late files, a run that died. Looks at some of them at a time, in turn."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import dagster as dg

from compaction_platform.compact.config import CompactedDataset
from compaction_platform.compact.dagster.schedules import due_partitions, latest
from compaction_platform.compact.layout import Layout
from compaction_platform.compact.plan.changes import DetectedChanges, detect_changes
from compaction_platform.lake.dagster.resources import LakeResource
from compaction_platform.lake.dagster.run_requests import run_requests
from compaction_platform.lake.spark.parallel_map import ParallelMap

PARTITIONS_PER_LOOK = 2000
MOST_SETTLED = 5000  # partitions that the cursor remembers, the latest ones


@dataclass(frozen=True)
class SensorCursor:
    """Where the next look begins, and what need not be looked at closely again."""

    begins_at: str = ""
    settled: Mapping[str, str] = field(default_factory=dict)

    def to_cursor(self) -> str:
        return json.dumps({"begins_at": self.begins_at, "settled": dict(self.settled)})

    @classmethod
    def from_cursor(cls, cursor: str | None) -> "SensorCursor":
        return cls(**json.loads(cursor)) if cursor else cls()

    def after(self, found: DetectedChanges, goes_on: bool) -> "SensorCursor":
        seen = set(found.looked_at)
        settled = {partition: digest for partition, digest in self.settled.items() if partition not in seen}
        latest = sorted({**settled, **found.settled}.items())[-MOST_SETTLED:]
        return SensorCursor(found.looked_at[-1] if found.looked_at and goes_on else "", dict(latest))


def late_files_sensor(dataset: CompactedDataset, layout: Layout, job: object) -> dg.SensorDefinition:
    @dg.sensor(
        name=f"late_{dataset.name}",
        job=job,  # type: ignore[arg-type]  # an unresolved asset job is one of the kinds this takes
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Looks for {layout.unit}s of {dataset.directory.uri} that got files after they were compacted. "
        "The latest ones are the schedule's.",
    )
    def late(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult:
        run = dataset.run(lake.settings(), ParallelMap, context.log.info)
        turn = SensorCursor.from_cursor(context.cursor)
        closed = layout.closed(dataset.first, run.now(), dataset.grace)
        old = closed[: len(closed) - len(latest(layout, closed))]
        waiting = [partition for partition in old if partition > turn.begins_at]
        found = detect_changes(dataset, run, waiting[:PARTITIONS_PER_LOOK], turn.settled)
        requests, notes = run_requests(due_partitions(dataset, layout, found), context.instance)
        said = f"looked at {len(found.looked_at)} of {len(old)} {layout.unit}s; {len(found.due)} need compaction"
        context.log.info("; ".join([said, *notes]))
        return dg.SensorResult(
            run_requests=requests,
            cursor=turn.after(found, len(waiting) > len(found.looked_at)).to_cursor(),
            skip_reason=None if requests else dg.SkipReason("; ".join([said, *notes])),
        )

    return late
