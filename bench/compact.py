"""Small files into files of 128 MB: ours against DuckDB, polars, pyarrow and Spark on the same files, and `cp`.

2,000 files of about 250 KB in 10 directories, as they are (stitch) and in another order of columns in every other file
(re-encode), and 24 files with large row groups. Ours is
everything: listing, planning, reading with checksums, writing, reading back, comparing, removing the originals, on a
Spark session that is warm. The others do not verify and do not remove.

    compaction bench compact
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy
import polars
import psutil
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
from _report import show

from compaction_platform.compact.job import CompactRun, DirectoryConfig
from compaction_platform.compact.rewrite.result import Verify
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.spark.session import spark_session, task_slots
from compaction_platform.settings import Settings

DIRECTORIES = 10
FILES = 200
ROWS = 5_000


def events(seed: int, rows: int = ROWS) -> pyarrow.Table:
    chance = numpy.random.default_rng(seed)
    ids = chance.integers(0, 1 << 62, rows)
    return pyarrow.table(
        {
            "event_id": pyarrow.array([f"{value:032x}" for value in ids]),
            "event_time": pyarrow.array(
                1_790_000_000_000_000 + seed * 10**9 + chance.integers(0, 10**9, rows), pyarrow.timestamp("us", "UTC")
            ),
            "user_id": chance.integers(0, 10**7, rows),
            "session": pyarrow.array([f"s-{value:x}" for value in chance.integers(0, 1 << 40, rows)]),
            "event_type": pyarrow.array(numpy.array(["view", "click", "buy", "leave"])[chance.integers(0, 4, rows)]),
            "country": pyarrow.array(numpy.array([f"c{n:02d}" for n in range(60)])[chance.integers(0, 60, rows)]),
            "amount": chance.random(rows),
            "payload": pyarrow.array(
                [os.urandom(0).hex() + f"{value:048x}" for value in chance.integers(0, 1 << 60, rows)]
            ),
        }
    )


def make_small(place: Path, *, alike: bool = True) -> None:
    for directory in range(DIRECTORIES):
        (place / f"hour={directory:02d}").mkdir(parents=True)
        for number in range(FILES):
            table = events(directory * FILES + number)
            if not alike and number % 2:
                table = table.select(sorted(table.column_names))
            path = place / f"hour={directory:02d}" / f"part-{number:05d}.parquet"
            pyarrow.parquet.write_table(table, path, compression="zstd")


def make_large_row_groups(place: Path) -> None:
    place.mkdir()
    for number in range(24):
        table = pyarrow.concat_tables([events(10_000 + number * 40 + part, 10_000) for part in range(40)])
        pyarrow.parquet.write_table(
            table,
            place / f"part-{number:05d}.parquet",
            compression="zstd",
            row_group_size=1_000_000,
            write_page_checksum=True,  # as Spark does, and we
        )


def size_of(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*.parquet"))


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def by_duckdb(source: Path, target: Path) -> None:
    connection = duckdb.connect()
    connection.execute(f"SET threads TO {os.cpu_count()}; SET preserve_insertion_order = true")
    for directory in sorted(source.iterdir()):
        connection.execute(
            f"COPY (SELECT * EXCLUDE hour FROM read_parquet('{directory}/*.parquet')) TO "
            f"'{target / directory.name}.parquet' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
        )


def by_polars(source: Path, target: Path) -> None:
    for directory in sorted(source.iterdir()):
        rows = polars.scan_parquet(directory / "*.parquet", hive_partitioning=False)
        rows.sink_parquet(target / f"{directory.name}.parquet", compression="zstd", compression_level=1)


def by_pyarrow(source: Path, target: Path) -> None:
    for directory in sorted(source.iterdir()):
        dataset = pyarrow.dataset.dataset(directory, format="parquet")
        with pyarrow.parquet.ParquetWriter(
            target / f"{directory.name}.parquet", dataset.schema, compression="zstd"
        ) as out:
            for batch in dataset.to_batches(batch_size=1 << 17):
                out.write_batch(batch)


def by_spark(session: Any, source: Path, target: Path) -> None:
    for directory in sorted(source.iterdir()):
        frame = session.read.parquet(f"file://{directory}").coalesce(1)
        frame.write.option("compression", "zstd").parquet(f"file://{target / directory.name}")


def by_cp(source: Path, target: Path) -> None:
    for command in (["/bin/cp", "-r", str(source), str(target)], ["/bin/sync", "-f", str(target)]):
        subprocess.run(command, check=True)


def ours(session: Any, settings: Settings, place: Path, verify: Verify = "full") -> Any:
    spread = ParallelMap(session, task_slots(session, settings))
    return CompactRun(DirectoryConfig(str(place), verify=verify), settings, lambda: spread).run()


class Memory:
    """The most that the Python workers of this process have taken together, in GB."""

    def __enter__(self) -> "Memory":
        self.most = 0.0
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._stop.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            total = 0
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    total += 0 if "java" in process.name() else process.memory_info().rss
            self.most = max(self.most, total / 1e9)


def copied(source: Path, name: str) -> Path:
    target = source.with_name(f"{source.name}-{name}")
    shutil.copytree(source, target)
    return target


def compared(
    session: Any,
    settings: Settings,
    source: Path,
    others: dict[str, Callable[[Path, Path], None]],
    verify: Verify = "full",
) -> None:
    ours(session, settings, copied(source.with_name("warm"), f"{source.name}-{verify}"), verify)
    copy = copied(source, f"ours-{verify}")
    with Memory() as memory:
        our_time = seconds(lambda: ours(session, settings, copy, verify))
    sizes = f"{size_of(source) / 1e6:.0f} → {size_of(copy) / 1e6:.0f}"
    rows = [[f"ours, verify: {verify}", f"{our_time:.1f}", "1.00", sizes, f"{memory.most:.1f}"]]
    for name, work in others.items():
        target = source.with_name(f"{source.name}-{verify}-{name}")
        target.mkdir()
        taken = seconds(lambda work=work, target=target: work(source, target))
        rows.append([name, f"{taken:.1f}", f"{taken / our_time:.2f}", f"→ {size_of(target) / 1e6:.0f}", ""])
    files = len(list(source.rglob("*.parquet")))
    show(f"{files:,} files", ["who", "seconds", "seconds / ours", "MB", "GB in Python workers"], rows)


def main() -> None:
    settings = Settings(_env_file=None)
    with tempfile.TemporaryDirectory() as name, spark_session(settings) as session:
        place = Path(name)
        make_small(place / "small")
        make_small(place / "unlike", alike=False)
        make_large_row_groups(place / "large")
        shutil.copytree(place / "small" / "hour=00", place / "warm")  # a run over it starts the workers
        spark = partial(by_spark, session)
        others = {"DuckDB": by_duckdb, "polars": by_polars, "pyarrow": by_pyarrow, "Spark": spark, "cp": by_cp}
        compared(session, settings, place / "small", others)
        compared(session, settings, place / "unlike", {"DuckDB": by_duckdb})
        compared(session, settings, place / "large", {"cp": by_cp})
        compared(session, settings, place / "large", {"cp": by_cp}, "pages")


if __name__ == "__main__":
    main()
