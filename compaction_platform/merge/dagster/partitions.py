import dagster as dg

from compaction_platform.merge.config import MergeRules
from compaction_platform.merge.plan.staged_hours import HOUR_FORMAT


def arrival_hours(rules: MergeRules) -> dg.HourlyPartitionsDefinition:
    """Hours by the store's last-modified, in UTC."""
    return dg.HourlyPartitionsDefinition(start_date=rules.first_hour, timezone="UTC", fmt=HOUR_FORMAT)
