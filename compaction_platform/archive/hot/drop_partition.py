"""Partitions of a hot table that hold exactly one range of blocks, as PostgreSQL's catalog tells."""

import re
from dataclasses import dataclass
from typing import Any

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.config import ArchivedTable
from compaction_platform.archive.hot.snapshot import table_of

# FOR VALUES FROM ('1000000') TO ('1010000'), or FROM ('1', '1000000') TO ('1', '1010000')
BOUND = re.compile(r"FOR VALUES FROM \(([^()]*)\) TO \(([^()]*)\)")


@dataclass(frozen=True)
class Partition:
    table: tuple[str, str]
    parent: tuple[str, str]
    blocks: BlockRange

    @property
    def name(self) -> str:
        return ".".join(self.table)


def partitions_that_are(connection: Any, dataset: ArchivedTable, chain_id: int, blocks: BlockRange) -> list[Partition]:
    """Leaf partitions by block number that together are the range, without gaps; none if there are no such."""
    found = connection.execute(
        """
        SELECT n.nspname, c.relname, pn.nspname, p.relname, pg_get_expr(c.relpartbound, c.oid), pg_get_partkeydef(p.oid)
        FROM pg_partition_tree(%s::regclass) t
        JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_class p ON p.oid = t.parentrelid JOIN pg_namespace pn ON pn.oid = p.relnamespace
        WHERE t.isleaf AND t.parentrelid IS NOT NULL""",
        (table_of(dataset).as_string(None),),
    ).fetchall()
    partitions = []
    for schema, name, parent_schema, parent, bound, key in found:
        within = _blocks_of(bound, key, dataset, chain_id)
        if within is not None and blocks.start <= within.start and within.end <= blocks.end:
            partitions.append(Partition((schema, name), (parent_schema, parent), within))
    partitions.sort(key=lambda partition: partition.blocks)
    edges = [blocks.start, *(partition.blocks.end for partition in partitions)]
    starts = [*(partition.blocks.start for partition in partitions), blocks.end]
    return partitions if partitions and edges == starts else []


def _blocks_of(bound: str | None, key: str | None, dataset: ArchivedTable, chain_id: int) -> BlockRange | None:
    """The blocks between a partition's bounds, if blocks (of this chain) are what it is partitioned by."""
    match = BOUND.fullmatch(bound or "")
    if match is None:
        return None
    lower, upper = ([part.strip(" '") for part in side.split(",")] for side in match.groups())
    if key == f"RANGE ({_shown(dataset.chain)}, {_shown(dataset.block)})" and len(lower) == len(upper) == 2:
        if (lower.pop(0), upper.pop(0)) != (str(chain_id), str(chain_id)):
            return None
    elif key != f"RANGE ({_shown(dataset.block)})":
        return None
    if len(lower) == len(upper) == 1 and lower[0].isdigit() and upper[0].isdigit():
        return BlockRange(int(lower[0]), int(upper[0]))
    return None


def _shown(column: str) -> str:
    """As PostgreSQL writes a column's name."""
    return column if re.fullmatch(r"[a-z_][a-z0-9_]*", column) else '"{}"'.format(column.replace('"', '""'))
