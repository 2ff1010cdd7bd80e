"""Deletes are applied, delete files that no longer apply go, and nothing that was deleted comes back."""

from collections.abc import Callable

import pytest
from pyiceberg.typedef import Record

from compaction_platform.maintain.operations.remove_dangling_deletes import dangling_deletes
from compaction_platform_tests.maintain.scene import Scene, ordered, rows_of

pytestmark = pytest.mark.integration

NewScene = Callable[..., Scene]


@pytest.mark.parametrize("granularity", ["file", "partition"])
def test_position_deletes_are_applied_and_their_files_removed(new_scene: NewScene, granularity: str) -> None:
    scene = new_scene(write_delete_granularity=granularity)
    scene.small_files(4, "de")
    scene.small_files(4, "fr", first=100)
    scene.delete("id % 3 = 0", lambda row: row["id"] % 3 == 0)
    scene.delete("id % 5 = 0", lambda row: row["id"] % 5 == 0)
    assert scene.look().files.deletes
    report = scene.maintain()
    scene.assert_nothing_lost()
    assert scene.look().files.deletes == {}
    assert scene.files() == 2
    assert report.figures()["files_removed"] > report.figures()["files_compacted"]


def test_a_delete_file_that_still_applies_to_others_stays(new_scene: NewScene) -> None:
    scene = new_scene(write_delete_granularity="partition")
    scene.small_files(6, "de")
    scene.delete("id % 10 = 3", lambda row: row["id"] % 10 == 3)  # one delete file about six data files
    scene.maintain(max_files=3)
    scene.assert_nothing_lost()
    assert len(scene.look().files.deletes) == 1
    scene.maintain()
    scene.assert_nothing_lost()
    assert scene.look().files.deletes == {}


def test_a_large_file_with_many_deletes_is_rewritten_by_itself(scene: Scene) -> None:
    scene.write(rows_of(range(1000)))
    scene.delete("id < 600", lambda row: row["id"] < 600)
    report = scene.maintain(small_bytes=1, target_bytes=1 << 20)
    assert [group.reason for group in report.plan.groups] == ["60% of its rows may be deleted"]
    scene.assert_nothing_lost()
    assert scene.look().files.deletes == {}


def test_a_file_whose_rows_are_all_deleted_goes_without_another(scene: Scene) -> None:
    scene.small_files(3)
    scene.write(rows_of([1000], "fr"))
    scene.delete("country = 'de' AND id >= 0", lambda row: row["country"] == "de")
    scene.write(*(rows_of([2000 + number]) for number in range(3)))
    scene.maintain()
    scene.assert_nothing_lost()


def test_equality_deletes_apply_to_older_files_only(new_scene: NewScene) -> None:
    scene = new_scene()
    scene.small_files(4)
    de = Record("de")
    scene.delete_by_equality([{"id": 3}, {"id": 12}, {"id": 999}], de)
    scene.write(rows_of([3], amount=500.0))  # the same key again, later: it stays
    assert ordered(scene.read()) == ordered(scene.expected), "Spark reads it so"
    scene.maintain()
    scene.assert_nothing_lost()
    assert scene.files() == 1
    assert scene.look().files.deletes == {}


def test_equality_deletes_of_null_and_of_several_columns(new_scene: NewScene) -> None:
    scene = new_scene(partitioned_by=None)
    rows = [{"id": number, "country": country, "amount": 1.0} for number in range(4) for country in ("de", None)]
    scene.write(rows[:3], rows[3:5], rows[5:])
    scene.delete_by_equality([{"id": 1, "country": None}, {"id": 2, "country": "de"}])
    assert ordered(scene.read()) == ordered(scene.expected), "Spark reads it so"
    scene.maintain()
    scene.assert_nothing_lost()
    assert scene.look().files.deletes == {}
    assert scene.files() == 1


def test_an_equality_delete_by_a_number_that_is_no_key_is_left_to_others(new_scene: NewScene) -> None:
    scene = new_scene(partitioned_by=None)
    scene.small_files(3)
    scene.delete_by_equality([{"amount": 1.0}])
    report = scene.maintain()
    assert report.committed == ()
    assert "no plain equality" in next(iter(report.failed.values()))
    scene.assert_nothing_lost()


def test_delete_files_that_were_left_dangling_before_go_as_well(scene: Scene) -> None:
    scene.small_files(3)
    scene.delete("id = 3", lambda row: row["id"] == 3)
    # Without `remove-dangling-deletes` Iceberg's own procedure leaves the delete file behind.
    scene.sql(f"CALL lake.system.rewrite_data_files(table => '{scene.name}', options => map('rewrite-all', 'true'))")
    assert len(dangling_deletes(scene.table, scene.settings)) == 1
    report = scene.maintain()
    assert report.dangling_removed == 1
    assert dangling_deletes(scene.table, scene.settings) == set()
    scene.assert_nothing_lost()
