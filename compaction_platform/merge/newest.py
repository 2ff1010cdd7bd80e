"""The newest row of each key, for a batch that fits into this process. `sql.newest_of_each_key` says the same to
Spark; the tests hold both against one model."""

from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from compaction_platform.merge.rules import MergeRules

UNIT_MICROSECONDS = {"hour": 3_600_000_000, "day": 86_400_000_000}


def newest_of_each_key(rules: MergeRules, rows: pyarrow.Table) -> pyarrow.Table:
    keys = list(rules.key)
    if rows.group_by(keys).aggregate([]).num_rows == rows.num_rows:
        return rows
    order = [*((name, "ascending") for name in keys), *((name, "descending") for name in rules.order)]
    # nulls come last, whichever way a column is sorted
    ordered = rows.take(pyarrow.compute.sort_indices(rows, sort_keys=order))
    is_first = _differs_from_the_row_above(ordered, keys)
    first = numpy.flatnonzero(is_first)
    newest = ordered.take(pyarrow.array(first))
    group = numpy.cumsum(is_first) - 1
    for name in rules.keep_when_null:
        present = numpy.flatnonzero(ordered[name].is_valid().to_numpy())
        groups, places = numpy.unique(group[present], return_index=True)
        chosen = first.copy()
        chosen[groups] = present[places]
        column = ordered[name].take(pyarrow.array(chosen))
        newest = newest.set_column(newest.column_names.index(name), newest.field(name), column)
    return newest


def _differs_from_the_row_above(rows: pyarrow.Table, keys: list[str]) -> Any:
    differs = numpy.zeros(rows.num_rows, dtype=bool)
    differs[:1] = True
    for name in keys:
        column = rows[name].combine_chunks()
        differs[1:] |= pyarrow.compute.not_equal(column.slice(1), column.slice(0, len(column) - 1)).to_numpy(
            zero_copy_only=False
        )
    return differs


def partitions_of(rules: MergeRules, rows: pyarrow.Table) -> list[tuple[Any, ...]] | None:
    """As `sql.partitions_of`; None where only Spark knows the calendar well enough."""
    columns: list[list[Any]] = []
    for field in rules.partition_by:
        column = rows[field.column]
        if field.time_unit in UNIT_MICROSECONDS and pyarrow.types.is_timestamp(column.type):
            size = UNIT_MICROSECONDS[field.time_unit or ""]
            starts = [
                None if value is None else value // size * size
                for value in column.cast(pyarrow.timestamp("us")).cast(pyarrow.int64()).to_pylist()
            ]
            columns += [starts, [None if start is None else start + size for start in starts]]
        elif field.time_unit:
            return None
        elif field.transform == "identity":
            columns.append(column.to_pylist())
    if not columns:
        return [(rows.num_rows,)]
    counts: dict[tuple[Any, ...], int] = {}
    for values in zip(*columns, strict=True):
        counts[values] = counts.get(values, 0) + 1
    return [(*values, count) for values, count in counts.items()]
