from datetime import UTC, datetime, timedelta

import pytest

from compaction_platform.merge.plan.staged_hours import (
    Batch,
    Span,
    StagedFile,
    batches,
    hours_to_request,
    is_closed,
    is_data,
    ranges,
    spans,
)

pytestmark = pytest.mark.unit

NOON = datetime(2026, 11, 1, 12, 30, tzinfo=UTC)


def file(key: str, arrived: datetime = NOON, etag: str = "e") -> StagedFile:
    return StagedFile(key, 10, etag, arrived)


@pytest.mark.parametrize(
    ("key", "glob", "counts"),
    [
        ("a.parquet", "**/*.parquet", True),
        ("2026/11/a.parquet", "**/*.parquet", True),
        ("2026/11/a.parquet", "*.parquet", False),
        ("2026/a.parquet", "2026/*.parquet", True),
        ("2026/11/a.parquet", "2026/**", True),
        ("batch_1.parquet", "batch_?.parquet", True),
        ("batch_12.parquet", "batch_?.parquet", False),
        ("a+b.parquet", "a+b.parquet", True),
        ("aab.parquet", "a+b.parquet", False),
        ("_SUCCESS", "**", False),
        ("2026/_temporary/a.parquet", "**", False),
        ("2026/.a.parquet.crc", "**", False),
        ("a.csv", "**/*.parquet", False),
    ],
)
def test_which_names_are_data(key: str, glob: str, counts: bool) -> None:
    assert is_data(key, glob) is counts


def test_files_belong_to_the_hour_of_their_arrival_in_utc() -> None:
    lisbon = datetime.fromisoformat("2026-07-01T00:59:59+01:00")
    found = batches([file("b", NOON), file("a", NOON), file("late", lisbon)])
    assert list(found) == ["2026-06-30-23:00", "2026-11-01-12:00"]
    assert [each.key for each in found["2026-11-01-12:00"].files] == ["a", "b"]


def test_a_digest_knows_every_version_and_no_order() -> None:
    one, other = file("a"), file("b")
    assert batches([one, other])["2026-11-01-12:00"].digest == batches([other, one])["2026-11-01-12:00"].digest
    digests = {
        Batch("h", files).digest
        for files in (
            (),
            (one,),
            (one, other),
            (file("a", etag="f"),),
            (StagedFile("a", 11, "e", NOON),),
            (file("ae", etag=""),),
        )
    }
    assert len(digests) == 6


def test_an_hour_closes_after_its_grace() -> None:
    grace = timedelta(minutes=10)
    assert not is_closed("2026-11-01-12:00", datetime(2026, 11, 1, 13, 9, 59, tzinfo=UTC), grace)
    assert is_closed("2026-11-01-12:00", datetime(2026, 11, 1, 13, 10, tzinfo=UTC), grace)


def test_what_is_asked_for() -> None:
    hours = [NOON - timedelta(hours=back) for back in (0, 1, 2, 3, 30)]
    staged = batches(file(f"{number}", moment) for number, moment in enumerate(hours))
    merged = {"2026-11-01-10:00": staged["2026-11-01-10:00"].digest, "2026-11-01-09:00": "of other files"}
    plan = hours_to_request(
        staged, merged, now=NOON + timedelta(minutes=10), grace=timedelta(0), first_hour="2026-11-01-00:00", limit=1
    )
    assert plan.hours == ("2026-11-01-09:00",), "a late file changes an hour that was merged; oldest first"
    assert (plan.still_open, plan.too_early, plan.left_for_later) == (1, 1, 1)


def test_hours_become_few_ranges() -> None:
    def hour(number: int) -> str:
        return f"2026-11-{1 + number // 24:02d}-{number % 24:02d}:00"

    staged = [hour(number) for number in (0, 1, 2, 5, 6, 40, 41)]
    wanted = [hour(number) for number in (0, 1, 5, 6, 40, 41)]  # 2 was merged, 3 and 4 are empty
    assert ranges(wanted, staged) == [(hour(0), hour(1)), (hour(5), hour(6)), (hour(40), hour(41))]
    assert ranges([hour(2), hour(5)], staged) == [(hour(2), hour(5))], "empty hours may lie in a range"
    assert ranges([], staged) == []


def test_spans_cover_with_few_conditions() -> None:
    days = [Span(day, day + 1) for day in (5, 1, 2, 9, 9)]
    assert spans(days, 10) == [Span(1, 3), Span(5, 6), Span(9, 10)]
    assert spans(days, 2) == [Span(1, 6), Span(9, 10)], "the smallest gap is closed"
    assert spans(days, 1) == [Span(1, 10)]
    assert spans([], 3) == []
    many = spans([Span(number * 10, number * 10 + 1) for number in range(5000)], 48)
    assert len(many) == 48
    assert all(any(span.start <= number * 10 < span.end for span in many) for number in range(5000))
