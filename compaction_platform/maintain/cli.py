"""`compaction maintain` and `compaction undo-compaction`: tables that are declared to be kept healthy."""

import contextlib
import functools
from typing import TYPE_CHECKING, Annotated

import typer

from compaction_platform.errors import CompactionError
from compaction_platform.lake.dagster.terminal import console, say, stoppable
from compaction_platform.settings import package_directory

if TYPE_CHECKING:
    from compaction_platform.maintain.config import TableMaintenance
    from compaction_platform.settings import Settings

app = typer.Typer()
TableName = Annotated[str, typer.Argument(help="A declared table: namespace.name.")]


@app.command()
def maintain(  # noqa: PLR0913 (an option for each part of a request)
    table: TableName,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")] = False,
    force: Annotated[bool, typer.Option(help="From two small files on, in any window.")] = False,
    target_file_size_mb: Annotated[int | None, typer.Option(help="About how large files become.")] = None,
    max_files: Annotated[int | None, typer.Option(help="Rewrite no more files than this.")] = None,
    where: Annotated[str | None, typer.Option(help="Only such partitions, e.g. \"country = 'de'\".")] = None,
    expire_snapshots: Annotated[bool | None, typer.Option(help="Whether snapshots expire.")] = None,
    snapshot_retention_hours: Annotated[int | None, typer.Option(help="Keep snapshots for so long.")] = None,
) -> None:
    """Compact a declared table, expire its snapshots, clear its orphans."""
    from compaction_platform.lake.spark.parallel_map import ParallelMap
    from compaction_platform.lake.spark.session import spark_session, task_slots
    from compaction_platform.maintain.config import MaintenanceRequest
    from compaction_platform.maintain.job import MaintainRun
    from compaction_platform.maintain.show import prospect_as_table, report_as_table
    from compaction_platform.settings import load_settings

    settings = load_settings()
    request = MaintenanceRequest(
        force, target_file_size_mb, max_files, where, expire_snapshots, snapshot_retention_hours, dry_run
    )
    with stoppable(), contextlib.ExitStack() as until_done:
        session = functools.cache(lambda: until_done.enter_context(spark_session(settings)))

        def spread() -> ParallelMap:
            return ParallelMap(session(), task_slots(session(), settings))

        run = MaintainRun(_maintenance(table, settings), settings, spread, session, say)
        if dry_run:
            console.print(prospect_as_table(run.prospect(request)))
        else:
            report = run.run(request)
            console.print(report_as_table(report))
            if report.failed or report.unknown or report.troubles:
                raise typer.Exit(1)


@app.command("undo-compaction")
def undo_compaction(table: TableName) -> None:
    """Roll a declared table back to before its last compaction, if no writer has committed since."""
    from compaction_platform.maintain.dagster.assets import run_of
    from compaction_platform.settings import load_settings

    settings = load_settings()
    run_of(_maintenance(table, settings), settings, say=say).undo()


def _maintenance(table: str, settings: "Settings") -> "TableMaintenance":
    """The declaration of this table."""
    import warnings

    warnings.filterwarnings("ignore", module="dagster")
    import dagster as dg

    from compaction_platform.maintain.component import declared

    found = {each.table: each for each in declared(dg.ComponentTree.for_project(package_directory()), settings.profile)}
    if table not in found:
        known = ", ".join(sorted(found)) or "none"
        raise CompactionError(f"no table {table} is declared in defs/ to be maintained. There are: {known}.")
    return found[table]
