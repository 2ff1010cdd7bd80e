"""A range of hot blocks becomes cold: real PostgreSQL, real S3."""

import json
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow
import pyarrow.parquet
import pytest

from compaction_platform.archive.claim import MarkedInvalid, NotAllThere
from compaction_platform.archive.copy_task import CopyDiffers
from compaction_platform.archive.hot import HotTableUnfit, HotUnreachable
from compaction_platform.archive.hot_columns import TypeRefused
from compaction_platform.archive.ledger import RangeBusy, RangesOverlap
from compaction_platform.archive.lookout import due_ranges, look
from compaction_platform.archive.manifest import Manifest, ManifestUnreadable
from compaction_platform.archive.publish import ForeignFile
from compaction_platform.archive.purge import (
    ColdFileDiffers,
    HotRowsDiffer,
    NotArchived,
    PurgeRun,
    WouldDeleteMore,
)
from compaction_platform.archive.ranges import BlockRange, RangeInvalid
from compaction_platform.archive.reading import hot_and_cold
from compaction_platform.archive.restore import NotRestored, RestoreRun
from compaction_platform.archive.run import CopyFailed, NotFinal
from compaction_platform.archive.source import SourceUnfit
from compaction_platform.lake.settings import Settings
from compaction_platform_tests.archive.scene import Scene, block_hash, comparable, everything_once

pytestmark = pytest.mark.integration

NAMES = ("blocks", "transactions", "logs")
RANGE = BlockRange(10, 20)


@pytest.fixture
def scene(settings: Settings) -> Scene:
    scene = Scene(settings)
    scene.grow(0, 30)
    return scene


def hot(scene: Scene) -> dict[str, Any]:
    return {name: scene.hot(name) for name in NAMES}


def manifest(scene: Scene, dataset: str, key: str = "10-20") -> Manifest:
    name = f"{scene.chain_id}/{dataset}/range={key}/_manifest.json"
    return Manifest.from_bytes(bytes(scene.store.read(name)), name)


def test_a_final_range_becomes_files_that_any_reader_sees(scene: Scene) -> None:
    expected = hot(scene)
    done = scene.archived(10, 20)
    assert (done.outcome, done.version) == ("archived", 1)
    for name, rows in expected.items():
        inside = [row for row in rows if 10 <= row[1] < 20]
        assert [comparable(row) for row in scene.cold(name)] == [comparable(row) for row in inside]
    everything_once(scene, expected)
    assert scene.states(RANGE) == ["committed"]


def test_duckdb_reads_the_documented_pattern(settings: Settings, tmp_path: Any) -> None:
    scene = Scene(settings, str(tmp_path))
    tmp_path.joinpath(scene.schema).mkdir()
    scene.grow(0, 30)
    scene.archived(0, 10)
    scene.archived(10, 20)
    place = f"{tmp_path}/{scene.schema}/{scene.chain_id}"
    for pattern in ("range=*/part-*.parquet", "**/*.parquet"):
        figures = "count(*), count(DISTINCT hash), min(block_number), max(block_number)"
        query = f"SELECT {figures} FROM '{place}/blocks/{pattern}'"
        assert duckdb.sql(query).fetchall() == [(20, 20, 0, 19)]
    total = sum(row[2] for row in scene.hot("logs") if row[1] < 20)
    assert duckdb.sql(f"SELECT sum(log_index) FROM '{place}/logs/range=*/part-*.parquet'").fetchall() == [(total,)]


def test_files_are_cut_between_blocks_sorted_and_checksummed(scene: Scene) -> None:
    scene.execute("CREATE TABLE TABLES.other AS SELECT * FROM TABLES.transactions ORDER BY random()")
    scene.execute("TRUNCATE TABLES.transactions")
    scene.execute("INSERT INTO TABLES.transactions SELECT * FROM TABLES.other")
    scene.archived(0, 20, range_size=20, chunk_rows=7)
    told = manifest(scene, "transactions", "0-20")
    assert [file.rows for file in told.files] == [7, 6, 6, 6, 5]  # blocks have 0, 1, 2, 3, 0, 1, … rows
    edges = [told.start_block, *(file.end_block for file in told.files)]
    assert edges == [*(file.start_block for file in told.files), told.end_block]
    for file in told.files:
        content = bytes(scene.store.read(f"{scene.chain_id}/transactions/range=0-20/{file.name}"))
        rows = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content), page_checksum_verification=True)
        keys = list(
            zip(*(rows.read().to_pydict()[name] for name in ("block_number", "transaction_index")), strict=True)
        )
        assert keys == sorted(keys)
        assert all(file.start_block <= block < file.end_block for block, _ in keys)
        assert rows.metadata.row_group(0).column(0).compression == "ZSTD"


def test_values_that_do_not_fit_into_numbers_are_kept_exactly(scene: Scene) -> None:
    scene.archived(10, 20)
    (key, *_) = scene.visible("transactions")
    table = pyarrow.parquet.read_table(pyarrow.BufferReader(bytes(scene.store.read(key))))
    assert table.schema.field("value").type == pyarrow.string()
    assert table.schema.field("gas").type == pyarrow.decimal128(20, 0)
    assert table["value"][0].as_py() == str(2**255 + table["block_number"][0].as_py())
    assert int(table["gas"][0].as_py()) == 2**64 - 1
    assert table.schema.field("hash").type == pyarrow.binary()


def test_the_manifest_says_what_was_archived_and_why_it_was_final(scene: Scene) -> None:
    scene.archived(10, 20)
    told = manifest(scene, "blocks")
    assert (told.partition_key, told.start_block, told.end_block, told.dataset_version) == ("10-20", 10, 20, 1)
    assert (told.finality.head, told.finality.finalized, told.finality.mode) == (29, 24, "depth")
    assert told.finality.finalized_hash == block_hash(24)
    assert (told.first_parent_hash, told.last_hash) == (block_hash(9), block_hash(19))
    assert told.source.digest.rows == told.rows == 10
    success = bytes(scene.store.read(f"{scene.chain_id}/blocks/range=10-20/_SUCCESS")).decode()
    assert success == f"version 1 manifest {told.sha256}\n"
    assert {name: each.sha256 for name, each in scene.version(RANGE).manifests.items()} == {  # type: ignore[union-attr]
        name: manifest(scene, name).sha256 for name in NAMES
    }


def test_a_manifest_with_an_unknown_field_is_refused(scene: Scene) -> None:
    scene.archived(10, 20)
    content = json.loads(manifest(scene, "blocks").to_bytes())
    content["compressed_with"] = "hope"
    with pytest.raises(ManifestUnreadable, match="compressed_with"):
        Manifest.from_bytes(json.dumps(content).encode(), "it")


# ---------------------------------------------------------------- refusals


def test_a_range_that_is_not_final_is_refused_with_the_numbers(scene: Scene) -> None:
    with pytest.raises(NotFinal, match=r"20-30 \(end not included\).*last block is 29, the last final block is 24"):
        scene.archived(20, 30)
    assert scene.all_keys() == []


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("DELETE FROM TABLES.blocks WHERE block_number IN (12, 13, 17)", "3 of 10 blocks are missing: 12-14, 17"),
        ("DELETE FROM TABLES.blocks WHERE block_number BETWEEN 10 AND 19", "10 of 10 blocks are missing: 10-20"),
        (
            "INSERT INTO TABLES.blocks SELECT * FROM TABLES.blocks WHERE block_number = 12",
            "block 12 is there more than",
        ),
        ("UPDATE TABLES.blocks SET parent_hash = '0xbad' WHERE block_number = 15", "block 15 says its parent is 0xbad"),
        (
            "UPDATE TABLES.blocks SET parent_hash = '0xbad' WHERE block_number = 10",
            "the block before it is .*hot, block 9",
        ),
        (
            "UPDATE TABLES.blocks SET parent_hash = '0xbad' WHERE block_number = 20",
            "behind it says its parent is 0xbad",
        ),
        ("UPDATE TABLES.blocks SET hash = '0xbad' WHERE block_number = 15", "but block 15 is 0xbad"),
        (
            "DELETE FROM TABLES.transactions WHERE block_number = 13 AND transaction_index = 0",
            "block 13 says it has 1, .*0",
        ),
        (
            "UPDATE TABLES.blocks SET transaction_count = 9 WHERE block_number = 13",
            "block 13 says it has 9, there are 1",
        ),
        (
            "DELETE FROM TABLES.blocks WHERE block_number = 13",
            "transactions: block 13 is not there, but rows of it are",
        ),
    ],
)
def test_a_source_that_is_not_one_piece_of_one_chain_is_refused(scene: Scene, damage: str, told: str) -> None:
    scene.execute(damage)
    with pytest.raises(SourceUnfit, match=told):
        scene.archived(10, 20)
    assert scene.all_keys() == []
    assert scene.states(RANGE) == ["failed"]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            "DELETE FROM TABLES.logs WHERE block_number = 14 AND log_index = 0",
            "in block 14, log_index 1 stands where 0",
        ),
        (
            "INSERT INTO TABLES.logs SELECT * FROM TABLES.logs WHERE block_number = 14",
            "2 rows are there more than once",
        ),
        ("UPDATE TABLES.logs SET block_hash = '0xfork' WHERE block_number = 14", "2 rows belong to another block"),
        ("UPDATE TABLES.blocks SET block_time = 'infinity' WHERE block_number = 12", "block_time .* holds infinity"),
        ("UPDATE TABLES.transactions SET value = 'NaN' WHERE block_number = 13", "value .* holds NaN"),
    ],
)
def test_rows_that_contradict_each_other_are_refused(scene: Scene, damage: str, told: str) -> None:
    scene.execute(damage)
    with pytest.raises(CopyFailed, match=told):
        scene.archived(10, 20)
    assert [key for key in scene.all_keys() if "_attempts" not in key] == []
    assert scene.states(RANGE) == ["failed"]


def test_what_was_mended_is_archived_by_the_next_run(scene: Scene) -> None:
    scene.execute("UPDATE TABLES.logs SET block_hash = '0xfork' WHERE block_number = 14")
    with pytest.raises(CopyFailed):
        scene.archived(10, 20)
    scene.execute(f"UPDATE TABLES.logs SET block_hash = '{block_hash(14)}' WHERE block_number = 14")
    expected = hot(scene)
    assert scene.archived(10, 20).version == 2
    everything_once(scene, expected)
    assert not [key for key in scene.all_keys() if "_attempts" in key], "what the failed attempt left is gone, too"


def test_types_that_cannot_be_kept_are_refused_by_name(scene: Scene) -> None:
    scene.execute("ALTER TABLE TABLES.logs ADD place point, ADD span interval, ADD code oid")
    with pytest.raises(TypeRefused, match=r"place \(point\), span \(interval\), code \(oid\)"):
        scene.archived(10, 20)


def test_arrays_of_two_dimensions_are_refused(scene: Scene) -> None:
    scene.execute("UPDATE TABLES.logs SET topics = ARRAY[ARRAY['a', 'b'], ARRAY['c', 'd']] WHERE block_number = 14")
    with pytest.raises(CopyFailed, match="more than one dimension"):
        scene.archived(10, 20)


def test_enums_domains_uuids_and_json_are_kept(scene: Scene) -> None:
    scene.execute("CREATE TYPE TABLES.kind AS ENUM ('call', 'create')")
    scene.execute("CREATE DOMAIN TABLES.wei AS numeric(30, 0)")
    scene.execute(
        "ALTER TABLE TABLES.logs ADD kind TABLES.kind DEFAULT 'create',"
        " ADD wei TABLES.wei DEFAULT 12345678901234567890,"
        " ADD id uuid DEFAULT '00000000-0000-0000-0000-00000000000f', ADD more jsonb DEFAULT '{\"a\": [1, 2]}',"
        ' ADD day date DEFAULT \'2444-03-15\', ADD "odd ""name; DROP TABLE" int2 DEFAULT -1'
    )
    scene.archived(10, 20)
    last = scene.cold("logs")[0][7:]
    assert last[:4] == ("create", "12345678901234567890", "00000000-0000-0000-0000-00000000000f", '{"a": [1, 2]}')
    assert last[5] == -1


def test_names_of_tables_and_columns_stay_names(scene: Scene) -> None:
    odd = 'logs"; DROP TABLE blocks; --'
    quoted = odd.replace('"', '""')
    scene.execute(f'ALTER TABLE TABLES.logs RENAME log_index TO "select {quoted}"')
    scene.execute(f'ALTER TABLE TABLES.logs RENAME TO "{quoted}"')
    logs = replace(
        scene.archive.datasets[2], table=(scene.schema, odd), key=("block_number", f"select {odd}"), dense=True
    )
    scene.archive = replace(scene.archive, datasets=(*scene.archive.datasets[:2], logs))
    scene.archived(10, 20)
    assert len(scene.cold("logs")) == 10
    assert scene.purge(10, 20).rows["logs"] == 10
    assert len(scene.hot("blocks")) == 20
    with hot_and_cold(scene.archive, scene.settings, BlockRange(10, 30)) as rows:
        assert rows.arrow("logs").num_rows == sum(number % 3 for number in range(10, 30))


def test_a_column_with_a_name_of_ours_is_refused(scene: Scene) -> None:
    scene.execute("ALTER TABLE TABLES.logs ADD compaction_row_hash int")
    with pytest.raises(HotTableUnfit, match="compaction_row_hash: a name of ours"):
        scene.archived(10, 20)


def test_a_missing_table_or_column_is_named(scene: Scene) -> None:
    scene.execute("ALTER TABLE TABLES.logs RENAME log_index TO position")
    with pytest.raises(HotTableUnfit, match="has no column log_index"):
        scene.archived(10, 20)
    scene.execute("DROP TABLE TABLES.logs")
    with pytest.raises(HotTableUnfit, match="logs.* does not exist"):
        scene.archived(10, 20)


def test_chains_that_skip_numbers(settings: Settings) -> None:
    scene = Scene(settings)
    scene.grow(0, 12)
    scene.grow(15, 19, parent=block_hash(11))
    scene.grow(23, 40, parent=block_hash(18))
    with pytest.raises(SourceUnfit, match="4 of 10 blocks are missing: 12-15, 19"):
        scene.archived(10, 20)
    scene.archived(10, 20, gaps_allowed=True)
    scene.archived(20, 30, gaps_allowed=True)
    assert [row[1] for row in scene.cold("blocks")] == [10, 11, 15, 16, 17, 18, *range(23, 30)]
    scene.execute("UPDATE TABLES.blocks SET parent_hash = '0xbad' WHERE block_number = 3")
    with pytest.raises(SourceUnfit, match="block 3 says its parent is 0xbad"):
        scene.archived(0, 10, gaps_allowed=True)


def test_ranges_of_another_size_do_not_overlap_what_is_archived(scene: Scene) -> None:
    scene.archived(10, 20)
    with pytest.raises(RangesOverlap, match="15-20 .* overlap 10-20"):
        scene.archived(15, 20, range_size=5)
    scene.archived(20, 25, range_size=5)
    with pytest.raises(RangesOverlap, match=r"0-20 .* overlap 10-20"):
        scene.archived(0, 20, range_size=20)


def test_a_planned_range_that_came_to_nothing_stands_in_nobodys_way(scene: Scene) -> None:
    scene.execute("DELETE FROM TABLES.logs WHERE block_number = 14 AND log_index = 0")
    with pytest.raises(CopyFailed):
        scene.archived(10, 20)
    assert scene.archived(0, 5, range_size=5).outcome == "archived"
    assert scene.archived(5, 10, range_size=5).outcome == "archived"
    assert scene.archived(15, 20, range_size=5).outcome == "archived"


# ---------------------------------------------------------------- again, and differently


def test_the_same_range_again_changes_nothing(scene: Scene) -> None:
    scene.archived(10, 20)
    before = {stored.key: stored.last_modified for stored in scene.store.list()}
    again = scene.archived(10, 20)
    assert (again.outcome, again.version) == ("unchanged", 1)
    assert {stored.key: stored.last_modified for stored in scene.store.list()} == before
    assert scene.states(RANGE) == ["committed"]


def test_changed_rows_replace_what_is_archived_and_the_old_version_is_kept(scene: Scene) -> None:
    scene.archived(10, 20)
    old = scene.visible("logs")
    scene.execute("UPDATE TABLES.logs SET data = 'changed' WHERE block_number = 14")
    expected = hot(scene)
    again = scene.archived(10, 20)
    assert (again.outcome, again.version) == ("replaced", 2)
    everything_once(scene, expected)
    assert not set(old) & set(scene.visible("logs"))
    kept = [key for key in scene.all_keys() if "_superseded/10-20/v1/" in key and "/logs/" in key]
    assert [key.rpartition("/")[2] for key in kept] == [f"{key.rpartition('/')[2]}.superseded" for key in old]
    assert scene.states(RANGE) == ["superseded", "committed"]
    told = manifest(scene, "logs")
    assert told.supersedes is not None
    assert (told.supersedes.dataset_version, told.supersedes.because) == (1, "the hot rows changed")


def test_superseded_versions_go_after_their_retention(scene: Scene) -> None:
    scene.archived(10, 20)
    scene.execute("UPDATE TABLES.logs SET data = 'changed' WHERE block_number = 14")
    scene.archived(10, 20)
    assert [key for key in scene.all_keys() if "_superseded" in key]
    scene.execute("UPDATE compaction.archive_versions SET superseded_at = now() - interval '8 days'")
    scene.archived(0, 10)
    assert not [key for key in scene.all_keys() if "_superseded" in key]
    assert len(scene.visible("logs")) == 2, "only what was superseded is gone"


def test_fewer_rows_never_replace_what_is_archived_without_a_reason(scene: Scene) -> None:
    expected = hot(scene)
    scene.archived(10, 20)
    scene.execute("DELETE FROM TABLES.logs WHERE block_number = 14")
    kept = scene.archived(10, 20)
    assert kept.outcome == "kept"
    assert "logs has 8 hot rows, 10 are archived" in kept.why
    everything_once(scene, expected)
    replaced = scene.archived(10, 20, because="the logs of block 14 were spam")
    assert (replaced.outcome, replaced.version) == ("replaced", 2)
    assert len(scene.cold("logs")) == 8
    assert manifest(scene, "logs").supersedes.because == "the logs of block 14 were spam"  # type: ignore[union-attr]


def test_a_foreign_file_is_never_touched(scene: Scene) -> None:
    stray = f"{scene.chain_id}/blocks/range=10-20/part-stray.parquet"
    scene.store.write(stray, b"somebody's")
    with pytest.raises(ForeignFile, match="part-stray.parquet, which no manifest"):
        scene.archived(10, 20)
    assert bytes(scene.store.read(stray)) == b"somebody's"
    assert scene.states(RANGE) == ["staged"]
    scene.store.delete([stray])
    assert scene.archived(10, 20).outcome == "finished"


def test_a_copy_that_the_store_changes_is_noticed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    from compaction_platform.lake.objects import Objects

    real = Objects.read

    def flip(store: Objects, key: str, etag: str | None = None) -> Any:
        content = bytearray(real(store, key, etag))
        if "/logs/" in key and "part-" in key:
            content[len(content) // 2] ^= 1
        return bytes(content)

    monkeypatch.setattr(Objects, "read", flip)
    with pytest.raises(CopyFailed, match=CopyDiffers.__name__):
        scene.archived(10, 20)


# ---------------------------------------------------------------- purging


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
    (key, *_) = scene.visible("transactions")
    scene.store.delete([key])


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


def refer_to_blocks(scene: Scene) -> None:
    scene.execute("ALTER TABLE TABLES.blocks ADD PRIMARY KEY (chain_id, block_number)")
    scene.execute("ALTER TABLE TABLES.transactions ADD PRIMARY KEY (chain_id, block_number, transaction_index)")
    for table in ("transactions", "logs"):
        scene.execute(
            f"ALTER TABLE TABLES.{table} ADD FOREIGN KEY (chain_id, block_number) REFERENCES TABLES.blocks "
            "ON DELETE CASCADE"
        )


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


# ---------------------------------------------------------------- a purge that stopped in the middle


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
    assert due_ranges(scene.archive, look(scene.archive, scene.url)) == [BlockRange(0, 10)]
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


def test_ranges_keep_their_size_when_range_size_is_changed(scene: Scene) -> None:
    scene.archived(10, 20)
    bigger = scene.run(range_size=20)
    assert bigger.range_of("10-20") == RANGE
    standing = look(bigger.archive, scene.url)
    assert [blocks.key for blocks in standing.missing] == ["0-10"], "what is left of 0-20"
    assert [blocks.key for blocks in due_ranges(bigger.archive, standing)] == ["0-10", "10-20"], "one to be purged"
    assert bigger.range_of("0-10") == BlockRange(0, 10)
    with pytest.raises(RangeInvalid, match="not one of the ranges of 20 blocks"):
        bigger.range_of("0-5")


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


def test_a_table_that_others_inherit_from_is_refused(scene: Scene) -> None:
    scene.execute("CREATE TABLE TABLES.special (more int) INHERITS (TABLES.logs)")
    with pytest.raises(HotTableUnfit, match="other tables inherit from it"):
        scene.archived(10, 20)


def test_arrays_that_do_not_begin_at_one_are_refused(scene: Scene) -> None:
    scene.execute("UPDATE TABLES.logs SET topics = '[0:1]={a,b}' WHERE block_number = 14")
    with pytest.raises(CopyFailed, match="do not begin at 1"):
        scene.archived(10, 20)


def test_blocks_without_hashes_are_refused(scene: Scene) -> None:
    scene.execute("ALTER TABLE TABLES.blocks ALTER hash DROP NOT NULL, ALTER parent_hash DROP NOT NULL")
    scene.execute("UPDATE TABLES.blocks SET hash = NULL, parent_hash = NULL")
    with pytest.raises(SourceUnfit, match="10 blocks .* without hash"):
        scene.archived(10, 20)


def test_an_address_in_a_variable_is_never_shown(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("postgre://user:sekret@host/db", "postgresql://user:s3%ret@host/db", "postgresql://u:se@kret@h/db"):
        monkeypatch.setenv("MY_HOT", address)
        with pytest.raises(HotUnreachable, match="MY_HOT is not of the form") as error:
            scene.archived(10, 20, hot_variable="MY_HOT")
        assert "kret" not in str(error.value).replace("password", "")


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
