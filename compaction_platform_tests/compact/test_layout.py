from datetime import UTC, datetime, timedelta

import pytest

from compaction_platform.compact.layout import Layout

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("template", "partition", "prefix"),
    [
        (
            "year={year}/month={month}/day={day}/hour={hour}",
            "2026-03-04-05:00",
            "year=2026/month=03/day=04/hour=05",
        ),
        ("dt={date}/hour={hour}", "2026-03-04-05:00", "dt=2026-03-04/hour=05"),
        ("y={year}/m={month:d}/d={day:d}/h={hour:d}", "2026-03-04-05:00", "y=2026/m=3/d=4/h=5"),
        ("{year}/{month}/{day}", "2026-03-04", "2026/03/04"),
        ("dt={date}", "2026-03-04", "dt=2026-03-04"),
    ],
)
def test_a_partition_has_its_directory(template: str, partition: str, prefix: str) -> None:
    layout = Layout(template)
    assert layout.prefix(partition) == prefix
    assert layout.partition(layout.start(partition)) == partition


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("dt={date}/minute={minute}", "{minute} is not known"),
        ("year={year}/month={month}", "does not name the day"),
        ("hour={hour}", "does not name the day"),
        ("dt={date}/../hour={hour}", "not a path"),
        ("/dt={date}", "not a path"),
        ("dt={date", "brace"),
        ("dt={date:x}", "brace"),
    ],
)
def test_a_template_that_makes_no_sense_is_refused(template: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem.replace("{", r"\{").replace("}", r"\}")):
        Layout(template)


def test_an_hour_is_closed_after_its_end_and_the_grace() -> None:
    layout = Layout("dt={date}/hour={hour}")
    first, grace = datetime(2026, 3, 4, tzinfo=UTC), timedelta(minutes=10)
    ends = datetime(2026, 3, 4, 3, tzinfo=UTC) + grace
    before = ends - timedelta(seconds=1)
    assert layout.closed(first, before, grace) == ["2026-03-04-00:00", "2026-03-04-01:00"]
    assert layout.closed(first, ends, grace) == ["2026-03-04-00:00", "2026-03-04-01:00", "2026-03-04-02:00"]
    assert not layout.is_closed("2026-03-04-02:00", before, grace)
    assert layout.is_closed("2026-03-04-02:00", ends, grace)
    assert layout.closed(first, first - timedelta(days=3), grace) == []


def test_neighbours_share_a_range() -> None:
    layout = Layout("dt={date}")
    days = ["2026-03-01", "2026-02-27", "2026-02-28", "2026-03-05"]
    assert layout.ranges(days) == [("2026-02-27", "2026-03-01"), ("2026-03-05", "2026-03-05")]
