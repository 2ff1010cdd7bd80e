"""Somebody changes after a swap where the catalog leads: what was published is named until a person has decided."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from compaction_platform.compact.glue.commit import cleanup
from compaction_platform.compact.glue.plan.inventory import Selection
from compaction_platform_tests.compact.glue.scene import GRACE_OVER, Scene, clicks

pytestmark = pytest.mark.integration

MAY = ("2023", "05")
NAME = "year=2023/month=05"
ROWS = list(range(120))
SAFE = "All files that it was made of are where the catalog leads"
UNSAFE = "Rows of it may be nowhere else"


def set_back(scene: Scene, place: str) -> None:
    scene.update(*MAY, StorageDescriptor=scene.storage(f"{place}/"))


def drop(scene: Scene, values: tuple[str, ...] = MAY) -> None:
    scene.glue.delete_partition(DatabaseName=scene.database, TableName="clicks", PartitionValues=list(values))


def remove(scene: Scene, place: str) -> None:
    for name in scene.names(place, hidden=True):
        scene.s3.delete_object(Bucket="lake", Key=f"{place.removeprefix('s3://lake/')}/{name}")


@pytest.fixture
def swapped(scene: Scene) -> tuple[Scene, str, str]:
    """A partition after its swap; its home, and its version."""
    home = scene.partition(*MAY)
    scene.fill(home)
    scene.fill(scene.partition("2023", "06"))
    assert scene.compact(GRACE_OVER).is_clean
    return scene, home, scene.place(*MAY)


@pytest.mark.parametrize("originals", ["are there", "are there, and others came to the version", "are gone"])
@pytest.mark.parametrize("way_out", ["lead it there", "delete it"])
def test_a_location_that_was_set_back(
    swapped: tuple[Scene, str, str], monkeypatch: pytest.MonkeyPatch, originals: str, way_out: str
) -> None:
    scene, home, version = swapped
    monkeypatch.setattr(cleanup, "ABANDONED_AFTER", timedelta(minutes=-1))
    expected = ROWS
    if originals == "are gone":
        assert scene.compact(GRACE_OVER).results[0].removed == 6
    elif "others" in originals:
        scene.put(version, "by-catalog.parquet", clicks(500))
        expected = [*ROWS, *range(500, 520)]
    set_back(scene, home)
    before = [scene.names(place, hidden=True) for place in (home, version)]
    problems = {each.name: each.plan.problem for each in scene.plan(GRACE_OVER) if each.plan.problem}
    assert list(problems) == [NAME]
    assert version in str(problems) and home in str(problems) and "set the partition's location to" in str(problems)
    assert (SAFE if originals == "are there" else UNSAFE) in str(problems)
    for selection in (Selection(), Selection((NAME,)), Selection(predicate="month='05'")):
        report = scene.compact(GRACE_OVER, selection)
        assert not report.is_clean and report.problems == problems
    assert scene.place(*MAY) == home
    assert [scene.names(place, hidden=True) for place in (home, version)] == before
    if way_out == "lead it there":
        set_back(scene, version)
        assert scene.compact().is_clean and scene.ids(*MAY) == expected
    else:
        remove(scene, version)
        assert scene.compact().is_clean and scene.ids(*MAY) == ([] if originals == "are gone" else ROWS)


def test_a_partition_that_was_dropped(swapped: tuple[Scene, str, str]) -> None:
    """Also where only others are looked after, or named: nobody else would find it."""
    scene, _, version = swapped
    drop(scene)
    for predicate in (None, "month='06'"):
        report = scene.compact(predicate=predicate)
        assert list(report.problems) == [NAME] and not report.is_clean
        assert f"add the partition, or set its location, to {version}" in report.problems[NAME]
    assert version in scene.compact(selection=Selection((NAME,))).problems[NAME]
    assert scene.compact(selection=Selection(("year=2023/month=06",))).is_clean
    assert version in str(scene.plan(publish="in_place")), "whatever is declared now"
    scene.partition(*MAY, location=f"{version}/")
    assert scene.compact().is_clean and scene.ids(*MAY) == ROWS
    drop(scene)
    remove(scene, version)
    assert scene.compact().is_clean


def test_a_partition_that_leads_to_an_older_version(swapped: tuple[Scene, str, str]) -> None:
    """Of several that nothing leads to, the newest is where all rows are."""
    scene, home, first = swapped
    for number in range(2):
        scene.put(first, f"more-{number}", clicks(500 + number * 20))
    assert scene.compact().is_clean
    second = scene.place(*MAY)
    assert second != first
    assert scene.compact().is_clean, "what our own next swap has replaced is not astray"
    set_back(scene, first)
    assert f"published {second} (1 files, 160 rows), but the catalog leads to {first}" in str(scene.compact().problems)
    set_back(scene, home)
    problem = scene.compact().problems[NAME]
    assert f"to {second}." in problem and "delete " in problem and first in problem
    set_back(scene, second)
    assert scene.compact(GRACE_OVER).is_clean and scene.ids(*MAY) == [*ROWS, *range(500, 540)]


def test_what_another_partition_or_another_table_leads_to_is_not_astray(swapped: tuple[Scene, str, str]) -> None:
    scene, home, version = swapped
    drop(scene)
    scene.partition("2023", "5", location=version)  # renamed
    found = scene.compact()
    assert NAME not in found.problems
    drop(scene, ("2023", "5"))
    scene.partition(*MAY, location=version)
    scene.create_table("also")  # at the same location: its versions go to the same place
    scene.table = "also"
    assert scene.compact().problems == {}
    scene.partition(*MAY, location=home)
    assert scene.compact().problems == {}


def test_a_swap_while_we_look_is_not_taken_for_astray(
    swapped: tuple[Scene, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is published after the catalog was read, and before the places are judged."""
    scene, _, version = swapped
    for number in range(2):
        scene.put(version, f"more-{number}", clicks(500 + number * 20))
    slow = scene.run()
    assert slow.surveyor.locations
    happened = [each.outcome for each in scene.compact().results]
    assert "compacted" in happened and scene.place(*MAY) != version
    assert not [each.plan.problem for each in slow.plan() if each.plan.problem]


@pytest.mark.parametrize("what", ["manifest of what it leads to", "manifest of what it does not lead to"])
def test_a_manifest_that_is_gone_or_damaged(swapped: tuple[Scene, str, str], what: str) -> None:
    scene, home, version = swapped
    if "not" in what:
        set_back(scene, home)
        scene.put(version, "_compaction.json", b"{}")
        assert version in scene.compact().problems[NAME]
    else:
        scene.s3.delete_object(Bucket="lake", Key=f"{version.removeprefix('s3://lake/')}/_compaction.json")
        assert "_compaction.json is gone" in scene.compact(GRACE_OVER).problems[NAME]
        assert scene.ids(*MAY) == ROWS and len(scene.names(home)) == 6


def test_a_note_of_a_swap_without_any_rows_is_a_leftover(
    swapped: tuple[Scene, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that slept before its note: the version was replaced and removed meanwhile."""
    scene, _, version = swapped
    empty = f"{version.rpartition('/')[0]}/v-0123456789abcdef-0123456789abcdef"
    scene.put(empty, "_swapped", b"late")
    monkeypatch.setattr(cleanup, "ABANDONED_AFTER", timedelta(minutes=-1))
    report = scene.compact(replace(GRACE_OVER, delete_originals=False))
    assert report.is_clean and not report.kept and report.results[0].leftovers == 1
    assert scene.names(empty, hidden=True) == []


def test_files_of_others_in_a_directory_that_was_never_published_stay(
    swapped: tuple[Scene, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, _, version = swapped
    left = f"{version.rpartition('/')[0]}/v-0123456789abcdef-0123456789abcdef"
    scene.put(left, "theirs.parquet", clicks(900))
    monkeypatch.setattr(cleanup, "ABANDONED_AFTER", timedelta(minutes=-1))
    report = scene.compact()
    assert "somebody else" in report.kept[left] and scene.names(left) == ["theirs.parquet"]


def test_no_more_is_asked_of_the_catalog_where_all_is_well(
    swapped: tuple[Scene, str, str], new_scene: Callable[..., Scene]
) -> None:
    scene, _, _ = swapped
    scene.server.calls.clear()
    scene.plan()
    assert scene.server.calls.count("GetPartition") == 0
