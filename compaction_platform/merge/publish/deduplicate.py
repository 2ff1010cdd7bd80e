"""The newest row of each key, for a batch that fits into this process. `sql.newest_of_each_key` says the same to
Spark; the tests hold both against one model."""

from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from compaction_platform.merge.config import MergeRules


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
