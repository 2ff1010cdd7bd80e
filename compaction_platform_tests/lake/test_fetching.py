"""Bytes of many objects: in their order, and not all of them in memory."""

import os
import random
import re
from pathlib import Path

import pytest

from compaction_platform.lake.storage.prefetch import MOST_IN_MEMORY, fetch_all

pytestmark = pytest.mark.unit

SIZE = 256 << 10
MANY = 2 * MOST_IN_MEMORY // SIZE


def content(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE + number % 7)


def own_memory() -> int:
    """Bytes that this process cannot give back."""
    (found,) = re.findall(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found) << 10


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("count", [0, 1, 20, MANY])
def test_everything_comes_in_its_order(count: int) -> None:
    found = fetch_all(content, range(count), lambda _: SIZE)
    assert [data and data.to_pybytes() for data in found] == [content(number) for number in range(count)]


@pytest.mark.parametrize("count", [20, MANY])
def test_what_is_not_there_is_missing_in_its_place(count: int) -> None:
    found = fetch_all(lambda number: None if number % 3 else content(number), range(count), lambda _: SIZE)
    for number, data in enumerate(found):
        assert data is None if number % 3 else data is not None and data.to_pybytes() == content(number)


def test_nothing_at_all_may_be_there() -> None:
    assert fetch_all(lambda _: None, range(MANY), lambda _: SIZE) == [None] * MANY


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is told by Linux")
def test_many_take_little_memory_one_open_file_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before, files = own_memory(), open_files()
    found = fetch_all(lambda _: os.urandom(SIZE), range(MANY), lambda _: SIZE)
    assert sum(data.size for data in found if data) == MANY * SIZE
    assert own_memory() - before < MOST_IN_MEMORY
    assert open_files() <= files + 1
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_read_is_told() -> None:
    def read(number: int) -> bytes:
        if number == MANY - 1:
            raise FileNotFoundError(str(number))
        return content(number)

    with pytest.raises(FileNotFoundError, match=str(MANY - 1)):
        fetch_all(read, range(MANY), lambda _: SIZE)
