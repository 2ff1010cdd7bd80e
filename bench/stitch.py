"""Small files joined page by page: ours against cp, DuckDB, polars, pyarrow and Spark's writer on the same files.

Events and chain logs of four writers, 4,500 to 5,500 rows a file, into files of about 128 MB. `stitch` is the bare
engine in two processes: reading, planning, writing. `verified` is that and the full proof. The others write and do not
verify; DuckDB by its defaults, and with the fastest compression. Everything is on the local disk, in the page cache
(`TMPDIR` says where); all take turns, and the best of each counts.

`compact` is the whole run on Spark: listing, planning, reading, writing, proof, commit, removal of the originals. It is
held against the bare engine, verified, with the same files in each output and on the same store: the local disk, then
SeaweedFS.

    compaction bench stitch
"""

import atexit
import gc
import math
import multiprocessing
import os
import resource
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy
import polars
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
from _report import show

from compaction_platform.compact.job import CompactRun, DirectoryConfig
from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.compact.rewrite.read_inputs import fetch
from compaction_platform.embedded_lake.embedded import EmbeddedLake
from compaction_platform.lake.parquet.stitch.stitch_plan import footers_of, plan_stitch
from compaction_platform.lake.parquet.stitch.stitch_writer import write_stitched
from compaction_platform.lake.parquet.stitch.verify import verify_stitched
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.spark.python_daemon import GARBAGE_AT_LEAST
from compaction_platform.lake.spark.session import spark_session, task_slots
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.settings import Settings

FILES = int(os.environ.get("BENCH_FILES", "2000"))
ROWS = 5_000
ROUNDS = 5
TARGET = 128 << 20
ROW_GROUP = 64 << 20


# ---------------------------------------------------------------- input


def hexadecimal(chance: numpy.random.Generator, count: int, size: int, prefix: str = "") -> list[str]:
    data = chance.bytes(count * size)
    return [prefix + data[n * size : (n + 1) * size].hex() for n in range(count)]


def rows_of(chance: numpy.random.Generator) -> int:
    return int(chance.integers(ROWS * 9 // 10, ROWS * 11 // 10))


def events(seed: int) -> pyarrow.Table:
    chance = numpy.random.default_rng(seed)
    rows = rows_of(chance)
    start = 1_790_000_000_000_000 + seed * 10**9
    kinds, countries = numpy.array(["view", "click", "buy", "leave"]), numpy.array([f"c{n:02d}" for n in range(60)])
    return pyarrow.table(
        {
            "event_id": hexadecimal(chance, rows, 16),
            "event_time": pyarrow.array(
                start + numpy.sort(chance.integers(0, 10**9, rows)), pyarrow.timestamp("us", "UTC")
            ),
            "user_id": chance.integers(0, 10**7, rows),
            "session": [f"s-{value:x}" for value in chance.integers(0, 1 << 40, rows)],
            "event_type": pyarrow.array(kinds[chance.integers(0, 4, rows)]),
            "country": pyarrow.array(countries[chance.integers(0, 60, rows)]),
            "amount": chance.random(rows),
            "payload": hexadecimal(chance, rows, 24),
        }
    )


def logs(seed: int) -> pyarrow.Table:
    """Like the logs of a chain: a few per transaction, few contracts in most of them, many holders."""
    chance, known = numpy.random.default_rng(seed), numpy.random.default_rng(7)
    rows = rows_of(chance)
    contracts = numpy.array(hexadecimal(known, 20_000, 20, "0x"))
    topics = numpy.array(hexadecimal(known, 400, 32, "0x"))
    holders = numpy.array(hexadecimal(known, 100_000, 32, "0x"))
    blocks = numpy.sort(chance.integers(0, 25, rows))
    transactions = numpy.sort(chance.integers(0, rows // 3, rows))

    def often(count: int, steep: float) -> Any:
        return numpy.minimum(chance.zipf(steep, rows), count) - 1

    return pyarrow.table(
        {
            "block_number": seed * 25 + blocks,
            "block_hash": pyarrow.array(numpy.array(hexadecimal(chance, 25, 32, "0x"))[blocks]),
            "transaction_hash": pyarrow.array(numpy.array(hexadecimal(chance, rows // 3, 32, "0x"))[transactions]),
            "transaction_index": pyarrow.array((transactions % 180).astype("int32")),
            "log_index": pyarrow.array((numpy.arange(rows) % 400).astype("int32")),
            "address": pyarrow.array(contracts[often(20_000, 1.3)]),
            "topic0": pyarrow.array(topics[often(400, 1.5)]),
            "topic1": pyarrow.array(holders[often(100_000, 1.2)]),
            "topic2": pyarrow.array(holders[often(100_000, 1.15)], mask=chance.random(rows) < 0.3),
            "data": hexadecimal(chance, rows, 32, "0x"),
        }
    )


def make(kind: str, first: int, count: int, places: dict[str, str]) -> None:
    for number in range(first, first + count):
        rows = {"events": events, "logs": logs}[kind](number)
        for writer, place in places.items():
            path = f"{place}/part-{number:05d}.parquet"
            if writer == "DuckDB":
                with duckdb.connect() as connection:
                    connection.register("given", rows)
                    connection.execute(f"COPY given TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
            else:
                pyarrow.parquet.write_table(rows, path, compression="zstd", use_dictionary=writer == "pyarrow")


def made_by_spark(session: Any, source: Path, target: Path) -> None:
    """The same rows in as many files."""
    frame = session.read.parquet(f"file://{source}").repartition(FILES)
    frame.write.option("compression", "zstd").parquet(f"file://{target}")


# ---------------------------------------------------------------- ours


def bins(source: Path) -> list[list[str]]:
    """Files that become one: of about 128 MB, as many for one process as for the other."""
    paths = sorted(str(path) for path in source.glob("*.parquet"))
    sizes = [Path(path).stat().st_size for path in paths]
    count = 2 * max(1, round(sum(sizes) / TARGET / 2))
    found: list[list[str]] = [[] for _ in range(count)]
    done = 0
    for path, size in zip(paths, sizes, strict=True):
        found[min(count - 1, done * count // sum(sizes))].append(path)
        done += size
    return found


def stitch(files: list[pyarrow.Buffer], target: Path, verify: bool) -> None:
    plan = plan_stitch(files, footers_of(files), ROW_GROUP)
    with target.open("wb") as sink:
        made = write_stitched(plan, {}, sink)
    if verify:
        verify_stitched(plan, made.choices, pyarrow.memory_map(str(target)).read_buffer())


def stitch_here(paths: list[str], target: str, verify: bool) -> int:
    """Returns the most memory that this process has ever had, in MB."""
    stitch([pyarrow.py_buffer(Path(path).read_bytes()) for path in paths], Path(target), verify)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def stitch_stored(store: ObjectStore, files: Sequence[FileVersion], target: str) -> int:
    """From the store into the store. Returns the most memory of its own that this process had meanwhile, in MB."""
    with tempfile.TemporaryDirectory() as place, watched() as most:
        stitch([each.data for each in fetch(store, files).inputs], Path(place) / "out", True)
        store.create_from(target, Path(place) / "out")
    return most[0]


@contextmanager
def watched() -> Iterator[list[int]]:
    """Memory that the machine cannot have back, as mapped files: the most that was seen."""
    most, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(0.01):
            own = Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]
            most[0] = max(most[0], int(own) // 1024)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield most
    finally:
        ended.set()
        watcher.join()


def like_a_worker() -> None:
    """As `lake/spark/python_daemon.py` prepares the workers of Spark."""
    gc.freeze()
    gc.set_threshold(GARBAGE_AT_LEAST)
    atexit.register(gc.unfreeze)


def stitch_all(pool: ProcessPoolExecutor, source: Path, target: Path, verify: bool) -> int:
    parts = enumerate(bins(source))
    work = [pool.submit(stitch_here, paths, f"{target}/{n}.parquet", verify) for n, paths in parts]
    return max(each.result() for each in work)


# ---------------------------------------------------------------- others


def by_cp(source: Path, target: Path) -> None:
    subprocess.run(["/bin/cp", "-r", str(source), str(target)], check=True)


def by_duckdb(source: Path, target: Path, how: str = "") -> None:
    with duckdb.connect() as connection:
        connection.execute("SET threads TO 2; SET preserve_insertion_order = true")
        for number, paths in enumerate(bins(source)):
            connection.execute(
                f"COPY (SELECT * FROM read_parquet({paths!r})) TO '{target}/{number}.parquet' "
                f"(FORMAT parquet, COMPRESSION zstd{how})"
            )


def by_polars(source: Path, target: Path) -> None:
    for number, paths in enumerate(bins(source)):
        rows = polars.scan_parquet(paths, hive_partitioning=False)
        rows.sink_parquet(target / f"{number}.parquet", compression="zstd", compression_level=1)


def by_pyarrow(source: Path, target: Path) -> None:
    for number, paths in enumerate(bins(source)):
        dataset = pyarrow.dataset.dataset(paths, format="parquet")
        repeated = [
            field.name for field in dataset.schema if field.name in ("event_type", "country", "topic0", "address")
        ]
        with pyarrow.parquet.ParquetWriter(
            target / f"{number}.parquet",
            dataset.schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=repeated,
        ) as out:
            for batch in dataset.to_batches(batch_size=1 << 17):
                out.write_batch(batch)


def by_spark(session: Any, source: Path, target: Path) -> None:
    frame = session.read.parquet(f"file://{source}").coalesce(len(bins(source)))
    frame.write.mode("overwrite").option("compression", "zstd").parquet(f"file://{target}/out")


# ---------------------------------------------------------------- measuring


def once(work: Callable[[Path, Path], None], source: Path) -> tuple[float, float]:
    """Seconds, and MB that were written."""
    with tempfile.TemporaryDirectory(dir=source.parent) as target:
        os.sync()  # nobody waits for the disk because of what another has written
        start = time.perf_counter()
        work(source, Path(target))
        return time.perf_counter() - start, size_of(Path(target)) / 1e6


def size_of(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*.parquet"))


def compared(name: str, source: Path, pool: ProcessPoolExecutor, session: Any) -> None:
    ways: dict[str, Callable[[Path, Path], None]] = {
        "cp": by_cp,
        "ours, stitch": lambda source, target: print(f"{stitch_all(pool, source, target, False)} MB at most"),
        "ours, verified": lambda source, target: print(f"{stitch_all(pool, source, target, True)} MB at most"),
        "DuckDB": by_duckdb,
        "DuckDB, level 1": lambda source, target: by_duckdb(source, target, ", COMPRESSION_LEVEL 1"),
        "polars": by_polars,
        "pyarrow": by_pyarrow,
        "Spark": lambda source, target: by_spark(session, source, target),
    }
    found: dict[str, tuple[float, float]] = {}
    for turn in range(ROUNDS):  # in turns: the machine is not equally fast all the time
        for who, work in ways.items():
            if turn == 0 or who not in ("pyarrow", "Spark"):
                found[who] = min(once(work, source), found.get(who, (math.inf, 0.0)))
    copy, ours = found["cp"][0], found["ours, stitch"][0]
    rows = [
        [who, f"{taken:.2f}", f"{taken / copy:.1f}", f"{taken / ours:.2f}", f"{size:.0f}"]
        for who, (taken, size) in found.items()
    ]
    title = f"{name}: {len(list(source.glob('*.parquet'))):,} files, {size_of(source) / 1e6:.0f} MB"
    show(title, ["who", "seconds", "seconds / cp", "seconds / stitch", "MB written"], rows)


def whole_runs(source: Path, pool: ProcessPoolExecutor, session: Any, lake: EmbeddedLake) -> None:
    """The run that a user starts, against the bare engine."""
    rows = []
    spread = ParallelMap(session, task_slots(session, lake.settings()))
    for name, settings in (("local disk", Settings(_env_file=None)), ("SeaweedFS", lake.settings())):
        place = str(source.parent / "copy") if name == "local disk" else "s3://lake/bench"
        taken: dict[str, list[float]] = {"bare": [], "compact": []}
        memory = 0
        for turn in range(3):  # the first starts the workers
            run = CompactRun(DirectoryConfig(f"{place}/{turn}"), settings, lambda: spread)
            fill(source, run.source)
            (survey,) = run.plan()
            start = time.perf_counter()
            parts = enumerate(survey.plan.bins)
            work = [pool.submit(stitch_stored, run.source, each.inputs, f"_bare/{n}") for n, each in parts]
            memory = max(memory, *(each.result() for each in work))
            taken["bare"].append(time.perf_counter() - start)
            start = time.perf_counter()
            report = run.run()
            taken["compact"].append(time.perf_counter() - start)
            assert {each.engine for each in report.made} == {"stitch"}, [each.reason for each in report.made]
        bare, compact = min(taken["bare"]), min(taken["compact"])
        largest = max(each.made_of.size for each in report.made) / 1e6
        seconds = (f"{bare:.2f}", f"{compact:.2f}", f"{compact - bare:+.2f}")
        rows.append([name, str(len(report.made)), f"{largest:.0f}", *seconds, str(memory)])
    head = ["store", "outputs", "MB of the largest one's inputs", "bare engine", "compact", "over it", "own memory, MB"]
    show("whole runs on Spark, verify: full", head, rows)


def fill(source: Path, store: ObjectStore) -> None:
    for path in source.glob("*.parquet"):
        store.write(path.name, path.read_bytes())


def main() -> None:
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "10000")  # as the workers of Spark have it
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        place.chmod(0o777)  # PostgreSQL runs as somebody else
        with (
            EmbeddedLake(place / "lake") as lake,
            spark_session(lake.settings()) as session,
            ProcessPoolExecutor(2, multiprocessing.get_context("spawn"), like_a_worker) as pool,
        ):
            measure(place, pool, session, lake)


def measure(place: Path, pool: ProcessPoolExecutor, session: Any, lake: EmbeddedLake) -> None:
    for kind in os.environ.get("BENCH_KINDS", "events,logs").split(","):
        places = {writer: place / f"{kind}-{writer.replace(' ', '-')}" for writer in ("pyarrow", "plain", "DuckDB")}
        for each in places.values():
            each.mkdir()
        texts = {writer: str(path) for writer, path in places.items()}
        step = max(1, FILES // 20)
        for work in [pool.submit(make, kind, n, min(step, FILES - n), texts) for n in range(0, FILES, step)]:
            work.result()
        places["Spark"] = place / f"{kind}-spark"
        made_by_spark(session, places["pyarrow"], places["Spark"])
        stitch_all(pool, places["pyarrow"], Path(tempfile.mkdtemp(dir=place)), True)  # the workers are warm
        for writer, source in places.items():
            compared(f"{kind} by {writer}", source, pool, session)
        if kind == "events":
            whole_runs(places["pyarrow"], pool, session, lake)
        for source in places.values():
            shutil.rmtree(source)


if __name__ == "__main__":
    main()
