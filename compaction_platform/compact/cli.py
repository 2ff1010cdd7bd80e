"""`compaction plan` and `compaction compact`: directories, and tables in the Glue Data Catalog."""

import contextlib
import dataclasses
import functools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from compaction_platform.errors import CompactionError
from compaction_platform.lake.dagster.terminal import console, stoppable, stoppable_output
from compaction_platform.lake.storage.sizes import LARGEST_MB, MB
from compaction_platform.settings import package_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction_platform.compact.glue.config import GlueTableConfig
    from compaction_platform.compact.job import CompactRun

app = typer.Typer()
Uri = Annotated[
    str, typer.Argument(help="A directory (`s3://bucket/prefix`, a local path) or a table: `glue://database/table`.")
]
TargetMb = Annotated[
    int | None,
    typer.Option(min=1, max=LARGEST_MB, help="Size of the files to make, in MB: 128, or as a table is declared."),
]
DEFAULT_TARGET_MB = 128
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Where = Annotated[str | None, typer.Option(help="Only such partitions of a table, e.g. \"year='2023'\".")]
Union = Annotated[
    bool,
    typer.Option(
        "--union", help="Join files of a directory although each has columns that others lack, if half are the same."
    ),
]
GLUE = "glue://"


@app.command()
def plan(
    uri: Uri, target_mb: TargetMb = None, where: Where = None, as_json: AsJson = False, union: Union = False
) -> None:
    """Show which small Parquet files in a directory or table would become which large ones. Changes nothing."""
    from compaction_platform.compact.show import plan_as_json, plan_as_table

    if uri.startswith(GLUE):
        _plan_glue(_glue_table(uri, target_mb), where, as_json)
        return
    _refuse_where(where)
    run = _compact_run(uri, target_mb, union=union)
    surveys = run.plan()
    _require_files(uri, surveys[0].before.files)
    columns = run.columns_of(surveys)
    if as_json:
        typer.echo(json.dumps(plan_as_json(surveys, columns), indent=1))
    else:
        console.print(plan_as_table(surveys, columns))
    if surveys[0].plan.conflicts:
        raise typer.Exit(1)


@app.command()
def compact(  # noqa: PLR0913 (an option for each thing that can be said)
    uri: Uri,
    target_mb: TargetMb = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")] = False,
    verify: Annotated[
        Literal["full", "pages"],
        typer.Option(help="How copied row groups are proved: decoded, or by their pages' checksums (faster)."),
    ] = "full",
    where: Where = None,
    delete_originals: Annotated[
        bool, typer.Option("--delete-originals", help="Of a table: delete originals when their grace is over.")
    ] = False,
    as_json: AsJson = False,
    union: Union = False,
) -> None:
    """Make few large Parquet files of many small ones; the originals go once the new file is there."""
    from compaction_platform.compact.show import report_as_json, report_as_table

    if dry_run:
        plan(uri, target_mb, where, as_json, union)
        return
    if uri.startswith(GLUE):
        _compact_glue(_glue_table(uri, target_mb, delete_originals=delete_originals), where, as_json)
        return
    _refuse_where(where)
    with stoppable(), contextlib.ExitStack() as until_done:
        run = _compact_run(uri, target_mb, until_done, verify, union=union)
        report = (run if as_json else until_done.enter_context(stoppable_output(run))).run()
    _require_files(uri, report.before.files)
    if as_json:
        typer.echo(json.dumps(report_as_json(report), indent=1))
    else:
        console.print(report_as_table(report))
    if not report.is_clean:
        raise typer.Exit(1)


def _refuse_where(where: str | None) -> None:
    if where is not None:
        raise CompactionError("--where is for tables: glue://database/table. Nothing was done.")


def _plan_glue(table: "GlueTableConfig", where: str | None, as_json: bool) -> None:
    from compaction_platform.compact.glue.cli import plan_as_json, plan_as_table
    from compaction_platform.compact.glue.job import GlueRun
    from compaction_platform.compact.glue.plan.inventory import Selection
    from compaction_platform.lake.spark.parallel_map import ParallelMap
    from compaction_platform.settings import load_settings

    surveys = GlueRun(table, load_settings(), ParallelMap).plan(Selection(predicate=where))
    _require_partitions(table, surveys)
    if as_json:
        typer.echo(json.dumps(plan_as_json(surveys), indent=1))
    else:
        console.print(plan_as_table(surveys))
    if any(each.plan.problem for each in surveys):
        raise typer.Exit(1)


def _compact_glue(table: "GlueTableConfig", where: str | None, as_json: bool) -> None:
    from compaction_platform.compact.glue.cli import report_as_json, report_as_table
    from compaction_platform.compact.glue.job import GlueRun
    from compaction_platform.compact.glue.plan.inventory import Selection
    from compaction_platform.lake.spark.parallel_map import ParallelMap
    from compaction_platform.lake.spark.session import spark_session, task_slots
    from compaction_platform.settings import load_settings

    settings = load_settings()
    with stoppable(), contextlib.ExitStack() as until_done:
        session = functools.cache(lambda: until_done.enter_context(spark_session(settings)))

        def spread() -> ParallelMap:
            return ParallelMap(session(), task_slots(session(), settings))

        run = GlueRun(table, settings, spread)
        report = (run if as_json else until_done.enter_context(stoppable_output(run))).run(Selection(predicate=where))
    _require_partitions(table, report.results)
    if as_json:
        typer.echo(json.dumps(report_as_json(report), indent=1))
    else:
        console.print(report_as_table(report))
    if not report.is_clean:
        raise typer.Exit(1)


def _require_partitions(table: "GlueTableConfig", found: "Sequence[object]") -> None:
    if not found:
        raise CompactionError(f"{table.database}.{table.name} has no such partition in the catalog.")


def _glue_table(uri: str, target_mb: int | None, *, delete_originals: bool = False) -> "GlueTableConfig":
    """The declaration of this table, if it is declared; what the command says wins."""
    import dataclasses
    import warnings

    from compaction_platform.compact.glue.config import GlueTableConfig
    from compaction_platform.compact.plan.bin_packing import PackingPolicy

    warnings.filterwarnings("ignore", module="dagster")
    import dagster as dg

    from compaction_platform.compact.glue.component import CompactedGlueTable

    database, _, name = uri.removeprefix(GLUE).rstrip("/").partition("/")
    if not database or not name or "/" in name:
        raise CompactionError(f"{uri} is not of the form glue://database/table. Nothing was done.")
    tree = dg.ComponentTree.for_project(package_directory())
    declared = [each.kept() for each in tree.get_all_components(of_type=CompactedGlueTable)]
    kept = {(each.database, each.name): each for each in declared}.get(
        (database, name), GlueTableConfig(database, name)
    )
    policy = (
        kept.rules.policy
        if target_mb is None
        else PackingPolicy.for_target(target_mb * MB, kept.rules.policy.min_files)
    )
    delete = kept.rules.delete_originals or delete_originals
    return dataclasses.replace(kept, rules=dataclasses.replace(kept.rules, policy=policy, delete_originals=delete))


def _require_files(uri: str, files: int) -> None:
    if files == 0:
        raise CompactionError(f"{uri} does not exist, or there is no file in it.")


def _compact_run(
    uri: str,
    target_mb: int | None,
    until_done: contextlib.ExitStack | None = None,
    verify: Literal["full", "pages"] = "full",
    *,
    union: bool = False,
) -> "CompactRun":
    from compaction_platform.compact.job import CompactRun, DirectoryConfig
    from compaction_platform.compact.plan.bin_packing import PackingPolicy
    from compaction_platform.lake.spark.parallel_map import ParallelMap
    from compaction_platform.lake.spark.session import spark_session, task_slots
    from compaction_platform.settings import load_settings

    settings = load_settings()
    policy = PackingPolicy.for_target((target_mb or DEFAULT_TARGET_MB) * MB)
    if union:
        policy = dataclasses.replace(policy, unify="columns")

    def spread() -> ParallelMap:
        if until_done is None:
            return ParallelMap(None, os.cpu_count() or 1)
        session = until_done.enter_context(spark_session(settings))
        return ParallelMap(session, task_slots(session, settings))

    place = uri if "://" in uri else str(Path(uri).resolve())
    return CompactRun(DirectoryConfig(place, policy, verify=verify), settings, spread)
