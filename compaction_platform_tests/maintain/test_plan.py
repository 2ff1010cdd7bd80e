"""The plan, the retention and the window as pure values."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction_platform.lake.dagster.time_window import Window
from compaction_platform.lake.storage.sizes import MB
from compaction_platform.maintain.plan.file_groups import (
    ALONE,
    BEYOND_LIMIT,
    LARGE,
    UNWANTED,
    LiveFile,
    RewritePolicy,
    make_plan,
)
from compaction_platform.maintain.plan.health import FileCounts, health_of
from compaction_platform.maintain.plan.snapshot_retention import KnownSnapshot, Ref, Retention, to_expire

pytestmark = pytest.mark.unit

POLICY = RewritePolicy(target_bytes=128 * MB, small_bytes=64 * MB, min_files=3, max_files=100)


def file(number: int, mb: float = 1, place: str = "a", **more: object) -> LiveFile:
    named = {"rows": 100, "sequence_number": number, "added_ms": 1000, **more}
    return LiveFile(f"f{number:05d}", place, place, int(mb * MB), **named)  # type: ignore[arg-type]


def test_small_files_of_a_partition_make_a_group_and_large_ones_stay() -> None:
    files = [*(file(n) for n in range(4)), file(10, 100), *(file(20 + n, place="b") for n in range(2))]
    plan = make_plan(files, POLICY, 0)
    (group,) = plan.groups
    assert [each.path for each in group.files] == ["f00000", "f00001", "f00002", "f00003"]
    assert group.reason == "4 small files"
    assert plan.left_alone[LARGE].files == 1
    assert next(left for reason, left in plan.left_alone.items() if "fewer than 3" in reason).files == 2


def test_what_a_partition_filter_leaves_out_is_told() -> None:
    plan = make_plan([replace(file(n), wanted=n > 0) for n in range(4)], POLICY, 0)
    assert plan.files == 3
    assert plan.left_alone[UNWANTED].files == 1


def test_files_with_many_deletes_are_rewritten_whatever_their_size() -> None:
    plan = make_plan([file(1, 100, delete_files=5), file(2, 100, deleted_rows=30), file(3, 100)], POLICY, 0)
    (group,) = plan.groups
    assert [each.path for each in group.files] == ["f00001", "f00002"]
    assert "5 delete files apply" in group.reason and "30% of its rows" in group.reason


@pytest.mark.parametrize(("mb", "files"), [(1, 1), (128, 1), (190, 1), (210, 2), (256, 2), (1280, 10)])
def test_how_many_files_so_many_bytes_become(mb: int, files: int) -> None:
    assert POLICY.files_for(mb * MB) == files


def test_a_partition_that_was_just_written_is_left_to_its_writers() -> None:
    policy = replace(POLICY, settle=timedelta(minutes=10))
    files = [file(n, added_ms=1_000_000) for n in range(4)]
    assert make_plan(files, policy, 1_000_000 + 599_000).groups == ()
    assert make_plan(files, policy, 1_000_000 + 599_000, force=True).files == 4
    assert make_plan(files, policy, 1_000_000 + 601_000).files == 4


def test_most_gain_comes_first_and_the_limit_is_kept() -> None:
    files = [*(file(n, place="few") for n in range(3)), *(file(100 + n, place="many") for n in range(50))]
    plan = make_plan(files, replace(POLICY, max_files=51), 0)
    assert [(group.partition, len(group.files)) for group in plan.groups] == [("many", 50)]
    assert plan.left_alone[BEYOND_LIMIT].files == 3


def test_an_unreadable_file_never_joins() -> None:
    plan = make_plan([*(file(n) for n in range(3)), file(9, unreadable="not Parquet")], POLICY, 0)
    assert plan.files == 3
    assert plan.left_alone["not Parquet"].files == 1


@given(
    st.lists(st.tuples(st.floats(0.001, 300), st.sampled_from("abc"), st.integers(0, 7)), max_size=60), st.booleans()
)
def test_every_file_is_planned_once_or_left_with_a_reason(some: list[tuple[float, str, int]], force: bool) -> None:
    files = [file(n, mb, place, delete_files=deletes) for n, (mb, place, deletes) in enumerate(some)]
    policy = replace(POLICY, max_files=20)
    plan = make_plan(files, policy, 0, force=force)
    planned = [each.path for group in plan.groups for each in group.files]
    assert len(planned) == len(set(planned)) <= 20
    assert len(planned) + sum(left.files for left in plan.left_alone.values()) == len(files)
    for group in plan.groups:
        assert len({each.place for each in group.files}) == 1
        assert len(group.files) >= 2 or group.files[0].burden(policy)


@given(st.lists(st.floats(0.001, 200), max_size=40))
def test_what_a_plan_makes_is_not_planned_again(sizes: list[float]) -> None:
    policy = replace(POLICY, max_files=10_000)
    plan = make_plan([file(n, mb) for n, mb in enumerate(sizes)], policy, 0)
    chosen = {each.path for group in plan.groups for each in group.files}
    made = [file(1000 + n, group.bytes / MB) for n, group in enumerate(plan.groups)]
    rest = [file(n, mb) for n, mb in enumerate(sizes) if f"f{n:05d}" not in chosen]
    again = make_plan([*rest, *made], policy, 0)
    assert again.groups == ()
    assert ALONE not in plan.left_alone or plan.left_alone[ALONE].files <= 1


def test_a_healthy_table_has_nothing_to_say_and_an_ill_one_says_what() -> None:
    well = health_of([file(n, 100, place=str(n)) for n in range(5)], FileCounts(snapshots=3), POLICY)
    assert (well.score, well.reason, well.recommended) == (100, "healthy", False)
    ill = health_of([file(n) for n in range(100)], FileCounts(snapshots=3), POLICY)
    assert ill.recommended and ill.score < 50
    assert ill.reason == "100 of 100 files could become 1"
    assert ill.files_fewer == 99


# ---------------------------------------------------------------- snapshots

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def known(*hours_ago: float) -> list[KnownSnapshot]:
    """A line of snapshots, the oldest first."""
    return [KnownSnapshot(n, n - 1 if n else None, NOW - timedelta(hours=hours)) for n, hours in enumerate(hours_ago)]


def expiring(line: list[KnownSnapshot], retention: Retention, **refs: int | Ref) -> list[int]:
    heads = {name: ref if isinstance(ref, Ref) else Ref(ref) for name, ref in refs.items()}
    return to_expire(line, heads, "main", retention, NOW)


def test_a_snapshot_stays_for_the_retention_after_it_was_superseded() -> None:
    line = known(1000, 500, 2)  # the second was in use until two hours ago, however old it is
    assert expiring(line, Retention(168), main=2) == [0]


def test_heads_of_branches_and_tags_stay() -> None:
    assert expiring(known(1000, 900, 800, 700), Retention(168), main=3, audit=0, work=2) == [1]


def test_a_branch_with_a_retention_of_its_own_keeps_what_it_wants() -> None:
    line = known(1000, 900, 800, 700, 600)
    assert expiring(line, Retention(168), main=4, audit=Ref(3, keep_at_least=3)) == [0]
    assert expiring(line, Retention(168), main=4, audit=Ref(3, younger_than=timedelta(hours=850))) == [0, 1]


def test_so_many_are_kept_however_old() -> None:
    assert expiring(known(1000, 900, 800, 700), Retention(168, keep_at_least=3), main=3) == [0]


def test_what_no_branch_leads_to_goes_after_the_retention() -> None:
    line = [
        *known(1000, 900),
        KnownSnapshot(50, 0, NOW - timedelta(hours=10)),
        KnownSnapshot(51, 0, NOW - timedelta(hours=900)),
    ]
    assert expiring(line, Retention(168), main=1) == [0, 51]


def test_what_was_rolled_back_just_now_was_in_use_until_then() -> None:
    line = [*known(1000, 900), KnownSnapshot(50, 1, NOW - timedelta(hours=800))]
    ended = {50: NOW - timedelta(minutes=1)}
    assert to_expire(line, {"main": Ref(1)}, "main", Retention(168), NOW, ended) == [0]


# ---------------------------------------------------------------- window


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_a_window_over_midnight_and_on_some_days() -> None:
    nightly = Window.parsed("22:00-06:00")
    assert nightly.contains(at("2026-11-16T23:00")) and nightly.contains(at("2026-11-16T05:59"))
    assert not nightly.contains(at("2026-11-16T06:00"))
    weekend = Window.parsed("sat, sun 22:00-06:00")
    assert weekend.contains(at("2026-11-16T03:00")), "Monday morning belongs to Sunday night"
    assert not weekend.contains(at("2026-11-17T03:00"))
    assert str(weekend) == "sat,sun 22:00-06:00 UTC"


@pytest.mark.parametrize("text", ["always", "25:00-26:00", "06:00-06:00", "mon,noday 01:00-02:00"])
def test_a_window_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="window|day|begins"):
        Window.parsed(text)
