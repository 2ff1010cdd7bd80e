"""Data files written by Arrow and rows read by Arrow, held against what Spark says about the same table."""

import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue, GreaterThanOrEqual, IsNull, Or

from compaction_platform.lake.dagster.provisioning import IcebergTable, TableColumn
from compaction_platform.lake.iceberg.branches import (
    BRANCH_LIFE_MS,
    BranchUnrelated,
    append,
    create_branch,
    drop_branch,
    publish_branch,
)
from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.lake.iceberg.data_file_writer import (
    DataFileDiffers,
    DataFileWriter,
    NotWritable,
)
from compaction_platform.lake.iceberg.table_scan import NotReadable, TableRows
from compaction_platform.lake.parquet.writer import repetitive_columns
from compaction_platform.settings import Settings

pytestmark = pytest.mark.integration

START = datetime(2026, 3, 1, tzinfo=UTC)
COLUMNS = (
    TableColumn("id", "long"),
    TableColumn("moment", "timestamptz"),
    TableColumn("day", "date"),
    TableColumn("word", "string"),
    TableColumn("price", "decimal(12, 2)"),
    TableColumn("tags", "list<string>"),
)
MERGE_ON_READ = tuple((f"write.{verb}.mode", "merge-on-read") for verb in ("merge", "update", "delete"))

NewTable = Callable[..., Any]


def rows(count: int, first: int = 0) -> pyarrow.Table:
    numbers = range(first, first + count)
    return pyarrow.table(
        {
            "id": pyarrow.array(numbers, pyarrow.int64()),
            "moment": pyarrow.array(
                [START + timedelta(hours=7 * n) if n % 11 else None for n in numbers], pyarrow.timestamp("us", "UTC")
            ),
            "day": pyarrow.array([date(2026, 1, 1) + timedelta(days=n % 40) for n in numbers]),
            "word": pyarrow.array([f"word {n % 5}" if n % 7 else None for n in numbers]),
            "price": pyarrow.array([Decimal(n) / 4 for n in numbers], pyarrow.decimal128(12, 2)),
            "tags": pyarrow.array([["x"] * (n % 3) for n in numbers], pyarrow.list_(pyarrow.string())),
        }
    )


def plain(found: pyarrow.Table) -> list[Any]:
    return sorted(found.select([column.name for column in COLUMNS]).to_pylist(), key=lambda row: row["id"])


@pytest.fixture
def new_table(settings: Settings) -> Iterator[NewTable]:
    def make(*partition_by: tuple[str, str]) -> Any:
        name = f"t_{secrets.token_hex(5)}"
        IcebergTable("files", name, COLUMNS, partition_by, MERGE_ON_READ).ensure(settings)
        return open_catalog(settings).load_table(("files", name))

    yield make


def spark_name(table: Any) -> str:
    return f"lake.files.{table.name()[-1]}"


def publish(table: Any, spark: Any, files: Any) -> None:
    base = table.metadata.current_snapshot_id
    create_branch(table, "b", spark, spark_name(table))
    append(table, "b", files, {"who": "test"})
    assert table.metadata.refs["b"].max_ref_age_ms == BRANCH_LIFE_MS, "if we die now, it goes with the next expiry"
    publish_branch(table, "b", base, table.metadata.refs["b"].snapshot_id)


@pytest.mark.parametrize(
    "partition_by",
    [
        (),
        (("moment", "day"),),
        (("moment", "month"), ("word", "identity")),
        (("id", "bucket[3]"), ("day", "year")),
        (("word", "truncate[6]"), ("moment", "hour")),
    ],
    ids=str,
)
def test_spark_reads_what_arrow_wrote(new_table: NewTable, settings: Settings, spark: Any, partition_by: Any) -> None:
    table, staged = new_table(*partition_by), rows(300)
    files = DataFileWriter.of(table, settings).write(staged)
    publish(table, spark, files)
    found = spark.table(spark_name(table))
    assert plain(found.toArrow().cast(staged.schema)) == plain(staged)
    for row in staged.take([0, 5, 7, 22]).to_pylist():  # a filter prunes by partition values: a wrong one loses the row
        limit = "IS NULL" if row["moment"] is None else f"= timestamp '{row['moment'].isoformat()}'"
        word = "IS NULL" if row["word"] is None else f"= '{row['word']}'"
        assert found.where(f"id = {row['id']} AND moment {limit} AND word {word}").count() == 1
    assert table.current_snapshot().summary["who"] == "test"


def test_rows_are_those_spark_sees_after_deletes_and_new_columns(
    new_table: NewTable, settings: Settings, spark: Any
) -> None:
    table = new_table(("day", "month"))
    publish(table, spark, DataFileWriter.of(table, settings).write(rows(500)))
    name = spark_name(table)
    spark.sql(f"DELETE FROM {name} WHERE id % 3 = 0").collect()
    spark.sql(f"UPDATE {name} SET word = 'new' WHERE id % 5 = 0").collect()
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN price TO cost")
    spark.sql(f"ALTER TABLE {name} ADD COLUMN note string")
    spark.sql(f"DELETE FROM {name} WHERE id = 1").collect()
    table.refresh()
    found = TableRows(table, table.metadata.current_snapshot_id, AlwaysTrue())
    columns = ["id", "word", "cost", "note"]
    read = pyarrow.concat_tables(found.each(lambda file: file.read(columns)))
    expected = spark.table(name).select(*columns).toArrow()
    order = [("id", "ascending")]
    assert read.sort_by(order).to_pylist() == expected.sort_by(order).to_pylist()
    assert found.count() == expected.num_rows < found.rows_at_most


def test_a_filter_that_cuts_files_apart(new_table: NewTable, settings: Settings, spark: Any) -> None:
    """As after a change of the partitioning: files of the old one hold rows of many new partitions."""
    table = new_table()
    publish(table, spark, DataFileWriter.of(table, settings).write(rows(400)))
    spark.sql(f"DELETE FROM {spark_name(table)} WHERE id % 2 = 0").collect()
    table.refresh()
    chosen: Any = GreaterThanOrEqual("id", 100)  # type: ignore[call-arg]
    found = TableRows(table, table.metadata.current_snapshot_id, chosen)
    read = pyarrow.concat_tables(found.each(lambda file: file.read(["id"])))
    assert sorted(read["id"].to_pylist()) == list(range(101, 400, 2))
    assert found.count() == 150


def test_a_branch_that_is_gone_or_moved_is_not_begun_anew(new_table: NewTable, settings: Settings, spark: Any) -> None:
    """Otherwise the new snapshot would have no parent, and publishing it would lose everything else."""
    table = new_table()
    publish(table, spark, DataFileWriter.of(table, settings).write(rows(10)))
    main = table.metadata.current_snapshot_id
    create_branch(table, "b", spark, spark_name(table))
    other = open_catalog(settings).load_table(table.name())
    drop_branch(other, "b")
    with pytest.raises(CommitFailedException):
        append(table, "b", DataFileWriter.of(table, settings).write(rows(10, 10)), {})
    table.refresh()
    assert set(table.metadata.refs) == {"main"}
    assert table.metadata.current_snapshot_id == main


def test_only_what_continues_main_is_published(new_table: NewTable, settings: Settings, spark: Any) -> None:
    table = new_table()
    publish(table, spark, DataFileWriter.of(table, settings).write(rows(10)))
    first = table.metadata.current_snapshot_id
    create_branch(table, "old", spark, spark_name(table))
    publish(table, spark, DataFileWriter.of(table, settings).write(rows(10, 10)))
    main = table.metadata.current_snapshot_id
    with pytest.raises(BranchUnrelated, match="Nothing was published"):
        publish_branch(table, "old", main, first)
    with pytest.raises(CommitFailedException):
        publish_branch(table, "old", first, first)
    table.refresh()
    assert table.metadata.current_snapshot_id == main


def test_a_table_without_a_snapshot_has_no_rows(new_table: NewTable) -> None:
    assert TableRows(new_table(), None, AlwaysTrue()).count() == 0


def test_what_only_spark_can_read_is_said(new_table: NewTable, settings: Settings, spark: Any) -> None:
    """PyIceberg cannot tell whether a missing moment is later than another."""
    table = new_table(("moment", "day"))
    publish(table, spark, DataFileWriter.of(table, settings).write(rows(30)))
    later: Any = GreaterThanOrEqual("moment", 0)  # type: ignore[call-arg]
    missing: Any = IsNull("moment")  # type: ignore[call-arg]
    with pytest.raises(NotReadable, match=table.name()[-1]):
        TableRows(table, table.metadata.current_snapshot_id, Or(later, missing)).count()


def test_a_store_that_gives_back_something_else_is_found_out(
    new_table: NewTable, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table()
    place = DataFileWriter.of(table, settings)
    real = DataFileWriter._encoded

    def one_row_less(self: DataFileWriter, given: pyarrow.Table) -> bytes:
        return real(self, given.slice(1))

    monkeypatch.setattr(DataFileWriter, "_encoded", one_row_less)
    with pytest.raises(DataFileDiffers, match="reads back as something else"):
        place.write(rows(10))
    assert list(place.store.list()) == []


def test_moments_outside_the_calendar_are_left_to_spark(new_table: NewTable, settings: Settings) -> None:
    table = new_table(("moment", "day"))
    given = rows(3).set_column(1, "moment", pyarrow.array([0, 1, 1 << 62], pyarrow.timestamp("us", "UTC")))
    with pytest.raises(NotWritable, match="calendar"):
        DataFileWriter.of(table, settings).write(given)


def test_dictionaries_are_for_columns_that_repeat_themselves() -> None:
    assert repetitive_columns(rows(1000)) == ["day", "word"]


def test_rows_of_many_partition_fields_are_filed_where_they_belong(settings: Settings) -> None:
    """More combinations than 64 bits can count."""
    names = [f"p{number}" for number in range(10)]
    name = f"many_{secrets.token_hex(4)}"
    columns = tuple(TableColumn(each, "int") for each in names)
    IcebergTable("silver", name, columns, tuple((each, "identity") for each in names)).ensure(settings)
    table = open_catalog(settings).load_table(("silver", name))
    values = [[number] * 10 for number in range(256)] + [[1, *[0] * 9]]
    content = {each: pyarrow.array([row[place] for row in values], pyarrow.int32()) for place, each in enumerate(names)}
    files = DataFileWriter.of(table, settings).write(pyarrow.table(content))
    assert [file.record_count for file in files] == [1] * 257
    found = {tuple(file.partition[place] for place in range(10)) for file in files}
    assert found == {tuple(row) for row in values}
    open_catalog(settings).drop_table(("silver", name))
