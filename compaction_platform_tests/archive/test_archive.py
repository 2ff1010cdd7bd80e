"""A range of hot blocks becomes cold: real PostgreSQL, real S3."""

import json
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow
import pyarrow.parquet
import pytest

from compaction_platform.archive.chain.block_range import BlockRange, RangeInvalid
from compaction_platform.archive.chain.source import SourceUnfit
from compaction_platform.archive.chain.status import chain_status, due_ranges
from compaction_platform.archive.cold.manifest import RangeManifest, RangeManifestUnreadable
from compaction_platform.archive.cold.publish import ForeignFile
from compaction_platform.archive.cold.read import hot_and_cold
from compaction_platform.archive.hot.columns import TypeRefused
from compaction_platform.archive.hot.snapshot import HotTableUnfit, HotUnreachable
from compaction_platform.archive.jobs.archive_range import CopyFailed, NotFinal
from compaction_platform.archive.jobs.copy_file import CopyDiffers
from compaction_platform.archive.ledger.ledger import RangesOverlap
from compaction_platform.settings import Settings
from compaction_platform_tests.archive.scene import NAMES, RANGE, Scene, block_hash, comparable, everything_once, hot

pytestmark = pytest.mark.integration


def manifest(scene: Scene, dataset: str, key: str = "10-20") -> RangeManifest:
    name = f"{scene.chain_id}/{dataset}/range={key}/_manifest.json"
    return RangeManifest.from_bytes(bytes(scene.store.read(name)), name)


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
    with pytest.raises(RangeManifestUnreadable, match="compressed_with"):
        RangeManifest.from_bytes(json.dumps(content).encode(), "it")


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
    kept = [key for key in scene.all_keys() if "_superseded/10-20/v1/part-" in key and "/logs/" in key]
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
    from compaction_platform.lake.storage.object_store import ObjectStore

    real = ObjectStore.read

    def flip(store: ObjectStore, key: str, etag: str | None = None) -> Any:
        content = bytearray(real(store, key, etag))
        if "/logs/" in key and "part-" in key:
            content[len(content) // 2] ^= 1
        return bytes(content)

    monkeypatch.setattr(ObjectStore, "read", flip)
    with pytest.raises(CopyFailed, match=CopyDiffers.__name__):
        scene.archived(10, 20)


def test_ranges_keep_their_size_when_range_size_is_changed(scene: Scene) -> None:
    scene.archived(10, 20)
    bigger = scene.run(range_size=20)
    assert bigger.range_of("10-20") == RANGE
    standing = chain_status(bigger.archive, scene.url)
    assert [blocks.key for blocks in standing.missing] == ["0-10"], "what is left of 0-20"
    assert [blocks.key for blocks in due_ranges(bigger.archive, standing)] == ["0-10", "10-20"], "one to be purged"
    assert bigger.range_of("0-10") == BlockRange(0, 10)
    with pytest.raises(RangeInvalid, match="not one of the ranges of 20 blocks"):
        bigger.range_of("0-5")


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
