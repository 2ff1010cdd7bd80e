"""Maintain in the demo: the table that merges have written to is looked at, compacted, and put back and forth."""

from typing import TYPE_CHECKING, Any

from compaction_platform.lake.dagster.demo_step import DemoContext, DemoFailed, DemoStep
from compaction_platform.lake.dagster.provisioning import IcebergTable, TableColumn
from compaction_platform.lake.spark.session import qualified_name

if TYPE_CHECKING:
    from compaction_platform.maintain.job import MaintainRun

TABLE = IcebergTable(
    "demo",
    "orders",
    (TableColumn("order_id", "long"), TableColumn("country", "string"), TableColumn("amount", "double")),
    (("country", "identity"),),
    (("format-version", "2"), ("write.delete.mode", "merge-on-read")),
)
WRITES = 20
ROWS_PER_WRITE = 500


def write_often(context: DemoContext) -> str:
    """Small commits, as a service makes them, and a deletion."""
    from pyiceberg.table.snapshots import Operation

    from compaction_platform.lake.iceberg.catalog import open_catalog
    from compaction_platform.lake.iceberg.data_file_writer import DataFileWriter
    from compaction_platform.lake.iceberg.replace_files import AddedFile, FileChange, commit_change
    from compaction_platform.lake.iceberg.snapshot_files import Manifests

    TABLE.ensure(context.settings)
    table = open_catalog(context.settings).load_table("demo.orders")
    writer, manifests = DataFileWriter.of(table, context.settings), Manifests(table.io)
    for number in range(WRITES):
        files = [AddedFile(file) for file in writer.write(_orders(number))]
        commit_change(table, FileChange(added=files, operation=Operation.APPEND), manifests)
        context.progress((number + 1) / (WRITES + 4))
    context.session.sql(f"DELETE FROM {_name(context)} WHERE order_id % 10 = 3").collect()  # noqa: S608 (our names)
    health = _run(context).health()
    context.notes["orders"] = _content(context)
    return (
        f"{WRITES} commits and a deletion: {health.files} files, {health.counts.delete_files} delete files; "
        f"health {health.score}: {health.reason}"
    )


def maintain(context: DemoContext) -> str:
    run = _run(context)
    report = run.run()
    figures = report.figures()
    if (
        figures["files_after"] >= figures["files_before"]
        or report.failed
        or _content(context) != context.notes["orders"]
    ):
        raise DemoFailed(f"the table is not what it was: {figures}")
    if run.run().committed:
        raise DemoFailed("what was compacted was compacted again")
    return (
        f"{figures['files_before']} files → {figures['files_after']}, no delete files, health {report.before.score} → "
        f"{report.after.score}; the same rows; a second run does nothing"
    )


def undo(context: DemoContext) -> str:
    run = _run(context)
    run.undo()
    health = run.health()
    if _content(context) != context.notes["orders"]:
        raise DemoFailed("the table is not what it was before the compaction")
    return f"{health.files} files again, the same rows"


def _orders(number: int) -> Any:
    import pyarrow

    numbers = range(number * ROWS_PER_WRITE, (number + 1) * ROWS_PER_WRITE)
    return pyarrow.table(
        {
            "order_id": pyarrow.array(numbers, pyarrow.int64()),
            "country": ["de" if each % 3 else "fr" for each in numbers],
            "amount": [each * 31 % 1000 / 10 for each in numbers],
        }
    )


def _run(context: DemoContext) -> "MaintainRun":
    from compaction_platform.maintain.config import TableMaintenance
    from compaction_platform.maintain.job import MaintainRun

    return MaintainRun(
        TableMaintenance("demo.orders", "orders"), context.settings, context.spread, lambda: context.session
    )


def _name(context: DemoContext) -> str:
    return qualified_name(context.settings, "demo", "orders")


def _content(context: DemoContext) -> list[tuple[Any, ...]]:
    columns = "country, count(*), sum(order_id), round(sum(amount), 2)"
    query = f"SELECT {columns} FROM {_name(context)} GROUP BY country"  # noqa: S608 (our names)
    return sorted(tuple(row) for row in context.session.sql(query).collect())


STEPS = [
    DemoStep("Write to an Iceberg table again and again", write_often),
    DemoStep("Maintain: few files, deletes applied, proved", maintain),
    DemoStep("Take the compaction back", undo),
]
