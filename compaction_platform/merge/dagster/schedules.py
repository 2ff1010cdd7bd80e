import dagster as dg

from compaction_platform.lake.dagster.resources import LakeResource
from compaction_platform.lake.dagster.run_requests import run_requests
from compaction_platform.merge.config import MergeRules
from compaction_platform.merge.dagster.sensors import StagingCursor, due_hours, staging_state


def merge_schedule(rules: MergeRules, job: object, cron: str) -> dg.ScheduleDefinition:
    """The sensor's look at fixed times."""

    @dg.schedule(
        name=f"merge_{rules.table}_schedule",
        job=job,  # type: ignore[arg-type]  # an unresolved asset job is one of the kinds this takes
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Merges hours of {rules.source} that are over and have something new.",
    )
    def staged(context: dg.ScheduleEvaluationContext, lake: LakeResource) -> list[dg.RunRequest] | dg.SkipReason:
        found = staging_state(rules, lake.settings(), StagingCursor())
        requests, notes = run_requests(due_hours(rules, found), context.instance)
        return requests or dg.SkipReason("; ".join(notes) or "nothing new is staged")

    return staged
