import dagster as dg

from compaction_platform.merge.plan import HOUR_FORMAT
from compaction_platform.merge.rules import MergeRules


def arrival_hours(rules: MergeRules) -> dg.HourlyPartitionsDefinition:
    """Hours by the store's last-modified, in UTC."""
    return dg.HourlyPartitionsDefinition(start_date=rules.first_hour, timezone="UTC", fmt=HOUR_FORMAT)
