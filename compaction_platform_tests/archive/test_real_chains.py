"""Real blocks: two of Ethereum, 255 of Bitcoin, and forks with a labelled answer."""

import bz2
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet
import pytest

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.chain.continuity import BlockLink, problems_of
from compaction_platform.archive.chain.finality import FinalityRule
from compaction_platform.archive.chain.reorg import look_for_reorgs
from compaction_platform.archive.chain.source import SourceUnfit
from compaction_platform.archive.config import ArchivedTable
from compaction_platform.archive.jobs.archive_range import CopyFailed, NotFinal
from compaction_platform.archive.jobs.purge_range import ColdFileDiffers, HotRowsDiffer
from compaction_platform.settings import Settings
from compaction_platform_tests.archive.scene import Scene

BLOCKS, TRANSACTIONS, LOGS = "blocks", "transactions", "logs"


class RealChain(Scene):
    """Tables of a real chain's shape instead of the made-up one's."""

    def __init__(self, settings: Settings, tables: dict[str, str], datasets: tuple[ArchivedTable, ...]) -> None:
        super().__init__(settings)
        self.execute("DROP TABLE TABLES.blocks, TABLES.transactions, TABLES.logs")
        for name, columns in tables.items():
            self.execute(f"CREATE TABLE TABLES.{name} (chain_id bigint DEFAULT {self.chain_id}, {columns})")
        fitted = tuple(replace(dataset, table=(self.schema, dataset.name)) for dataset in datasets)
        self.archive = replace(self.archive, datasets=fitted, finality=FinalityRule("depth", 0), chunk_rows=200)

    def insert(self, table: str, rows: list[dict[str, Any]]) -> None:
        with self.connect() as connection, connection.cursor() as cursor:
            for row in rows:
                names = ", ".join(row)
                marks = ", ".join(["%s"] * len(row))
                cursor.execute(f"INSERT INTO {self.schema}.{table} ({names}) VALUES ({marks})", list(row.values()))

    def cold_table(self, dataset: str) -> pyarrow.Table:
        files = [pyarrow.BufferReader(bytes(self.store.read(key))) for key in self.visible(dataset)]
        return pyarrow.concat_tables([pyarrow.parquet.ParquetFile(file).read() for file in files])


# ---------------------------------------------------------------- Ethereum

ETHEREUM = (
    ArchivedTable(
        BLOCKS, ("", ""), ("number",), block="number", hash="hash", parent_hash="parent_hash", time="timestamp"
    ),
    ArchivedTable(
        TRANSACTIONS,
        ("", ""),
        ("block_number", "transaction_index"),
        hash="block_hash",
        counted_by="transaction_count",
        dense=True,
    ),
    ArchivedTable(LOGS, ("", ""), ("block_number", "log_index"), hash="block_hash", dense=True),
)
ETHEREUM_TABLES = {
    BLOCKS: "number bigint, hash text, parent_hash text, timestamp bigint, transaction_count int, gas_used bigint, "
    "total_difficulty numeric(38, 0), withdrawals jsonb",
    TRANSACTIONS: "block_number bigint, transaction_index int, block_hash text, hash text, to_address text, "
    "value numeric(78, 0), max_fee_per_gas bigint, receipt_gas_used bigint, receipt_status int",
    LOGS: "block_number bigint, log_index int, block_hash text, item_id text, topics text[], data text",
}
RANGE = BlockRange(17173049, 17173051)


@pytest.fixture
def ethereum(settings: Settings, shared_data: Path) -> RealChain:
    chain = RealChain(settings, ETHEREUM_TABLES, ETHEREUM)
    for table, columns in ETHEREUM_TABLES.items():
        names = [each.split()[0] for each in columns.replace(", 0)", ")").split(", ")]
        rows = []
        for line in (shared_data / f"ethereum/expected_{table}.json").read_text().splitlines():
            row = json.loads(line)
            rows.append({name: json.dumps(row[name]) if name == "withdrawals" else row[name] for name in names})
        chain.insert(table, rows)
    return chain


@pytest.mark.integration
def test_ethereum_blocks_are_archived_to_the_last_wei(ethereum: RealChain) -> None:
    ethereum.run().run(RANGE)
    transactions, logs, blocks = (ethereum.cold_table(name) for name in (TRANSACTIONS, LOGS, BLOCKS))
    assert (blocks.num_rows, transactions.num_rows, logs.num_rows) == (2, 298, 681)
    values = [int(value) for value in transactions["value"].to_pylist()]
    assert sum(values) == 82692008376751083333
    assert (sum(value >= 2**63 for value in values), max(values)) == (2, 32000000000000000000)
    assert {int(value) for value in blocks["total_difficulty"].to_pylist()} == {58750003716598352816469}
    used = pyarrow.compute.sum(transactions["receipt_gas_used"]).as_py()
    assert used == pyarrow.compute.sum(blocks["gas_used"]).as_py() == 25246518
    assert (transactions["to_address"].null_count, transactions["max_fee_per_gas"].null_count) == (1, 48)
    assert len(set(logs["item_id"].to_pylist())) == 681
    assert [len(json.loads(each)) for each in blocks["withdrawals"].to_pylist()] == [16, 16]
    ethereum.purge(RANGE.start, RANGE.end)
    assert ethereum.execute("SELECT count(*) FROM TABLES.logs") == [(0,)]


CHANGES = {
    "removed": "DELETE FROM TABLES.{table} WHERE ctid = (SELECT ctid FROM TABLES.{table} OFFSET 1 LIMIT 1)",
    "doubled": "INSERT INTO TABLES.{table} SELECT * FROM TABLES.{table} OFFSET 1 LIMIT 1",
    "changed": "UPDATE TABLES.{table} SET {column} = '0xother' "
    "WHERE ctid = (SELECT ctid FROM TABLES.{table} OFFSET 1 LIMIT 1)",
}
COLUMNS = {BLOCKS: "hash", TRANSACTIONS: "block_hash", LOGS: "block_hash"}


@pytest.mark.integration
@pytest.mark.parametrize("table", list(ETHEREUM_TABLES))
@pytest.mark.parametrize("change", list(CHANGES))
def test_one_row_of_ethereum_that_is_not_as_it_was_stops_the_archive_or_the_purge(
    ethereum: RealChain, table: str, change: str
) -> None:
    statement = CHANGES[change].format(table=table, column=COLUMNS[table])
    ethereum.execute(statement)  # before it is archived: the chain itself gives it away
    with pytest.raises((SourceUnfit, CopyFailed, NotFinal)):
        ethereum.run().run(RANGE)


@pytest.mark.integration
@pytest.mark.parametrize("table", list(ETHEREUM_TABLES))
def test_one_value_of_ethereum_that_changes_after_the_copy_stops_the_purge(ethereum: RealChain, table: str) -> None:
    column = {BLOCKS: "gas_used = 1", TRANSACTIONS: "value = value + 1", LOGS: "data = '0x'"}[table]
    ethereum.run().run(RANGE)
    ethereum.execute(
        f"UPDATE TABLES.{table} SET {column} WHERE ctid = (SELECT ctid FROM TABLES.{table} OFFSET 1 LIMIT 1)"
    )
    with pytest.raises(HotRowsDiffer):
        ethereum.purge(RANGE.start, RANGE.end)
    if table == LOGS:  # the first to go
        assert ethereum.execute(f"SELECT count(*) FROM TABLES.{table}") != [(0,)]
    assert ethereum.execute("SELECT count(*) FROM TABLES.blocks") == [(2,)]


@pytest.mark.integration
def test_a_cold_file_of_ethereum_with_another_row_stops_the_purge(ethereum: RealChain) -> None:
    ethereum.run().run(RANGE)
    key = ethereum.visible(TRANSACTIONS)[0]
    rows = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(bytes(ethereum.store.read(key)))).read()
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(rows.slice(1), sink)
    ethereum.store.write(key, sink.getvalue().to_pybytes())
    with pytest.raises(ColdFileDiffers):
        ethereum.purge(RANGE.start, RANGE.end)
    assert ethereum.execute("SELECT count(*) FROM TABLES.transactions") == [(298,)]


# ---------------------------------------------------------------- Bitcoin

BITCOIN = (
    ArchivedTable(BLOCKS, ("", ""), ("height",), block="height", hash="hash", parent_hash="parent", time="time"),
    ArchivedTable(TRANSACTIONS, ("", ""), ("height", "place"), block="height", hash="block", counted_by="transactions"),
)
BITCOIN_TABLES = {
    BLOCKS: "height int, hash bytea, parent bytea, time int, transactions int",
    TRANSACTIONS: "height int, place int, block bytea, txid bytea, satoshi bigint",
}


def number(data: bytes, at: int) -> tuple[int, int]:
    """Bitcoin's number of variable length, and where it ends."""
    first = data[at]
    if first < 0xFD:
        return first, at + 1
    size = {0xFD: 2, 0xFE: 4, 0xFF: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def transaction_at(data: bytes, at: int) -> tuple[bytes, int, int]:
    """Its id, what its outputs are worth, and where it ends."""
    start, worth = at, 0
    count, at = number(data, at + 4)
    for _ in range(count):
        size, at = number(data, at + 36)
        at += size + 4
    count, at = number(data, at)
    for _ in range(count):
        worth += int.from_bytes(data[at : at + 8], "little")
        size, at = number(data, at + 8)
        at += size
    at += 4
    return twice(data[start:at]), worth, at


def twice(data: bytes) -> bytes:
    return hashlib.sha256(hashlib.sha256(data).digest()).digest()[::-1]


def bitcoin_blocks(file: Path) -> Iterator[bytes]:
    data, at = bz2.decompress(file.read_bytes()), 0
    while at < len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        yield data[at + 8 : at + 8 + size]
        at += 8 + size


@pytest.mark.integration
def test_bitcoins_first_blocks_are_one_chain(settings: Settings, shared_data: Path) -> None:
    chain = RealChain(settings, BITCOIN_TABLES, BITCOIN)
    blocks, transactions = [], []
    for height, raw in enumerate(bitcoin_blocks(shared_data / "bitcoin/blocks1-256.bz2"), start=1):
        own = twice(raw[:80])
        count, at = number(raw, 80)
        time = int.from_bytes(raw[68:72], "little")
        blocks.append({"height": height, "hash": own, "parent": raw[4:36][::-1], "time": time, "transactions": count})
        for place in range(count):
            txid, worth, at = transaction_at(raw, at)
            transactions.append({"height": height, "place": place, "block": own, "txid": txid, "satoshi": worth})
    chain.insert(BLOCKS, blocks)
    chain.insert(TRANSACTIONS, transactions)
    done = chain.run().run(BlockRange(1, 256))
    manifest = done.manifests[BLOCKS]
    assert manifest.last_hash == "0x00000000d0a75c861fabf9ff7b92022f60e4afeed9331fe5aa073d8e4706fe3c"
    cold = chain.cold_table(TRANSACTIONS)
    assert (chain.cold_table(BLOCKS).num_rows, cold.num_rows, len(set(cold["txid"].to_pylist()))) == (255, 262, 262)
    assert pyarrow.compute.sum(cold["satoshi"]).as_py() == 1292900000000
    chain.purge(1, 256)
    assert chain.execute("SELECT count(*) FROM TABLES.blocks") == [(0,)]


# ---------------------------------------------------------------- forks


def cases(shared_data: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted((shared_data / "reorgs").rglob("*.json")):
        yield from json.loads(file.read_text()).items()


def header(block: dict[str, Any]) -> BlockLink:
    told = block["blockHeader"]
    return BlockLink(int(told["number"], 16), told["hash"], told["parentHash"])


def canonical(case: dict[str, Any], upto: int | None = None) -> list[dict[str, Any]]:
    """The chain after so many arrivals: greatest total difficulty, the first seen wins a tie. A model of its own."""
    genesis = case["genesisBlockHeader"]
    total = {genesis["hash"]: int(genesis["difficulty"], 16)}
    blocks: dict[str, dict[str, Any]] = {}
    best = genesis["hash"]
    for block in case["blocks"][:upto]:
        link = header(block)
        blocks[link.hash] = block
        total[link.hash] = total[link.parent] + int(block["blockHeader"]["difficulty"], 16)
        if total[link.hash] > total[best]:
            best = link.hash
    chain = []
    while best in blocks:
        chain.append(blocks[best])
        best = header(blocks[best]).parent
    return chain[::-1]


@pytest.mark.unit
def test_every_labelled_fork_is_judged_by_its_links(shared_data: Path) -> None:
    found = dict(cases(shared_data))
    assert len(found) == 27
    for name, case in found.items():
        chain = [header(block) for block in canonical(case)]
        assert chain[-1].hash == case["lastblockhash"], name
        whole = BlockRange(1, len(chain) + 1)
        assert problems_of(whole, chain, gaps_allowed=False) == [], name
        arrived = [header(block) for block in case["blocks"]]
        doubled = sorted(arrived, key=lambda link: link.number)
        if len(arrived) > len(chain):
            assert problems_of(whole, doubled, gaps_allowed=False), name
        orphans = [link for link in arrived if link not in chain]
        for orphan in orphans:
            mixed = [orphan if link.number == orphan.number else link for link in chain]
            if orphan.number < len(chain):  # an orphan in the middle breaks the chain
                assert problems_of(whole, mixed, gaps_allowed=False), name


FORKED = (
    ArchivedTable(BLOCKS, ("", ""), ("number",), block="number", hash="hash", parent_hash="parent", time="time"),
    ArchivedTable(
        TRANSACTIONS, ("", ""), ("block", "place"), block="block", hash="block_hash", counted_by="transactions"
    ),
)
FORKED_TABLES = {
    BLOCKS: "number bigint, hash text, parent text, time timestamptz, transactions int",
    TRANSACTIONS: "block bigint, place int, block_hash text, r text, s text",
}
DEEP = ["ChainAtoChainB_Berlin", "newChainFrom4Block_London", "uncleBlockAtBlock3AfterBlock3_Istanbul"]


def index(chain: RealChain, blocks: list[dict[str, Any]]) -> None:
    """What an indexer does after a reorganisation: rows of blocks that are not canonical any more go."""
    chain.execute("TRUNCATE TABLES.blocks, TABLES.transactions")
    for block in blocks:
        link = header(block)
        when = datetime.fromtimestamp(int(block["blockHeader"]["timestamp"], 16), UTC)
        told = {"number": link.number, "hash": link.hash, "parent": link.parent, "time": when}
        chain.insert(BLOCKS, [{**told, "transactions": len(block["transactions"])}])
        for place, each in enumerate(block["transactions"]):
            row = {"block": link.number, "place": place, "block_hash": link.hash, "r": each["r"], "s": each["s"]}
            chain.insert(TRANSACTIONS, [row])


@pytest.mark.integration
@pytest.mark.parametrize("name", DEEP)
def test_a_reorganisation_deeper_than_finality_supersedes_what_was_archived(
    settings: Settings, shared_data: Path, name: str
) -> None:
    case = dict(cases(shared_data))[name]
    final = canonical(case)
    before = next(  # the longest chain that the last reorganisation threw away
        canonical(case, upto)
        for upto in range(len(case["blocks"]) - 1, 0, -1)
        if header(canonical(case, upto)[-1]) not in [header(block) for block in final]
    )
    chain = RealChain(settings, FORKED_TABLES, FORKED)
    index(chain, before)
    blocks = BlockRange(1, len(before) + 1)
    chain.run().run(blocks)
    index(chain, final)
    seen = look_for_reorgs(chain.archive, chain.url, chain.ledger)
    assert [mismatch.version.blocks for mismatch in seen.mismatches] == [blocks]
    chain.ledger.forget_head()
    chain.run().run(blocks, because="a reorganisation")
    archived = final[: len(before)]
    assert chain.cold_table(BLOCKS)["hash"].to_pylist() == [header(block).hash for block in archived]
    found = set(zip(*(chain.cold_table(TRANSACTIONS)[column].to_pylist() for column in "rs"), strict=True))
    assert found == {(each["r"], each["s"]) for block in archived for each in block["transactions"]}


@pytest.mark.integration
def test_a_row_that_an_orphan_left_behind_is_refused(settings: Settings, shared_data: Path) -> None:
    case = dict(cases(shared_data))["ChainAtoChainB_Berlin"]
    chain = RealChain(settings, FORKED_TABLES, FORKED)
    index(chain, canonical(case))
    orphan = header(case["blocks"][0])
    chain.execute(f"UPDATE TABLES.transactions SET block_hash = '{orphan.hash}' WHERE block = {orphan.number}")
    with pytest.raises(CopyFailed, match="left behind by a reorganisation"):
        chain.run().run(BlockRange(1, 5))
