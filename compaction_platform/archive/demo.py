"""Archive in the demo: a small EVM-like chain grows in the embedded PostgreSQL; what is final moves to cold Parquet."""

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.chain.status import chain_status, due_ranges
from compaction_platform.archive.cold.read import hot_and_cold
from compaction_platform.archive.hot.snapshot import hot_url, table_of
from compaction_platform.lake.dagster.demo_step import DemoContext, DemoFailed, DemoStep

if TYPE_CHECKING:
    from compaction_platform.archive.config import ArchivedChain

RANGE_SIZE = 1000
FIRST, LAST = 2_000, 4_150  # the second of two ranges becomes final while the chain grows
TRANSACTIONS_PER_BLOCK = 8
LOGS_PER_TRANSACTION = 3

TABLES = """
CREATE TABLE public.blocks (chain_id bigint, block_number bigint, hash text, parent_hash text, block_time timestamptz,
    transaction_count int, PRIMARY KEY (chain_id, block_number));
CREATE TABLE public.transactions (chain_id bigint, block_number bigint, transaction_index int, block_hash text,
    value numeric(78, 0), PRIMARY KEY (chain_id, block_number, transaction_index));
CREATE TABLE public.logs (chain_id bigint, block_number bigint, log_index int, block_hash text, topics text[],
    data bytea, PRIMARY KEY (chain_id, block_number, log_index));
"""


def make_chain(context: DemoContext) -> str:
    archive = _archive()
    with psycopg.connect(hot_url(archive, context.settings)) as connection:
        for statement in TABLES.split(";\n"):
            if statement.strip():
                connection.execute(statement)
    _grow(context, archive, FIRST, LAST - 1000)
    due = _due(context, archive)
    _grow(context, archive, LAST - 1000, LAST)
    now = _due(context, archive)
    if [blocks.key for blocks in due] != ["2000-3000"] or len(now) != 2:
        raise DemoFailed(f"final ranges were {due}, then {now}")
    context.notes["ranges"] = [blocks.key for blocks in now]
    rows = _sums(context, archive)["rows"]
    return f"{LAST - FIRST:,} blocks, {rows:,} rows in three tables; {', '.join(context.notes['ranges'])} are final"


def archive_and_purge(context: DemoContext) -> str:
    archive = _archive()
    before = _sums(context, archive)
    rows = deleted = 0
    for number, key in enumerate(context.notes["ranges"]):
        told = _run(key)
        rows += sum(told[name] for name in ("blocks", "transactions", "logs"))
        deleted += told["purged"]
        context.progress((number + 1) / len(context.notes["ranges"]))
    if rows != deleted or _sums(context, archive) != before:
        raise DemoFailed("rows were lost or doubled between the hot tables and the cold files")
    hot = _hot_rows(context, archive)
    return f"{rows:,} rows copied, proved and deleted from PostgreSQL ({hot:,} are left)"


def read_across(context: DemoContext) -> str:
    archive = _archive()
    seam = BlockRange(3_900, 4_100)
    with hot_and_cold(archive, context.settings, seam) as rows:
        frame = rows.dataframe(context.session, "logs")
        total, distinct = frame.selectExpr("count(*)", "count(DISTINCT block_number, log_index)").collect()[0]
    if total != distinct or total != seam.blocks * TRANSACTIONS_PER_BLOCK * LOGS_PER_TRANSACTION:
        raise DemoFailed(f"{total} logs, {distinct} different ones")
    name = f"{context.settings.catalog_name}.{archive.namespace}.logs"
    cold = context.session.sql(f"SELECT count(*) FROM {name} WHERE chain_id = {archive.chain}").collect()[0][0]  # noqa: S608
    return f"{total:,} logs of blocks {seam.key}, half cold, half hot, each once; {cold:,} cold ones in Iceberg"


STEPS = [
    DemoStep("A chain grows in PostgreSQL; ranges become final", make_chain),
    DemoStep("Archive: the final ranges move to cold Parquet", archive_and_purge),
    DemoStep("Read hot and cold as one, across the seam", read_across),
]


def _component() -> Any:
    """The chain of defs/, with smaller ranges."""
    import yaml

    from compaction_platform.archive.component import ColdRanges, DeclaredFinality, HotTable

    file = Path(__file__).parents[1] / "defs" / "monad" / "defs.yaml"
    attributes = yaml.safe_load(file.read_text())["attributes"]
    attributes["datasets"] = [HotTable(**each) for each in attributes["datasets"]]
    attributes["finality"] = DeclaredFinality(**attributes["finality"])
    return ColdRanges(**attributes | {"range_size": RANGE_SIZE})


def _archive() -> "ArchivedChain":
    archive: ArchivedChain = _component().archive()
    return archive


def _hash(number: int) -> str:
    return "0x" + hashlib.sha256(f"block {number}".encode()).hexdigest()


def _grow(context: DemoContext, archive: "ArchivedChain", start: int, end: int) -> None:
    first = datetime.now(UTC) - timedelta(seconds=LAST)
    with psycopg.connect(hot_url(archive, context.settings)) as connection:
        copies = {
            "blocks": (
                (archive.chain_id, number, _hash(number), _hash(number - 1), first + timedelta(seconds=number), count)
                for number in range(start, end)
                for count in (TRANSACTIONS_PER_BLOCK,)
            ),
            "transactions": (
                (archive.chain_id, number, index, _hash(number), 2**128 + number * index)
                for number in range(start, end)
                for index in range(TRANSACTIONS_PER_BLOCK)
            ),
            "logs": (
                (archive.chain_id, number, index, _hash(number), [f"topic {index}"], bytes([index]) * 32)
                for number in range(start, end)
                for index in range(TRANSACTIONS_PER_BLOCK * LOGS_PER_TRANSACTION)
            ),
        }
        for table, rows in copies.items():
            with connection.cursor() as cursor, cursor.copy(f"COPY public.{table} FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)


def _due(context: DemoContext, archive: "ArchivedChain") -> list[BlockRange]:
    return due_ranges(archive, chain_status(archive, hot_url(archive, context.settings)))


def _sums(context: DemoContext, archive: "ArchivedChain") -> dict[str, int]:
    """Rows of all datasets, hot and cold, and a sum over each."""
    with hot_and_cold(archive, context.settings, BlockRange(0, LAST)) as both:
        blocks, transactions, logs = (both.arrow(name) for name in ("blocks", "transactions", "logs"))
    return {
        "rows": blocks.num_rows + transactions.num_rows + logs.num_rows,
        "blocks": sum(blocks["block_number"].to_pylist()),
        "value": sum(int(value) for value in transactions["value"].to_pylist()),
        "logs": sum(logs["log_index"].to_pylist()),
    }


def _hot_rows(context: DemoContext, archive: "ArchivedChain") -> int:
    tables = [sql.SQL("(SELECT count(*) FROM {})").format(table_of(dataset)) for dataset in archive.datasets]
    with psycopg.connect(hot_url(archive, context.settings)) as connection:
        found = connection.execute(sql.SQL("SELECT {}").format(sql.SQL(" + ").join(tables))).fetchone()
    return int((found or (0,))[0])


def _run(key: str) -> dict[str, int]:
    import dagster as dg

    from compaction_platform.lake.dagster.resources import LakeResource, SparkResource

    component = _component()
    platform = dg.Definitions(
        resources={"lake": LakeResource(), "spark": SparkResource()}, executor=dg.in_process_executor
    )
    definitions = dg.Definitions.merge(component.definitions(), platform)
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(f"blocks_{component.chain_id}", [key])
        run = definitions.resolve_job_def(f"archive_{component.chain_id}").execute_in_process(
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            instance=instance,
            partition_key=key,
        )
    told = {}
    for event in run.get_asset_materialization_events():
        path = event.asset_key.path  # type: ignore[union-attr]
        metadata = event.step_materialization_data.materialization.metadata
        if path[0] == "purged":
            told["purged"] = int(str(metadata["rows_deleted"].value))
        else:
            told[path[-1]] = int(str(metadata["rows"].value))
    return told
