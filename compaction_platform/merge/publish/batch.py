"""A batch on its way into the table, one row for each key, wherever its rows are."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow

from compaction_platform.errors import CompactionError
from compaction_platform.lake.iceberg.branches import append, create_branch, drop_branch
from compaction_platform.lake.iceberg.data_file_writer import DataFileWriter
from compaction_platform.lake.spark.session import qualified_name
from compaction_platform.lake.verification.canonical_form import Array
from compaction_platform.merge.config import MergeRules
from compaction_platform.merge.intake.intake import REPORT_COLUMN, IntakeResult
from compaction_platform.merge.intake.write_data_files import (
    Partitions,
    WrittenBatch,
    has_doubles,
    key_hashes,
    partitions_of,
)
from compaction_platform.merge.publish import sql
from compaction_platform.merge.publish.deduplicate import newest_of_each_key

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from compaction_platform.settings import Settings


GOOD_FILE_BYTES = 8 << 20
FILES_FOR_EACH_PARTITION = 4

# What makes Spark quick about few rows.
FEW_ROWS = {
    # The table's side of the join is then not sorted; it is by far the larger one.
    "spark.sql.join.preferSortMergeJoin": "false",
    "spark.sql.adaptive.enabled": "false",  # nothing to adapt to that is not known already
    # Otherwise the batch is filtered and projected while the statement is planned, row by row and interpreted.
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation",
}


class StagedRowsLost(CompactionError):
    """What Spark holds of the staged files is not what was read from them."""


class PartitioningChanged(CompactionError):
    """A batch was written as data files for another partitioning than the table has now."""


class StagedBatch:
    """What a merge asks of a batch. Spark is given the rows only when they are asked for by name."""

    def __init__(
        self, rules: MergeRules, settings: "Settings", session: "SparkSession", columns: pyarrow.Schema
    ) -> None:
        self.rules, self.settings, self.session, self.columns = rules, settings, session, columns

    rows: pyarrow.Table | None = None  # where they are in this process
    key_hashes: Array | None = None  # sorted; None if they are not known, or a key is there twice
    makes_good_files = True  # what `data_files` gives is few and large enough to stay

    @cached_property
    def view(self) -> str:
        """The batch's name in Spark SQL."""
        raise NotImplementedError

    @cached_property
    def partitions(self) -> Partitions:
        """What `sql.partitions_of` says; the last value is a number of keys."""
        return self._partitions_by_spark()

    def _partitions_by_spark(self) -> Partitions:
        return [tuple(row) for row in self.session.sql(sql.partitions_of(self.rules, self.view)).collect()]

    @property
    def keys(self) -> int:
        return sum(row[-1] for row in self.partitions)

    @property
    def spark_settings(self) -> Mapping[str, str]:
        return {}

    def data_files(self, table: "Table") -> "list[DataFile]":
        """The batch as verified data files of the table, for a commit."""
        raise NotImplementedError

    def take_back(self, files: "list[DataFile]") -> None:
        """These data files were surely not committed."""

    def close(self) -> None:
        """Nothing of the batch is needed any more."""
        if "view" in self.__dict__:
            self.session.catalog.dropTempView(self.view)

    def _view_of(self, rows: "DataFrame") -> str:
        name = f"staged_{secrets.token_hex(6)}"
        rows.createOrReplaceTempView(name)
        return name


class InMemoryBatch(StagedBatch):
    """Few rows: they are here."""

    def __init__(self, *common: Any, rows: pyarrow.Table, slots: int) -> None:
        super().__init__(*common)
        self.rows = newest_of_each_key(self.rules, rows)
        self.table: Table | None = None
        self.slots = slots
        self.key_hashes = numpy.sort(key_hashes(self.rows, self.rules.key))

    @cached_property
    def view(self) -> str:
        return self._view_of(self.session.createDataFrame(self.rows))

    @cached_property
    def partitions(self) -> Partitions:
        found = partitions_of(self.rules, self.rows)
        return self._partitions_by_spark() if found is None else found

    @property
    def spark_settings(self) -> Mapping[str, str]:
        return {**FEW_ROWS, "spark.sql.shuffle.partitions": str(self.slots)}

    def data_files(self, table: "Table") -> "list[DataFile]":
        self.table = table
        writer = replace(DataFileWriter.of(table, self.settings), second_reader=self.rules.second_reader)
        return writer.write(self.rows)

    def take_back(self, files: "list[DataFile]") -> None:
        if self.table is not None:
            DataFileWriter.of(self.table, self.settings).discard(files)


class _LargeBatch(StagedBatch):
    """Spark finds the newest row of each key, if there may be several."""

    newest: "DataFrame | None" = None
    all_rows: str | None = None

    def _newest_of(self, rows: "DataFrame", expected: int) -> str:
        from pyspark import StorageLevel

        if (there := rows.count()) != expected:
            raise StagedRowsLost(
                f"{expected:,} rows were read, {there:,} are left: Spark lost some of them and could not read their "
                "files again. Nothing was merged; run again."
            )
        if self.key_hashes is not None:
            return self._view_of(rows)
        self.all_rows = self._view_of(rows)
        query = sql.newest_of_each_key(self.rules, self.columns, self.all_rows)
        self.newest = self.session.sql(query).persist(StorageLevel.DISK_ONLY)
        return self._view_of(self.newest)

    def close(self) -> None:
        if self.newest is not None:
            self.newest.unpersist()  # while the view it reads from is still known
        super().close()
        if self.all_rows is not None:
            self.session.catalog.dropTempView(self.all_rows)


class SparkBatch(_LargeBatch):
    """Spark has the rows; they are compared with the table, not merged."""

    def __init__(self, *common: Any, rows: "DataFrame", count: int) -> None:
        super().__init__(*common)
        self.frame, self.count = rows, count

    @cached_property
    def view(self) -> str:
        return self._newest_of(self.frame.where(f"{REPORT_COLUMN} IS NULL").drop(REPORT_COLUMN), self.count)


class DataFileBatch(_LargeBatch):
    """The rows are in data files of the table. Spark reads them from a branch they are appended to."""

    def __init__(self, *common: Any, landed: WrittenBatch, table: "Table") -> None:
        super().__init__(*common)
        self.landed, self.table = landed, table
        self.referred_to = False
        self.branch: str | None = None
        if landed.hashes is not None:
            landed.hashes.sort()
            self.key_hashes = None if has_doubles(landed.hashes) else landed.hashes
        size = sum(file.file_size_in_bytes for file in landed.files)
        few = len(landed.files) <= FILES_FOR_EACH_PARTITION * len({file.partition for file in landed.files})
        self.makes_good_files = few or size >= len(landed.files) * GOOD_FILE_BYTES

    @cached_property
    def view(self) -> str:
        self._drop_branch()  # of an attempt that failed
        self.table.refresh()
        before = self.table.metadata.current_snapshot_id
        self.branch = f"staged_{secrets.token_hex(6)}"
        name = qualified_name(self.settings, *self.rules.identifier)
        files, written_for = self.data_files(self.table), self.table.metadata
        create_branch(self.table, self.branch, self.session, name)
        append(self.table, self.branch, files, {}, written_for)
        appended = self.table.metadata.refs[self.branch].snapshot_id
        only_these = (
            {"start-snapshot-id": str(before), "end-snapshot-id": str(appended)}
            if before is not None
            else {"versionAsOf": str(appended)}
        )
        rows = self.session.read.format("iceberg").options(**only_these).load(name)
        return self._newest_of(rows, sum(file.record_count for file in self.landed.files))

    @cached_property
    def partitions(self) -> Partitions:
        if self.key_hashes is None or self.landed.partitions is None:
            return self._partitions_by_spark()
        return self.landed.partitions

    def data_files(self, table: "Table") -> "list[DataFile]":
        if self.landed.spec_id != table.metadata.default_spec_id:
            raise PartitioningChanged(
                f"{self.rules.full_name} is partitioned in another way than when the batch was read. "
                "Nothing was merged; run again."
            )
        self.referred_to = True
        return list(self.landed.files)

    def take_back(self, files: "list[DataFile]") -> None:
        self.referred_to = self.branch is not None  # they are kept for the next attempt

    def close(self) -> None:
        """What fails here is left to the expiry of snapshots: the merge is done, or has failed for another reason."""
        with suppress(Exception):
            super().close()
        with suppress(Exception):
            self._drop_branch()
        if not self.referred_to:
            DataFileWriter.of(self.table, self.settings).discard(self.landed.files)

    def _drop_branch(self) -> None:
        if self.branch is not None:
            self.table.refresh()
            drop_branch(self.table, self.branch)


@contextmanager
def staged_batch(
    rules: MergeRules, settings: "Settings", session: "SparkSession", slots: int, taken: IntakeResult, table: "Table"
) -> Iterator[StagedBatch]:
    common = (rules, settings, session, taken.columns)
    batch: StagedBatch
    if taken.table is not None:
        batch = InMemoryBatch(*common, rows=taken.table, slots=slots)
    elif taken.landed is not None:
        there = sum(file.record_count for file in taken.landed.files)
        if there != taken.count:
            taken.discard(table, settings)
            raise StagedRowsLost(
                f"{taken.count:,} rows were read and {there:,} written. Nothing was merged; run again."
            )
        batch = DataFileBatch(*common, landed=taken.landed, table=table)
    else:
        assert taken.frame is not None  # noqa: S101 (for the type checker: one of the three is there)
        batch = SparkBatch(*common, rows=taken.frame, count=taken.count)
    try:
        yield batch
    finally:
        batch.close()
