"""Hot and cold as one: every row once, whatever is archived and purged, also meanwhile."""

from typing import Any

import pytest

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.cold.read import ColdFileGone, ColdPart, HotPart, hot_and_cold
from compaction_platform.settings import Settings
from compaction_platform_tests.archive.scene import Scene, comparable, plain

pytestmark = pytest.mark.integration


@pytest.fixture
def scene(settings: Settings) -> Scene:
    scene = Scene(settings)
    scene.grow(0, 50)
    return scene


def as_rows(table: Any) -> list[tuple[str, ...]]:
    return [comparable(tuple(plain(value) for value in row.values())) for row in table.to_pylist()]


def test_a_range_across_the_seam_is_read_once(settings: Settings, scene: Scene) -> None:
    expected = {
        name: [comparable(row) for row in scene.hot(name) if 13 <= row[1] < 47]
        for name in ("blocks", "transactions", "logs")
    }
    scene.archived(10, 20)
    scene.purge(10, 20)
    scene.archived(30, 40)  # archived, and still hot
    with hot_and_cold(scene.archive, settings, BlockRange(13, 47)) as rows:
        for name, wanted in expected.items():
            assert as_rows(rows.arrow(name)) == wanted
        kinds = [type(part) for part in rows.parts("blocks")]
    assert kinds == [ColdPart, HotPart, ColdPart, HotPart]


def test_rows_are_read_once_while_a_purge_and_an_archive_run(settings: Settings, scene: Scene) -> None:
    expected = [comparable(row) for row in scene.hot("transactions")]
    scene.archived(10, 20)
    with hot_and_cold(scene.archive, settings, BlockRange(0, 50)) as rows:
        scene.purge(10, 20)
        scene.archived(20, 30)
        scene.purge(20, 30)
        assert as_rows(rows.arrow("transactions")) == expected, "as of when the reading began"
    with hot_and_cold(scene.archive, settings, BlockRange(0, 50)) as rows:
        assert as_rows(rows.arrow("transactions")) == expected


def test_spark_reads_both(spark: Any, settings: Settings, scene: Scene) -> None:
    scene.archived(10, 20)
    scene.purge(10, 20)
    with hot_and_cold(scene.archive, settings, BlockRange(0, 50)) as rows:
        frame = rows.dataframe(spark, "transactions")
        total, keys = frame.selectExpr("sum(gas)", "count(DISTINCT block_number, transaction_index)").collect()[0]
        assert frame.count() == keys == sum(number % 4 for number in range(50))
        assert total == sum(2**64 - 1 - index for number in range(50) for index in range(number % 4))


def test_a_partition_is_not_dropped_under_a_reader(
    settings: Settings, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compaction_platform.archive.jobs import purge_range
    from compaction_platform_tests.archive.test_purge import partitioned

    partitioned(scene, "block_number", [(str(start), str(start + 10)) for start in range(0, 50, 10)])
    expected = [comparable(row) for row in scene.hot("logs")]
    scene.archived(10, 20)
    monkeypatch.setattr(purge_range, "LOCK_TIMEOUT", "200ms")
    with hot_and_cold(scene.archive, settings, BlockRange(0, 50)) as rows:
        with pytest.raises(purge_range.TableBusy):
            scene.purge(10, 20)
        assert as_rows(rows.arrow("logs")) == expected
    scene.purge(10, 20)
    with hot_and_cold(scene.archive, settings, BlockRange(0, 50)) as rows:
        assert as_rows(rows.arrow("logs")) == expected


def test_a_column_that_came_later_is_null_in_older_files(settings: Settings, scene: Scene) -> None:
    scene.archived(10, 20)
    scene.execute("ALTER TABLE TABLES.logs ADD added_later int DEFAULT 7")
    with hot_and_cold(scene.archive, settings, BlockRange(10, 30)) as rows:
        values = rows.arrow("logs")["added_later"].to_pylist()
    assert values == [None] * 10 + [7] * (len(values) - 10)
    scene.execute("ALTER TABLE TABLES.logs ALTER data TYPE int USING 1")
    with (
        hot_and_cold(scene.archive, settings, BlockRange(10, 30)) as rows,
        pytest.raises(ColdFileGone, match=r"logs\.data"),
    ):
        rows.arrow("logs")


def test_a_range_that_is_marked_invalid_is_read_from_the_hot_side(settings: Settings, scene: Scene) -> None:
    scene.archived(10, 20)
    version = scene.ledger.live(BlockRange(10, 20))
    assert version is not None
    scene.ledger.mark_invalid(version, "a test says so")
    with hot_and_cold(scene.archive, settings, BlockRange(10, 20)) as rows:
        assert [type(part) for part in rows.parts("blocks")] == [HotPart]
