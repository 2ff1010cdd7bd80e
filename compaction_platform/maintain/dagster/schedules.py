"""Regular maintenance at fixed times: expiry and orphans do not wait for small files."""

import dagster as dg

from compaction_platform.maintain.config import TableMaintenance


def maintain_schedule(rules: TableMaintenance, job: object, cron: str) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name=f"maintain_{rules.name}_schedule",
        job=job,  # type: ignore[arg-type]  # an unresolved asset job is one of the kinds this takes
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Maintains {rules.table}.",
    )
