"""A directory of small files for a test, and what DuckDB and plain Python say is in it."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from compaction_platform.compact.job import CompactRun, DirectoryConfig
from compaction_platform.compact.plan.bin_packing import OWN_NAME, PackingPolicy
from compaction_platform.compact.report import CompactionReport
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.lake.storage.sizes import MB
from compaction_platform.settings import Settings


def rows(first: int, count: int = 50, **more: Any) -> pyarrow.Table:
    numbers = range(first, first + count)
    return pyarrow.table(
        {
            "id": pyarrow.array(numbers, pyarrow.int64()),
            "word": [f"word {number % 7}" if number % 11 else None for number in numbers],
            **more,
        }
    )


class Yard:
    """A directory tree, local or on S3."""

    def __init__(self, uri: str, settings: Settings, spread: Callable[[], ParallelMap] | None = None) -> None:
        self.uri, self.settings = uri, settings
        self.store = ObjectStore.at(uri, settings)
        self.said: list[str] = []
        self.spread = spread or (lambda: ParallelMap(None, 2))

    def put(self, key: str, content: pyarrow.Table | bytes, **options: Any) -> None:
        if isinstance(content, pyarrow.Table):
            sink = pyarrow.BufferOutputStream()
            pyarrow.parquet.write_table(content, sink, **{"write_page_checksum": True, **options})
            content = sink.getvalue().to_pybytes()
        self.store.write(key, content)

    def run(self, **changes: Any) -> CompactRun:
        directory = replace(DirectoryConfig(self.uri), **changes)
        return CompactRun(directory, self.settings, self.spread, self.said.append)

    def compact(self, **changes: Any) -> CompactionReport:
        return self.run(**changes).run()

    def files(self) -> list[str]:
        """Data files, in the order of their names."""
        return sorted(
            stored.key
            for stored in self.store.list()
            if not any(part.startswith(("_", ".")) for part in stored.key.split("/"))
        )

    def grow_older(self, by: timedelta = timedelta(days=1)) -> None:
        """As if compacted files had been made earlier: whoever made them would be done, or dead."""
        for key in self.outputs():
            path = Path(self.uri) / key
            then = path.stat().st_mtime - by.total_seconds()
            os.utime(path, (then, then))

    def outputs(self) -> list[str]:
        return [key for key in self.files() if OWN_NAME.fullmatch(key.rpartition("/")[2])]

    def content(self, *, unreadable: Sequence[str] = ()) -> dict[str, list[dict[str, Any]]]:
        """By directory: all rows, in the order of file names. Read by pyarrow, file by file."""
        found: dict[str, list[dict[str, Any]]] = {}
        for key in self.files():
            if key not in unreadable and key.endswith(".parquet"):
                data = pyarrow.BufferReader(pyarrow.py_buffer(bytes(self.store.read(key))))
                table = pyarrow.parquet.ParquetFile(data).read()
                found.setdefault(key.rpartition("/")[0], []).extend(table.to_pylist())
        return found

    def metadata(self, key: str) -> pyarrow.parquet.FileMetaData:
        return pyarrow.parquet.read_metadata(pyarrow.BufferReader(bytes(self.store.read(key))))

    def notes(self) -> dict[str, str]:
        found = [json.loads(bytes(self.store.read(stored.key))) for stored in self.store.list("_compaction/set_aside")]
        return {note["key"]: note["reason"] for note in found}


def local_yard(path: Path, settings: Settings) -> Yard:
    path.mkdir(parents=True, exist_ok=True)
    return Yard(str(path), settings)


TINY = PackingPolicy(1 * MB, 2 * MB, MB * 3 // 4)
