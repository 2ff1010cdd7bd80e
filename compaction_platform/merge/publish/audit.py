"""The proof of a merge, taken on its branch before anyone else can see it.

Where the touched partitions are small enough, this process reads them itself, with Arrow: what Spark wrote is then
verified by a second reader. Spark counts where they are large, and where this process cannot be sure: what is equal
inside nested values, and whether two keys of one hash are one key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow
import pyarrow.compute

from compaction_platform.errors import CompactionError
from compaction_platform.lake.iceberg.table_scan import FileRows, TableRows
from compaction_platform.lake.verification.canonical_form import Array
from compaction_platform.lake.verification.row_hash import value_hashes
from compaction_platform.merge.config import ORIGIN, MergeRules
from compaction_platform.merge.intake.write_data_files import doubles, key_hashes

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile


@dataclass(frozen=True)
class MergeAudit:
    """What was counted in the partitions a merge touched, before it was published."""

    rows_before: int = 0
    rows_after: int = 0
    staged_keys: int = 0
    staged_keys_found: int = 0
    wrong_rows: int = 0
    doubled_keys: int = 0
    unsure: bool = False  # what looks wrong may be right: it is about nested values, or about hashes

    def problems(self, inserted: int, expected_keys: int) -> list[str]:
        found = []
        if self.staged_keys != expected_keys:
            found.append(f"{expected_keys} staged keys became {self.staged_keys} while merging")
        if self.staged_keys_found != self.staged_keys:
            found.append(f"{self.staged_keys - self.staged_keys_found} staged keys are missing")
        if self.wrong_rows:
            found.append(f"{self.wrong_rows} rows are neither the staged ones nor newer")
        if self.doubled_keys:
            found.append(f"{self.doubled_keys} keys are there more than once")
        if self.rows_before + inserted != self.rows_after:
            found.append(f"{self.rows_before} rows + {inserted} inserted are not {self.rows_after}")
        return found


class AuditFailed(CompactionError):
    """The merged branch is not what it should be. Nothing was published."""

    def __init__(self, message: str, audit: MergeAudit, rows: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(message)
        self.audit, self.rows = audit, rows


def hashes_without(rules: MergeRules, rows: TableRows, staged: Array) -> Array | None:
    """The hashes of these rows' keys; None as soon as one of them is staged."""
    found = [numpy.empty(0, numpy.uint64)]
    # (looked up in their order: many times as fast as in any other)
    for hashes in rows.each(lambda file: numpy.sort(key_hashes(file.read(rules.key), rules.key))):
        if _among(hashes, staged).any():
            return None
        found.append(hashes)
    return numpy.concatenate(found)


def _among(hashes: Array, ordered: Array) -> Array:
    """Which of the hashes are among some that are sorted."""
    place = numpy.searchsorted(ordered, hashes).clip(max=len(ordered) - 1)
    return numpy.asarray(ordered[place] == hashes)


def audit_of_appended(
    after: TableRows, appended: Sequence["DataFile"], hashes_before: Array, hashes_appended: Array
) -> MergeAudit:
    """For files of new keys whose content was verified when they were written: whether the table has them."""
    there = {task.file.file_path: task.file.record_count for task in after.files}
    found = sum(file.record_count for file in appended if there.get(file.file_path) == file.record_count)
    everything = numpy.sort(numpy.concatenate([hashes_before, hashes_appended]))
    return MergeAudit(
        rows_before=len(hashes_before),
        rows_after=after.count(),
        staged_keys=len(hashes_appended),
        staged_keys_found=found,
        doubled_keys=doubles(everything),
    )


def audit_of_merged(
    rules: MergeRules, after: TableRows, staged: pyarrow.Table, staged_hashes: Array, rows_before: int
) -> MergeAudit:
    """Read the keys of all touched partitions, and the whole rows of those that were staged."""
    names = [name for name in staged.column_names if name not in rules.key]

    def look(file: FileRows) -> tuple[Array, pyarrow.Table | None]:
        hashes = key_hashes(file.read(rules.key), rules.key)
        is_staged = _among(hashes, staged_hashes)
        if not is_staged.any():
            return hashes, None
        return hashes, file.read(staged.column_names, is_staged)

    found = list(after.each(look))
    hashes = numpy.sort(numpy.concatenate([part for part, _ in found])) if found else numpy.empty(0, numpy.uint64)
    table = pyarrow.concat_tables([rows for _, rows in found if rows is not None] or [staged.slice(0, 0)])
    pairs = _numbered(table, rules.key, "_table").join(
        _numbered(staged, rules.key, "_staged"), list(rules.key), join_type="inner"
    )
    in_table, in_batch = table.take(pairs["_table"]), staged.take(pairs["_staged"])
    plain = [name for name in names if not pyarrow.types.is_nested(staged.schema.field(name).type)]
    wrong, wrong_in_plain = (_wrong_rows(rules, in_table, in_batch, some) for some in (names, plain))
    return MergeAudit(
        rows_before=rows_before,
        rows_after=len(hashes),
        staged_keys=staged.num_rows,
        staged_keys_found=len(pairs["_staged"].unique()),
        wrong_rows=wrong,
        doubled_keys=doubles(hashes),
        unsure=wrong_in_plain == 0 and (wrong > 0 or doubles(hashes) > 0),
    )


def _numbered(rows: pyarrow.Table, key: Sequence[str], name: str) -> pyarrow.Table:
    return rows.select(list(key)).append_column(name, pyarrow.array(numpy.arange(rows.num_rows)))


def _wrong_rows(rules: MergeRules, in_table: pyarrow.Table, in_batch: pyarrow.Table, names: Sequence[str]) -> int:
    """Pairs that say different things although the table's row is not newer. As `sql.is_right`, but for what Arrow
    and Spark may see differently."""
    same = numpy.ones(in_table.num_rows, dtype=bool)
    for name in names:
        if name not in ORIGIN:
            equal = _equal(in_table[name], in_batch[name])
            same &= equal | _mask(in_batch[name].is_null()) if name in rules.keep_when_null else equal
    others = numpy.flatnonzero(~same)
    if not len(others):
        return 0
    chosen = pyarrow.array(others)
    newer, older = (_orders(rules, rows.take(chosen)) for rows in (in_table, in_batch))
    return sum(not table > staged for table, staged in zip(newer, older, strict=True))


def _equal(left: pyarrow.ChunkedArray, right: pyarrow.ChunkedArray) -> Array:
    if pyarrow.types.is_nested(left.type):
        with numpy.errstate(over="ignore"):
            return numpy.asarray(value_hashes(left.combine_chunks()) == value_hashes(right.combine_chunks()))
    equal = _mask(pyarrow.compute.equal(left, right).fill_null(False)) | (
        _mask(left.is_null()) & _mask(right.is_null())
    )
    if pyarrow.types.is_floating(left.type):
        nan = [_mask(pyarrow.compute.is_nan(side).fill_null(False)) for side in (left, right)]
        equal |= nan[0] & nan[1]
    return equal


def _mask(values: pyarrow.ChunkedArray) -> Array:
    return numpy.asarray(values.combine_chunks().to_numpy(zero_copy_only=False), dtype=bool)


def _orders(rules: MergeRules, rows: pyarrow.Table) -> list[tuple[tuple[bool, Any], ...]]:
    """What makes a row newer than another, so that Python can compare it: nothing is older than anything."""
    columns = []
    for name in rules.order_across_batches:
        column = rows[name]
        if pyarrow.types.is_timestamp(column.type):  # there are moments that Python's calendar does not have
            column = column.cast(pyarrow.int64())
        columns.append(
            [(value is not None, value) if value is not None else (False, 0) for value in column.to_pylist()]
        )
    return list(zip(*columns, strict=True))
