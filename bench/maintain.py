"""Our compaction of an Iceberg table against Iceberg's own `rewrite_data_files`, on the same Spark and the same files.

1,000 files of about 400 KB in 10 partitions. Ours is everything a run does: look, plan, decode with checksums, encode,
read back from the store and compare, commit. Theirs is the procedure with its defaults. Then the time of a query before
and after, and how long a look at the metadata of a table of 10,000 files takes. Starts an embedded lake of its own in a
temporary directory.

    compaction bench maintain
"""

import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
from _report import show
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, StringType

from compaction_platform.embedded_lake.embedded import EmbeddedLake
from compaction_platform.lake.dagster.provisioning import IcebergTable, TableColumn
from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.lake.iceberg.data_file_reader import DataFileReader
from compaction_platform.lake.iceberg.data_file_writer import DataFileWriter
from compaction_platform.lake.iceberg.replace_files import AddedFile, FileChange, commit_change
from compaction_platform.lake.iceberg.snapshot_files import Manifests
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.spark.session import spark_session, task_slots
from compaction_platform.maintain.config import MaintenanceRequest, OrphanRules, TableMaintenance
from compaction_platform.maintain.job import MaintainRun
from compaction_platform.maintain.table_state import TableState
from compaction_platform.settings import Settings

FILES, PARTITIONS, ROWS = 1_000, 10, 9_600
METADATA_FILES = 10_000
ROUNDS = 2
COLUMNS = (
    TableColumn("event_id", "string"),
    TableColumn("day", "int"),
    TableColumn("at", "timestamptz"),
    TableColumn("user_id", "long"),
    TableColumn("kind", "string"),
    TableColumn("amount", "double"),
    TableColumn("country", "string"),
    TableColumn("note", "string"),
)
QUERY = "SELECT day, kind, count(*), sum(amount), max(at) FROM lake.bench.{} WHERE country = 'de' GROUP BY day, kind"
PROOF = "SELECT count(*), sum(CAST(xxhash64(*) AS decimal(38, 0))) FROM lake.bench.{}"


def rows(number: int) -> pyarrow.Table:
    """Ids that never repeat, words that do, numbers in between."""
    random = numpy.random.default_rng(number)
    ids = random.bytes(16 * ROWS).hex()
    return pyarrow.table(
        {
            "event_id": [ids[place * 32 : place * 32 + 32] for place in range(ROWS)],
            "day": numpy.full(ROWS, number % PARTITIONS, dtype=numpy.int32),
            "at": pyarrow.array(
                1_767_225_600_000_000 + random.integers(0, 86_400_000_000, ROWS), pyarrow.timestamp("us", "UTC")
            ),
            "user_id": random.integers(0, 1_000_000, ROWS),
            "kind": numpy.array(["view", "click", "buy"])[random.integers(0, 3, ROWS)],
            "amount": random.integers(0, 100_000, ROWS) / 100,
            "country": numpy.array(["de", "fr", "us", "jp"])[random.integers(0, 4, ROWS)],
            "note": [ids[place * 8 : place * 8 + 20] for place in range(ROWS)],
        }
    )


class Bench:
    def __init__(self, settings: Settings, session: Any) -> None:
        self.settings, self.session = settings, session
        self.slots = task_slots(session, settings)

    def table_of_small_files(self, name: str) -> float:
        """The same rows in every table; the size of a file in KB."""
        IcebergTable("bench", name, COLUMNS, (("day", "identity"),), (("format-version", "2"),)).ensure(self.settings)
        table = open_catalog(self.settings).load_table(f"bench.{name}")
        writer = DataFileWriter.of(table, self.settings)
        with ThreadPoolExecutor(4) as pool:
            files = [
                file for some in pool.map(lambda number: writer.write(rows(number)), range(FILES)) for file in some
            ]
        commit_change(table, FileChange(added=[AddedFile(file) for file in files]), Manifests(table.io))
        return statistics.mean(file.file_size_in_bytes for file in files) / 1000

    def timed(self, work: Callable[[], Any]) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def query(self, name: str) -> float:
        return min(self.timed(lambda: self.session.sql(QUERY.format(name)).collect()) for _ in range(3))

    def maintenance(self, name: str) -> MaintainRun:
        rules = TableMaintenance(f"bench.{name}", name, orphans=OrphanRules(enabled=False), expire_snapshots=False)
        return MaintainRun(rules, self.settings, lambda: ParallelMap(self.session, self.slots), lambda: self.session)

    def ours(self, name: str) -> None:
        report = self.maintenance(name).run(MaintenanceRequest(max_files=FILES))
        if report.failed or report.figures()["files_after"] != PARTITIONS:
            raise SystemExit(f"not what was expected: {report.figures()} {report.failed}")

    def theirs(self, name: str) -> None:
        self.session.sql(f"CALL lake.system.rewrite_data_files(table => 'bench.{name}')").collect()

    def row_groups(self, name: str) -> str:
        table = open_catalog(self.settings).load_table(f"bench.{name}")
        reader = DataFileReader(table.metadata, self.settings)
        path = next(iter(TableState.at(table).files.data))
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(reader.fetch(path))).metadata
        return f"{file.num_row_groups} of {file.row_group(0).num_rows:,} rows"

    def compaction(self) -> None:
        shown = []
        for number in range(ROUNDS):
            ours, theirs = f"ours_{number}", f"theirs_{number}"
            size = self.table_of_small_files(ours)
            self.table_of_small_files(theirs)
            before = self.query(ours)
            order = [(ours, self.ours), (theirs, self.theirs)]
            taken = {name: self.timed(partial(work, name)) for name, work in (order if number % 2 else order[::-1])}
            proofs = {str(self.session.sql(PROOF.format(name)).collect()) for name in taken}
            shown.append(
                [
                    f"{FILES:,} files of {size:.0f} KB",
                    f"{taken[ours]:.1f} s",
                    f"{taken[theirs]:.1f} s",
                    f"{taken[theirs] / taken[ours]:.1f}",
                    "yes" if len(proofs) == 1 else "NO",
                    self.row_groups(ours),
                    self.row_groups(theirs),
                    f"{before:.2f} → {self.query(ours):.2f} s",
                ]
            )
        headings = ["", "ours", "theirs", "ratio", "same rows", "row groups", "theirs", "query"]
        show("Compaction into 10 files; theirs: rewrite_data_files", headings, shown)

    def detection(self) -> None:
        IcebergTable("bench", "wide", COLUMNS, (("day", "identity"),)).ensure(self.settings)
        table = open_catalog(self.settings).load_table("bench.wide")
        for _ in range(10):
            files = [AddedFile(_described(table, number)) for number in range(METADATA_FILES // 10)]
            commit_change(table, FileChange(added=files), Manifests(table.io))
        run = self.maintenance("wide")
        taken = [self.timed(run.health) for _ in range(5)]
        health = run.health()
        row = [
            f"{health.files:,} files",
            f"{statistics.median(taken):.2f} s",
            f"{min(taken):.2f} to {max(taken):.2f} s",
        ]
        show("A look at the metadata, without Spark", ["", "median of 5", "spread"], [row])


def _described(table: Any, number: int) -> DataFile:
    """A file that is not there: a look does not open it."""
    ids = range(1, len(COLUMNS) + 1)
    bounds = {each: to_bytes(LongType(), 5) if each in (2, 4) else to_bytes(StringType(), "a" * 12) for each in ids}
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/data/day={number % PARTITIONS}/{uuid.uuid4()}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(number % PARTITIONS),
        record_count=ROWS,
        file_size_in_bytes=400_000,
        column_sizes=dict.fromkeys(ids, 40_000),
        value_counts=dict.fromkeys(ids, ROWS),
        null_value_counts=dict.fromkeys(ids, 0),
        lower_bounds=bounds,
        upper_bounds=bounds,
        split_offsets=[4],
    )
    file.spec_id = table.metadata.default_spec_id
    return file


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, EmbeddedLake(Path(directory) / "lake") as lake:
        settings = lake.settings()
        for name, value in lake.isolated_environment(os.environ).items():
            os.environ[name] = value
        with spark_session(settings) as session:
            bench = Bench(settings, session)
            bench.detection()
            bench.compaction()


if __name__ == "__main__":
    main()
