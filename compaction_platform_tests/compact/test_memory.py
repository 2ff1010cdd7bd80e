"""What a task holds in memory of its own does not grow with how many files become one."""

import multiprocessing
import random
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.compact.rewrite.compatible_inputs import JoinOptions, compatible_inputs
from compaction_platform.compact.rewrite.read_inputs import fetch
from compaction_platform.lake.parquet.writer import WriterOptions
from compaction_platform.lake.storage import prefetch
from compaction_platform.lake.storage.object_store import ObjectStore

pytestmark = pytest.mark.unit

MB = 1 << 20
ROW_GROUP = 4 * MB


def written(place: Path, files: int) -> list[FileVersion]:
    """Files of a megabyte that cannot be compressed."""
    chance = random.Random(4)
    for number in range(files):
        rows = {"id": range(number * 1000, number * 1000 + 1000), "raw": [chance.randbytes(1048) for _ in range(1000)]}
        pyarrow.parquet.write_table(pyarrow.table(rows), place / f"{number:03d}.parquet", use_dictionary=["id"])
    store = ObjectStore(f"file://{place}")
    return sorted(FileVersion(each.key, each.size, each.etag) for each in store.list())


class Held(ObjectStore):
    """What is read is held as Python's own memory, where it is counted."""

    def read(self, key: str, etag: str | None = None) -> Any:
        return bytes(super().read(key, etag))


def most_memory(place: Path, files: int, most_in_memory: int) -> int:
    """The most bytes that Python and Arrow held while files became one. In a process of its own: Arrow tells only the
    most since its process began."""
    place.mkdir()
    listed = written(place, files)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
        return alone.submit(most_memory_here, place, listed, most_in_memory).result()


def most_memory_here(place: Path, listed: list[FileVersion], most_in_memory: int) -> int:
    prefetch.MOST_IN_MEMORY = most_in_memory
    prefetch.MOST_ON_THE_WAY = ROW_GROUP
    tracemalloc.start()
    fetched = fetch(Held(f"file://{place}"), listed)
    with compatible_inputs(fetched.inputs, JoinOptions(WriterOptions(row_group_bytes=ROW_GROUP)), 2, "out") as found:
        assert found.written is not None and found.written.engine == "stitch"
        assert found.file is not None and found.file.size > len(listed) * MB
    return int(tracemalloc.get_traced_memory()[1] + pyarrow.default_memory_pool().max_memory())


def test_four_times_as_many_files_take_no_more_memory(tmp_path: Path) -> None:
    few, many = most_memory(tmp_path / "few", 16, ROW_GROUP), most_memory(tmp_path / "many", 64, ROW_GROUP)
    grown = many - few
    assert grown < 2 * ROW_GROUP, f"{few / MB:.1f} MB for 16 files, {many / MB:.1f} MB for 64"
    assert many < 8 * ROW_GROUP


def test_memory_is_told_where_inputs_are_held(tmp_path: Path) -> None:
    """The measure itself: without the limit, files that are held are seen."""
    assert most_memory(tmp_path / "held", 64, 1 << 40) > 64 * MB
