"""A file that is made on the local disk and proved there, while most of it is on its way to the store already.

One thing to know: nobody sees any of it in the store before `complete`. What was sent and is then written anew, or an
upload that the store refuses on the way, is given up; the file on the disk is always whole.
"""

import io
import os
from pathlib import Path
from typing import Any

import pyarrow

from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage import object_store
from compaction_platform.lake.storage.object_store import MultipartWrite, ObjectStore, StoreRefused

HELD_BACK = 16 << 20  # the end of a file may be written again: a footer, when the rows are proved


class StagedUpload(io.RawIOBase):
    """Without a store and a key, nothing is sent."""

    def __init__(self, path: Path, store: ObjectStore | None = None, key: str = "") -> None:
        self.path, self.key = path, key
        self._store = store
        self._local = path.open("w+b")
        self._upload: MultipartWrite | None = None
        self._sent = 0
        self._is_complete = False

    @property
    def name(self) -> str:
        return str(self.path)

    def mapped(self) -> pyarrow.Buffer:
        """What was written, without holding it in memory."""
        self._local.flush()
        return pyarrow.memory_map(self.name).read_buffer()

    @property
    def size(self) -> int:
        self._local.flush()
        return self.path.stat().st_size

    # ------------------------------------------------------------ a file

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        written = self._local.write(data)
        while self._store is not None and self._local.tell() - self._sent >= object_store.PIECE + HELD_BACK:
            self._send()
        return written

    def seek(self, place: int, whence: int = os.SEEK_SET, /) -> int:
        found = self._local.seek(place, whence)
        if found < self._sent:  # what is there already will be written again
            self._give_up()
        return found

    def tell(self) -> int:
        return self._local.tell()

    def truncate(self, size: int | None = None, /) -> int:
        left = self._local.truncate(size)
        if left < self._sent:
            self._give_up()
        return left

    def flush(self) -> None:
        if not self._local.closed:
            self._local.flush()

    def close(self) -> None:
        if not self.closed:
            if not self._is_complete:
                self._give_up()
            self._local.close()
        super().close()

    # ------------------------------------------------------------ the store

    def complete(self) -> bool:
        """Store the rest: all of it is in the store under its key then. False if nothing is there, because it is small
        or because the store refused what was sent: it has to be put there whole."""
        self._local.flush()
        while self._upload is not None and self._sent < self.size:
            self._send()
        if self._upload is None or self._store is None:
            return False
        try:
            self._upload.complete()
        except CompactionError:  # perhaps of a part before: they are sent meanwhile
            self._give_up()
            self._store.delete([self.key])  # if only the answer was lost
            return False
        self._is_complete = True
        stored = self._store.stat(self.key)
        if stored is None or stored.size != self.size:
            self._store.delete([self.key])
            raise StoreRefused(f"{self._store.uri}/{self.key} is not as large as what was sent. It was deleted.")
        return True

    def _send(self) -> None:
        self._local.flush()
        data = os.pread(self._local.fileno(), object_store.PIECE, self._sent)
        assert self._store is not None  # noqa: S101 (for the type checker)
        try:
            if self._upload is None:
                self._upload = self._store.begin(self.key)
            self._upload.write(data)
        except CompactionError:
            self._give_up()
            self._store = None  # nothing is lost: it is put there whole when it is proved, or that is refused, too
            return
        self._sent += len(data)

    def _give_up(self) -> None:
        upload, self._upload, self._sent = self._upload, None, 0
        if upload is not None:
            upload.give_up()
