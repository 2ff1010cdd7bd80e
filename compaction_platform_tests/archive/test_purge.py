"""Archived hot rows are deleted, if they are what the cold files hold; also by dropping partitions."""

from dataclasses import replace
from typing import Any

import pytest

from compaction_platform.archive.jobs.purge_range import (
    ColdFileDiffers,
    HotRowsDiffer,
    NotArchived,
    PurgeRun,
    WouldDeleteMore,
)
from compaction_platform.archive.ledger.lease import MarkedInvalid
from compaction_platform.archive.ledger.ledger import RangeBusy
from compaction_platform_tests.archive.scene import NAMES, RANGE, Scene, everything_once, hot, refer_to_blocks

pytestmark = pytest.mark.integration


def test_purged_rows_are_gone_from_the_hot_side_only(scene: Scene) -> None:
    expected = hot(scene)
    scene.archived(10, 20)
    done = scene.purge(10, 20)
    assert done.rows == {name: len([row for row in expected[name] if 10 <= row[1] < 20]) for name in NAMES}
    assert all(not 10 <= row[1] < 20 for name in NAMES for row in scene.hot(name))
    everything_once(scene, expected)
    assert scene.states(RANGE) == ["purged"]
    again = scene.purge(10, 20)
    assert (again.rows, again.why) == ({}, "purged already")
    kept = scene.archived(10, 20)
    assert kept.outcome == "kept"
    everything_once(scene, expected)


def test_what_is_not_archived_is_not_purged(scene: Scene) -> None:
    with pytest.raises(NotArchived, match=r"10-20 \(end not included\) are not archived. Nothing was deleted"):
        scene.purge(10, 20)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE TABLES.transactions SET gas = 1 WHERE block_number = 17",
        "DELETE FROM TABLES.transactions WHERE block_number = 17",
        "INSERT INTO TABLES.transactions SELECT * FROM TABLES.transactions WHERE block_number = 17",
        (
            "INSERT INTO TABLES.transactions SELECT chain_id, 12, 0, block_hash, hash, value, gas, fee "
            "FROM TABLES.transactions WHERE block_number = 17 LIMIT 1"
        ),
        "ALTER TABLE TABLES.transactions ADD more int DEFAULT 1",
    ],
)
def test_rows_that_changed_after_the_copy_are_not_deleted(scene: Scene, change: str) -> None:
    scene.archived(10, 20)
    scene.execute(change)
    before = [row for row in scene.hot("transactions") if row[1] >= 12]
    with pytest.raises(HotRowsDiffer, match="Nothing of these blocks was deleted"):
        scene.purge(10, 20)
    now = scene.hot("transactions")
    assert [row for row in now if row[1] in {row[1] for row in before if row[1] in (12, 17)}] == [
        row for row in before if row[1] in (12, 17)
    ]
    assert len(scene.hot("blocks")) == 30
    assert scene.states(RANGE) == ["purging"]


def test_a_purge_that_found_a_difference_goes_on_when_it_is_mended(scene: Scene) -> None:
    expected = hot(scene)
    scene.archived(10, 20)
    scene.execute("UPDATE TABLES.blocks SET extra = '{}' WHERE block_number = 17")
    with pytest.raises(HotRowsDiffer):
        scene.purge(10, 20)
    scene.execute("UPDATE TABLES.blocks SET extra = '{\"n\": 17}' WHERE block_number = 17")
    scene.purge(10, 20)
    everything_once(scene, expected)
    assert scene.states(RANGE) == ["purged"]


def test_nothing_is_deleted_if_the_cold_file_is_not_what_was_committed(scene: Scene) -> None:
    scene.archived(10, 20)
    (key, *_) = scene.visible("blocks")
    scene.store.write(key, bytes(scene.store.read(key))[:-1] + b"x")
    with pytest.raises(ColdFileDiffers, match="No hot row of it was deleted"):
        scene.purge(10, 20)
    assert len(scene.hot("blocks")) == 30


def test_foreign_keys_that_would_take_other_rows_along_stop_the_purge(scene: Scene) -> None:
    scene.execute("ALTER TABLE TABLES.blocks ADD PRIMARY KEY (chain_id, block_number)")
    scene.execute(
        "CREATE TABLE TABLES.traces (chain_id bigint, block_number bigint, FOREIGN KEY (chain_id, block_number) "
        "REFERENCES TABLES.blocks ON DELETE CASCADE)"
    )
    scene.execute(f"INSERT INTO TABLES.traces VALUES ({scene.chain_id}, 12)")
    scene.archived(10, 20)
    with pytest.raises(WouldDeleteMore, match="rows of .*traces refer to rows of .*blocks"):
        scene.purge(10, 20)
    assert len(scene.hot("blocks")) == 30
    assert scene.execute("SELECT count(*) FROM TABLES.traces") == [(1,)]


def test_foreign_keys_between_the_datasets_are_no_obstacle(scene: Scene) -> None:
    refer_to_blocks(scene)
    expected = hot(scene)
    scene.archived(10, 20)
    scene.purge(10, 20)
    everything_once(scene, expected)


def test_the_order_of_deletion_follows_foreign_keys_whatever_was_declared_first(scene: Scene) -> None:
    refer_to_blocks(scene)
    blocks, transactions, logs = scene.archive.datasets
    scene.execute("ALTER TABLE TABLES.logs ADD transaction_index int")
    scene.execute(
        "ALTER TABLE TABLES.logs ADD FOREIGN KEY (chain_id, block_number, transaction_index) "
        "REFERENCES TABLES.transactions ON DELETE CASCADE"
    )
    scene.archive = replace(scene.archive, datasets=(blocks, logs, transactions))
    expected = hot(scene)
    scene.archived(10, 20)
    assert list(scene.purge(10, 20).rows) == ["logs", "transactions", "blocks"]
    everything_once(scene, expected)


def test_a_late_row_is_not_taken_along_by_a_foreign_key(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    refer_to_blocks(scene)
    scene.archived(10, 20)
    real = PurgeRun._delete

    def late(run: PurgeRun, claim: Any, dataset: Any, manifest: Any, file: Any) -> int:
        if dataset.name == "blocks":
            scene.execute(f"INSERT INTO TABLES.logs VALUES ({scene.chain_id}, 14, 7, 'late')")
            monkeypatch.setattr(PurgeRun, "_delete", real)
        return real(run, claim, dataset, manifest, file)

    monkeypatch.setattr(PurgeRun, "_delete", late)
    with pytest.raises(WouldDeleteMore, match="rows of .*logs refer to rows of .*blocks"):
        scene.purge(10, 20)
    assert [row[3] for row in scene.hot("logs") if row[1] == 14] == ["late"]
    assert len(scene.hot("blocks")) == 30


def test_rows_added_to_purged_blocks_are_noticed_before_the_purge_is_over(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.archived(10, 20)
    real = PurgeRun._require_nothing_left

    def late(run: PurgeRun, connection: Any, version: Any) -> None:
        scene.execute(f"INSERT INTO TABLES.logs VALUES ({scene.chain_id}, 14, 7, 'late')")
        real(run, connection, version)

    monkeypatch.setattr(PurgeRun, "_require_nothing_left", late)
    with pytest.raises(HotRowsDiffer, match="logs has 1 new hot rows .*archive restore"):
        scene.purge(10, 20)
    assert scene.states(RANGE) == ["purging"]


def test_a_range_that_is_marked_invalid_while_it_is_purged_keeps_what_is_left(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.archived(10, 20)
    real = PurgeRun._delete

    def mark(run: PurgeRun, claim: Any, *arguments: Any) -> int:
        count = real(run, claim, *arguments)
        version = scene.version(RANGE)
        assert version is not None
        scene.ledger.mark_invalid(version, "a reorganisation")
        return count

    monkeypatch.setattr(PurgeRun, "_delete", mark)
    with pytest.raises(MarkedInvalid, match="nothing more of them is purged"):
        scene.purge(10, 20)
    assert len(scene.hot("blocks")) == 30


def test_all_cold_files_are_looked_at_before_the_first_row_is_deleted(scene: Scene) -> None:
    scene.archived(10, 20)
    (key, *_) = scene.visible("blocks")
    scene.store.delete([key])
    before = hot(scene)
    with pytest.raises(ColdFileDiffers, match="gone"):
        scene.purge(10, 20)
    assert hot(scene) == before


def test_a_range_that_is_being_archived_is_not_purged_and_the_other_way_round(scene: Scene) -> None:
    scene.archived(10, 20)
    claim = scene.ledger.claim(RANGE, "an archive")
    with pytest.raises(RangeBusy):
        scene.purge(10, 20)
    claim.release()
    version = scene.version(RANGE)
    assert version is not None
    scene.ledger.claim_purge(version, "a purge")
    with pytest.raises(RangeBusy, match=r"run a purge has it \(purging\)"):
        scene.archived(10, 20)


def test_rows_that_refer_to_rows_of_their_own_table_are_not_taken_along(scene: Scene) -> None:
    scene.execute("ALTER TABLE TABLES.blocks ADD UNIQUE (hash)")
    scene.execute("UPDATE TABLES.blocks SET parent_hash = hash WHERE block_number = 0")
    scene.execute(
        "ALTER TABLE TABLES.blocks ADD FOREIGN KEY (parent_hash) REFERENCES TABLES.blocks (hash) ON DELETE CASCADE"
    )
    scene.archived(10, 20)
    with pytest.raises(WouldDeleteMore, match="rows of .*blocks refer to rows of .*blocks"):
        scene.purge(10, 20)
    assert len(scene.hot("blocks")) == 30


def test_rows_of_later_blocks_that_refer_to_purged_ones_are_not_taken_along(scene: Scene) -> None:
    scene.execute("ALTER TABLE TABLES.transactions ADD UNIQUE (hash)")
    scene.execute("ALTER TABLE TABLES.logs ADD spends bytea REFERENCES TABLES.transactions (hash) ON DELETE CASCADE")
    scene.execute(
        "UPDATE TABLES.logs SET spends = (SELECT hash FROM TABLES.transactions WHERE block_number = 13) "
        "WHERE block_number = 26"
    )
    scene.archived(10, 20)
    with pytest.raises(WouldDeleteMore, match="rows of .*logs refer to rows of .*transactions"):
        scene.purge(10, 20)
    assert len([row for row in scene.hot("logs") if row[1] == 26]) == 2


# ---------------------------------------------------------------- partitions


def partitioned(scene: Scene, by: str, bounds: list[tuple[str, str]]) -> None:
    for table in NAMES:
        scene.execute(f"ALTER TABLE TABLES.{table} RENAME TO {table}_all")
        scene.execute(f"CREATE TABLE TABLES.{table} (LIKE TABLES.{table}_all) PARTITION BY RANGE ({by})")
        for number, (lower, upper) in enumerate(bounds):
            scene.execute(
                f"CREATE TABLE TABLES.{table}_{number} PARTITION OF TABLES.{table} "
                f"FOR VALUES FROM ({lower}) TO ({upper})"
            )
        scene.execute(f"INSERT INTO TABLES.{table} SELECT * FROM TABLES.{table}_all")


def tables(scene: Scene) -> set[str]:
    return {
        name
        for (name,) in scene.execute(
            f"SELECT relname FROM pg_class WHERE relnamespace = '{scene.schema}'::regnamespace"
        )
    }


@pytest.mark.parametrize("width", [10, 5])
def test_partitions_that_are_the_range_are_dropped(scene: Scene, width: int) -> None:
    partitioned(scene, "block_number", [(str(start), str(start + width)) for start in range(0, 30, width)])
    expected = hot(scene)
    scene.archived(10, 20)
    done = scene.purge(10, 20)
    gone = {f"{scene.schema}.{name}_{number}" for name in NAMES for number in range(10 // width, 20 // width)}
    assert set(done.dropped) == gone
    assert not {name.split(".")[1] for name in gone} & tables(scene)
    everything_once(scene, expected)


def test_partitions_by_chain_and_block_are_dropped(scene: Scene) -> None:
    chain = scene.chain_id
    partitioned(
        scene, "chain_id, block_number", [(f"{chain}, {start}", f"{chain}, {start + 10}") for start in (0, 10, 20)]
    )
    expected = hot(scene)
    scene.archived(10, 20)
    assert len(scene.purge(10, 20).dropped) == 3
    everything_once(scene, expected)


def test_partitions_with_rows_of_another_chain_lose_only_ours(scene: Scene) -> None:
    partitioned(scene, "block_number", [("0", "10"), ("10", "20"), ("20", "30")])
    scene.execute(
        "INSERT INTO TABLES.logs SELECT 5, block_number, log_index, block_hash FROM TABLES.logs WHERE block_number = 14"
    )
    expected = hot(scene)
    scene.archived(10, 20)
    done = scene.purge(10, 20)
    assert set(done.dropped) == {f"{scene.schema}.blocks_1", f"{scene.schema}.transactions_1"}
    assert scene.execute("SELECT count(*) FROM TABLES.logs_1 WHERE chain_id = 5") == [(2,)]
    everything_once(scene, expected)


def test_a_partition_of_another_chain_is_not_dropped_for_ours(scene: Scene) -> None:
    """Ours is wider than the range, theirs is as the range is, and has as many rows."""
    for table in NAMES:
        scene.execute(f"ALTER TABLE TABLES.{table} RENAME TO {table}_all")
        scene.execute(f"CREATE TABLE TABLES.{table} (LIKE TABLES.{table}_all) PARTITION BY LIST (chain_id)")
        for chain, bounds in ((scene.chain_id, [(0, 100)]), (5, [(0, 10), (10, 20), (20, 30)])):
            parent = f"TABLES.{table}_of_{chain}"
            scene.execute(
                f"CREATE TABLE {parent} PARTITION OF TABLES.{table} FOR VALUES IN ({chain}) "
                "PARTITION BY RANGE (block_number)"
            )
            for lower, upper in bounds:
                scene.execute(
                    f"CREATE TABLE {parent}_{lower} PARTITION OF {parent} FOR VALUES FROM ({lower}) TO ({upper})"
                )
        scene.execute(f"INSERT INTO TABLES.{table} SELECT * FROM TABLES.{table}_all")
        scene.execute(f"UPDATE TABLES.{table}_all SET chain_id = 5")
        scene.execute(f"INSERT INTO TABLES.{table} SELECT * FROM TABLES.{table}_all")
    expected = hot(scene)
    scene.archived(10, 20)
    assert scene.purge(10, 20).dropped == ()
    everything_once(scene, expected)
    assert scene.execute("SELECT count(*) FROM TABLES.blocks WHERE chain_id = 5") == [(30,)]


def test_partitions_that_are_more_than_the_range_lose_only_its_rows(scene: Scene) -> None:
    partitioned(scene, "block_number", [("0", "15"), ("15", "30")])
    expected = hot(scene)
    scene.archived(10, 20)
    assert scene.purge(10, 20).dropped == ()
    everything_once(scene, expected)
    assert len(scene.hot("blocks")) == 20


def test_a_partition_whose_rows_changed_is_not_dropped(scene: Scene) -> None:
    partitioned(scene, "block_number", [("0", "10"), ("10", "20"), ("20", "30")])
    scene.archived(10, 20)
    scene.execute("UPDATE TABLES.logs SET data = 'changed' WHERE block_number = 14")
    with pytest.raises(HotRowsDiffer):
        scene.purge(10, 20)
    assert "logs_1" in tables(scene)


def test_an_empty_partition_of_another_chain_is_not_dropped_for_ours(scene: Scene) -> None:
    for table in NAMES:
        scene.execute(f"ALTER TABLE TABLES.{table} RENAME TO {table}_all")
        scene.execute(f"CREATE TABLE TABLES.{table} (LIKE TABLES.{table}_all) PARTITION BY LIST (chain_id)")
        for chain, lower, upper in ((scene.chain_id, 0, 100), (5, 10, 20)):
            parent = f"TABLES.{table}_of_{chain}"
            scene.execute(
                f"CREATE TABLE {parent} PARTITION OF TABLES.{table} FOR VALUES IN ({chain}) "
                "PARTITION BY RANGE (block_number)"
            )
            scene.execute(f"CREATE TABLE {parent}_p PARTITION OF {parent} FOR VALUES FROM ({lower}) TO ({upper})")
        scene.execute(f"INSERT INTO TABLES.{table} SELECT * FROM TABLES.{table}_all")
    expected = hot(scene)
    scene.archived(10, 20)
    assert scene.purge(10, 20).dropped == ()
    everything_once(scene, expected)
    assert "logs_of_5_p" in tables(scene)
