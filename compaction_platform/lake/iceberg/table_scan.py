"""Read rows of an Iceberg table by Arrow in this process: for little work, and as a second reader beside Spark.

PyIceberg plans the files. They are read with page checksums and projected by field id (`projection`). Position deletes
are applied to a whole file at once.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind, extract_field_ids, translate_column_names
from pyiceberg.io.pyarrow import _read_deletes, expression_to_pyarrow, pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import FileFormat
from pyiceberg.table import FileScanTask

from compaction_platform.errors import CompactionError
from compaction_platform.lake.iceberg.projection import CannotProject, Projection, opened, row_group_tables
from compaction_platform.lake.iceberg.types import arrow_schema
from compaction_platform.lake.parquet.int96 import int96_columns, why_not_exact
from compaction_platform.lake.verification.canonical_form import Array

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

Found = TypeVar("Found")
READ_AT_ONCE = 4  # files; each holds a row group


class NotReadable(CompactionError):
    """The table holds what cannot be read exactly by Arrow; Spark can."""


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
        return deleted_positions(self.table, self.files)

    def _read(self, task: FileScanTask, columns: Sequence[str], chosen: Array | None = None) -> pyarrow.Table:
        """The rows that are left in a file, or those that are chosen of them by a mask."""
        wanted = None if _is_wanted_whole(task) else self.row_filter
        deleted = self._deleted.get(task.file.file_path)
        types = arrow_schema(self.table.schema().select(*columns))
        reader = TaskReader(self.table, pyarrow.schema([types.field(name) for name in columns]), wanted)
        return reader.read(task.file, deleted, chosen)


@dataclass(frozen=True)
class TaskReader:
    """Reads the rows of data files in these columns of their table, row group by row group.

    Raises NotReadable for a file that only Spark reads exactly.
    """

    table: "Table"
    types: pyarrow.Schema
    row_filter: BooleanExpression | None = None

    def read(self, data_file: "DataFile", deleted: Array | None = None, chosen: Array | None = None) -> pyarrow.Table:
        """The rows for which the filter holds. `deleted`: positions of rows that are left out; `chosen`: a mask over
        the rows that are left then."""
        if data_file.file_format != FileFormat.PARQUET:
            raise NotReadable(f"{data_file.file_path} is {data_file.file_format}; only Parquet is read here")
        try:
            with self.table.io.new_input(data_file.file_path).open() as stored:
                return self._read(data_file, stored, deleted, chosen)
        except CannotProject as unfit:
            raise NotReadable(f"{data_file.file_path} {unfit}") from unfit

    def _read(self, data_file: "DataFile", stored: Any, deleted: Array | None, chosen: Array | None) -> pyarrow.Table:
        file = opened(stored)
        projection = Projection.of(self.table.metadata, data_file, self._schema, self._wider)
        self._require_exact(data_file, file, projection, stored)
        counts = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
        _require_rows(data_file, sum(counts))
        there = numpy.ones(data_file.record_count, dtype=bool)
        if deleted is not None:
            there[deleted] = False
        if chosen is not None and self.row_filter is None:
            there[numpy.flatnonzero(there)[~chosen]] = False
        matching = self._matching(stored, projection, len(counts))
        parts: list[pyarrow.Table] = []
        start = 0
        for number, count in enumerate(counts):
            here = there[start : start + count]
            start += count
            if here.any() and number in matching:
                (rows,) = row_group_tables(file, projection, [number])
                parts.append(self._filtered(rows if here.all() else rows.filter(pyarrow.array(here))))
        found = pyarrow.concat_tables(parts) if parts else self.types.empty_table()
        return found if chosen is None or self.row_filter is None else found.filter(pyarrow.array(chosen))

    def _filtered(self, rows: pyarrow.Table) -> pyarrow.Table:
        if self._expression is not None:
            rows = rows.filter(self._expression)
        return rows.select(self.types.names).cast(self.types)

    @cached_property
    def _schema(self) -> "Schema":
        """The columns that are asked for, and those that the filter is about."""
        schema = self.table.schema()
        ids = set() if self.row_filter is None else extract_field_ids(bind(schema, self.row_filter, True))
        needed = {*self.types.names, *(str(schema.find_column_name(number)).partition(".")[0] for number in ids)}
        return schema.select(*(each.name for each in schema.fields if each.name in needed))

    @cached_property
    def _wider(self) -> pyarrow.Schema:
        return schema_to_pyarrow(self._schema, include_field_ids=False)

    @cached_property
    def _expression(self) -> Any:
        """The filter for rows in the table's columns."""
        if self.row_filter is None:
            return None
        return expression_to_pyarrow(bind(self._schema, self.row_filter, True), self._schema)

    def _matching(self, stored: Any, projection: Projection, count: int) -> set[int]:
        """Row groups in which the filter may hold, by their statistics."""
        everything = set(range(count))
        if self.row_filter is None or count < 2:
            return everything
        fragment = pyarrow.dataset.ParquetFileFormat().make_fragment(stored)
        physical = fragment.physical_schema
        metadata = self.table.metadata
        try:
            schema = pyarrow_to_schema(physical, metadata.name_mapping(), downcast_ns_timestamp_to_us=True)
            names = translate_column_names(
                bind(self._schema, self.row_filter, True), schema, True, dict(projection.constants)
            )
            expression = expression_to_pyarrow(bind(schema, names, True), schema)
            return {group.id for group in fragment.subset(expression, schema=physical).row_groups}
        except (ValueError, TypeError, NotImplementedError, pyarrow.ArrowException):
            return everything  # the filter says nothing about the file's own columns

    def _require_exact(
        self, data_file: "DataFile", file: pyarrow.parquet.ParquetFile, projection: Projection, stored: Any
    ) -> None:
        columns = projection.columns_of(file.schema_arrow) or file.schema_arrow.names
        if any(name.partition(".")[0] in columns for name in int96_columns(file.metadata)):
            stored.seek(0)
            if reason := why_not_exact(stored.read(), columns):
                raise NotReadable(f"{data_file.file_path}: {reason}")


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


def deleted_positions(table: "Table", tasks: Iterable[FileScanTask]) -> dict[str, Any]:
    """Positions of deleted rows, by data file."""
    delete_files = {file.file_path: file for task in tasks for file in task.delete_files}
    positions: dict[str, list[Any]] = {}
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda file: _read_deletes(table.io, file), delete_files.values()):
            for path, places in found.items():
                positions.setdefault(path, []).append(numpy.asarray(places))
    return {path: numpy.unique(numpy.concatenate(places)) for path, places in positions.items()}
