"""A table of its own for a test, a staging directory whose files arrive when the test says, and the model."""

import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from compaction_platform.lake.dagster.provisioning import IcebergTable, TableColumn
from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.merge.component import TABLE_PROPERTIES
from compaction_platform.merge.config import FILE_COLUMN, ROW_COLUMN, MergeRules, PartitionField, StagingPaths
from compaction_platform.merge.job import MergeOutcome, MergeRun
from compaction_platform.merge.plan.staged_hours import hour_of
from compaction_platform.settings import Settings
from compaction_platform_tests.merge.model import Model, Row

DAY = datetime(2026, 11, 1, tzinfo=UTC)
SCHEMA = pyarrow.schema(
    {
        "event_id": pyarrow.string(),
        "event_time": pyarrow.timestamp("us", "UTC"),
        "updated_at": pyarrow.timestamp("us", "UTC"),
        "amount": pyarrow.float64(),
        "country": pyarrow.string(),
    }
)
COLUMNS = (
    TableColumn("event_id", "string"),
    TableColumn("event_time", "timestamptz"),
    TableColumn("updated_at", "timestamptz"),
    TableColumn("amount", "double"),
    TableColumn("country", "string"),
)
ORIGIN = (TableColumn(FILE_COLUMN, "string"), TableColumn(ROW_COLUMN, "long"))


def event(name: str, version: int = 0, amount: float | None = 1.0, *, day: int = 0, country: str | None = None) -> Row:
    return {
        "event_id": name,
        "event_time": DAY + timedelta(days=day, seconds=sum(name.encode()) if name else 0),
        "updated_at": DAY + timedelta(minutes=version),
        "amount": amount,
        "country": country,
    }


def parquet(rows: Sequence[Row] | pyarrow.Table) -> bytes:
    table = rows if isinstance(rows, pyarrow.Table) else pyarrow.Table.from_pylist(list(rows), SCHEMA)
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink, write_page_checksum=True)
    return sink.getvalue().to_pybytes()


class Scene:
    def __init__(
        self, settings: Settings, spark: Any, staging: Path, columns: tuple[TableColumn, ...] = COLUMNS, **rules: Any
    ) -> None:
        self.settings, self.spark, self.staging = settings, spark, staging
        self.said: list[str] = []
        self.versions = 0
        name = f"t_{secrets.token_hex(5)}"
        defaults: dict[str, Any] = {
            "namespace": "merging",
            "table": name,
            "source": str(staging),
            "glob": "**/*.parquet",
            "key": ("event_id",),
            "order_by": ("updated_at",),
            "keep_when_null": ("country",),
            "partition_by": (PartitionField("event_time", "day"),),
        }
        self.rules = MergeRules(**(defaults | rules))
        self.model = Model(
            self.rules.key, self.rules.order_by, self.rules.keep_when_null, tuple(c.name for c in columns)
        )
        self.files: dict[int, dict[str, list[Row]]] = {}
        partitions = tuple((field.column, field.transform) for field in self.rules.partition_by)
        IcebergTable("merging", name, (*columns, *ORIGIN), partitions, TABLE_PROPERTIES).ensure(settings)

    @property
    def places(self) -> StagingPaths:
        return StagingPaths.of(self.rules, self.settings)

    def hour(self, number: int = 0) -> str:
        return hour_of(DAY + timedelta(hours=number))

    def stage(self, name: str, rows: Sequence[Row] | pyarrow.Table | bytes, hour: int = 0) -> Path:
        """A file that arrived in that hour. Plain rows are told to the model when the hour is merged."""
        path = self.staging / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rows if isinstance(rows, bytes) else parquet(rows))
        self.versions += 1  # a store gives every version an etag of its own; a file's is made of time and size
        arrived = (DAY + timedelta(hours=hour, minutes=7, milliseconds=self.versions)).timestamp()
        os.utime(path, (arrived, arrived))
        if isinstance(rows, pyarrow.Table):
            self.files.setdefault(hour, {})[name] = rows.to_pylist()
        elif not isinstance(rows, bytes):
            self.files.setdefault(hour, {})[name] = list(rows)
        return path

    def run(self, **changes: Any) -> MergeRun:
        slots = self.settings.spark_slots or 2
        run = MergeRun(
            self.rules, self.settings, lambda: ParallelMap(self.spark, slots), run_id="test", say=self.said.append
        )
        return replace(run, **changes)

    def merge(self, *hours: int, **changes: Any) -> MergeOutcome:
        """Merge these hours, in the table and in the model."""
        outcome = self.run(**changes).take_in_and_merge([self.hour(number) for number in hours])
        if not changes.get("dry_run"):
            self.model.merge({name: rows for number in hours for name, rows in self.files.get(number, {}).items()})
        return outcome

    def table(self) -> Any:
        return open_catalog(self.settings).load_table(self.rules.identifier)

    def content(self) -> list[Row]:
        """The table's rows, read without Spark."""
        rows: list[Row] = self.table().scan().to_arrow().to_pylist()
        return sorted(rows, key=lambda row: tuple(str(row[column]) for column in self.rules.key))

    def snapshots(self) -> list[int]:
        return [snapshot.snapshot_id for snapshot in self.table().metadata.snapshots]

    def main(self) -> int | None:
        snapshot_id: int | None = self.table().metadata.current_snapshot_id
        return snapshot_id

    def branches(self) -> set[str]:
        return set(self.table().metadata.refs) - {"main"}

    def quarantine(self) -> dict[str, bytes]:
        store = ObjectStore.at(self.places.quarantine, self.settings)
        return {stored.key: bytes(store.read(stored.key)) for stored in store.list()}

    def sql(self, statement: str) -> list[Any]:
        name = f"lake.merging.{self.rules.table}"
        rows: list[Any] = self.spark.sql(statement.replace("{table}", name)).collect()
        return rows

    def check(self) -> None:
        assert self.content() == self.model.content()
