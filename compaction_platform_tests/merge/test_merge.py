"""The rules of the merge, on real Spark, compared with the plain model."""

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import permutations

import pyarrow
import pytest

from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.merge.config import PartitionField, StagingPathsOverlap
from compaction_platform.merge.intake.hour_manifest import staged_batches
from compaction_platform.merge.job import NoIntake, StagingChanged
from compaction_platform.merge.plan.staged_hours import hour_of
from compaction_platform.merge.publish.merger import TargetUnfit
from compaction_platform.persisted_names import MERGE_RUN, MERGED_BATCHES
from compaction_platform_tests.merge.scene import DAY, Scene, event, parquet

pytestmark = pytest.mark.integration

NewScene = Callable[..., Scene]


def test_the_same_key_many_times_in_one_batch_becomes_its_newest_row(scene: Scene) -> None:
    scene.stage("a.parquet", [event("same"), event("same"), event("newer", 5, 2.0), event("newer", 4, 3.0)])
    scene.stage("b.parquet", [event("same"), event("tie", 1, 1.0), event("tie", 1, 2.0), event("other", 1)])
    scene.stage("c.parquet", [event("tie", 1, 0.5), event("newer", 3, 9.0), event("no order") | {"updated_at": None}])
    outcome = scene.merge(0)
    assert [row["event_id"] for row in scene.content()] == ["newer", "no order", "other", "same", "tie"]
    scene.check()
    assert (outcome.merged.inserted, outcome.merged.updated, outcome.merged.unchanged) == (5, 0, 0)
    by_key = {row["event_id"]: row for row in scene.content()}
    assert by_key["tie"]["amount"] == 0.5, "equally new: the later file wins"
    assert by_key["newer"]["amount"] == 2.0
    assert (by_key["tie"]["_staged_file"], by_key["tie"]["_staged_row"]) == ("c.parquet", 0)


def test_every_order_of_arrival_gives_the_same_table(new_scene: NewScene) -> None:
    files = {
        "a.parquet": [event("x", 1, 1.0), event("tie", 1, 1.0), event("y", 3, 1.0), event("e", 1, 1.0, country="pt")],
        "b.parquet": [event("x", 2, 2.0), event("tie", 1, 2.0), event("y", 2, 2.0), event("e", 2, 2.0)],
        "c.parquet": [event("x", 1, 3.0), event("tie", 1, 3.0), event("z", 1, 3.0), event("e", 2, 2.0)],
    }
    contents = []
    for order in list(permutations(files))[1::2]:
        scene = new_scene()
        for hour, name in enumerate(order):
            scene.stage(name, files[name], hour)
            scene.merge(hour)
        scene.check()
        contents.append([{**row, "_staged_file": None, "_staged_row": None} for row in scene.content()])
    together = new_scene()
    for name, rows in files.items():
        together.stage(name, rows)
    together.merge(0)
    together.check()
    expected = [{**row, "_staged_file": None, "_staged_row": None} for row in together.content()]
    assert contents == [expected] * 3


def test_an_older_row_never_overwrites_and_enrichment_is_never_nulled(scene: Scene) -> None:
    scene.stage("1.parquet", [event("a", 5, 5.0), event("b", 5, 5.0, country="de"), event("c", 5, 5.0)])
    scene.merge(0)
    scene.sql("UPDATE {table} SET country = 'fr' WHERE event_id = 'a'")  # what an enrichment does
    scene.model.rows[("a",)]["country"] = "fr"
    scene.stage("2.parquet", [event("a", 4, 0.0), event("b", 6, 6.0), event("c", 1, 0.0, country="es")], 1)
    outcome = scene.merge(1)
    scene.check()
    by_key = {row["event_id"]: (row["amount"], row["country"]) for row in scene.content()}
    assert by_key == {"a": (5.0, "fr"), "b": (6.0, "de"), "c": (5.0, "es")}
    assert (outcome.merged.inserted, outcome.merged.updated, outcome.merged.unchanged) == (0, 2, 1)
    scene.merge(0, again=True)
    assert {row["event_id"]: row["country"] for row in scene.content()} == {"a": "fr", "b": "de", "c": "es"}


def test_running_an_hour_again_makes_no_snapshot_and_reads_nothing(scene: Scene) -> None:
    scene.stage("a.parquet", [event(str(n), n) for n in range(100)])
    first = scene.merge(0)
    snapshots = scene.snapshots()
    second = scene.merge(0)
    assert scene.snapshots() == snapshots
    assert second.merged.snapshot_id == first.merged.snapshot_id
    assert second.planned == ()
    assert second.manifests == first.manifests
    assert any("was merged before" in text for text in scene.said)


def test_running_an_hour_again_after_its_snapshot_expired_makes_no_snapshot(scene: Scene) -> None:
    for hour in (0, 1):
        scene.stage(f"{hour}.parquet", [event(str(n), hour) for n in range(20)], hour)
        scene.merge(hour)
    scene.sql(
        f"CALL lake.system.expire_snapshots(table => 'merging.{scene.rules.table}', "
        "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    )
    snapshots = scene.snapshots()
    assert len(snapshots) == 1, "the ledger of hour 0 is gone"
    outcome = scene.merge(0)
    assert outcome.planned == (scene.hour(0),)
    assert (outcome.merged.inserted, outcome.merged.updated, outcome.merged.unchanged) == (0, 0, 20)
    assert scene.snapshots() == snapshots
    assert scene.branches() == set()
    scene.check()


def test_rows_that_say_nothing_new_are_not_written(scene: Scene) -> None:
    scene.stage("a.parquet", [event(str(n), 1) for n in range(50)])
    scene.merge(0)
    main = scene.main()
    scene.stage("b.parquet", [event(str(n), 1) for n in range(50)], 1)
    outcome = scene.merge(1)
    assert outcome.merged.unchanged == 50
    assert not outcome.merged.published
    assert scene.main() == main
    assert scene.branches() == set()
    scene.check()


def test_a_range_of_hours_is_one_merge(scene: Scene) -> None:
    for hour in range(4):
        scene.stage(f"{hour}.parquet", [event(f"{hour}-{n}", day=hour % 2) for n in range(10)], hour)
    outcome = scene.merge(0, 1, 2, 3, 4)
    assert len(scene.snapshots()) == 2  # the one that makes the branch of an empty table, and the merge
    scene.check()
    assert outcome.planned == tuple(scene.hour(number) for number in range(4))
    assert outcome.merged.partitions == 2
    summary = scene.table().current_snapshot().summary.additional_properties
    assert json.loads(summary[MERGED_BATCHES]) == {hour: outcome.manifests[hour].digest for hour in outcome.planned}
    assert summary[MERGE_RUN] == "test"


def test_a_late_file_in_an_old_hour_is_merged(scene: Scene) -> None:
    scene.stage("a.parquet", [event("a", 1)])
    scene.stage("b.parquet", [event("b", 1)], 1)
    scene.merge(0, 1)
    scene.stage("late.parquet", [event("a", 2, 7.0), event("late", 1, day=-9)])
    outcome = scene.merge(0, 1)
    assert outcome.planned == (scene.hour(0),)
    assert (outcome.merged.inserted, outcome.merged.updated) == (1, 1)
    scene.check()


def test_silver_alone_merges_what_the_intake_found(scene: Scene) -> None:
    scene.stage("a.parquet", [event("a")])
    scene.stage("bad.parquet", b"not parquet")
    with pytest.raises(NoIntake, match="was never taken in"):
        scene.run().merge([scene.hour(0)])
    taken = scene.run().take_in([scene.hour(0)])
    assert scene.main() is None
    assert [file.fate for file in taken.manifests[scene.hour(0)].files] == ["sound", "quarantined"]
    scene.run().merge([scene.hour(0)])
    assert [row["event_id"] for row in scene.content()] == ["a"]
    main = scene.main()
    scene.merge(0)
    assert scene.main() == main, "both together know the batch that Silver alone has merged"


def test_silver_alone_refuses_files_that_changed_since_the_intake(scene: Scene) -> None:
    scene.stage("a.parquet", [event("a")])
    scene.run().take_in([scene.hour(0)])
    scene.stage("a.parquet", [event("b")])
    with pytest.raises(StagingChanged, match=r"a\.parquet.*Nothing was merged"):
        scene.run().merge([scene.hour(0)])
    assert scene.main() is None


def test_a_file_replaced_under_its_name_wins_over_its_former_self(scene: Scene) -> None:
    scene.stage("a.parquet", [event("wrong"), event("a", 1, 1.0)])
    scene.merge(0)
    scene.stage("a.parquet", [event("a", 1, 2.0)], 1)  # corrected, a line less, the timestamp left as it was
    scene.merge(1)
    scene.check()
    assert scene.content()[0]["amount"] == 2.0


def test_a_dry_run_tells_and_changes_nothing(scene: Scene) -> None:
    scene.stage("a.parquet", [event("a", 1), event("b", 1)])
    scene.merge(0)
    before = (scene.snapshots(), scene.quarantine(), scene.table().metadata_location)
    moments = pyarrow.array([DAY, DAY], pyarrow.timestamp("us", "UTC"))
    table = pyarrow.table({"event_id": ["a", "c"], "event_time": moments, "updated_at": moments, "fresh": [1, 2]})
    scene.stage("b.parquet", [event("a", 2, 9.0), event("c", 1)], 1)
    scene.stage("new.parquet", table, 1)
    scene.stage("bad.parquet", b"", 1)
    outcome = scene.merge(1, dry_run=True)
    assert (outcome.merged.inserted, outcome.merged.updated) == (1, 1)
    assert outcome.manifests[scene.hour(1)].quarantined[0].key == "bad.parquet"
    assert (scene.snapshots(), scene.quarantine(), scene.table().metadata_location) == before
    assert scene.branches() == set()
    assert scene.merge(1).planned == (scene.hour(1),), "no trace was left that would make it think it was done"


def test_a_key_that_moves_to_another_partition_stays_one_row_if_declared(new_scene: NewScene) -> None:
    scene = new_scene(partition_may_change=True)
    scene.stage("a.parquet", [event("moves", 1, day=0), event("stays", 1, day=0)])
    scene.merge(0)
    scene.stage("b.parquet", [event("moves", 2, day=12)], 1)
    outcome = scene.merge(1)
    assert (outcome.merged.inserted, outcome.merged.updated) == (0, 1)
    scene.check()
    scene.stage("c.parquet", [event("moves", 1, day=20)], 2)
    assert scene.merge(2).merged.unchanged == 1, "an older version does not bring it back"
    scene.check()


@pytest.mark.parametrize(
    "partition_by", [(), (("event_time", "month"),), (("country", "identity"), ("event_id", "bucket[4]"))]
)
def test_other_partitionings(new_scene: NewScene, partition_by: tuple[tuple[str, str], ...]) -> None:
    scene = new_scene(partition_by=tuple(PartitionField(*pair) for pair in partition_by), keep_when_null=())
    for hour in range(2):
        rows = [event(str(n), hour, hour * 1.0, day=n * 5, country=("a'b", None, "c")[n % 3]) for n in range(hour, 9)]
        scene.stage(f"{hour}.parquet", rows, hour)
        scene.merge(hour)
        scene.check()


def test_moments_outside_the_calendar_and_missing_ones(scene: Scene) -> None:
    far = pyarrow.table(
        {
            "event_id": ["far", "none", "ancient"],
            "event_time": pyarrow.array(
                [9089380393200000000, None, -62200000000000000], pyarrow.timestamp("us", "UTC")
            ),
            "amount": [1.0, 2.0, 3.0],
        }
    )
    for hour in (0, 1):
        scene.stage(f"{hour}.parquet", parquet(far), hour)
        outcome = scene.merge(hour)
    assert outcome.merged.unchanged == 3
    rows = scene.sql("SELECT event_id, unix_micros(event_time) AS at FROM {table} ORDER BY event_id")
    assert [(row.event_id, row.at) for row in rows] == [
        ("ancient", -62200000000000000),
        ("far", 9089380393200000000),
        ("none", None),
    ]


def test_events_without_a_time_beside_others_that_are_new(scene: Scene) -> None:
    scene.stage("a.parquet", [event("a"), {**event("b"), "event_time": None}])
    assert scene.merge(0).merged.inserted == 2
    scene.stage("b.parquet", [event("c"), {**event("d"), "event_time": None}, {**event("b", 3), "event_time": None}], 1)
    assert scene.merge(1).merged.inserted == 2
    scene.check()


@pytest.mark.parametrize("unit", ["month", "year"])
def test_the_last_month_of_the_calendar(new_scene: NewScene, unit: str) -> None:
    scene = new_scene(partition_by=(PartitionField("event_time", unit),))
    last = datetime(9999, 12, 31, 23, tzinfo=UTC)
    for hour in (0, 1):
        scene.stage(f"{hour}.parquet", [{**event("a", hour, hour * 1.0), "event_time": last}, event(f"b{hour}")], hour)
        scene.merge(hour)
        scene.check()


def test_nested_columns_are_kept_and_compared(new_scene: NewScene) -> None:
    scene = new_scene(keep_when_null=())
    table = pyarrow.table(
        {
            "event_id": ["a", "b"],
            "updated_at": pyarrow.array([DAY, DAY], pyarrow.timestamp("us", "UTC")),
            "event_time": pyarrow.array([DAY, DAY], pyarrow.timestamp("us", "UTC")),
            "tags": [["x", None], []],
            "place": [{"city": "Porto", "at": {"x": 1.5}}, None],
            "scores": pyarrow.array([[("k", 1), ("l", 2)], None], pyarrow.map_(pyarrow.string(), pyarrow.int32())),
        }
    )
    scene.stage("a.parquet", table)
    scene.merge(0)
    again = table.set_column(5, "scores", pyarrow.array([[("l", 2), ("k", 1)], []], table.schema.field("scores").type))
    scene.stage("b.parquet", again, 1)
    outcome = scene.merge(1)
    assert (outcome.merged.unchanged, outcome.merged.updated) == (1, 1), "a map's order is no difference"
    rows = scene.content()
    assert [(row["tags"], row["place"]) for row in rows] == [
        (["x", None], {"city": "Porto", "at": {"x": 1.5}}),
        ([], None),
    ]
    assert [dict(row["scores"]) for row in rows] == [{"k": 1, "l": 2}, {}]


@pytest.mark.parametrize("seed", range(3))
def test_random_histories_follow_the_model(new_scene: NewScene, seed: int) -> None:
    chance = random.Random(seed)
    scene = new_scene()
    for hour in range(4):
        for number in range(chance.randrange(1, 4)):
            rows = []
            for _ in range(chance.randrange(0, 12)):
                name = chance.choice("abcdefghij")
                version = chance.choice((0, 1, 2, 3, None))
                row = event(name, version or 0, chance.choice((1.0, 2.0, None)), day=ord(name) % 3 - 1)
                row["updated_at"] = row["updated_at"] if version is not None else None
                row["country"] = chance.choice((None, None, "pt", "de"))
                rows.append(row)
            scene.stage(f"{chance.randrange(100)}-{number}.parquet", rows, hour)
        scene.merge(hour)
        scene.check()


def test_an_hour_without_a_single_sound_row_is_merged_as_nothing(scene: Scene) -> None:
    scene.stage("bad.parquet", b"bad")
    scene.stage("empty.parquet", [])
    outcome = scene.merge(0)
    assert outcome.merged.snapshot_id is None
    assert scene.snapshots() == []
    assert len(outcome.manifests[scene.hour(0)].quarantined) == 1


def test_how_long_snapshots_are_kept_stays_as_it_was_set(scene: Scene) -> None:
    scene.stage("a.parquet", [event("a")])
    scene.merge(0)
    scene.sql("ALTER TABLE {table} CREATE OR REPLACE BRANCH main RETAIN 9 DAYS WITH SNAPSHOT RETENTION 7 SNAPSHOTS")
    before = scene.table().metadata.refs["main"]
    scene.stage("b.parquet", [event("b")], 1)
    scene.merge(1)
    after = scene.table().metadata.refs["main"]
    assert after.snapshot_id != before.snapshot_id
    assert after.min_snapshots_to_keep == before.min_snapshots_to_keep == 7


def test_a_table_that_rewrites_files_is_refused_with_what_to_do(scene: Scene) -> None:
    scene.stage("a.parquet", [event("a")])
    scene.sql("ALTER TABLE {table} SET TBLPROPERTIES ('write.merge.mode'='copy-on-write')")
    with pytest.raises(TargetUnfit, match="ALTER TABLE .* SET TBLPROPERTIES"):
        scene.merge(0)
    assert scene.main() is None


def test_a_staging_area_around_our_own_files_is_refused(new_scene: NewScene) -> None:
    with pytest.raises(StagingPathsOverlap, match="lies inside it"):
        new_scene(source="s3://lake").merge(0)


@pytest.mark.parametrize("fate", ["stays", "replaced"])
def test_files_staged_on_s3(new_scene: NewScene, fate: str) -> None:
    """Below the lake's address; the hour is the store's, so it is the current one."""
    scene = new_scene(source=f"staging/{fate}")
    store = ObjectStore.at(scene.places.staging, scene.settings)
    assert scene.places.staging.startswith("s3://")
    store.write("2026/batch_001.parquet", parquet([event("a", 1), event("b", 1)]))
    store.write("2026/batch_002.parquet", parquet([event("a", 2, 5.0)]))
    store.write("2026/_SUCCESS", b"")
    store.write("2026/bad.parquet", b"bad")
    hours = {hour_of(stored.last_modified) for stored in store.list()}
    staged = staged_batches(scene.rules, scene.places, scene.settings, hours)
    if fate == "replaced":
        store.write("2026/batch_002.parquet", parquet([event("a", 3, 9.0)]))
        assert scene.run()._merge(staged, strict=False).merged.keys == 2, "the version that was listed is gone"
    outcome = scene.run().take_in_and_merge({hour_of(stored.last_modified) for stored in store.list()})
    assert outcome.merged.published
    rows = {row["event_id"]: row["amount"] for row in scene.content()}
    assert rows == {"a": 9.0 if fate == "replaced" else 5.0, "b": 1.0}
    assert [name for name in scene.quarantine() if name.endswith("reason.json")]
