"""Compacted files tell what they are made of: the only state there is."""

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow
import pyarrow.parquet

from compaction_platform.compact.listed import Listed, Version
from compaction_platform.compact.plan import OWN_NAME
from compaction_platform.lake.errors import CompactionError
from compaction_platform.lake.footers import fetch_footer
from compaction_platform.lake.objects import ObjectChanged, ObjectMissing, Objects, StoredObject

INPUTS_KEY = b"compaction.inputs"
ROWS_KEY = b"compaction.rows"
FETCHES_AT_ONCE = 16


class OutputUnreadable(CompactionError):
    """A file that bears the name of a compacted one does not say what it is made of."""


@dataclass(frozen=True)
class Told:
    """What compacted files say about themselves."""

    inputs: Mapping[str, tuple[Version, ...]]  # by key: what went into each
    untold: Mapping[str, str]  # by key: why it does not say


def inputs_of(store: Objects, file: Listed) -> tuple[Version, ...] | None:
    """The versions that went into a compacted file; None if it is gone meanwhile."""
    footer = footer_of(store, file)
    return None if footer is None else inputs_told(footer)


def footer_of(store: Objects, file: Listed) -> pyarrow.parquet.FileMetaData | None:
    """The footer of a compacted file; None if it is gone meanwhile."""
    try:
        footer = fetch_footer(store, file.key, file.size, file.etag)
        return pyarrow.parquet.read_metadata(pyarrow.BufferReader(footer))
    except (ObjectMissing, ObjectChanged):
        return None
    except (TypeError, ValueError, OSError, pyarrow.ArrowException) as error:
        raise _unreadable(error) from error


def inputs_told(footer: pyarrow.parquet.FileMetaData) -> tuple[Version, ...]:
    try:
        return lineage((footer.metadata or {})[INPUTS_KEY])
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> OutputUnreadable:
    return OutputUnreadable(
        f"it is named like a compacted file but does not say what it is made of ({type(error).__name__}). "
        "Nothing is changed in its directory. If it is yours, rename it."
    )


def lineage(described_inputs: bytes) -> tuple[Version, ...]:
    """All versions whose rows are in a compacted file: its inputs, and what those were made of."""
    found: list[Version] = []
    for each in json.loads(described_inputs):
        found.append((each["name"], each["etag"]))
        found += [(name, etag) for name, etag in each.get("inputs", ())]
    return tuple(found)


def told_inputs(store: Objects, files: Iterable[Listed]) -> Told:
    """What the compacted files among these say."""

    def ask(file: Listed) -> tuple[Version, ...] | str | None:
        try:
            return inputs_of(store, file)
        except OutputUnreadable as untold:
            return str(untold)

    own = [file for file in files if OWN_NAME.fullmatch(file.name)]
    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        found = {file.key: answer for file, answer in zip(own, pool.map(ask, own), strict=True)}
    return Told(
        {key: answer for key, answer in found.items() if isinstance(answer, tuple)},
        {key: answer for key, answer in found.items() if isinstance(answer, str)},
    )


def listed(store: Objects, prefix: str = "") -> Iterator[Listed]:
    return (_listed(stored) for stored in store.list(prefix))


def in_directory(store: Objects, directory: str) -> list[Listed]:
    """The files right inside a directory, in the order of their names."""
    return sorted(_listed(stored) for stored in store.list_directory(directory))


def _listed(stored: StoredObject) -> Listed:
    return Listed(stored.key, stored.size, stored.etag, stored.last_modified)


def described(inputs: Iterable[Mapping[str, object]]) -> bytes:
    return json.dumps(list(inputs)).encode()
