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

import pyarrow
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet
from _report import show
from compact import events

from compaction_platform.compact.job import CompactRun, DirectoryConfig
from compaction_platform.compact.plan.lineage import listed
from compaction_platform.compact.rewrite import read_inputs
from compaction_platform.embedded_lake.embedded import EmbeddedLake
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.spark.session import spark_session, task_slots
from compaction_platform.lake.storage import prefetch
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.settings import Settings

DIRECTORIES = 5
FILES = 200
OUTPUT = 128 << 20


def make(store: ObjectStore) -> None:
    def put(number: int) -> None:
        sink = io.BytesIO()
        pyarrow.parquet.write_table(events(number), sink, compression="zstd")
        store.write(f"hour={number // FILES:02d}/part-{number % FILES:05d}.parquet", sink.getvalue())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(DIRECTORIES * FILES)))


def seconds_to_fetch(store: ObjectStore, at_once: int) -> float:
    prefetch.READS_AT_ONCE = at_once
    files = list(listed(store))
    start = time.perf_counter()
    read_inputs.fetch(store, files)
    return time.perf_counter() - start


def seconds_to_commit(store: ObjectStore, file: Path) -> float:
    """A put of the whole file that refuses to replace anything; the best of three."""
    file.write_bytes(random.Random(5).randbytes(OUTPUT))
    taken = []
    for turn in range(3):
        start = time.perf_counter()
        store.create_from(f"_committed {turn}", file)
        taken.append(time.perf_counter() - start)
    return min(taken)


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
        store = ObjectStore.at(address, settings)
        make(store)
        rows = [["read, 1 at a time", f"{seconds_to_fetch(store, 1):.1f}"]]
        rows += [[f"read, {count} at a time", f"{seconds_to_fetch(store, count):.1f}"] for count in (4, 16, 64)]
        prefetch.READS_AT_ONCE = 16
        rows.append(["commit 128 MB, put", f"{seconds_to_commit(store, Path(place) / 'output'):.2f}"])
        start = time.perf_counter()
        by_pyarrow(settings, address.removeprefix("s3://"), f"{address.removeprefix('s3://')}-pyarrow")
        rows.append(["compact, pyarrow by hand", f"{time.perf_counter() - start:.1f}"])
        with spark_session(settings) as session:
            spread = ParallelMap(session, task_slots(session, settings))
            make(ObjectStore.at(f"{address}-warm", settings))
            CompactRun(DirectoryConfig(f"{address}-warm"), settings, lambda: spread).run()  # starts the workers
            start = time.perf_counter()
            report = CompactRun(DirectoryConfig(address), settings, lambda: spread).run()
            rows.append(["compact, ours with proof and removal", f"{time.perf_counter() - start:.1f}"])
        size = f"{report.before.bytes / 1e6:.0f} → {report.after.bytes / 1e6:.0f} MB"
        show(f"{DIRECTORIES * FILES:,} files on S3, {size}", ["what", "seconds"], rows)


if __name__ == "__main__":
    main()
