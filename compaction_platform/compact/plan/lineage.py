"""Compacted files tell what they are made of: the only state there is."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow
import pyarrow.parquet
import xxhash
from typing_extensions import Buffer

from compaction_platform.compact.plan.bin_packing import OWN_NAME
from compaction_platform.compact.plan.listing import Ancestor, FileVersion, Version
from compaction_platform.errors import CompactionError
from compaction_platform.lake.parquet.fetch_footer import fetch_footer
from compaction_platform.lake.storage.object_store import (
    ObjectChanged,
    ObjectMissing,
    ObjectStore,
    StoredObject,
    StoreRefused,
)
from compaction_platform.lake.storage.threads import map_concurrently
from compaction_platform.persisted_names import FOOTER_INPUTS

FETCHES_AT_ONCE = 16


class OutputUnreadable(CompactionError):
    """A file that bears the name of a compacted one does not say what it is made of."""


@dataclass(frozen=True)
class RecordedInputs:
    """What compacted files say about themselves."""

    ancestors: Mapping[str, tuple[Ancestor, ...]]  # by key: what went into each
    untold: Mapping[str, str]  # by key: why it does not say

    @cached_property
    def inputs(self) -> dict[str, tuple[Version, ...]]:
        """The versions that went into each, by key."""
        return {key: tuple(one.version for one in some) for key, some in self.ancestors.items()}


def ancestors_of(store: ObjectStore, file: FileVersion) -> tuple[Ancestor, ...] | None:
    """What went into a compacted file; None if it is gone meanwhile."""
    footer = footer_of(store, file)
    return None if footer is None else ancestors_told(footer)


def footer_of(store: ObjectStore, file: FileVersion) -> pyarrow.parquet.FileMetaData | None:
    """The footer of a compacted file; None if it is gone meanwhile."""
    try:
        footer = fetch_footer(store, file.key, file.size, file.etag)
        return pyarrow.parquet.read_metadata(pyarrow.BufferReader(footer))
    except (ObjectMissing, ObjectChanged):
        return None
    except (TypeError, ValueError, OSError, pyarrow.ArrowException) as error:
        raise _unreadable(error) from error


def inputs_told(footer: pyarrow.parquet.FileMetaData) -> tuple[Version, ...]:
    return tuple(one.version for one in ancestors_told(footer))


def ancestors_told(footer: pyarrow.parquet.FileMetaData) -> tuple[Ancestor, ...]:
    try:
        return ancestors((footer.metadata or {})[FOOTER_INPUTS])
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> OutputUnreadable:
    return OutputUnreadable(
        f"it is named like a compacted file but does not say what it is made of ({type(error).__name__}). "
        "Nothing is changed in its directory. If it is yours, rename it."
    )


def ancestors(described_inputs: bytes) -> tuple[Ancestor, ...]:
    """All files whose rows are in a compacted one: its inputs, and what those were made of."""
    found: list[Ancestor] = []
    for each in json.loads(described_inputs):
        found.append(Ancestor(each["name"], each["version"], each["size"], each["content"]))
        found += [Ancestor(*one) for one in each.get("inputs", ())]
    return tuple(found)


def content_digest(data: Buffer) -> str:
    """A digest of the bytes of a file, by which a copy of it is recognised."""
    return xxhash.xxh3_64_hexdigest(memoryview(data).cast("B"))


def read_recorded_inputs(store: ObjectStore, files: Iterable[FileVersion]) -> RecordedInputs:
    """What the compacted files among these say."""

    def ask(file: FileVersion) -> tuple[Ancestor, ...] | str | None:
        try:
            return ancestors_of(store, file)
        except OutputUnreadable as untold:
            return str(untold)

    own = [file for file in files if OWN_NAME.fullmatch(file.name)]
    found = {file.key: answer for file, answer in zip(own, map_concurrently(ask, own, FETCHES_AT_ONCE), strict=True)}
    return RecordedInputs(
        {key: answer for key, answer in found.items() if isinstance(answer, tuple)},
        {key: answer for key, answer in found.items() if isinstance(answer, str)},
    )


def listed(store: ObjectStore, prefix: str = "") -> Iterator[FileVersion]:
    return (_listed(stored) for stored in store.list(prefix))


def in_directory(store: ObjectStore, directory: str) -> list[FileVersion]:
    """The files right inside a directory, in the order of their names."""
    return sorted(_listed(stored) for stored in store.list_directory(directory))


def _listed(stored: StoredObject) -> FileVersion:
    if not stored.etag:
        raise StoreRefused(
            f"the store tells no etag of {stored.key}: a file that is replaced could not be told from the one that was "
            "read. Nothing was done."
        )
    return FileVersion(stored.key, stored.size, stored.etag, stored.last_modified)


def described(inputs: Iterable[Mapping[str, object]]) -> bytes:
    return json.dumps(list(inputs)).encode()
