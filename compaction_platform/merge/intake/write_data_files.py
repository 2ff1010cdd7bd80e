"""A large batch becomes data files of the table, inside Spark tasks: nothing refers to them yet.

If every key of the batch is new, they are what is published. Otherwise Spark merges from them: it reads them
natively, where rows handed over by Python cost it several times as much.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow
import pyarrow.compute

from compaction_platform.lake.iceberg.data_file_writer import DataFileWriter, NotWritable
from compaction_platform.lake.verification.canonical_form import Array
from compaction_platform.lake.verification.row_hash import mix, value_hashes
from compaction_platform.merge.config import MergeRules
from compaction_platform.merge.intake.staged_file_reader import FileReport, Reading
from compaction_platform.merge.plan.partition_bounds import bounding
from compaction_platform.merge.plan.staged_hours import StagedFile

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

WRITTEN_AT_ONCE_BYTES = 96 << 20  # of decoded rows; a task takes several times as much
MOST_HASHES = 20_000_000  # of keys, in one process: 8 bytes for each
UNIT_MICROSECONDS = {"hour": 3_600_000_000, "day": 86_400_000_000}

Partitions = list[tuple[Any, ...]]  # see sql.partitions_of; the last value is a number of rows


@dataclass(frozen=True)
class WrittenBatch:
    """What some files became.

    `partitions` is None where only Spark knows the calendar well enough, `hashes` where there are too many to hold.
    """

    reports: tuple[FileReport, ...]
    files: tuple["DataFile", ...] = ()
    partitions: Partitions | None = field(default_factory=list)
    hashes: Array | None = None
    spec_id: int | None = None  # the table's partitioning that the files were written for
    unwritable: bool = False  # rows that only Spark can write; nothing of these files was left


@dataclass(frozen=True)
class BatchWriteTask:
    """All that a task needs to land files. Without a place for data files, they are read and that is all."""

    rules: MergeRules
    reading: Reading
    data_files: DataFileWriter | None

    def land(self, files: Sequence[StagedFile]) -> WrittenBatch:
        reports: list[FileReport] = []
        landed: list[WrittenBatch] = []
        try:
            for rows in _in_large_pieces(self._batches(files, reports)):
                if self.data_files is not None:
                    written = tuple(self.data_files.write(rows))
                    hashes = key_hashes(rows, self.rules.key)
                    spec = self.data_files.metadata.default_spec_id
                    landed.append(WrittenBatch((), written, partitions_of(self.rules, rows), hashes, spec))
        except BaseException as failed:
            if self.data_files is not None:
                self.data_files.discard(file for part in landed for file in part.files)
            if isinstance(failed, NotWritable):
                return WrittenBatch((), unwritable=True)
            raise
        return together([WrittenBatch(tuple(reports)), *landed])

    def _batches(self, files: Sequence[StagedFile], reports: list[FileReport]) -> Iterator[pyarrow.RecordBatch]:
        for file in files:
            report, batches = self.reading.read(file)
            reports.append(report)
            yield from batches


def _in_large_pieces(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.Table]:
    waiting: list[pyarrow.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        waiting.append(batch)
        waiting_bytes += batch.nbytes
        if waiting_bytes >= WRITTEN_AT_ONCE_BYTES:
            yield pyarrow.Table.from_batches(waiting)
            waiting, waiting_bytes = [], 0
    if waiting_bytes:
        yield pyarrow.Table.from_batches(waiting)


def together(parts: Iterable[WrittenBatch]) -> WrittenBatch:
    parts = list(parts)
    counts: Counter[tuple[Any, ...]] = Counter()
    for part in parts:
        for *values, count in part.partitions or ():
            counts[tuple(values)] += count
    rows = sum(file.record_count for part in parts for file in part.files)
    hashes = [part.hashes for part in parts if part.hashes is not None]
    return WrittenBatch(
        tuple(report for part in parts for report in part.reports),
        tuple(file for part in parts for file in part.files),
        None if any(part.partitions is None for part in parts) else [(*values, n) for values, n in counts.items()],
        numpy.concatenate(hashes) if hashes and rows == sum(map(len, hashes)) <= MOST_HASHES else None,
        next((part.spec_id for part in parts if part.spec_id is not None), None),
        any(part.unwritable for part in parts),
    )


def key_hashes(rows: pyarrow.Table, key: Sequence[str]) -> Array:
    """A hash of every row's key. Equal keys have equal hashes."""
    hashes = numpy.zeros(rows.num_rows, numpy.uint64)
    with numpy.errstate(over="ignore"):  # wrapping around is what is wanted
        for name in key:
            chunks = [value_hashes(chunk) for chunk in rows[name].chunks]
            hashes = mix(hashes ^ numpy.concatenate(chunks)) if chunks else hashes
    return hashes


def has_doubles(ordered: Array) -> bool:
    return doubles(ordered) > 0


def doubles(ordered: Array) -> int:
    return int((ordered[1:] == ordered[:-1]).sum())


def partitions_of(rules: MergeRules, rows: pyarrow.Table) -> Partitions | None:
    """As `sql.partitions_of`; None where only Spark knows the calendar well enough."""
    columns: list[Any] = []
    for part in bounding(rules):
        column = rows[part.column]
        if part.time_unit in UNIT_MICROSECONDS and pyarrow.types.is_timestamp(column.type):
            size = UNIT_MICROSECONDS[part.time_unit or ""]
            moments = column.cast(pyarrow.timestamp("us")).cast(pyarrow.int64()).combine_chunks()
            floored = numpy.floor_divide(moments.fill_null(0).to_numpy(zero_copy_only=False), size) * size
            starts = pyarrow.array(floored, mask=moments.is_null().to_numpy(zero_copy_only=False))
            columns += [starts, pyarrow.compute.add(starts, size)]
        elif part.time_unit:
            return None
        else:
            columns.append(column)
    if not columns:
        return [(rows.num_rows,)]
    names = [f"c{number}" for number in range(len(columns))]
    counted = pyarrow.table(columns, names=names).group_by(names).aggregate([([], "count_all")])
    return [tuple(row[name] for name in (*names, "count_all")) for row in counted.to_pylist()]
