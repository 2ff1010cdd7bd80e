"""Decide which files an inventory needs to read. Pure: values in, values out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class FileToRead:
    """One version of a file."""

    key: str
    size: int
    etag: str


@dataclass(frozen=True)
class NewVerbPlan:
    """Every decision, before anything is read. A dry run shows this value."""

    to_read: tuple[FileToRead, ...]
    skipped: Mapping[str, str]  # by key: the reason


def plan_inventory(files: Iterable[FileToRead], known: Mapping[str, str]) -> NewVerbPlan:
    """`known`: the etags of files that the last inventory has, by key."""
    to_read: list[FileToRead] = []
    skipped: dict[str, str] = {}
    for file in files:
        if not file.key.endswith(".parquet"):
            skipped[file.key] = "not Parquet, by its name"
        elif known.get(file.key) == file.etag:
            skipped[file.key] = "in the inventory already"
        else:
            to_read.append(file)
    return NewVerbPlan(tuple(to_read), skipped)
