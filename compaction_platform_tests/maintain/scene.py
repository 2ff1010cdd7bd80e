"""A table of its own for a test, small writes to it, and a model in plain Python of what it must hold."""

import secrets
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow
import pyarrow.parquet
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record

from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.lake.iceberg.data_file_reader import DataFileReader, key_of
from compaction_platform.lake.iceberg.data_file_writer import DataFileWriter
from compaction_platform.lake.iceberg.replace_files import AddedFile, FileChange, commit_change
from compaction_platform.lake.iceberg.snapshot_files import Manifests
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.maintain.config import MaintenanceRequest, OrphanRules, TableMaintenance
from compaction_platform.maintain.job import MaintainRun, MaintenanceReport
from compaction_platform.maintain.plan.file_groups import RewritePolicy
from compaction_platform.maintain.table_state import TableState
from compaction_platform.settings import Settings

Row = dict[str, Any]
COLUMNS = pyarrow.schema({"id": pyarrow.int64(), "country": pyarrow.string(), "amount": pyarrow.float64()})


def rows_of(ids: Sequence[int], country: str = "de", amount: float = 1.0) -> list[Row]:
    return [{"id": number, "country": country, "amount": amount + number} for number in ids]


class Scene:
    def __init__(
        self,
        settings: Settings,
        spark: Any,
        columns: str = "id bigint, country string, amount double",
        partitioned_by: str | None = "country",
        **properties: str,
    ) -> None:
        self.settings, self.spark = settings, spark
        self.table_name = f"t_{secrets.token_hex(6)}"
        self.name = f"care.{self.table_name}"
        self.full_name = f"lake.{self.name}"
        spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.care").collect()
        given = {
            "write.delete.mode": "merge-on-read",
            "write.update.mode": "merge-on-read",
            "write.merge.mode": "merge-on-read",
            **{name.replace("__", "-").replace("_", "."): value for name, value in properties.items()},
        }
        listed = ", ".join(f"'{name}'='{value}'" for name, value in given.items())
        by = f"PARTITIONED BY ({partitioned_by})" if partitioned_by else ""
        spark.sql(f"CREATE TABLE {self.full_name} ({columns}) USING iceberg {by} TBLPROPERTIES ({listed})").collect()
        self.expected: list[Row] = []

    # ------------------------------------------------------------ writers

    def write(self, *batches: list[Row], schema: pyarrow.Schema = COLUMNS) -> None:
        """Each batch is a commit of its own, with a file for each partition."""
        for rows in batches:
            with warnings.catch_warnings():  # that PyIceberg has no size of row groups in bytes
                warnings.simplefilter("ignore", UserWarning)
                self.table.append(pyarrow.Table.from_pylist(rows, schema))
            self.expected += rows

    def small_files(self, count: int = 5, country: str = "de", first: int = 0) -> None:
        """So many files of ten rows, in one commit."""
        table = self.table
        writer = DataFileWriter.of(table, self.settings)
        files = []
        for number in range(count):
            rows = rows_of(range(first + number * 10, first + number * 10 + 10), country)
            files += writer.write(pyarrow.Table.from_pylist(rows, COLUMNS))
            self.expected += rows
        change = FileChange(added=[AddedFile(file) for file in files], operation=Operation.APPEND)
        commit_change(table, change, Manifests(table.io))

    def small_commits(self, count: int = 5, country: str = "de", first: int = 0) -> None:
        """So many commits of a file of ten rows."""
        self.write(*(rows_of(range(first + number * 10, first + number * 10 + 10), country) for number in range(count)))

    def delete(self, condition: str, matches: Callable[[Row], bool]) -> None:
        self.sql(f"DELETE FROM {self.full_name} WHERE {condition}")
        self.expected = [row for row in self.expected if not matches(row)]

    def sql(self, statement: str) -> list[Any]:
        return list(self.spark.sql(statement).collect())

    def delete_by_equality(self, rows: list[Row], partition: Record | None = None) -> None:
        """An equality delete as Flink writes them: Spark and PyIceberg only read, or not even that."""
        table = self.table
        schema = table.schema()
        names = list(rows[0])
        ids = [schema.find_field(name).field_id for name in names]
        fields = [
            pyarrow.field(name, COLUMNS.field(name).type, metadata={"PARQUET:field_id": str(number)})
            for name, number in zip(names, ids, strict=True)
        ]
        path = f"{table.location()}/data/eq-{secrets.token_hex(6)}.parquet"
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, pyarrow.schema(fields)), sink)
        content = sink.getvalue()
        DataFileReader(table.metadata, self.settings).store(path).write(key_of(path), content)
        file = DataFile.from_args(
            content=DataFileContent.EQUALITY_DELETES,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=partition or Record(),
            record_count=len(rows),
            file_size_in_bytes=len(content),
            equality_ids=ids,
        )
        file.spec_id = table.metadata.default_spec_id
        commit_change(table, FileChange(added=[AddedFile(file)], operation=Operation.DELETE), Manifests(table.io))
        gone = [tuple(row[name] for name in names) for row in rows]
        self.expected = [row for row in self.expected if tuple(row[name] for name in names) not in gone]

    # ------------------------------------------------------------ readers

    @property
    def table(self) -> Table:
        return open_catalog(self.settings).load_table(self.name)

    @property
    def schema(self) -> Schema:
        return self.table.schema()

    def look(self) -> TableState:
        return TableState.at(self.table)

    def read(self, at: int | None = None) -> list[Row]:
        """What Spark reads, now or in a snapshot."""
        version = f" VERSION AS OF {at}" if at is not None else ""
        return [row.asDict() for row in self.sql(f"SELECT * FROM {self.full_name}{version}")]

    def files(self) -> int:
        return len(self.look().files.data)

    def assert_nothing_lost(self) -> None:
        assert ordered(self.read()) == ordered(self.expected)

    @property
    def snapshots(self) -> list[int]:
        return [snapshot.snapshot_id for snapshot in self.table.metadata.snapshots]

    # ------------------------------------------------------------ maintenance

    def rules(self, **changes: Any) -> TableMaintenance:
        policy = {name: changes.pop(name) for name in list(changes) if name in RewritePolicy.__dataclass_fields__}
        base = TableMaintenance(
            self.name, self.table_name, orphans=OrphanRules(enabled=False), expire_snapshots=False, manifests_from=0
        )
        return replace(base, policy=replace(base.policy, **policy), **changes)

    def run_of(self, *, later: timedelta = timedelta(), on_spark: bool = False, **changes: Any) -> MaintainRun:
        self.said: list[str] = []
        return MaintainRun(
            self.rules(**changes),
            self.settings,
            spread=lambda: ParallelMap(self.spark, 2) if on_spark else ParallelMap(None, 2),
            session=lambda: self.spark,
            say=self.said.append,
            clock=lambda: datetime.now(UTC) + later,
        )

    def maintain(self, request: MaintenanceRequest | None = None, **named: Any) -> MaintenanceReport:
        return self.run_of(**named).run(request)


def ordered(rows: Sequence[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)
