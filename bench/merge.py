"""Our merge against the MERGE a user would write by hand, on the same Spark, tables and batches.

By hand: `spark.read.parquet(directory)`, `ON t.event_id = s.event_id`, update all, insert all, copy-on-write.
Ours: everything a run does: list, decode with checksums, merge into a branch, audit, publish, receipts.
Each batch is 50 files of 1,000 rows, half of them updates, into tables over 30 days; the rows belong to the last
two days, and in a second measurement 2 of 100 are late and belong to two older ones. Starts an embedded lake of
its own in a temporary directory.

    compaction bench merge
"""

import hashlib
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from _report import show

from compaction_platform.embedded_lake.embedded import EmbeddedLake
from compaction_platform.lake.dagster.provisioning import IcebergTable, TableColumn
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.spark.session import spark_session, task_slots
from compaction_platform.merge.component import TABLE_PROPERTIES
from compaction_platform.merge.config import FILE_COLUMN, ROW_COLUMN, MergeRules, PartitionField
from compaction_platform.merge.job import MergeOutcome, MergeRun
from compaction_platform.merge.plan.staged_hours import hour_of
from compaction_platform.settings import Settings

DAYS = 30
FILES = 50
ROWS_PER_FILE = 1_000
BATCHES = 3
START = datetime(2026, 10, 1, tzinfo=UTC)
COLUMNS = (
    TableColumn("event_id", "string"),
    TableColumn("event_time", "timestamptz"),
    TableColumn("updated_at", "timestamptz"),
    TableColumn("event_type", "string"),
    TableColumn("user_id", "long"),
    TableColumn("amount", "double"),
)
ORIGIN = (TableColumn(FILE_COLUMN, "string"), TableColumn(ROW_COLUMN, "long"))
DAY = (("event_time", "day"),)


class Bench:
    def __init__(self, settings: Settings, session: Any, directory: Path) -> None:
        self.settings, self.session, self.directory = settings, session, directory
        self.spread = ParallelMap(session, task_slots(session, settings))
        self.hours = 0

    def tables(self, rows: int) -> None:
        """The same rows in both tables, a file or more for each day."""
        self.rows = rows
        self.ours, self.by_hand = f"ours_{rows}", f"by_hand_{rows}"
        IcebergTable("bench", self.ours, (*COLUMNS, *ORIGIN), DAY, TABLE_PROPERTIES).ensure(self.settings)
        IcebergTable("bench", self.by_hand, COLUMNS, DAY, (("format-version", "2"),)).ensure(self.settings)
        micros = int(START.timestamp() * 1e6)
        per_day = rows // DAYS
        source = (
            f"SELECT md5(CAST(id AS string)) AS event_id, "
            f"timestamp_micros({micros} + (id DIV {per_day}) * 86400000000 + (id % {per_day})) AS event_time, "
            f"timestamp_micros({micros}) AS updated_at, concat('type-', id % 7) AS event_type, "
            f"id * 7919 % 1000003 AS user_id, CAST(id % 100000 AS double) / 100 AS amount "
            f"FROM range({per_day * DAYS})"
        )
        self.session.sql(f"INSERT INTO lake.bench.{self.by_hand} {source}").collect()
        self.session.sql(f"INSERT INTO lake.bench.{self.ours} SELECT *, 'loaded', 0 FROM ({source})").collect()

    def stage(
        self, *, files: int = FILES, rows: int = ROWS_PER_FILE, updates: float = 0.5, late: bool = False
    ) -> tuple[Path, str]:
        """A batch of its own, in an hour of its own."""
        self.hours += 1
        chance = random.Random(self.hours)
        place = self.directory / self.ours / f"batch_{self.hours:03d}"
        place.mkdir(parents=True)
        arrived = START + timedelta(days=DAYS, hours=self.hours)
        per_day = self.rows // DAYS
        seen: set[int] = set()  # a MERGE by hand fails on a key that is twice in the batch
        for number in range(files):
            wanted = []
            for row in range(rows):
                day = chance.choices((DAYS - 1, DAYS - 2, DAYS - 9, DAYS - 17), (68, 30, late, late))[0]
                event = 10**12 + self.hours * 10**9 + number * 10**6 + row
                if row < rows * updates:
                    event = day * per_day + chance.randrange(per_day)
                if event not in seen:
                    seen.add(event)
                    wanted.append((day, event))
            _write(place / f"{number:05d}.parquet", wanted, per_day, self.hours, arrived)
        return place, hour_of(arrived)

    def run_ours(self, hour: str) -> MergeOutcome:
        rules = MergeRules(
            "bench", self.ours, str(self.directory / self.ours), "**/*.parquet", ("event_id",), ("updated_at",), (),
            (PartitionField("event_time", "day"),),
        )  # fmt: skip
        return MergeRun(rules, self.settings, lambda: self.spread).take_in_and_merge([hour])

    def run_by_hand(self, place: Path) -> None:
        self.session.read.parquet(f"file://{place}").createOrReplaceTempView("batch")
        self.session.sql(
            f"MERGE INTO lake.bench.{self.by_hand} t USING batch s ON t.event_id = s.event_id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        ).collect()

    def written(self, table: str) -> int:
        (row,) = self.session.sql(
            f"SELECT summary['added-files-size'] AS size FROM lake.bench.{table}.snapshots ORDER BY committed_at DESC "
            "LIMIT 1"
        ).collect()
        return int(row.size or 0)

    def snapshots(self, table: str) -> int:
        return int(self.session.sql(f"SELECT count(*) AS n FROM lake.bench.{table}.snapshots").collect()[0].n)


def _write(path: Path, wanted: list[tuple[int, int]], per_day: int, batch: int, arrived: datetime) -> None:
    micros = int(START.timestamp() * 1e6)
    table = pyarrow.table(
        {
            "event_id": [hashlib.md5(str(event).encode(), usedforsecurity=False).hexdigest() for _, event in wanted],
            "event_time": pyarrow.array(
                [micros + day * 86_400_000_000 + event % per_day for day, event in wanted],
                pyarrow.timestamp("us", "UTC"),
            ),
            "updated_at": pyarrow.array([micros + batch * 10**6] * len(wanted), pyarrow.timestamp("us", "UTC")),
            "event_type": [f"type-{event % 7}" for _, event in wanted],
            "user_id": pyarrow.array([event * 7919 % 1_000_003 for _, event in wanted], pyarrow.int64()),
            "amount": [batch + 0.5] * len(wanted),
        }
    )
    pyarrow.parquet.write_table(table, path, write_page_checksum=True)
    os.utime(path, (arrived.timestamp(), arrived.timestamp()))


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def merge_both(bench: Bench, *, late: bool = False) -> dict[str, float]:
    """Medians over some batches, after one that warms the caches for this table."""
    ours, by_hand, again = [], [], []
    ours_bytes, by_hand_bytes = [], []
    for number in range(BATCHES + 1):
        place, hour = bench.stage(late=late)
        taken_by_hand = seconds(lambda place=place: bench.run_by_hand(place))
        taken = seconds(lambda hour=hour: bench.run_ours(hour))
        before = bench.snapshots(bench.ours)
        taken_again = seconds(lambda hour=hour: bench.run_ours(hour))
        assert bench.snapshots(bench.ours) == before, "a re-run made a snapshot"
        if number:
            ours.append(taken)
            by_hand.append(taken_by_hand)
            again.append(taken_again)
            ours_bytes.append(bench.written(bench.ours))
            by_hand_bytes.append(bench.written(bench.by_hand))
    return {
        "ours": statistics.median(ours),
        "by hand": statistics.median(by_hand),
        "again": statistics.median(again),
        "ours bytes": statistics.median(ours_bytes),
        "by hand bytes": statistics.median(by_hand_bytes),
    }


def query_times(bench: Bench) -> tuple[float, float, float]:
    """A scan of the last days: right after the merges, after maintenance, and in the copy-on-write table."""
    query = "SELECT event_type, count(*), sum(amount), max(updated_at) FROM lake.bench.{} GROUP BY event_type"

    def best(table: str) -> float:
        return min(seconds(lambda: bench.session.sql(query.format(table)).collect()) for _ in range(5))

    best(bench.by_hand)
    right_after, copied = best(bench.ours), best(bench.by_hand)
    bench.session.sql(
        f"CALL lake.system.rewrite_data_files(table => 'bench.{bench.ours}', options => "
        "map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true'))"
    ).collect()
    return right_after, best(bench.ours), copied


def insert_only(bench: Bench) -> tuple[int, float]:
    bench.stage(files=40, rows=5_000, updates=0)
    place, hour = bench.stage(files=200, rows=10_000, updates=0)
    bench.run_ours(hour_of(START + timedelta(days=DAYS, hours=bench.hours - 1)))
    rows = sum(pyarrow.parquet.read_metadata(file).num_rows for file in place.iterdir())
    return rows, seconds(lambda: bench.run_ours(hour))


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as place,
        EmbeddedLake(Path(place) / "lake") as lake,
        spark_session(lake.settings()) as session,
    ):
        bench = Bench(lake.settings(), session, Path(place) / "staging")
        bench.tables(300_000)
        merge_both(bench)  # warms the JVM
        figures = {}
        for rows in (1_000_000, 16_000_000):
            bench.tables(rows)
            figures[rows] = merge_both(bench)
            report(f"Batch of {FILES * ROWS_PER_FILE:,} rows into {rows:,}, median of {BATCHES}", figures[rows])
        report("The same into 16,000,000, with late rows of two more days", merge_both(bench, late=True))
        small, large = figures[1_000_000]["ours"], figures[16_000_000]["ours"]
        after, maintained, copied = query_times(bench)
        rows, taken = insert_only(bench)
        per_core = rows / taken / (os.cpu_count() or 1)
        show(
            "And",
            ["what", "figure"],
            [
                ["our time at 16 M rows / at 1 M rows", f"{large / small:.2f}"],
                ["scan of ours right after the merges / copy-on-write's", f"{after / copied:.2f}"],
                ["scan of ours after maintenance / copy-on-write's", f"{maintained / copied:.2f}"],
                [f"insert only: {rows:,} rows of 200 files, rows per second and core", f"{per_core:,.0f}"],
            ],
        )


def report(title: str, figures: dict[str, float]) -> None:
    again = [f"{figures['again']:.3f}", f"{figures['by hand']:.2f}", f"{figures['by hand'] / figures['again']:.0f}"]
    show(
        title,
        ["", "ours", "by hand", "by hand / ours"],
        [
            ["seconds", *_pair(figures, "", "{:.2f}")],
            ["MB written", *_pair(figures, " bytes", "{:.1f}", 1e6)],
            ["seconds, the same batch again", *again],
        ],
    )


def _pair(figures: dict[str, float], suffix: str, form: str, unit: float = 1) -> list[str]:
    ours, by_hand = figures[f"ours{suffix}"], figures[f"by hand{suffix}"]
    return [form.format(ours / unit), form.format(by_hand / unit), f"{by_hand / ours:.1f}"]


if __name__ == "__main__":
    main()
