"""The Iceberg table of a dataset: whole ranges, replaced in one snapshot, the same files that plain readers see."""

from typing import Any

import pytest

from compaction_platform.archive.cold.iceberg_table import ColdTableUnfit
from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.settings import Settings
from compaction_platform_tests.archive.scene import Scene, comparable

pytestmark = pytest.mark.integration


@pytest.fixture
def scene(settings: Settings) -> Scene:
    scene = Scene(settings, namespace="cold_test")
    scene.grow(0, 40)
    return scene


def in_spark(spark: Any, settings: Settings, scene: Scene, what: str, table: str = "logs") -> list[Any]:
    name = f"{settings.catalog_name}.cold_test.{table}"
    return [tuple(row) for row in spark.sql(f"SELECT {what} FROM {name} WHERE chain_id = {scene.chain_id}").collect()]


def files(settings: Settings, scene: Scene, dataset: str) -> set[str]:
    table = open_catalog(settings).load_table(("cold_test", dataset))
    paths = {task.file.file_path for task in table.scan(row_filter=f"chain_id = {scene.chain_id}").plan_files()}
    return {path.removeprefix(f"{scene.store.uri}/") for path in paths}


def test_sql_engines_see_whole_ranges_from_the_files_as_they_lie(spark: Any, settings: Settings, scene: Scene) -> None:
    scene.run(ParallelMap(spark, 2)).run(scene.archive.range_of("10-20"))
    scene.archived(20, 30)
    inside = [row for row in scene.hot("logs") if 10 <= row[1] < 30]
    assert sorted(in_spark(spark, settings, scene, "block_number, log_index")) == [row[1:3] for row in inside]
    assert in_spark(spark, settings, scene, "count(DISTINCT hash), count(*)", "blocks") == [(20, 20)]
    gas = in_spark(spark, settings, scene, "sum(gas)", "transactions")[0][0]
    assert gas == sum(int(row[6]) for row in scene.hot("transactions") if 10 <= row[1] < 30)
    for name in ("blocks", "transactions", "logs"):
        assert files(settings, scene, name) == set(scene.visible(name))


def test_a_replace_is_one_state_after_another_for_sql_engines(
    spark: Any, settings: Settings, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compaction_platform.archive.cold.publish import Publication

    scene.archived(10, 20)
    scene.execute("UPDATE TABLES.logs SET data = 'changed' WHERE block_number = 14")
    seen = []
    real = Publication._show

    def look(publication: Publication, manifest: Any) -> None:
        seen.append(in_spark(spark, settings, scene, "count(*), count_if(data = X'6368616e676564')"))
        real(publication, manifest)
        seen.append(in_spark(spark, settings, scene, "count(*), count_if(data = X'6368616e676564')"))

    monkeypatch.setattr(Publication, "_show", look)
    scene.archived(10, 20)
    assert seen == [[(10, 2)]] * 6, "while files move, the table has the new version, whole"
    assert files(settings, scene, "logs") == set(scene.visible("logs"))


def test_the_same_again_makes_no_snapshot(settings: Settings, scene: Scene) -> None:
    scene.archived(10, 20)
    before = [open_catalog(settings).load_table(("cold_test", name)).metadata.current_snapshot_id for name in ("logs",)]
    scene.archived(10, 20)
    after = [open_catalog(settings).load_table(("cold_test", name)).metadata.current_snapshot_id for name in ("logs",)]
    assert before == after


def test_a_column_that_the_hot_table_got_later_is_added(spark: Any, settings: Settings, scene: Scene) -> None:
    scene.archived(10, 20)
    scene.execute("ALTER TABLE TABLES.logs ADD added_later bigint DEFAULT 7")
    scene.archived(20, 30)
    counted = in_spark(spark, settings, scene, "count(*), count(added_later), sum(added_later)")
    late = len([row for row in scene.hot("logs") if 20 <= row[1] < 30])
    assert counted == [(late + 10, late, 7 * late)]


def test_a_table_that_does_not_fit_is_refused_before_anything_is_copied(settings: Settings, scene: Scene) -> None:
    scene.archived(10, 20)
    scene.execute("ALTER TABLE TABLES.logs ALTER data TYPE text USING 'text'")
    with pytest.raises(ColdTableUnfit, match=r"data \(binary there, string here\)"):
        scene.archived(20, 30)
    scene.execute("ALTER TABLE TABLES.logs ALTER data TYPE bytea USING 'bytes'")
    with pytest.raises(ColdTableUnfit, match="ranges of 5 blocks"):
        scene.archived(20, 25, range_size=5)
    assert [comparable(row) for row in scene.cold("blocks")] == [
        comparable(row) for row in scene.hot("blocks") if 10 <= row[1] < 20
    ]
