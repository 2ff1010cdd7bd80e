"""A range of 10,000 blocks with 2 M logs (~600 MB as PostgreSQL counts) from PostgreSQL to verified Parquet on S3.

Against the least that reading it can cost (COPY in binary format, thrown away), and against Spark's own JDBC reader
with its Parquet writer, which verifies nothing and writes to the local disk. Starts an embedded lake of its own in a
temporary directory.

    compaction bench archive
"""

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import psycopg
from _report import show

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.chain.finality import FinalityRule
from compaction_platform.archive.config import ArchivedChain, ArchivedTable
from compaction_platform.archive.jobs.archive_range import ArchiveRun
from compaction_platform.archive.jobs.purge_range import PurgeRun
from compaction_platform.archive.ledger.ledger import Ledger
from compaction_platform.embedded_lake.embedded import EmbeddedLake
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.spark.session import spark_session, task_slots
from compaction_platform.settings import Settings

BLOCKS = 10_000
LOGS_PER_BLOCK = 200
CHAIN = 10143
REPEATS = 3

TABLES = f"""
CREATE TABLE blocks (chain_id bigint, block_number bigint, hash text, parent_hash text, block_time timestamptz,
    PRIMARY KEY (chain_id, block_number));
CREATE TABLE logs (chain_id bigint, block_number bigint, log_index int, block_hash text, transaction_hash bytea,
    address bytea, topics text[], data bytea, PRIMARY KEY (chain_id, block_number, log_index));
INSERT INTO blocks SELECT {CHAIN}, n, 'block ' || md5(n::text), 'block ' || md5((n - 1)::text),
    now() - make_interval(secs => {BLOCKS} + 100 - n) FROM generate_series(0, {BLOCKS + 100}) n;
INSERT INTO logs SELECT {CHAIN}, n, i, 'block ' || md5(n::text), decode(md5(n || '/' || i / 3), 'hex'),
    decode(md5((i % 37)::text), 'hex'), ARRAY['0xddf252ad1be2c89b69c2b068fc378daa952ba7f1', md5((n * i % 1000)::text)],
    decode(md5(n || ' ' || i) || md5(i || ' ' || n) || repeat('00', 16), 'hex')
    FROM generate_series(0, {BLOCKS - 1}) n, generate_series(0, {LOGS_PER_BLOCK - 1}) i ORDER BY n, i;
VACUUM (ANALYZE) logs;
VACUUM (ANALYZE) blocks;
"""


class PeakOfPythonWorkers:
    """The most memory that Spark's Python workers had together, and the largest of them."""

    def __init__(self) -> None:
        self.together = self.largest = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakOfPythonWorkers":
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            sizes = []
            for process in psutil.process_iter(["cmdline"]):
                if "compaction_platform.lake.spark.python_daemon" in (process.info["cmdline"] or ()):
                    try:
                        sizes.append(process.memory_info().rss)
                    except psutil.Error:
                        continue
            self.together, self.largest = max(self.together, sum(sizes)), max(self.largest, *sizes, 0)


def copy_thrown_away(url: str) -> int:
    size = 0
    with psycopg.connect(url) as connection:
        for table in ("blocks", "logs"):
            query = f"COPY (SELECT * FROM {table} WHERE block_number < {BLOCKS}) TO STDOUT (FORMAT binary)"
            with connection.cursor().copy(query) as copy:
                for chunk in copy:
                    size += len(chunk)
    return size


def by_jdbc(session: Any, settings: Settings, target: Path) -> None:
    url = psycopg.conninfo.conninfo_to_dict(str(settings.hot_postgres_url.get_secret_value()))  # type: ignore[union-attr]
    for table, parts, keys in (("blocks", 1, ["block_number"]), ("logs", 2, ["block_number", "log_index"])):
        reader = session.read.format("jdbc").options(
            url=f"jdbc:postgresql://{url['host']}:{url['port']}/{url['dbname']}",
            user=url["user"],
            password=url["password"],
            dbtable=f"(SELECT * FROM {table} WHERE block_number < {BLOCKS}) rows",
            fetchsize=10_000,
            partitionColumn="block_number",
            lowerBound=0,
            upperBound=BLOCKS,
            numPartitions=parts,
        )
        reader.load().sortWithinPartitions(*keys).write.mode("overwrite").option("compression", "zstd").parquet(
            str(target / table)
        )


def archive() -> ArchivedChain:
    blocks = ArchivedTable(
        "blocks", ("public", "blocks"), ("block_number",), hash="hash", parent_hash="parent_hash", time="block_time"
    )
    logs = ArchivedTable("logs", ("public", "logs"), ("block_number", "log_index"), hash="block_hash", dense=True)
    return ArchivedChain(CHAIN, "cold", (blocks, logs), FinalityRule("depth", 50), namespace=None)


def forget(url: str) -> None:
    """As if nothing had been archived."""
    with psycopg.connect(url) as connection:
        connection.execute("DELETE FROM compaction.archive_ranges")


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as place,
        EmbeddedLake(Path(place)) as lake,
        spark_session(settings := lake.settings()) as session,
    ):
        assert settings.hot_postgres_url is not None
        url = settings.hot_postgres_url.get_secret_value()
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in TABLES.split(";\n"):
                if statement.strip():
                    connection.execute(statement)
            total = connection.execute("SELECT pg_total_relation_size('logs') - pg_indexes_size('logs')").fetchone()
        Ledger(url, CHAIN).create_tables()
        run = ArchiveRun(archive(), settings, lambda: ParallelMap(session, task_slots(session, settings)))
        blocks = BlockRange(0, BLOCKS)
        copied = copy_thrown_away(url)
        taken: dict[str, list[float]] = {"COPY binary, thrown away": [], "ours": [], "Spark JDBC + writer": []}
        with PeakOfPythonWorkers() as memory:
            for number in range(REPEATS):
                taken["COPY binary, thrown away"].append(seconds(lambda: copy_thrown_away(url)))
                forget(url)
                run = replace(run, archive=replace(run.archive, uri=f"cold/{number}"))
                taken["ours"].append(seconds(lambda run=run: run.run(blocks)))
                taken["Spark JDBC + writer"].append(seconds(lambda: by_jdbc(session, settings, Path(place) / "jdbc")))
        version = Ledger(url, CHAIN).live(blocks)
        assert version is not None
        written = sum(manifest.size for manifest in version.manifests.values())
        files = sum(len(manifest.files) for manifest in version.manifests.values())
        unchanged = seconds(lambda: run.run(blocks))
        purged = seconds(lambda: PurgeRun(run.archive, settings).run(blocks))
        base, ours = min(taken["COPY binary, thrown away"]), min(taken["ours"])
        show(
            f"{BLOCKS * LOGS_PER_BLOCK:,} logs, {(total or (0,))[0] / 1e6:,.0f} MB in PostgreSQL, {copied / 1e6:,.0f} "
            f"MB by COPY, {written / 1e6:,.0f} MB in {files} files; best of {REPEATS}",
            ["way", "seconds", "times COPY", "ours is faster by"],
            [
                [name, f"{min(each):.2f}", f"{min(each) / base:.2f}", f"{min(each) / ours:.2f}"]
                for name, each in taken.items()
            ]
            + [
                ["the same range again, nothing changed", f"{unchanged:.2f}", f"{unchanged / base:.2f}", ""],
                ["purge, cold files read again", f"{purged:.2f}", f"{purged / base:.2f}", ""],
            ],
        )
        together, largest = memory.together / 1e6, memory.largest / 1e6
        print(f"Python workers: {together:,.0f} MB together at most, the largest {largest:,.0f} MB")


if __name__ == "__main__":
    main()
