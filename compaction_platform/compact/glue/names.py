"""Names of partitions, `year=2023/month=05`, as Dagster and paths have them. Pure, and to be read back without loss."""

import re
from collections.abc import Sequence
from urllib.parse import unquote

from compaction_platform.errors import CompactionError

# What may stand in a path, in a partition key of Dagster's, and in its lists of them, as it is.
PLAIN = re.compile(r"[A-Za-z0-9_\-.:+@ ]")


class PartitionNameInvalid(CompactionError):
    """This does not name a partition of the table."""


def partition_name(keys: Sequence[str], values: Sequence[str]) -> str:
    return "/".join(f"{_encoded(key)}={_encoded(value)}" for key, value in zip(keys, values, strict=True))


def partition_values(keys: Sequence[str], name: str) -> tuple[str, ...]:
    """The values that a name stands for."""
    parts = [part.partition("=") for part in name.split("/")]
    values = tuple(unquote(value, errors="strict") for _, _, value in parts)
    if len(parts) != len(keys) or partition_name(keys, values) != name:
        example = "/".join(f"{_encoded(key)}=…" for key in keys)
        raise PartitionNameInvalid(f"{name!r} does not name a partition; they are named {example}.")
    return values


def _encoded(text: str) -> str:
    found = "".join(each if PLAIN.match(each) else "".join(f"%{byte:02X}" for byte in each.encode()) for each in text)
    return found.replace("..", "%2E%2E")  # three dots mean a range to Dagster
