"""Rows of an Iceberg table, read by Arrow in this process: for little work, and as a second reader beside Spark.

PyIceberg plans the files, and reads those whose columns are not what the table's are now. The others are read
directly, with page checksums, and position deletes are applied to a whole file at once: PyIceberg does it batch by
batch in Python, which takes longer than reading.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy
import pyarrow
import pyarrow.parquet
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io.pyarrow import ArrowScan, _read_deletes
from pyiceberg.manifest import FileFormat
from pyiceberg.table import FileScanTask

from compaction_platform.lake.canonical import Array
from compaction_platform.lake.columns import arrow_schema
from compaction_platform.lake.data_file_rows import has_columns_of
from compaction_platform.lake.errors import CompactionError

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

Found = TypeVar("Found")
READ_AT_ONCE = 4  # files; each holds a row group


class NotReadable(CompactionError):
    """The table holds what PyIceberg cannot read; Spark can."""


@dataclass(frozen=True)
class TableRows:
    """The rows of one snapshot for which a filter holds."""

    table: "Table"
    snapshot_id: int | None
    row_filter: BooleanExpression

    @cached_property
    def files(self) -> tuple[FileScanTask, ...]:
        if self.snapshot_id is None:
            return ()
        try:
            return tuple(self.table.scan(self.row_filter, snapshot_id=self.snapshot_id).plan_files())
        except (TypeError, ValueError, OverflowError) as cannot:
            # no order among missing values; equality deletes; moments that Python's calendar does not have
            raise NotReadable(f"{'.'.join(self.table.name())}: {cannot}") from cannot

    @property
    def rows_at_most(self) -> int:
        """The number of rows, deleted ones included."""
        return sum(task.file.record_count for task in self.files)

    def count(self) -> int:
        """The number of rows. Data files are opened only where a filter may hold for a part of one."""
        whole = [task for task in self.files if _is_wanted_whole(task)]
        cut = [task for task in self.files if not _is_wanted_whole(task)]
        first = self.table.schema().column_names[:1]
        rows = sum(int(task.file.record_count) - len(self._deleted.get(task.file.file_path, ())) for task in whole)
        return rows + sum(int(self._read(task, first).num_rows) for task in cut)

    def each(self, look: Callable[["FileRows"], Found]) -> Iterator[Found]:
        """What `look` finds in each file, several at a time, small ones first. Whoever has heard enough may stop."""
        smallest_first = sorted(self.files, key=lambda task: task.file.file_size_in_bytes)
        pool = ThreadPoolExecutor(min(READ_AT_ONCE, os.cpu_count() or 1))
        try:
            yield from pool.map(lambda task: look(FileRows(self, task)), smallest_first)
        finally:
            pool.shutdown(cancel_futures=True)

    @cached_property
    def _deleted(self) -> dict[str, Any]:
        """Positions of deleted rows, by data file."""
        delete_files = {file.file_path: file for task in self.files for file in task.delete_files}
        positions: dict[str, list[Any]] = {}
        with ThreadPoolExecutor(8) as pool:
            for found in pool.map(lambda file: _read_deletes(self.table.io, file), delete_files.values()):
                for path, places in found.items():
                    positions.setdefault(path, []).append(numpy.asarray(places))
        return {path: numpy.unique(numpy.concatenate(places)) for path, places in positions.items()}

    def _read(self, task: FileScanTask, columns: Sequence[str], chosen: Array | None = None) -> pyarrow.Table:
        """The rows that are left in a file, or those that are chosen of them by a mask."""
        schema = self.table.schema().select(*columns)
        types = arrow_schema(schema)
        wanted = pyarrow.schema([types.field(name) for name in columns])
        if not _is_wanted_whole(task):
            part = ArrowScan(self.table.metadata, self.table.io, schema, self.row_filter)
            rows = part.to_table([task]).select(list(columns)).cast(wanted)
            return rows if chosen is None else rows.filter(pyarrow.array(chosen))
        there = numpy.ones(task.file.record_count, dtype=bool)
        if (deleted := self._deleted.get(task.file.file_path)) is not None:
            there[deleted] = False
        if chosen is not None:
            there[numpy.flatnonzero(there)[~chosen]] = False
        found = self._read_directly(task.file, schema, there)
        if found is None:
            everything = ArrowScan(self.table.metadata, self.table.io, schema, AlwaysTrue())
            whole = everything.to_table([FileScanTask(task.file)])
            _require_rows(task.file, whole.num_rows)
            found = whole.filter(pyarrow.array(there))
        return found.select(list(columns)).cast(wanted)

    def _read_directly(self, data_file: "DataFile", schema: "Schema", there: Array) -> pyarrow.Table | None:
        """These rows of a file that has the columns just as the table has them, a row group at a time."""
        if data_file.file_format != FileFormat.PARQUET:
            return None
        with self.table.io.new_input(data_file.file_path).open() as stored:
            file = pyarrow.parquet.ParquetFile(stored, pre_buffer=True, page_checksum_verification=True)
            if not has_columns_of(file, schema, arrow_schema(schema)):
                return None
            counts = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
            _require_rows(data_file, sum(counts))
            groups: list[pyarrow.Table] = []
            start = 0
            for number, count in enumerate(counts):
                wanted_here = there[start : start + count]
                start += len(wanted_here)
                if wanted_here.any() or not groups:
                    rows = file.read_row_group(number, columns=schema.column_names)
                    groups.append(rows if wanted_here.all() else rows.filter(pyarrow.array(wanted_here)))
            return pyarrow.concat_tables(groups) if groups else file.read(columns=schema.column_names)


def _require_rows(file: "DataFile", rows: int) -> None:
    if rows != file.record_count:
        raise CompactionError(f"{file.file_path} has {rows} rows, the table's metadata says {file.record_count}.")


@dataclass(frozen=True)
class FileRows:
    """The rows that are left in one data file."""

    of: TableRows
    task: FileScanTask

    def read(self, columns: Sequence[str], chosen: Array | None = None) -> pyarrow.Table:
        """All rows, or those that a mask chooses."""
        return self.of._read(self.task, columns, chosen)


def _is_wanted_whole(task: FileScanTask) -> bool:
    return isinstance(task.residual, AlwaysTrue)
