"""Foreign keys between hot tables: in which order rows may go, and what would go along."""

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from psycopg import sql

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.config import ArchivedTable
from compaction_platform.archive.hot.snapshot import ROW, HotTableUnfit, of_range, table_of

# Keys that refer to the table or to one of its partitions; a key of a partitioned table counts once.
REFERRING = """
    SELECT n.nspname, c.relname, k.confdeltype::text, k.conrelid = k.confrelid,
        ARRAY(SELECT a.attname::text FROM unnest(k.conkey) WITH ORDINALITY u(number, place)
            JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.number ORDER BY u.place),
        ARRAY(SELECT a.attname::text FROM unnest(k.confkey) WITH ORDINALITY u(number, place)
            JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = u.number ORDER BY u.place)
    FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE k.contype = 'f' AND k.conparentid = 0 AND (k.confrelid = %(table)s::regclass
        OR k.confrelid IN (SELECT relid FROM pg_partition_tree(%(table)s::regclass)))"""
CHANGING = ("c", "n", "d")  # CASCADE, SET NULL, SET DEFAULT
REFERRING_ROW = "compaction_referring"


@dataclass(frozen=True)
class ForeignKey:
    """A key of `table` that refers to a dataset's table."""

    table: tuple[str, str]
    changes_rows: bool  # when what it refers to is deleted
    to_itself: bool
    columns: tuple[str, ...]
    referred: tuple[str, ...]


def keys_to(connection: Any, dataset: ArchivedTable) -> list[ForeignKey]:
    found = connection.execute(REFERRING, {"table": table_of(dataset).as_string(None)}).fetchall()
    return [
        ForeignKey((schema, table), on_delete in CHANGING, to_itself, tuple(columns), tuple(referred))
        for schema, table, on_delete, to_itself, columns, referred in found
    ]


def would_take_along(key: ForeignKey, dataset: ArchivedTable, chain_id: int, blocks: BlockRange) -> sql.Composed:
    """Whether there are rows, other than the ones to be deleted, that refer to rows of these blocks."""
    row, referring = sql.Identifier(ROW), sql.Identifier(REFERRING_ROW)
    joined = sql.SQL(" AND ").join(
        sql.SQL("{}.{} = {}.{}").format(referring, sql.Identifier(column), row, sql.Identifier(referred))
        for column, referred in zip(key.columns, key.referred, strict=True)
    )
    outside: sql.Composable = sql.SQL("")
    if key.to_itself:
        outside = sql.SQL(" AND ({}) IS NOT TRUE").format(of_range(dataset, chain_id, blocks, REFERRING_ROW))
    return sql.SQL(
        "SELECT EXISTS (SELECT 1 FROM {table} AS {row} JOIN {child} AS {referring} ON {joined} "
        "WHERE {condition}{outside})"
    ).format(
        table=table_of(dataset),
        row=row,
        child=sql.Identifier(*key.table),
        referring=referring,
        joined=joined,
        condition=of_range(dataset, chain_id, blocks),
        outside=outside,
    )


def purge_order(connection: Any, datasets: Sequence[ArchivedTable]) -> list[ArchivedTable]:
    """Those that refer to others before them; and where keys allow it, the blocks last."""
    by_name = {dataset.name: dataset for dataset in datasets}
    by_table = {dataset.table: dataset.name for dataset in datasets}
    referring = {
        dataset.name: {
            by_table[key.table]
            for key in keys_to(connection, dataset)
            if key.table in by_table and by_table[key.table] != dataset.name
        }
        for dataset in datasets
    }
    blocks = datasets[0].name
    wished = {**referring, blocks: set(by_name) - {blocks}}
    for graph in (wished, referring):
        try:
            return [by_name[name] for name in TopologicalSorter(graph).static_order()]
        except CycleError as error:
            circle = " -> ".join(error.args[1])
    raise HotTableUnfit(f"foreign keys of the hot tables go round in a circle: {circle}. Nothing was deleted.")
