"""A Glue table with 50,000 partitions: find them, look at all of them, compact some. Glue is moto on loopback.

compaction bench glue
"""

import io
import logging
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import pyarrow
import pyarrow.parquet
from _report import show
from moto.server import ThreadedMotoServer

from compaction_platform.compact.glue.config import GlueTableConfig
from compaction_platform.compact.glue.job import GlueRun
from compaction_platform.compact.glue.plan.inventory import Selection
from compaction_platform.compact.glue.plan.partition_plan import PartitionRules
from compaction_platform.embedded_lake.embedded import EmbeddedLake
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.spark.session import spark_session, task_slots
from compaction_platform.lake.storage.object_store import ObjectStore

PARTITIONS = 50_000
FULL = 20  # partitions with files
FILES = 100  # in each
ROWS = 4_000
PARQUET = "org.apache.hadoop.hive.ql.io.parquet"


def storage(location: str) -> dict[str, Any]:
    return {
        "Columns": [{"Name": "id", "Type": "bigint"}, {"Name": "page", "Type": "string"}],
        "Location": location,
        "InputFormat": f"{PARQUET}.MapredParquetInputFormat",
        "OutputFormat": f"{PARQUET}.MapredParquetOutputFormat",
        "SerdeInfo": {"SerializationLibrary": f"{PARQUET}.serde.ParquetHiveSerDe"},
    }


def make_table(glue: Any) -> None:
    glue.create_database(DatabaseInput={"Name": "bench"})
    glue.create_table(
        DatabaseName="bench",
        TableInput={
            "Name": "clicks",
            "PartitionKeys": [{"Name": "hour", "Type": "string"}],
            "StorageDescriptor": storage("s3://lake/bench/clicks"),
        },
    )
    for start in range(0, PARTITIONS, 100):
        names = [f"{number:06d}" for number in range(start, start + 100)]
        inputs = [
            {"Values": [name], "StorageDescriptor": storage(f"s3://lake/bench/clicks/hour={name}/")} for name in names
        ]
        glue.batch_create_partition(DatabaseName="bench", TableName="clicks", PartitionInputList=inputs)


def fill(store: ObjectStore) -> int:
    def put(number: int) -> int:
        first = number * ROWS
        ids = range(first, first + ROWS)
        rows = pyarrow.table({"id": pyarrow.array(ids), "page": [f"/page/{each * 7919 % 9973}/{each}" for each in ids]})
        sink = io.BytesIO()
        pyarrow.parquet.write_table(rows, sink)
        store.write(f"hour={number // FILES:06d}/part-{number % FILES:04d}.parquet", sink.getvalue())
        return len(sink.getvalue())

    with ThreadPoolExecutor(8) as pool:
        return sum(pool.map(put, range(FULL * FILES)))


def measured(what: str, work: Callable[[], Any]) -> tuple[list[str], Any]:
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [what, f"{seconds:.1f}", f"{peak:.0f}"], result


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    try:
        with tempfile.TemporaryDirectory() as place, EmbeddedLake(Path(place)) as lake:
            settings = lake.settings().model_copy(update={"glue_endpoint": url})
            options = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}
            make_table(boto3.client("glue", endpoint_url=url, **options))
            size = fill(ObjectStore.at("s3://lake/bench/clicks", settings))
            kept = GlueTableConfig("bench", "clicks", rules=PartitionRules(grace=timedelta(hours=1)))
            with spark_session(settings) as session:
                session.range(1).collect()

                def run() -> GlueRun:
                    return GlueRun(kept, settings, lambda: ParallelMap(session, task_slots(session, settings)))

                rows = []
                for what, work in {
                    f"find {PARTITIONS:,} partitions": lambda: run().surveyor.partitions(Selection()),
                    f"look at all of them ({FULL * FILES:,} files in {FULL})": lambda: run().plan(),
                    f"compact {FULL} of them, {size / 1e6:.0f} MB": lambda: run().run(
                        Selection(predicate=f"hour < '{FULL:06d}'")
                    ),
                    "the same again": lambda: run().run(Selection(predicate=f"hour < '{FULL:06d}'")),
                }.items():
                    row, result = measured(what, work)
                    rows.append(row)
                    if what.startswith("compact"):
                        assert len(result.compacted) == FULL and result.is_clean
            show("a Glue table on moto and SeaweedFS", ["what", "seconds", "MB of this process so far"], rows)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
