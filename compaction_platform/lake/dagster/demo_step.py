"""The demo: steps that show the platform at work. Each verb contributes its own in `<verb>/demo.py`.

This module holds what a step is, and the steps that come before those of the verbs.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow

from compaction_platform.errors import CompactionError
from compaction_platform.lake.dagster.provisioning import IcebergTable, TableColumn
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.spark.session import qualified_name, task_slots
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.lake.verification.fingerprint import Fingerprint, combined, unordered_fingerprint
from compaction_platform.settings import Settings

FILES = 300
ROWS_PER_FILE = 1_000
TABLE = IcebergTable(
    "demo",
    "readings",
    (
        TableColumn("reading_id", "string"),
        TableColumn("sensor", "string"),
        TableColumn("value", "double"),
        TableColumn("taken_at", "timestamptz"),
    ),
)


class DemoFailed(CompactionError):
    """A step of the demo did not prove what it should."""


@dataclass(frozen=True)
class DemoContext:
    """What steps work with. `notes` carries facts from one step to a later one."""

    settings: Settings
    session: Any
    scratch: Path  # a directory of the demo's own
    progress: Callable[[float], None] = lambda share: None
    notes: dict[str, Any] = field(default_factory=dict)

    def spread(self) -> ParallelMap:
        return ParallelMap(self.session, task_slots(self.session, self.settings))

    def objects(self, path: str) -> ObjectStore:
        return ObjectStore.at(f"{self.settings.lake_uri}/{path}", self.settings)


@dataclass(frozen=True)
class DemoStep:
    """One line of the demo. `run` returns what it did in a few words."""

    title: str
    run: Callable[[DemoContext], str]


def readings(file_number: int) -> pyarrow.Table:
    """One small file's rows; the same number gives the same rows."""
    first = file_number * ROWS_PER_FILE
    numbers = range(first, first + ROWS_PER_FILE)
    start = 1_780_000_000_000_000  # microseconds
    return pyarrow.table(
        {
            "reading_id": [hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest() for number in numbers],
            "sensor": [f"sensor-{number % 37:02d}" for number in numbers],
            "value": pyarrow.array([(number * 7919 % 100_000) / 1000 for number in numbers], pyarrow.float64()),
            "taken_at": pyarrow.array([start + number * 250_000 for number in numbers], pyarrow.timestamp("us", "UTC")),
        }
    )


def write_small_files(context: DemoContext) -> str:
    import pyarrow.parquet

    store = context.objects("demo/readings")
    fingerprints = []
    for number in range(FILES):
        rows = readings(number)
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(rows, sink, compression="zstd", write_page_checksum=True)
        store.write(f"part-{number:05d}.parquet", sink.getvalue())
        fingerprints.append(unordered_fingerprint(rows))
        context.progress((number + 1) / FILES)
    context.notes["written"] = combined(fingerprints)
    size = sum(stored.size for stored in store.list())
    return f"{FILES} files, {size / 1e6:.1f} MB, {FILES * ROWS_PER_FILE:,} rows"


def verified_rows(work: tuple[ObjectStore, str, str]) -> Fingerprint:
    """Decode one file completely, page checksums on."""
    import pyarrow.parquet

    store, key, etag = work
    with pyarrow.parquet.ParquetFile(
        pyarrow.BufferReader(store.read(key, etag)), page_checksum_verification=True
    ) as file:
        return unordered_fingerprint(file.iter_batches(), file.schema_arrow)


def verify_on_spark(context: DemoContext) -> str:
    store = context.objects("demo/readings")
    listed = list(store.list())
    sizes = {stored.key: stored.size for stored in listed}
    outcomes = []
    for outcome in context.spread().run(
        verified_rows,
        [(store, stored.key, stored.etag) for stored in listed],
        weight=lambda work: sizes[work[1]],
        in_driver=False,  # the demo shows Spark, though so little would be done faster here
    ):
        outcomes.append(outcome)
        context.progress(len(outcomes) / len(listed))
    if failed := [outcome for outcome in outcomes if outcome.failed]:
        raise DemoFailed(f"{len(failed)} files could not be read, the first: {failed[0].error}")
    found = combined(outcome.value for outcome in outcomes if outcome.value is not None)
    _require_equal(context.notes["written"], found)
    return f"{found.rows:,} rows decoded with checksums, fingerprint {found.digest[:12]} as written"


def into_iceberg_and_back(context: DemoContext) -> str:
    from compaction_platform.lake.iceberg.catalog import open_catalog

    TABLE.ensure(context.settings)
    open_catalog(context.settings).load_table((TABLE.namespace, TABLE.name)).append(
        pyarrow.concat_tables(readings(number) for number in range(FILES))
    )
    context.progress(0.5)
    table = context.session.table(qualified_name(context.settings, TABLE.namespace, TABLE.name))
    rows = table.toArrow()
    _require_equal(context.notes["written"], unordered_fingerprint(rows))
    sensors = table.select("sensor").distinct().count()
    return f"{rows.num_rows:,} rows of {sensors} sensors read back by Spark, the same fingerprint"


def _require_equal(written: Fingerprint, found: Fingerprint) -> None:
    if written != found:
        raise DemoFailed(f"what was read is not what was written: {', '.join(written.differences(found))}")


STEPS = [
    DemoStep("Write many small Parquet files to S3", write_small_files),
    DemoStep("Read and verify them all in Spark tasks", verify_on_spark),
    DemoStep("Put the rows into an Iceberg table, read it back", into_iceberg_and_back),
]
