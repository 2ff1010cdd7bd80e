"""The intake: decode everything that arrived in some hours and set bad files aside.

A small batch is read here, in this process. Spark tasks read a large one, and leave its rows as data files of the
table (see `landing`), or with Spark itself where nothing may be written.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow
from pyiceberg.exceptions import CommitFailedException

from compaction_platform.errors import CompactionError
from compaction_platform.lake.iceberg.data_file_writer import DataFileWriter
from compaction_platform.lake.iceberg.types import arrow_schema, holds, spark_columns
from compaction_platform.lake.spark.parallel_map import share_out
from compaction_platform.lake.storage.object_store import ObjectChanged, ObjectMissing, ObjectStore
from compaction_platform.lake.storage.threads import map_concurrently
from compaction_platform.merge.config import ORIGIN, MergeRules, StagingPaths
from compaction_platform.merge.intake.hour_manifest import HourManifest
from compaction_platform.merge.intake.staged_file_reader import (
    FileReport,
    FileUnfit,
    Reading,
    fit_columns,
    new_column,
    survey,
)
from compaction_platform.merge.intake.write_data_files import BatchWriteTask, WrittenBatch, together
from compaction_platform.merge.plan.staged_hours import Batch, StagedFile

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

    from compaction_platform.lake.spark.parallel_map import ParallelMap
    from compaction_platform.settings import Settings

SMALL_BATCH_BYTES = 32 << 20
SMALL_BATCH_FILES = 2_000
SMALL_BATCH_DECODED_BYTES = 256 << 20
SMALL_BATCH_ROWS = 1_000_000
FETCHES_AT_ONCE = 16
REPORT_COLUMN = "_report"

RowsFor = Literal["merge", "comparison", "nobody"]


Fetched = dict[tuple[str, str], bytes]  # by key and etag


@dataclass(frozen=True)
class IntakeResult:
    """The outcome of an intake: reports for all files, and the rows of the sound ones.

    The rows are in this process if they are few. Else they have landed, or Spark has them.
    """

    reports: tuple[FileReport, ...]
    columns: pyarrow.Schema  # the table's own; the rows carry their origin besides
    table: pyarrow.Table | None = None
    landed: WrittenBatch | None = None
    frame: "DataFrame | None" = None

    def release(self) -> None:
        """Let Spark forget the rows."""
        if self.frame is not None:
            self.frame.unpersist()

    def discard(self, table: "Table", settings: "Settings") -> None:
        """The rows will not be merged."""
        self.release()
        if self.landed is not None:
            DataFileWriter.of(table, settings).discard(self.landed.files)

    def manifest(self, batch: Batch) -> HourManifest:
        """The manifest of one of the batches. A file that changed while it was read belongs to a later hour."""
        by_key = {report.key: report for report in self.reports}
        reports = [by_key[file.key] for file in batch.files]
        there = batch.without({report.key for report in reports if report.fate == "changed"})
        return HourManifest(batch.hour, there.digest, tuple(by_key[file.key] for file in there.files))

    @property
    def count(self) -> int:
        return sum(report.rows - report.rejected for report in self.reports if report.fate == "sound")


@dataclass(frozen=True)
class Intake:
    """Where to read from and with what."""

    rules: MergeRules
    settings: "Settings"
    spread: "ParallelMap"
    dry_run: bool = False
    say: Callable[[str], None] = lambda text: None

    @property
    def places(self) -> StagingPaths:
        return StagingPaths.of(self.rules, self.settings)

    def take_in(self, files: Sequence[StagedFile], table: "Table", rows_for: RowsFor = "merge") -> IntakeResult:
        """Decode these files into rows for the table, adding new columns to it where the rules say so."""
        staging = ObjectStore.at(self.places.staging, self.settings)
        fetched = _fetch_if_small(staging, files)
        columns = self._columns_for(staging, files, fetched, table)
        reading = Reading(
            staging=staging,
            quarantine=None if self.dry_run else ObjectStore.at(self.places.quarantine, self.settings),
            columns=columns,
            key=self.rules.key,
            required=self.rules.required,
            on_new_column=self.rules.on_new_column,
            fetched=fetched or {},
            second_reader=self.rules.second_reader,
        )
        if fetched is None or not _is_small_when_decoded(fetched):
            reading = replace(reading, fetched={})
            if rows_for == "comparison":
                return self._kept_by_spark(reading, files)
            return self._landed(reading, files, self._data_files(table) if rows_for == "merge" else None)
        return self._here(reading, files)

    def _data_files(self, table: "Table") -> DataFileWriter:
        return replace(DataFileWriter.of(table, self.settings), second_reader=self.rules.second_reader)

    def _columns_for(
        self, staging: ObjectStore, files: Sequence[StagedFile], fetched: "Fetched | None", table: "Table"
    ) -> pyarrow.Schema:
        """The table's columns, with those of the files that are new and welcome."""
        if self.rules.on_new_column != "add":
            return _own_columns(table)
        if fetched is not None:
            schemas = [survey(staging, file, fetched.get((file.key, file.etag), b"")) for file in files]
        else:
            outcomes = list(self.spread.run(partial(survey, staging), files, weight=lambda file: 1 << 16))
            if failed := [outcome for outcome in outcomes if outcome.failed]:
                raise CompactionError(f"{failed[0].item.key} could not be looked at: {failed[0].error}")
            schemas = [outcome.value for outcome in sorted(outcomes, key=lambda outcome: outcome.item.key)]
        own = _own_columns(table)
        found = [schema for schema in schemas if schema is not None and self._fits(schema, own)]
        return _own_columns(table) if not found else self._add_columns(table, found)

    def _fits(self, schema: pyarrow.Schema, own: pyarrow.Schema) -> bool:
        """A file that will be quarantined anyway adds no columns."""
        try:
            fit_columns(schema, own, self.rules.required, "ignore")
        except FileUnfit:
            return False
        return True

    def _add_columns(self, table: "Table", schemas: list[pyarrow.Schema]) -> pyarrow.Schema:
        new = _new_columns(_own_columns(table), schemas)
        if not new:
            return _own_columns(table)
        self.say(f"new columns: {', '.join(f'{name} {kind}' for name, kind in new.items())}")
        if self.dry_run:
            return _with_columns(table, new)
        for _ in range(5):  # someone else may be changing the table, too
            with suppress(CommitFailedException), table.update_schema() as update:
                for name, kind in new.items():
                    update.add_column(name, kind, doc="Added from staged files.")
            table.refresh()
            new = {name: kind for name, kind in new.items() if name not in table.schema().column_names}
            if not new:
                return _own_columns(table)
        raise CompactionError(f"columns could not be added to {self.rules.full_name}: its schema changes all the time.")

    def _here(self, reading: Reading, files: Sequence[StagedFile]) -> IntakeResult:
        """Little work: the rows fit into this process."""
        results = map_concurrently(lambda file: _read_whole(reading, file), files, max(2, self.spread.slots))
        reports = tuple(report for report, _ in results)
        rows = pyarrow.Table.from_batches([batch for _, read in results for batch in read], reading.output)
        self._tell(reports)
        return IntakeResult(reports, reading.columns, table=rows)

    def _landed(self, reading: Reading, files: Sequence[StagedFile], data_files: DataFileWriter | None) -> IntakeResult:
        """Much work: Spark tasks read the files and, if asked to, write the rows where they will stay."""
        landing = BatchWriteTask(self.rules, reading, data_files)
        landed = WrittenBatch(())
        try:
            for part in self._land(landing, _groups(files, self.spread.slots)):
                landed = together([landed, part])
        except BaseException:
            if data_files is not None:
                data_files.discard(landed.files)
            raise
        if landed.unwritable and data_files is not None:
            self.say("there are moments outside the calendar; Spark keeps the rows instead")
            data_files.discard(landed.files)
            return self._kept_by_spark(reading, files)
        self._tell(landed.reports)
        return IntakeResult(landed.reports, reading.columns, landed=landed)

    def _land(self, landing: BatchWriteTask, groups: Sequence[Sequence[StagedFile]]) -> Iterator[WrittenBatch]:
        """What the groups became, as they are done. A group whose reader died is read again, file by file: the one
        that killed it is set aside as it is."""
        done = 0
        total = sum(len(group) for group in groups)
        failed: list[str] = []
        for outcome in self.spread.run(landing.land, groups, weight=_size, in_driver=False):
            group = outcome.item
            if outcome.value is not None:
                done += len(group)
                self.say(f"read {done} of {total} files")
                yield outcome.value
            elif not outcome.worker_died:  # the others are heard all the same: they may have left files
                failed.append(f"{group[0].key} and {len(group) - 1} more files: {outcome.error}")
            elif len(group) == 1:
                self.say(f"{group[0].key} killed the process that read it; it is set aside")
                yield WrittenBatch((landing.reading.set_aside_unread(group[0], outcome.error or ""),))
            else:
                self.say(
                    f"the process that read {group[0].key} and {len(group) - 1} more files died; reading one by one"
                )
                try:
                    yield from self._land(landing, [[file] for file in group])
                except CompactionError as error:
                    failed.append(str(error))
        if failed:
            raise CompactionError(f"files could not be read, and nothing was merged. {failed[0]}")

    def _kept_by_spark(self, reading: Reading, files: Sequence[StagedFile]) -> IntakeResult:
        """Much work of which nothing may be left behind: Spark keeps the rows, on its local disk, so that the files
        are not read again. (In memory they would compete with the queries' own sorting.)"""
        from pyspark import StorageLevel

        assert self.spread.session is not None  # noqa: S101 (for the type checker: a merge always has Spark)
        tasks = _groups(files, self.spread.slots)
        output = reading.output.append(pyarrow.field(REPORT_COLUMN, pyarrow.string()))

        def read_files(numbers: Iterable[Any]) -> Iterable[Any]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    for file in tasks[number]:
                        yield from _rows_and_report(reading, file, output)

        numbers = self.spread.session.range(0, len(tasks), 1, len(tasks))
        everything = numbers.mapInArrow(read_files, spark_columns(output)).persist(StorageLevel.DISK_ONLY)
        try:
            answers = everything.where(f"{REPORT_COLUMN} IS NOT NULL").select(REPORT_COLUMN).collect()
        except BaseException:
            everything.unpersist()
            raise
        reports = tuple(FileReport.from_json(row[0]) for row in answers)
        self._tell(reports)
        return IntakeResult(reports, reading.columns, frame=everything)

    def _tell(self, reports: Sequence[FileReport]) -> None:
        rows = sum(report.rows for report in reports)
        size = sum(report.size for report in reports)
        self.say(f"decoded {len(reports)} files, {size / 1e6:.1f} MB, {rows:,} rows")
        for report in reports:
            if report.fate != "sound":
                self.say(f"{report.key}: {report.fate}: {report.reason}")
            if report.rejected:
                self.say(f"{report.key}: {report.rejected} rows have no key and are set aside")


def _groups(files: Sequence[StagedFile], slots: int) -> list[list[StagedFile]]:
    """What one task reads. In the order of their names, as far as tasks of equal weight allow."""
    shares = share_out([file.size for file in files], slots)
    return [[files[number] for number in sorted(share)] for share in shares]


def _size(files: Sequence[StagedFile]) -> int:
    return sum(file.size for file in files)


def _own_columns(table: "Table") -> pyarrow.Schema:
    schema = arrow_schema(table.schema())
    return pyarrow.schema([column for column in schema if column.name not in ORIGIN])


def _with_columns(table: "Table", new: dict[str, Any]) -> pyarrow.Schema:
    from compaction_platform.lake.iceberg.types import arrow_type

    return pyarrow.schema([*_own_columns(table), *((name, arrow_type(kind)) for name, kind in new.items())])


def _new_columns(table: pyarrow.Schema, schemas: Iterable[pyarrow.Schema]) -> dict[str, Any]:
    """Columns the table lacks, each with the widest type among the files; one that cannot be added is left to
    the reading of its file to report."""
    from compaction_platform.lake.iceberg.types import arrow_type

    new: dict[str, Any] = {}
    for schema in schemas:
        for column in schema:
            if column.name.lower() in table.names or pyarrow.types.is_null(column.type):
                continue
            with suppress(CompactionError):
                name, kind = new_column(column)
                if name not in new or holds(arrow_type(kind), arrow_type(new[name])):
                    new[name] = kind
    return new


def _fetch_if_small(staging: ObjectStore, files: Sequence[StagedFile]) -> "Fetched | None":
    """The bytes of all files if they are few and small; one that changed meanwhile is left out."""
    if len(files) > SMALL_BATCH_FILES or sum(file.size for file in files) > SMALL_BATCH_BYTES:
        return None

    def fetch(file: StagedFile) -> tuple[tuple[str, str], Any] | None:
        try:
            return (file.key, file.etag), staging.read(file.key, file.etag)
        except (ObjectChanged, ObjectMissing):
            return None  # reading it again will tell

    return dict(fetched for fetched in map_concurrently(fetch, files, FETCHES_AT_ONCE) if fetched is not None)


def _is_small_when_decoded(fetched: "Fetched") -> bool:
    """Whether the rows will fit into this process, as far as the footers tell."""
    import pyarrow.parquet

    total = rows = 0
    for data in fetched.values():
        with suppress(pyarrow.ArrowException, OSError, ValueError):
            metadata = pyarrow.parquet.read_metadata(pyarrow.BufferReader(pyarrow.py_buffer(data)))
            total += sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
            rows += metadata.num_rows
    return total <= SMALL_BATCH_DECODED_BYTES and rows <= SMALL_BATCH_ROWS


def _read_whole(reading: Reading, file: StagedFile) -> tuple[FileReport, list[pyarrow.RecordBatch]]:
    report, rows = reading.read(file)
    return report, list(rows)


def _rows_and_report(reading: Reading, file: StagedFile, output: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    report, rows = reading.read(file)
    for batch in rows:
        nothing = pyarrow.nulls(batch.num_rows, pyarrow.string())
        yield pyarrow.RecordBatch.from_arrays([*batch.columns, nothing], schema=output)
    empty = [pyarrow.nulls(1, column.type) for column in output][:-1]
    yield pyarrow.RecordBatch.from_arrays([*empty, pyarrow.array([report.to_json()])], schema=output)
