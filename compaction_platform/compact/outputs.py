"""Compacted files tell what they are made of: the only state there is."""

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pyarrow
import pyarrow.parquet

from compaction_platform.compact.plan import OWN_NAME, Listed, Version
from compaction_platform.lake.errors import CompactionError
from compaction_platform.lake.footers import fetch_footer
from compaction_platform.lake.objects import ObjectMissing, Objects

INPUTS_KEY = b"compaction.inputs"
ROWS_KEY = b"compaction.rows"
FETCHES_AT_ONCE = 16


class OutputUnreadable(CompactionError):
    """A file that bears the name of a compacted one does not say what it is made of."""


def inputs_of(store: Objects, file: Listed) -> tuple[Version, ...] | None:
    """The versions that went into a compacted file; None if it is gone meanwhile."""
    try:
        footer = fetch_footer(store, file.key, file.size, file.etag)
        metadata = pyarrow.parquet.read_metadata(pyarrow.BufferReader(footer)).metadata or {}
        return tuple((each["name"], each["etag"]) for each in json.loads(metadata[INPUTS_KEY]))
    except ObjectMissing:
        return None
    except (KeyError, TypeError, ValueError, OSError, pyarrow.ArrowException) as error:
        raise OutputUnreadable(
            f"{store.uri}/{file.key} is named like a compacted file but does not say what it is made of "
            f"({type(error).__name__}). Nothing was changed in its directory. If it is yours, rename it."
        ) from error


def known_inputs(store: Objects, files: Iterable[Listed]) -> dict[str, tuple[Version, ...]]:
    """By key: what went into each compacted file among these."""
    own = [file for file in files if OWN_NAME.fullmatch(file.name)]
    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        found = zip(own, pool.map(lambda file: inputs_of(store, file), own), strict=True)
        return {file.key: inputs for file, inputs in found if inputs is not None}


def listed(store: Objects, prefix: str = "", young_after: datetime | None = None) -> Iterator[Listed]:
    for stored in store.list(prefix):
        is_young = young_after is not None and stored.last_modified > young_after
        yield Listed(stored.key, stored.size, stored.etag, is_young)


def in_directory(store: Objects, directory: str) -> list[Listed]:
    """The files right inside a directory, in the order of their names."""
    return sorted(file for file in listed(store, directory) if file.directory == directory)


def described(inputs: Iterable[Mapping[str, object]]) -> bytes:
    return json.dumps(list(inputs)).encode()
