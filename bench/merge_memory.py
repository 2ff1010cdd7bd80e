"""A staged hour that is larger than the memory of Spark: what the processes take at most.

24 million rows of 48 files in one hour, about 3 GB decoded, through a Spark of 2 GB (its default here). Starts an
embedded lake of its own in a temporary directory.

    compaction bench merge_memory
"""

import os
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy
import psutil
import pyarrow
import pyarrow.parquet
from _report import show

from compaction_platform.embedded_lake.embedded import EmbeddedLake
from compaction_platform.lake.dagster.provisioning import IcebergTable, TableColumn
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.spark.session import spark_session, task_slots
from compaction_platform.merge.component import TABLE_PROPERTIES
from compaction_platform.merge.config import FILE_COLUMN, ROW_COLUMN, MergeRules, PartitionField
from compaction_platform.merge.job import MergeRun
from compaction_platform.merge.plan.staged_hours import hour_of

FILES = 48
ROWS_PER_FILE = 500_000
ARRIVED = datetime(2026, 11, 1, 3, tzinfo=UTC)
COLUMNS = (
    TableColumn("event_id", "string"),
    TableColumn("event_time", "timestamptz"),
    TableColumn("updated_at", "timestamptz"),
    TableColumn("payload", "string"),
    TableColumn(FILE_COLUMN, "string"),
    TableColumn(ROW_COLUMN, "long"),
)


def write_files(place: Path) -> int:
    """Returns about how large the rows are when they are decoded."""
    decoded = 0
    for number in range(FILES):
        ids = numpy.arange(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        moments = pyarrow.array(ids * 3_000 + 1_793_000_000_000_000, pyarrow.timestamp("us", "UTC"))
        table = pyarrow.table(
            {
                "event_id": pyarrow.array([f"{value * 2654435761 % 2**64:032x}" for value in ids.tolist()]),
                "event_time": moments,
                "updated_at": moments,
                "payload": pyarrow.array([f"payload of {value % 1000:040d}" for value in ids.tolist()]),
            }
        )
        decoded += table.nbytes
        path = place / f"{number:03d}.parquet"
        pyarrow.parquet.write_table(table, path, compression="zstd", use_dictionary=False, write_page_checksum=True)
        os.utime(path, (ARRIVED.timestamp(), ARRIVED.timestamp()))
    return decoded


class Peaks:
    """The most memory this process, the Spark JVM and its Python workers together were seen to take."""

    def __init__(self, spark_pid: int) -> None:
        self.spark = psutil.Process(spark_pid)
        self.here = psutil.Process()
        self.most = {"this process": 0, "Spark's JVM": 0, "its Python workers": 0}
        self.over = threading.Event()

    def watch(self) -> None:
        while not self.over.wait(0.2):
            workers = 0
            for child in self.spark.children(recursive=True):
                try:
                    workers += child.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            seen = (self.here.memory_info().rss, self.spark.memory_info().rss, workers)
            for name, size in zip(self.most, seen, strict=True):
                self.most[name] = max(self.most[name], size)


def main() -> None:
    with tempfile.TemporaryDirectory() as place, EmbeddedLake(Path(place) / "lake") as lake:
        settings = lake.settings()
        staging = Path(place) / "staging"
        staging.mkdir()
        decoded = write_files(staging)
        IcebergTable("bench", "memory", COLUMNS, (("event_time", "day"),), TABLE_PROPERTIES).ensure(settings)
        rules = MergeRules(
            "bench", "memory", str(staging), "*.parquet", ("event_id",), ("updated_at",), (),
            (PartitionField("event_time", "day"),),
        )  # fmt: skip
        (java,) = [running.popen.pid for running in lake.running if running.server.name == "spark"]
        with spark_session(settings) as session:
            peaks = Peaks(java)
            watcher = threading.Thread(target=peaks.watch)
            watcher.start()
            began = time.monotonic()
            try:
                spread = ParallelMap(session, task_slots(session, settings))
                outcome = MergeRun(rules, settings, lambda: spread, say=print).take_in_and_merge([hour_of(ARRIVED)])
            finally:
                peaks.over.set()
                watcher.join()
        seconds = time.monotonic() - began
        assert outcome.merged is not None
        assert outcome.merged.inserted == FILES * ROWS_PER_FILE
    show(
        f"{outcome.merged.inserted:,} rows, {decoded / 1e9:.1f} GB decoded, in {seconds:.0f} s",
        ["process", "most memory, GB", "of the decoded rows"],
        [[name, f"{size / 1e9:.2f}", f"{size / decoded:.2f}"] for name, size in peaks.most.items()],
    )


if __name__ == "__main__":
    main()
