"""A million keys in a local directory: seconds and memory of a streamed listing, next to os.scandir alone."""

import os
import resource
import tempfile
import time
from pathlib import Path

from _report import show

from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.settings import load_settings

DIRECTORIES, FILES = 100, 10_000


def scandir(root: Path) -> int:
    found = 0
    for directory in os.scandir(root):
        for entry in os.scandir(directory.path):
            entry.stat()
            found += 1
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        for directory in range(DIRECTORIES):
            (root / f"d{directory}").mkdir()
            for number in range(FILES):
                os.close(os.open(root / f"d{directory}" / str(number), os.O_CREAT | os.O_WRONLY))
        objects = ObjectStore.at(str(root), load_settings())
        start = time.perf_counter()
        found = scandir(root)
        bare = time.perf_counter() - start
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        listed = sum(1 for _ in objects.list())
        ours = time.perf_counter() - start
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        if listed != found:
            raise SystemExit(f"{listed} listed, {found} there")
        show(
            f"Listing {listed:,} local files",
            ["", "seconds", "ratio", "memory grown by"],
            [
                ["os.scandir and stat", f"{bare:.1f}", "1.0", ""],
                ["Objects.list", f"{ours:.1f}", f"{ours / bare:.1f}", f"{grown / 1024:.0f} MB"],
            ],
        )


if __name__ == "__main__":
    main()
