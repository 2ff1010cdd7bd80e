"""Foreign keys between hot tables: in which order rows may go, and what would go along."""

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from compaction_platform.archive.chain import Dataset
from compaction_platform.archive.hot import HotTableUnfit, table_of

REFERRING = """
    SELECT DISTINCT n.nspname, c.relname, k.confdeltype::text
    FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE k.contype = 'f' AND k.confrelid = %s::regclass AND k.conparentid = 0 AND k.conrelid <> k.confrelid"""
CASCADE, SET_NULL, SET_DEFAULT = "c", "n", "d"


def _referring(connection: Any, dataset: Dataset) -> list[tuple[tuple[str, str], str]]:
    found = connection.execute(REFERRING, (table_of(dataset).as_string(None),)).fetchall()
    return [((schema, table), on_delete) for schema, table, on_delete in found]


def cascading_to(connection: Any, dataset: Dataset) -> list[tuple[str, str]]:
    """Tables whose rows would be deleted or changed along with rows of this one."""
    changing = (CASCADE, SET_NULL, SET_DEFAULT)
    return sorted({table for table, on_delete in _referring(connection, dataset) if on_delete in changing})


def purge_order(connection: Any, datasets: Sequence[Dataset]) -> list[Dataset]:
    """Those that refer to others first; without foreign keys, the blocks last."""
    by_table = {dataset.table: dataset for dataset in datasets}
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for dataset in reversed(datasets):
        referring = [by_table[table].name for table, _ in _referring(connection, dataset) if table in by_table]
        sorter.add(dataset.name, *referring)
    try:
        order = list(sorter.static_order())
    except CycleError as error:
        raise HotTableUnfit(f"foreign keys go round in a circle: {' -> '.join(error.args[1])}. Not purged.") from None
    blocks = datasets[0].name
    if not any(table in by_table for table, _ in _referring(connection, datasets[0])):
        order = [*(name for name in order if name != blocks), blocks]
    return [next(dataset for dataset in datasets if dataset.name == name) for name in order]
