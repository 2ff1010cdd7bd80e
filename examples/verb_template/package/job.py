"""One run: list, plan, read on Spark, verify, commit. Dagster and the command call it."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow
import pyarrow.parquet
from compaction_platform.new_verb.config import NewVerbConfig
from compaction_platform.new_verb.plan.inventory_plan import FileToRead, NewVerbPlan, plan_inventory

from compaction_platform.errors import VerificationFailed
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.settings import Settings

INVENTORY = "_new_verb/inventory.json"


@dataclass(frozen=True)
class NewVerbReport:
    """What a run did."""

    plan: NewVerbPlan
    rows: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadFile:
    """What a task needs to read one file. It travels to where the work is done."""

    store: ObjectStore

    def __call__(self, file: FileToRead) -> int:
        with pyarrow.parquet.ParquetFile(pyarrow.BufferReader(self.store.read(file.key, file.etag))) as parquet:
            decoded: int = sum(batch.num_rows for batch in parquet.iter_batches())
            if decoded != parquet.metadata.num_rows:
                raise VerificationFailed(f"{file.key}: {decoded} rows, and its footer says {parquet.metadata.num_rows}")
        return decoded


@dataclass(frozen=True)
class NewVerbJob:
    """The inventory of one directory."""

    config: NewVerbConfig
    settings: Settings
    spread: Callable[[], ParallelMap]

    @property
    def store(self) -> ObjectStore:
        uri = self.config.uri
        is_whole = "://" in uri or uri.startswith("/")
        return ObjectStore.at(uri if is_whole else self.settings.place(uri), self.settings)

    def plan(self) -> NewVerbPlan:
        files = [FileToRead(each.key, each.size, each.etag) for each in self.store.list()]
        inventory = self._inventory()
        return plan_inventory(
            [file for file in files if file.key != INVENTORY], {key: each["etag"] for key, each in inventory.items()}
        )

    def run(self) -> NewVerbReport:
        plan = self.plan()
        if not plan.to_read:
            return NewVerbReport(plan)
        rows: dict[str, int] = {}
        failed: dict[str, str] = {}
        for result in self.spread().run(ReadFile(self.store), plan.to_read, weight=lambda file: file.size):
            if result.value is None:
                failed[result.item.key] = result.error or ""
            else:
                rows[result.item.key] = result.value
        read = {file.key: {"etag": file.etag, "rows": rows[file.key]} for file in plan.to_read if file.key in rows}
        self.store.write(INVENTORY, json.dumps({**self._inventory(), **read}).encode())
        return NewVerbReport(plan, rows, failed)

    def _inventory(self) -> dict[str, Any]:
        if self.store.stat(INVENTORY) is None:
            return {}
        found: dict[str, Any] = json.loads(bytes(self.store.read(INVENTORY)))
        return found
