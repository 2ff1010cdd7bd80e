"""A purge that stopped in the middle, and one that is undone."""

from dataclasses import replace

import pytest

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.chain.source import SourceUnfit
from compaction_platform.archive.chain.status import chain_status, due_ranges
from compaction_platform.archive.jobs.purge_range import (
    HotRowsDiffer,
    NotArchived,
)
from compaction_platform.archive.jobs.restore_range import NotRestored, RestoreRun
from compaction_platform.archive.ledger.lease import NotAllThere
from compaction_platform_tests.archive.scene import NAMES, RANGE, Scene, hot, refer_to_blocks

pytestmark = pytest.mark.integration


def test_what_is_half_purged_is_brought_back_and_archived_anew(scene: Scene) -> None:
    scene.archived(10, 20)
    scene.execute("ALTER TABLE TABLES.blocks ADD added_later int")
    with pytest.raises(HotRowsDiffer):
        scene.purge(10, 20)
    assert [row for row in scene.hot("logs") if 10 <= row[1] < 20] == [], "logs are purged, blocks are not"
    assert scene.archived(10, 20).outcome == "kept"
    with pytest.raises(SourceUnfit, match=r"purged, wholly or in part.*archive restore"):
        scene.archived(10, 20, because="I want it")
    restored(scene, 10, 20)
    assert scene.states(RANGE) == ["committed", "failed"]
    assert scene.archived(10, 20).outcome == "replaced"
    scene.purge(10, 20)
    assert [row[1] for row in scene.cold("blocks")] == list(range(10, 20))
    assert len(scene.cold("logs")) == 10


def restored(scene: Scene, start: int, end: int) -> int:
    return RestoreRun(scene.archive, scene.settings, scene.said.append, "a test").run(BlockRange(start, end))


def test_a_purge_can_be_undone(scene: Scene) -> None:
    scene.execute("CREATE TYPE TABLES.kind AS ENUM ('call', 'create')")
    scene.execute(
        "ALTER TABLE TABLES.logs ADD kind TABLES.kind DEFAULT 'create', ADD id uuid DEFAULT gen_random_uuid(), "
        "ADD at timestamptz DEFAULT now(), ADD day date DEFAULT now(), ADD share float8 DEFAULT 0.1, "
        "ADD more jsonb DEFAULT '{\"a\": [1, null]}', ADD parts bytea[] DEFAULT ARRAY['a'::bytea, NULL], "
        "ADD twice bigint GENERATED ALWAYS AS (block_number * 2) STORED, ADD amounts numeric[] DEFAULT '{1.50,2}'"
    )
    expected = {name: scene.execute(f"SELECT * FROM TABLES.{name} ORDER BY 2, 3") for name in NAMES}
    scene.archived(10, 20)
    scene.purge(10, 20)
    count = sum(1 for rows in expected.values() for row in rows if 10 <= row[1] < 20)
    assert restored(scene, 10, 20) == count
    assert {name: scene.execute(f"SELECT * FROM TABLES.{name} ORDER BY 2, 3") for name in NAMES} == expected
    assert scene.states(RANGE) == ["committed"]
    assert scene.archived(10, 20).outcome == "unchanged"
    with pytest.raises(NotArchived, match="withheld: its rows were restored"):
        scene.purge(10, 20)
    assert due_ranges(scene.archive, chain_status(scene.archive, scene.url)) == [BlockRange(0, 10)]
    version = scene.version(RANGE)
    assert version is not None
    scene.ledger.believe_again(version)
    assert sum(scene.purge(10, 20).rows.values()) == count


def test_rows_that_come_back_differently_do_not_come_back(scene: Scene) -> None:
    scene.archived(10, 20)
    scene.purge(10, 20)
    scene.execute("ALTER TABLE TABLES.blocks ALTER transaction_count TYPE bigint, ALTER extra TYPE text")
    scene.execute(
        "CREATE FUNCTION TABLES.spoil() RETURNS trigger AS 'BEGIN NEW.hash = upper(NEW.hash); RETURN NEW; END' "
        "LANGUAGE plpgsql"
    )
    scene.execute("CREATE TRIGGER spoil BEFORE INSERT ON TABLES.blocks FOR EACH ROW EXECUTE FUNCTION TABLES.spoil()")
    with pytest.raises(NotRestored, match="are not the ones that were deleted. They were not kept"):
        restored(scene, 10, 20)
    assert [row[1] for row in scene.hot("blocks")] == [*range(10), *range(20, 30)]


def test_a_half_purged_range_is_not_replaced_by_what_is_left_of_it(scene: Scene) -> None:
    """As many rows came as were purged: the count alone would not show it."""
    scene.archive = replace(scene.archive, chunk_rows=4)
    scene.archived(10, 20)
    scene.execute(
        "INSERT INTO TABLES.logs SELECT chain_id, 19, 1 + generate_series(0, 9), block_hash FROM TABLES.logs "
        "WHERE block_number = 19 AND log_index = 0"
    )
    with pytest.raises(HotRowsDiffer):
        scene.purge(10, 20)
    done = scene.archived(10, 20)
    assert (done.outcome, done.why) == ("kept", "its hot rows were purged, a part of them")
    assert len(scene.cold("logs")) == 10
    restored(scene, 10, 20)
    assert scene.archived(10, 20).outcome == "replaced"
    assert len(scene.cold("logs")) == 20


def test_rows_that_are_hot_again_already_are_not_doubled(scene: Scene) -> None:
    scene.execute("CREATE TABLE TABLES.saved AS SELECT * FROM TABLES.blocks")
    scene.archived(10, 20)
    scene.purge(10, 20)
    scene.execute("INSERT INTO TABLES.blocks SELECT * FROM TABLES.saved WHERE block_number = 12")
    with pytest.raises(NotRestored, match="1 of the rows to restore are hot already"):
        restored(scene, 10, 20)
    assert len([row for row in scene.hot("blocks") if row[1] == 12]) == 1


def test_restoring_follows_foreign_keys_whatever_was_declared_first(scene: Scene) -> None:
    refer_to_blocks(scene)
    blocks, transactions, logs = scene.archive.datasets
    scene.execute("ALTER TABLE TABLES.logs ADD transaction_index int")
    scene.execute("UPDATE TABLES.logs SET transaction_index = 0 WHERE block_number % 4 > 0")
    scene.execute(
        "ALTER TABLE TABLES.logs ADD FOREIGN KEY (chain_id, block_number, transaction_index) "
        "REFERENCES TABLES.transactions ON DELETE CASCADE"
    )
    scene.archive = replace(scene.archive, datasets=(blocks, logs, transactions))
    expected = hot(scene)
    scene.archived(10, 20)
    scene.purge(10, 20)
    restored(scene, 10, 20)
    assert hot(scene) == expected


def test_a_dataset_that_is_not_declared_any_more_keeps_a_range_from_being_restored(scene: Scene) -> None:
    scene.archived(10, 20)
    scene.purge(10, 20)
    scene.archive = replace(scene.archive, datasets=scene.archive.datasets[:2])
    with pytest.raises(NotAllThere, match="rows of logs were purged, too"):
        restored(scene, 10, 20)
    assert scene.states(RANGE) == ["purging"]
