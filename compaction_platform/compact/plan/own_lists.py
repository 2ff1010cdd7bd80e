"""Refuse directories of files that something else lists by name: to compact them would take away what the list names.

A table format, Spark's streaming writer or another verb of this project keeps such lists beside the files, or above
them. A list that lies elsewhere (a catalog's data location of its own, a database) cannot be seen from here.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage.object_store import ObjectStore, StoreRefused, local_directory
from compaction_platform.lake.storage.threads import map_concurrently
from compaction_platform.settings import Settings

AT_ONCE = 16
LOOKED_AT = 1000  # names in a directory of metadata: one page of a listing


class FilesListedElsewhere(CompactionError):
    """Files of this directory are listed by name somewhere. Nothing was done."""


@dataclass(frozen=True)
class FileListKind:
    """A kind of list: how it is recognised, and what is right for its files."""

    name: str
    pattern: re.Pattern[str]  # of a key; what comes before the match is the root of the listed files
    place: str  # the directory (with a slash) or file, below the root, in which there is something that matches
    advice: str


VERSION_OF_GLUE = "a version of a Glue partition"
KINDS = (
    FileListKind(
        "a Delta Lake table",
        re.compile(r"(?:^|(?<=/))_delta_log/"),
        "_delta_log/",
        "compact it with Delta's own OPTIMIZE",
    ),
    FileListKind(
        "an Apache Hudi table",
        re.compile(r"(?:^|(?<=/))\.hoodie/"),
        ".hoodie/",
        "compact it with Hudi's own clustering",
    ),
    FileListKind(
        "the output of a Spark streaming query",
        re.compile(r"(?:^|(?<=/))_spark_metadata/"),
        "_spark_metadata/",
        "Spark reads only the files that _spark_metadata names: write with foreachBatch instead, or `merge` the files "
        "into a table (MergedTable)",
    ),
    FileListKind(
        "an Apache Iceberg table",
        re.compile(r"(?:^|(?<=/))metadata/(?:[^/]*\.metadata\.json|version-hint\.text)$"),
        "metadata/",
        "compact it with `compaction maintain` (MaintainedTable)",
    ),
    FileListKind(
        "an Apache Paimon table",
        re.compile(r"(?:^|(?<=/))snapshot/(?:LATEST|EARLIEST|snapshot-\d+)$"),
        "snapshot/",
        "compact it with Paimon's own compaction",
    ),
    FileListKind(
        "a cold range of `archive`",
        re.compile(r"(?:^|(?<=/))_manifest\.json$"),
        "_manifest.json",
        "its files are large and proved already; `compaction archive` looks after them (ColdRanges)",
    ),
    FileListKind(
        VERSION_OF_GLUE,
        re.compile(r"(?:^|(?<=/))_compaction\.json$"),
        "_compaction.json",
        "compact the table: `compaction compact glue://database/table` (CompactedGlueTable)",
    ),
)


def lists_in(keys: Iterable[str]) -> dict[str, FileListKind]:
    """The roots of listed files below which some of these keys are, with the kind of the list."""
    found: dict[str, FileListKind] = {}
    for key in keys:
        if "_" not in key and ".hoodie" not in key and "metadata/" not in key and "snapshot/" not in key:
            continue
        for kind in KINDS:
            if match := kind.pattern.search(key):
                found.setdefault(key[: match.start()].rstrip("/"), kind)
    return found


def list_above(uri: str, prefixes: Iterable[str], settings: Settings) -> tuple[str, FileListKind] | None:
    """The root of listed files that is an address, a directory between it and one of the prefixes, or a directory
    above it; with the kind of the list."""
    top, path = _top_of(uri)
    store = ObjectStore.at(top, settings)
    steps = [each.split("/") for each in prefixes]
    inside = {"/".join(parts[:depth]) for parts in steps for depth in range(len(parts))}
    here = {"/".join(part for part in (path, each) if part) for each in inside | {""}}
    parts = path.split("/") if path else []
    above = {"/".join(parts[:depth]) for depth in range(len(parts))}
    asked = [(directory, kind) for directory in sorted(above | here) for kind in KINDS]

    def is_there(each: tuple[str, FileListKind]) -> bool:
        directory, kind = each
        try:
            return _is_listed(store, directory, kind)
        except StoreRefused:
            if directory in here:
                raise
            return False  # a guest need not see what is above

    answers = map_concurrently(is_there, asked, AT_ONCE, in_threads=not store.is_local)
    for (directory, kind), there in zip(asked, answers, strict=True):
        if there:
            return f"{top.rstrip('/')}/{directory}".rstrip("/"), kind
    return None


def kind_at(store: ObjectStore, directory: str) -> FileListKind | None:
    """The kind of list that is right in a directory, if there is one."""
    return next((kind for kind in KINDS if _is_listed(store, directory, kind)), None)


def _is_listed(store: ObjectStore, directory: str, kind: FileListKind) -> bool:
    key = "/".join(part for part in (directory, kind.place) if part)
    if not key.endswith("/"):
        return store.stat(key) is not None
    found = islice(store.list(key), LOOKED_AT)
    return any(kind.pattern.search(stored.key) for stored in found)


def _top_of(uri: str) -> tuple[str, str]:
    """The bucket, or the root of the file system, and the path below it."""
    if uri.startswith("s3://"):
        bucket, _, path = uri.removeprefix("s3://").partition("/")
        return f"s3://{bucket}", path.strip("/")
    return "/", str(local_directory(uri)).strip("/")


def refusal(place: str, kind: FileListKind) -> FilesListedElsewhere:
    return FilesListedElsewhere(
        f"{place} is {kind.name}: it lists its files by name, and would lose those that are joined. Nothing was done; "
        f"{kind.advice}. If the list is out of use, remove it first."
    )


def refuse_listed(uri: str, roots: Mapping[str, FileListKind]) -> None:
    """Raise KeptByAList for the first of these roots below an address."""
    for root in sorted(roots):
        raise refusal("/".join(part for part in (uri, root) if part), roots[root])
