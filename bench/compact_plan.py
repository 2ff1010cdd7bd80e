"""Planning 100,000 files: from a listing alone, and from a real directory through `CompactRun.plan`.

compaction bench compact_plan
"""

import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _report import show

from compaction_platform.compact.job import CompactRun, DirectoryConfig
from compaction_platform.compact.plan.bin_packing import FileVersion, PackingPolicy, make_plan
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.settings import Settings

FILES = 100_000


def listing(directories: int) -> list[FileVersion]:
    per_directory = FILES // directories
    return [
        FileVersion(f"hour={directory:04d}/part-{number:06d}.parquet", 400_000, f"{directory}-{number}")
        for directory in range(directories)
        for number in range(per_directory)
    ]


def measured(what: str, work: Callable[[], Any]) -> list[str]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    plan = work()
    seconds = time.perf_counter() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return [what, f"{seconds:.1f}", f"{grown:.0f}", f"{plan.inputs:,}", f"{len(plan.bins):,}"]


def main() -> None:
    rows = []
    for directories in (1, 1000):
        files = listing(directories)
        rows.append(
            measured(f"{directories} directories, listed", lambda files=files: make_plan(files, PackingPolicy()))
        )
    with tempfile.TemporaryDirectory() as name:
        for directory in range(100):
            place = Path(name) / f"hour={directory:04d}"
            place.mkdir()
            for number in range(FILES // 100):
                (place / f"part-{number:06d}.parquet").write_bytes(b"x")
        run = CompactRun(DirectoryConfig(name), Settings(_env_file=None), ParallelMap)
        rows.append(measured("100 directories on a local disk", lambda: run.plan()[0].plan))
    show("100,000 files", ["what", "seconds", "MB more memory", "files planned", "outputs"], rows)


if __name__ == "__main__":
    main()
