"""A small chain in the hot database, and what plain Python, DuckDB and PostgreSQL say about it and its archive."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pyarrow
import pyarrow.parquet
from psycopg import sql

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.chain.finality import FinalityRule
from compaction_platform.archive.config import ArchivedChain, ArchivedTable
from compaction_platform.archive.jobs.archive_range import Archived, ArchiveRun
from compaction_platform.archive.jobs.purge_range import PurgeRun
from compaction_platform.archive.ledger.ledger import Ledger
from compaction_platform.archive.ledger.range_version import RangeVersion
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.settings import Settings

NAMES = ("blocks", "transactions", "logs")
RANGE = BlockRange(10, 20)
NUMBERS = itertools.count(1)
MADE: "list[Scene]" = []  # in the test that runs now; a fixture drops their tables afterwards
GENESIS_TIME = datetime(2026, 11, 1, tzinfo=UTC)

TABLES = """
CREATE TABLE {schema}.blocks (
    chain_id bigint NOT NULL, block_number bigint NOT NULL, hash text NOT NULL, parent_hash text NOT NULL,
    block_time timestamptz NOT NULL, transaction_count int, difficulty numeric(78, 0), extra jsonb);
CREATE TABLE {schema}.transactions (
    chain_id bigint NOT NULL, block_number bigint NOT NULL, transaction_index int NOT NULL, block_hash text NOT NULL,
    hash bytea NOT NULL, value numeric(78, 0), gas numeric(20, 0), fee numeric(38, 9));
CREATE TABLE {schema}.logs (
    chain_id bigint NOT NULL, block_number bigint NOT NULL, log_index int NOT NULL, block_hash text NOT NULL,
    topics text[], data bytea, removed boolean);
"""


def datasets(schema: str) -> tuple[ArchivedTable, ...]:
    return (
        ArchivedTable(
            "blocks",
            (schema, "blocks"),
            ("block_number",),
            hash="hash",
            parent_hash="parent_hash",
            time="block_time",
        ),
        ArchivedTable(
            "transactions",
            (schema, "transactions"),
            ("block_number", "transaction_index"),
            hash="block_hash",
            counted_by="transaction_count",
            dense=True,
        ),
        ArchivedTable("logs", (schema, "logs"), ("block_number", "log_index"), hash="block_hash", dense=True),
    )


def block_hash(number: int, fork: str = "") -> str:
    return "0x" + hashlib.sha256(f"block {number}{fork}".encode()).hexdigest()


class Scene:
    """A chain of its own: nothing of another test is in it."""

    def __init__(self, settings: Settings, place: str = "", *, url: str | None = None, **archive: Any) -> None:
        self.chain_id = 7_000_000_000 + next(NUMBERS)
        self.schema = f"chain_{self.chain_id}"
        self.settings = settings
        assert settings.hot_postgres_url is not None
        self.url = url or settings.hot_postgres_url.get_secret_value()
        self.said: list[str] = []
        self.blocks_said = 0
        values: dict[str, Any] = {
            "range_size": 10,
            "chunk_rows": 15,
            "namespace": None,
            "purge": True,
            **archive,
        }
        self.archive = ArchivedChain(
            self.chain_id,
            f"{place or 'cold'}/{self.schema}",
            datasets(self.schema),
            FinalityRule("depth", 5),
            **values,
        )
        self.ledger = Ledger(self.url, self.chain_id)
        self.ledger.create_tables()
        self.make_tables()
        MADE.append(self)

    def make_tables(self) -> None:
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self.schema)))
            connection.execute(TABLES.format(schema=self.schema))

    def drop_tables(self) -> None:
        """The driver reads about all tables whenever it connects: many of them make every test slower."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(self.schema)))

    def connect(self) -> Any:
        return psycopg.connect(self.url, autocommit=True)

    # ------------------------------------------------------------ the hot side

    def grow(self, first: int, end: int, *, fork: str = "", parent: str | None = None) -> None:
        """Blocks from `first` up to, not including, `end`, with their transactions and logs."""
        blocks, transactions, logs = [], [], []
        for number in range(first, end):
            own = block_hash(number, fork)
            before = parent if parent is not None and number == first else block_hash(number - 1, fork)
            count = number % 4
            time = GENESIS_TIME + timedelta(seconds=number)
            blocks.append((self.chain_id, number, own, before, time, count, 2**70 + number, f'{{"n": {number}}}'))
            for index in range(count):
                told = hashlib.sha256(f"{own} {index}".encode()).digest()
                amounts = (2**255 + number, 2**64 - 1 - index, f"{number}.000000001")
                transactions.append((self.chain_id, number, index, own, told, *amounts))
            for index in range(number % 3):
                logs.append((self.chain_id, number, index, own, [f"topic {index}", None], b"\0data", index % 2 == 0))
        with self.connect() as connection, connection.cursor() as cursor:
            for table, rows in (("blocks", blocks), ("transactions", transactions), ("logs", logs)):
                if rows:
                    marks = ", ".join(["%s"] * len(rows[0]))
                    cursor.executemany(f"INSERT INTO {self.schema}.{table} VALUES ({marks})", rows)

    def execute(self, statement: str) -> list[Any]:
        with self.connect() as connection:
            found = connection.execute(statement.replace("TABLES", self.schema))
            return list(found) if found.description else []

    def hot(self, dataset: str) -> list[tuple[Any, ...]]:
        """Hot rows as plain values, in the order of their keys."""
        key = {"blocks": "2", "transactions": "2, 3", "logs": "2, 3"}[dataset]
        found = self.execute(f"SELECT * FROM TABLES.{dataset} WHERE chain_id = {self.chain_id} ORDER BY {key}")
        return [tuple(plain(value) for value in row) for row in found]

    # ------------------------------------------------------------ the cold side

    @property
    def store(self) -> ObjectStore:
        return ObjectStore.at(self.settings.place(self.archive.uri), self.settings)

    def all_keys(self) -> list[str]:
        return sorted(stored.key for stored in self.store.list())

    def visible(self, dataset: str) -> list[str]:
        """What a plain reader's pattern <chain>/<dataset>/range=*/part-*.parquet finds; or any *.parquet at all."""
        found = [key for key in self.all_keys() if key.startswith(f"{self.chain_id}/{dataset}/")]
        data = [key for key in found if key.endswith(".parquet")]
        assert data == [key for key in data if "/range=" in key and key.rpartition("/")[2].startswith("part-")]
        return data

    def cold(self, dataset: str) -> list[tuple[Any, ...]]:
        """Rows of all visible files, in the order of their names, read by pyarrow."""
        rows: list[tuple[Any, ...]] = []
        keys = sorted(self.visible(dataset), key=lambda key: (int(key.split("range=")[1].split("-")[0]), key))
        for key in keys:
            table = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(bytes(self.store.read(key)))).read()
            rows += [tuple(plain(value) for value in row.values()) for row in table.to_pylist()]
        return rows

    def version(self, blocks: BlockRange) -> RangeVersion | None:
        return self.ledger.live(blocks)

    def states(self, blocks: BlockRange) -> list[str]:
        return [version.state for version in self.ledger.versions(blocks)]

    # ------------------------------------------------------------ runs

    def run(self, spread: ParallelMap | None = None, **changes: Any) -> ArchiveRun:
        return ArchiveRun(
            replace(self.archive, **changes),
            self.settings,
            lambda: spread or ParallelMap(None, 2),
            self.said.append,
            owner=f"run {next(NUMBERS)}",
        )

    def archived(self, start: int, end: int, because: str | None = None, **changes: Any) -> Archived:
        return self.run(**changes).run(BlockRange(start, end), because)

    def purge(self, start: int, end: int) -> Any:
        return PurgeRun(self.archive, self.settings, self.said.append, owner=f"run {next(NUMBERS)}").run(
            BlockRange(start, end)
        )

    def expire_leases(self) -> None:
        """As if every worker that has a claim had been silent for longer than its lease."""
        self.execute(
            "UPDATE compaction.archive_versions SET lease_until = '-infinity' WHERE range_id IN "
            f"(SELECT id FROM compaction.archive_ranges WHERE chain_id = {self.chain_id})"
        )


def plain(value: Any) -> Any:
    """One form for what psycopg and pyarrow give."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, dict):
        return str(value).replace("'", '"')
    if isinstance(value, list | tuple):
        return tuple(plain(each) for each in value)
    return str(value) if hasattr(value, "as_tuple") else value


def hot(scene: Scene) -> dict[str, Any]:
    return {name: scene.hot(name) for name in NAMES}


def refer_to_blocks(scene: Scene) -> None:
    scene.execute("ALTER TABLE TABLES.blocks ADD PRIMARY KEY (chain_id, block_number)")
    scene.execute("ALTER TABLE TABLES.transactions ADD PRIMARY KEY (chain_id, block_number, transaction_index)")
    for table in ("transactions", "logs"):
        scene.execute(
            f"ALTER TABLE TABLES.{table} ADD FOREIGN KEY (chain_id, block_number) REFERENCES TABLES.blocks "
            "ON DELETE CASCADE"
        )


def everything_once(scene: Scene, expected: dict[str, Sequence[tuple[Any, ...]]]) -> None:
    """Hot rows of ranges that are not committed, and committed cold: every row exactly once."""
    live = [version.blocks for version in scene.ledger.versions(states=("committed", "purging", "purged"))]

    def is_cold(row: tuple[Any, ...]) -> bool:
        return any(blocks.start <= row[1] < blocks.end for blocks in live)

    for dataset, rows in expected.items():
        found = [row for row in scene.hot(dataset) if not is_cold(row)] + scene.cold(dataset)
        assert sorted(comparable(row) for row in found) == sorted(comparable(row) for row in rows), dataset


def comparable(row: tuple[Any, ...]) -> tuple[str, ...]:
    """Decimal text and decimals of the same value are the same."""
    return tuple(str(value) for value in row)
