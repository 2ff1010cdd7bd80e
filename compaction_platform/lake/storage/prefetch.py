"""Many small objects at once, for as long as somebody holds them.

A task that joins files needs all of them until its output is proved. What is more than a row group takes is kept in one
file of the local disk, mapped: memory that the machine can have back, however many files become one.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TypeVar

import pyarrow
from typing_extensions import Buffer

from compaction_platform.lake.storage.threads import map_concurrently

READS_AT_ONCE = 16
MOST_ON_THE_WAY = 64 << 20  # bytes that were read and not yet put away
MOST_IN_MEMORY = 64 << 20

Item = TypeVar("Item")


def fetch_all(
    read: Callable[[Item], Buffer | None], items: Sequence[Item], size: Callable[[Item], int]
) -> list[pyarrow.Buffer | None]:
    """What `read` gives for each item, in their order; it is called by several threads. None stays None."""
    sizes = [size(item) for item in items]
    at_once = max(1, min(READS_AT_ONCE, MOST_ON_THE_WAY // max(1, max(sizes, default=0))))
    if sum(sizes) > MOST_IN_MEMORY:
        return _spooled(read, items, at_once)
    return [None if data is None else pyarrow.py_buffer(data) for data in map_concurrently(read, items, at_once)]


def _spooled(read: Callable[[Item], Buffer | None], items: Sequence[Item], at_once: int) -> list[pyarrow.Buffer | None]:
    end = 0
    lock = Lock()

    def put_away(item: Item) -> tuple[int, int] | None:
        nonlocal end
        data = read(item)
        if data is None:
            return None
        view = memoryview(data).cast("B")
        with lock:
            start, end = end, end + len(view)
        done = 0
        while done < len(view):
            done += os.pwrite(file.fileno(), view[done:], start + done)
        return start, len(view)

    with tempfile.NamedTemporaryFile(prefix="compaction-inputs-") as file:
        places = map_concurrently(put_away, items, at_once)
        whole = pyarrow.memory_map(file.name).read_buffer() if end else pyarrow.py_buffer(b"")
    return [None if place is None else whole.slice(*place) for place in places]  # mapped, it needs no name
