"""The YAML a user writes: what it becomes, and how mistakes are reported."""

from typing import Any

import pytest
from pydantic import ValidationError

from compaction_platform.lake.dagster.component_base import DeclarationInvalid
from compaction_platform.maintain.component import MaintainedTable, require_distinct
from compaction_platform.settings import Profile

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("profile", "interval", "min_files"),
    [(Profile.development, 5, 3), (Profile.staging, 75, 15), (Profile.production, 100, 20)],
)
def test_thresholds_come_from_the_profile(profile: Profile, interval: int, min_files: int) -> None:
    rules = MaintainedTable(table="silver.orders").rules(profile)
    assert (rules.check_interval, rules.policy.min_files) == (interval, min_files)
    chosen = MaintainedTable(
        table="silver.orders", compaction={"min_files_to_compact": 7, "opportunistic_check_interval": 9}
    ).rules(profile)
    assert (chosen.check_interval, chosen.policy.min_files) == (9, 7)


def test_the_defaults_are_what_the_documentation_says() -> None:
    rules = MaintainedTable(table="silver.orders").rules(Profile.development)
    assert rules.policy.target_bytes == 128 << 20
    assert rules.policy.small_bytes == 64 << 20
    assert rules.policy.max_files == 100
    assert rules.retention.hours == 168
    assert rules.orphans.older_than.total_seconds() == 72 * 3600
    assert not rules.automatic
    assert rules.name == "orders"


def test_two_tables_of_one_name_need_two_names() -> None:
    bronze, silver = (
        MaintainedTable(table=f"{each}.orders").rules(Profile.development) for each in ("bronze", "silver")
    )
    with pytest.raises(DeclarationInvalid, match="both be the asset maintenance/orders; give one of them a name"):
        require_distinct([bronze, silver])
    with pytest.raises(DeclarationInvalid, match="twice"):
        require_distinct([silver, silver])
    named = MaintainedTable(table="bronze.orders", name="bronze_orders").rules(Profile.development)
    require_distinct([named, silver])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"table": "orders"}, "not a table; example: silver.events"),
        ({"table": "silver.drop table"}, "not a usable name"),
        ({"write": {"target_file_size_mb": 0}}, "greater than or equal to 1"),
        ({"snapshots": {"retention_hours": 0}}, "greater than or equal to 1"),
        ({"orphans": {"older_than_hours": 23}}, "greater than or equal to 24"),
        ({"compaction": {"small_file_threshold_mb": 200}}, "more than write.target_file_size_mb"),
        ({"compaction": {"sort_by": ["a"], "z_order_by": ["b"]}}, "not both"),
        ({"compaction": {"leave_to_writers_for": "soon"}}, "not a duration"),
        ({"window": "at night"}, "not a window"),
        ({"partition_filter": "country = "}, "not a filter"),
        ({"schedule": "often"}, "not a cron"),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        MaintainedTable(**{"table": "silver.orders", **change})
