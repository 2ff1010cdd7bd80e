"""Small files on S3 (SeaweedFS): reading them one after the other and many at once, and compacting them.

1,000 files of about 250 KB in 5 directories. Starts an embedded lake of its own in a temporary directory.

    compaction bench compact_s3
"""

import io
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet
from _far_store import far
from _report import show
from compact import events

from compaction_platform.compact import inputs
from compaction_platform.compact.outputs import listed
from compaction_platform.compact.run import CompactRun, Directory
from compaction_platform.compact.uploads import Upload
from compaction_platform.lake import fetching
from compaction_platform.lake.objects import Objects
from compaction_platform.lake.settings import Settings
from compaction_platform.lake.spark import spark_session, task_slots
from compaction_platform.lake.spread import Spread
from compaction_platform.local.embedded import EmbeddedLake

DIRECTORIES = 5
FILES = 200
OUTPUT = 128 << 20
SLOW = 50e6  # bytes a second, of a connection to a store that is elsewhere


def make(store: Objects, directories: int = DIRECTORIES, files: int = FILES) -> None:
    def put(number: int) -> None:
        sink = io.BytesIO()
        pyarrow.parquet.write_table(events(number), sink, compression="zstd")
        store.write(f"hour={number // files:02d}/part-{number % files:05d}.parquet", sink.getvalue())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(directories * files)))


def seconds_to_fetch(store: Objects, at_once: int) -> float:
    fetching.READS_AT_ONCE = at_once
    files = list(listed(store))
    start = time.perf_counter()
    inputs.fetch(store, files)
    return time.perf_counter() - start


def ways_to_commit(store: Objects, file: Path) -> dict[str, float]:
    """A file that is put when it is proved, as `compact` does; or that came in parts while it was made, hidden, and
    is copied to its place then. (What is left to wait for; both refuse to replace anything.) The best of three."""
    file.write_bytes(random.Random(5).randbytes(OUTPUT))
    store.create_from("_hidden", file)
    taken: dict[str, list[float]] = {}
    for turn in range(3):
        for what, commit in (
            ("commit 128 MB, put", lambda key: store.create_from(key, file)),
            ("commit 128 MB, copied inside the store", lambda key: store.copy("_hidden", key)),
        ):
            start = time.perf_counter()
            commit(f"_committed {turn} {what}")
            taken.setdefault(what, []).append(time.perf_counter() - start)
    return {what: min(seconds) for what, seconds in taken.items()}


def uploads(settings: Settings, address: str, spread: Spread) -> list[list[str]]:
    """Two outputs of about 120 MB: put whole, or uploaded while they are made; in turns, the best of three."""
    parts = urlsplit(settings.s3_endpoint)
    assert parts.hostname and parts.port
    rows: list[list[str]] = []
    with far(parts.hostname, parts.port, SLOW) as port:
        slow = settings.model_copy(update={"s3_endpoint": f"http://127.0.0.1:{port}"})
        for where, way in (("here", settings), (f"{SLOW / 1e6:.0f} MB/s a connection", slow)):
            taken: dict[Upload, list[float]] = {"whole": [], "while_made": []}
            for turn in range(3):
                for upload, times in taken.items():
                    place = f"{address}/{turn}-{upload}-{where[:2]}"
                    make(Objects.at(place, settings), 2, 600)
                    start = time.perf_counter()
                    CompactRun(Directory(place, upload=upload), way, lambda: spread).run()
                    times.append(time.perf_counter() - start)
            rows += [[f"2 outputs, {where}, {upload}", f"{min(times):.1f}"] for upload, times in taken.items()]
    return rows


def by_pyarrow(settings: Settings, source: str, target: str) -> None:
    """Its own S3 file system, threads as it likes."""
    key, secret = settings.s3_access_key_id, settings.s3_secret_access_key
    assert key and secret and settings.s3_endpoint
    store = pyarrow.fs.S3FileSystem(
        access_key=key.get_secret_value(),
        secret_key=secret.get_secret_value(),
        endpoint_override=settings.s3_endpoint,
        region=settings.s3_region,
        allow_bucket_creation=False,
    )
    for number in range(DIRECTORIES):
        dataset = pyarrow.dataset.dataset(f"{source}/hour={number:02d}", format="parquet", filesystem=store)
        with (
            store.open_output_stream(f"{target}/hour={number:02d}.parquet") as sink,
            pyarrow.parquet.ParquetWriter(sink, dataset.schema, compression="zstd", compression_level=1) as writer,
        ):
            for batch in dataset.to_batches(batch_size=1 << 17):
                writer.write_batch(batch)


def main() -> None:
    with tempfile.TemporaryDirectory() as place, EmbeddedLake(Path(place)) as lake:
        settings = lake.settings()
        address = f"{settings.lake_uri}/bench/small"
        store = Objects.at(address, settings)
        make(store)
        rows = [["read, 1 at a time", f"{seconds_to_fetch(store, 1):.1f}"]]
        rows += [[f"read, {count} at a time", f"{seconds_to_fetch(store, count):.1f}"] for count in (4, 16, 64)]
        fetching.READS_AT_ONCE = 16
        rows += [[what, f"{taken:.2f}"] for what, taken in ways_to_commit(store, Path(place) / "output").items()]
        start = time.perf_counter()
        by_pyarrow(settings, address.removeprefix("s3://"), f"{address.removeprefix('s3://')}-pyarrow")
        rows.append(["compact, pyarrow by hand", f"{time.perf_counter() - start:.1f}"])
        with spark_session(settings) as session:
            spread = Spread(session, task_slots(session, settings))
            make(Objects.at(f"{address}-warm", settings))
            CompactRun(Directory(f"{address}-warm"), settings, lambda: spread).run()  # starts the workers
            start = time.perf_counter()
            report = CompactRun(Directory(address), settings, lambda: spread).run()
            rows.append(["compact, ours with proof and removal", f"{time.perf_counter() - start:.1f}"])
            rows += uploads(settings, f"{settings.lake_uri}/bench/large", spread)
        size = f"{report.before.bytes / 1e6:.0f} → {report.after.bytes / 1e6:.0f} MB"
        show(f"{DIRECTORIES * FILES:,} files on S3, {size}", ["what", "seconds"], rows)


if __name__ == "__main__":
    main()
