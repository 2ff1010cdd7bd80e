"""The end of a Parquet file, fetched alone: all that is needed to know its columns and what is written about it."""

from compaction_platform.lake.storage.object_store import ObjectStore

GUESS_BYTES = 1 << 16


def fetch_footer(store: ObjectStore, key: str, size: int, etag: str | None = None) -> bytes:
    """The last bytes of the file, its footer included; Parquet readers take them for the file itself."""
    if size == 0:
        return b""
    start = max(0, size - GUESS_BYTES)
    tail = bytes(store.read_range(key, start, size, etag))
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if len(tail) < length <= size:
        tail = bytes(store.read_range(key, size - length, size, etag))
    return tail
