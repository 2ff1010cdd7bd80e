"""What happens to files whose rows are in a compacted file: exactly those versions, and never before it is there."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from compaction_platform.compact.plan import Listed
from compaction_platform.lake.objects import ObjectExists, Objects

Originals = Literal["delete", "trash", "keep"]
TRASH = "_compaction/trash"
ASKED_AT_ONCE = 16
CHUNK = 64  # files are asked for once more, then removed, this many at a time


def remove_originals(store: Objects, files: Sequence[Listed], originals: Originals) -> dict[str, str]:
    """Remove these versions. Returns the reason for each that is still there; the next run tries again."""
    if originals == "keep":
        return {}
    failures: dict[str, str] = {}
    for start in range(0, len(files), CHUNK):
        failures |= _remove_some(store, files[start : start + CHUNK], originals)
    return failures


def _remove_some(store: Objects, files: Sequence[Listed], originals: Originals) -> dict[str, str]:
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        there = dict(zip(files, pool.map(lambda file: store.stat(file.key), files), strict=True))
        unchanged = [file for file, found in there.items() if found is not None and found.etag == file.etag]
        changed = {
            file.key: "it was replaced meanwhile; its new version is planned by the next run"
            for file, found in there.items()
            if found is not None and found.etag != file.etag
        }
        if originals == "trash":
            list(pool.map(lambda file: _copy_to_trash(store, file), unchanged))
    return changed | store.delete(file.key for file in unchanged)


def _copy_to_trash(store: Objects, file: Listed) -> None:
    try:
        store.copy(file.key, f"{TRASH}/{file.key}")
    except ObjectExists:
        store.copy(file.key, f"{TRASH}/{file.key}", overwrite=True)
