"""What is to be done with a partition: from listings alone."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction_platform.compact.glue.plan.manifest import ManifestInput, OutputFile, VersionManifest
from compaction_platform.compact.glue.plan.partition_plan import (
    BELOW,
    DAMAGED,
    GOOD,
    NO_FILES,
    OVERWRITTEN,
    STRAY,
    TOO_LARGE,
    YOUNG,
    PartitionFiles,
    PartitionLocation,
    PartitionRules,
    copied_name,
    overlapping,
    plan_partition,
    version_digest,
    why_location_unusable,
)
from compaction_platform.compact.plan.bin_packing import PackingPolicy
from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.lake.storage.sizes import MB
from compaction_platform.persisted_names import GLUE_SWAPPED

pytestmark = pytest.mark.unit

NOW = datetime(2026, 5, 1, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=30)
HOME = "s3://lake/clicks/year=2023"
VERSION = "s3://lake/clicks-compacted/year=2023/v-0123456789abcdef-01234567"
RULES = PartitionRules(
    PackingPolicy(10 * MB, 20 * MB, 7 * MB), grace=timedelta(days=1), quiet_for=timedelta(minutes=10)
)


def version_of(place: str, name: str) -> str:
    """The digest of the version of a file that `file` makes."""
    return version_digest(place, name, file(name).stamp)


def file(name: str, size: int = MB, changed_at: datetime = LONG_AGO) -> FileVersion:
    return FileVersion(name, size, f"etag of {name}", changed_at)


def at(uri: str, *files: FileVersion) -> PartitionLocation:
    return PartitionLocation(uri, files, is_ours="/v-" in uri)


def swapped(
    *more: FileVersion, since: datetime = NOW - timedelta(days=2), old: tuple[FileVersion, ...] = ()
) -> PartitionFiles:
    """A partition that leads to one file, made of two at its home."""
    made = file("part-0.compacted-10mb-aaaaaaaaaaaaaaaaaaaaaaaa.parquet", 3 * MB)
    manifest = VersionManifest(
        database="db",
        table="t",
        values=("2023",),
        location=VERSION,
        replaces=HOME,
        home=HOME,
        planned_against="",
        written_at=LONG_AGO,
        inputs=tuple(ManifestInput(place=HOME, name=name, etag=f"etag of {name}", size=MB) for name in ("a", "b")),
        outputs=(
            OutputFile(
                name=made.key, etag=made.etag, size=made.size, rows=1, how="re-encode", reason="", inputs=("a", "b")
            ),
        ),
        old_places={HOME: None},
        absorbed=tuple(version_of(HOME, name) for name in ("a", "b")),
        known={HOME: ("a", "b")},
    )
    marker = FileVersion(GLUE_SWAPPED, 1, "marker", since)
    return PartitionFiles(at(VERSION, made, marker, *more), manifest, (at(HOME, *old),))


def test_small_files_are_joined_and_the_others_are_carried_over() -> None:
    plan = plan_partition(PartitionFiles(at(HOME, file("b"), file("a"), file("large", 9 * MB))), RULES, NOW)
    (one,) = plan.bins
    assert [each.key for each in one.inputs] == ["a", "b"]
    assert [each.key for each in plan.copies] == ["large"]
    assert plan.version.startswith("v-")


def test_every_name_counts_that_readers_read() -> None:
    plan = plan_partition(
        PartitionFiles(at(HOME, file("000000_0"), file("x.snappy"), file("_SUCCESS"), file(".crc"))), RULES, NOW
    )
    assert [each.key for each in plan.bins[0].inputs] == ["000000_0", "x.snappy"]
    assert plan.copies == ()


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ([], NO_FILES),
        ([file("_SUCCESS"), file("empty.parquet", 0)], NO_FILES),
        ([file("a")], GOOD),
        ([file("a", 9 * MB), file("b", 8 * MB)], GOOD),
        ([file("a"), file("b", changed_at=NOW - timedelta(minutes=1))], YOUNG),
        ([file("a"), file("b"), file("below/c")], BELOW),
    ],
)
def test_why_a_partition_is_left_alone(files: list[FileVersion], why: str) -> None:
    plan = plan_partition(PartitionFiles(at(HOME, *files)), RULES, NOW)
    assert plan.is_empty and plan.why_not is not None and plan.why_not.startswith(why)


def test_files_in_hidden_directories_are_not_its_own() -> None:
    plan = plan_partition(PartitionFiles(at(HOME, file("a"), file("b"), file("_temporary/0/c"))), RULES, NOW)
    assert len(plan.bins) == 1 and plan.problem is None


def test_the_version_changes_with_the_inputs_and_only_with_them() -> None:
    one = plan_partition(PartitionFiles(at(HOME, file("a"), file("b"))), RULES, NOW)
    same = plan_partition(PartitionFiles(at(HOME, file("b"), file("a"))), RULES, NOW + timedelta(days=1))
    other = plan_partition(PartitionFiles(at(HOME, file("a"), replace(file("b"), etag="new"))), RULES, NOW)
    elsewhere = plan_partition(PartitionFiles(at(f"{HOME}0", file("a"), file("b"))), RULES, NOW)
    assert one.version == same.version
    assert len({one.version, other.version, elsewhere.version}) == 3


def test_what_was_made_is_not_made_again() -> None:
    plan = plan_partition(swapped(), RULES, NOW)
    assert plan.is_empty and plan.why_not == GOOD
    with_one = plan_partition(swapped(file("new-1")), RULES, NOW)
    assert with_one.is_empty
    with_two = plan_partition(swapped(file("new-1"), file("new-2")), RULES, NOW)
    assert len(with_two.bins[0].inputs) == 3


def test_a_file_that_came_to_the_old_location_is_late() -> None:
    plan = plan_partition(swapped(old=(file("a"), file("c"))), RULES, NOW)
    assert [(late.place, late.file.key) for late in plan.late] == [(HOME, "c")]
    copy = file(copied_name(version_of(HOME, "c"), "c"))
    assert plan_partition(swapped(copy, old=(file("a"), file("c"))), RULES, NOW).late == ()


def test_a_file_that_was_overwritten_after_it_was_compacted_is_for_a_person() -> None:
    plan = plan_partition(swapped(old=(replace(file("a"), etag="other"),)), RULES, NOW)
    assert plan.is_empty and plan.problem is not None and plan.problem.startswith(OVERWRITTEN)


def test_a_partition_whose_published_files_are_gone_is_for_a_person() -> None:
    found = swapped(file("x"), file("y"), old=(file("c"),))
    lost = replace(found, current=at(VERSION, *found.current.files[1:]))
    plan = plan_partition(lost, RULES, NOW)
    assert plan.is_empty and plan.problem is not None and plan.problem.startswith(DAMAGED) and HOME in plan.problem


@pytest.mark.parametrize(
    ("since", "wanted", "removed"),
    [
        (NOW - timedelta(days=2), True, ["a", "b"]),
        (NOW - timedelta(hours=2), True, []),
        (NOW - timedelta(days=2), False, []),
    ],
)
def test_originals_go_after_the_grace_if_wanted(since: datetime, wanted: bool, removed: list[str]) -> None:
    found = swapped(since=since, old=(file("a"), file("b"), file("_SUCCESS")))
    plan = plan_partition(found, replace(RULES, delete_originals=wanted), NOW)
    assert [each.name for each in plan.removable] == removed


def test_own_versions_go_after_their_own_grace_in_any_case() -> None:
    """What writers have put there is theirs."""
    found = swapped(since=NOW - timedelta(hours=1))
    earlier = VERSION.replace("v-0", "v-f")
    names = ("a.copied-000000000000000000000000", "theirs")
    assert found.manifest is not None

    def plan(replaced_at: datetime | None, **changes: bool) -> list[tuple[str, str]]:
        assert found.manifest is not None
        manifest = found.manifest.model_copy(
            update={
                "old_places": {HOME: NOW - timedelta(days=3), earlier: replaced_at},
                "absorbed": (
                    *found.manifest.absorbed,
                    *(version_of(earlier, name) for name in names),
                ),
            }
        )
        old = (at(HOME, file("a")), at(earlier, *(file(name) for name in names)))
        made = plan_partition(PartitionFiles(found.current, manifest, old), replace(RULES, **changes), NOW)
        return [(each.place, each.name) for each in made.removable]

    assert plan(None) == []  # it was replaced an hour ago
    assert plan(NOW - timedelta(days=2)) == [(earlier, names[0])]
    assert plan(None, delete_originals=True) == [(HOME, "a")]
    assert plan(NOW - timedelta(days=2), delete_originals=True) == [(HOME, "a"), *((earlier, name) for name in names)]


def test_a_copy_at_an_old_version_is_what_it_is_a_copy_of() -> None:
    """A paused run has copied a late file to a location that was replaced meanwhile; the file itself is late, too."""
    found = swapped(old=(file("c"),))
    earlier = VERSION.replace("v-0", "v-f")
    digest = version_of(HOME, "c")
    stale = file(copied_name(digest, "c"))
    plan = plan_partition(replace(found, old=(*found.old, at(earlier, stale))), RULES, NOW)
    assert [late.identity for late in plan.late] == [digest]
    brought_in = swapped(file(copied_name(digest, "c")), old=(file("c"),))
    again = plan_partition(replace(brought_in, old=(*brought_in.old, at(earlier, stale))), RULES, NOW)
    assert again.late == () and again.problem is None


def test_a_late_file_that_was_overwritten_after_it_was_brought_in_is_for_a_person() -> None:
    copy = file(copied_name(version_of(HOME, "c"), "c"))
    plan = plan_partition(swapped(copy, old=(replace(file("c"), etag="other"),)), RULES, NOW)
    assert plan.is_empty and plan.problem is not None and plan.problem.startswith(OVERWRITTEN)


@pytest.mark.parametrize(
    "name",
    ["x.compacted-10mb-bbbbbbbbbbbbbbbbbbbbbbbb.parquet", copied_name(version_of(HOME, "a"), "a")],
)
def test_a_file_of_ours_that_no_swap_has_published_is_for_a_person(name: str) -> None:
    plan = plan_partition(swapped(file(name)), RULES, NOW)
    assert plan.is_empty and plan.problem is not None and plan.problem.startswith(STRAY)


def test_files_below_an_old_location_are_for_a_person() -> None:
    plan = plan_partition(swapped(old=(file("deeper/c"),)), RULES, NOW)
    assert plan.is_empty and plan.problem is not None and plan.problem.startswith(BELOW)


def test_a_file_that_is_too_large_to_be_copied_in_one_step() -> None:
    plan = plan_partition(PartitionFiles(at(HOME, file("a"), file("b"), file("large", 6_000_000_000))), RULES, NOW)
    assert plan.is_empty and plan.why_not == TOO_LARGE


@pytest.mark.parametrize(
    ("location", "why"),
    [
        (None, "no location"),
        ("", "no location"),
        ("hdfs://node/x", "not on S3"),
        ("s3://", "not on S3"),
        ("s3://lake//x", "empty segment"),
        ("s3://lake/x/../y", "empty segment"),
    ],
)
def test_locations_that_cannot_be_used(location: str | None, why: str) -> None:
    assert why in (why_location_unusable(location) or "")


@pytest.mark.parametrize("location", ["s3://lake/x", "s3a://lake/x/", "s3n://lake/x y/%2F=?", "s3://lake"])
def test_locations_that_can_be_used(location: str) -> None:
    assert why_location_unusable(location) is None


def test_partitions_that_share_files_are_found() -> None:
    found = overlapping(
        {
            "one": "s3://lake/a/",
            "two": "s3a://lake/a",
            "inside": "s3://lake/a/b/c",
            "alone": "s3://lake/ab",
            "above": "s3://lake/x",
            "below": "s3://lake/x/y",
            "beside": "s3://lake/x-y",
        }
    )
    assert set(found) == {"one", "two", "inside", "above", "below"}


paths = st.lists(st.sampled_from(["a", "b", "a-b"]), min_size=1, max_size=3).map("/".join)


@given(st.lists(paths, max_size=8))
def test_overlaps_are_those_that_a_plain_comparison_finds(some: list[str]) -> None:
    locations = {f"p{number}": f"s3://lake/{path}" for number, path in enumerate(some)}
    expected = {
        one
        for one, here in locations.items()
        for two, there in locations.items()
        if one != two and (f"{here}/".startswith(f"{there}/") or f"{there}/".startswith(f"{here}/"))
    }
    assert set(overlapping(locations)) == expected


@given(st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=200))
def test_a_copy_of_a_copy_keeps_a_short_name(name: str, place: str) -> None:
    first = copied_name(version_digest(place, name, "1"), name)
    second = copied_name(version_digest(place, first, "2"), first)
    assert len(second) == len(first) and second != first
