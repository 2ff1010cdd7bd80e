"""The `compaction` command."""

import contextlib
import errno
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from compaction_platform.lake.errors import CompactionError
from compaction_platform.lake.settings import EMBEDDED_LAKE_FILE, project_directory, refuse_misspelt, state_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction_platform.archive.chain import Archive
    from compaction_platform.compact.glue.run import GlueRun
    from compaction_platform.compact.glue.table import KeptTable
    from compaction_platform.compact.run import CompactRun
    from compaction_platform.lake.settings import Settings
    from compaction_platform.local.embedded import EmbeddedLake
    from compaction_platform.local.state import StateDirectory
    from compaction_platform.maintain.run import Maintenance

Run = TypeVar("Run", "CompactRun", "GlueRun")

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals may hold secrets
)
console = Console()
errors = Console(stderr=True)


class Stopped(Exception):
    """A signal asked this process to end."""


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and SIGHUP into one orderly end; a second one does not cut the clean-up short."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(number: int, frame: object) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except Stopped:
        console.print("stopped")
        raise typer.Exit(130) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_while_healthy(lake: "EmbeddedLake") -> None:
    while True:
        lake.raise_if_server_died()
        time.sleep(0.5)


NewPorts = Annotated[bool, typer.Option("--new-ports", help="Choose new ports instead of the remembered ones.")]


@app.callback()
def check_names() -> None:
    """Keeps a data lake healthy: small files become large ones, hot data becomes cold, with proof."""
    refuse_misspelt()


@app.command()
def up(
    new_ports: NewPorts = False,
    spark: Annotated[bool, typer.Option(help="Also start Spark.")] = True,
) -> None:
    """Start the embedded lake (S3, Iceberg catalog, PostgreSQL, Spark) and keep it until Ctrl-C."""
    from compaction_platform.local.embedded import EmbeddedLake

    with _stoppable(), EmbeddedLake(state_directory(), spark=spark, new_ports=new_ports, say=console.print) as lake:
        console.print(_addresses(lake.state))
        console.print("Ctrl-C (or `compaction down` elsewhere) stops it. The data stays.")
        _wait_while_healthy(lake)


@app.command()
def dev(new_ports: NewPorts = False) -> None:
    """Start the embedded lake and Dagster (webserver and daemon) and keep them until Ctrl-C."""
    from compaction_platform.local.dagster_dev import daemon, dagster_home, load_error, webserver
    from compaction_platform.local.embedded import EmbeddedLake

    project = project_directory()
    with _stoppable(), EmbeddedLake(state_directory(), new_ports=new_ports, say=console.print) as lake:
        home = dagster_home(lake.state, project)
        overrides = lake.overrides(os.environ)
        # One after the other: Dagster's servers make its SQLite databases without a lock.
        lake.add(webserver(project, home, lake.ports.dagster, overrides))
        lake.add(daemon(project, home, lake.state.records, overrides))
        if error := load_error(lake.ports.dagster):
            console.print("[bold red]Dagster cannot load this project.[/] Mend it and reload the page:")
            console.print(error, markup=False)
        console.print(_addresses(lake.state))
        console.print(f"Open [bold]http://127.0.0.1:{lake.ports.dagster}[/bold]   Ctrl-C stops everything.")
        _wait_while_healthy(lake)


@app.command()
def down(
    everything: Annotated[bool, typer.Option("--all", help="Also what a demo left behind.")] = False,
) -> None:
    """Stop the embedded lake of this checkout, also what a killed process left behind."""
    from compaction_platform.local.processes import end_leftovers
    from compaction_platform.local.state import StateDirectory

    places = [state_directory(), *([demo_directory()] if everything else [])]
    for place in (place for place in places if place.exists()):
        state = StateDirectory(place)
        if owner := state.owner():
            owner.end(limit_seconds=60)
            console.print(f"stopped the lake in {place}")
        elif ended := end_leftovers(state.records):
            console.print(f"ended leftovers in {place}: {', '.join(ended)}")
        else:
            console.print(f"nothing runs in {place}")


@app.command()
def status(as_json: Annotated[bool, typer.Option("--json", help="The health alone, for programs.")] = False) -> None:
    """Show the health of all declared tables and directories; and whether the embedded lake runs, and where."""
    from compaction_platform.lake.settings import load_settings

    settings = load_settings()
    is_elsewhere = settings.profile != "development" or bool(refuse_misspelt().get("COMPACTION_LAKE_URI"))
    if not is_elsewhere and not _shows_servers(quietly=as_json):
        errors.print("The embedded lake is not running. `compaction up` starts it.")
        raise typer.Exit(1)
    import dataclasses
    import warnings

    warnings.filterwarnings("ignore", module="dagster")  # notes on beta APIs are for us
    from compaction_platform.status import as_table, health_of_all

    lines = health_of_all(settings)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(line) for line in lines], indent=1))
    else:
        console.print(as_table(lines))


def _shows_servers(*, quietly: bool) -> bool:
    """Whether the embedded lake runs; what runs of it is printed."""
    from compaction_platform.local.processes import ProcessRecord
    from compaction_platform.local.state import StateDirectory

    if not state_directory().exists():
        return False
    state = StateDirectory(state_directory())
    table = Table("server", "state", "process")
    for path in sorted(state.records.glob("*.json")):
        record = ProcessRecord.read(path)
        alive = record is not None and record.process() is not None
        table.add_row(path.stem, "runs" if alive else "dead", str(record.pid) if record else "?")
    owner = state.owner()
    if not quietly and table.row_count:
        console.print(table)
    if not quietly and owner is not None:
        console.print(_addresses(state))
        console.print(f"run by process {owner.pid}")
    return owner is not None


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
    from compaction_platform.lake.settings import load_settings
    from compaction_platform.lake.spark import spark_session, task_slots
    from compaction_platform.lake.spread import Spread
    from compaction_platform.maintain.run import MaintainRun, Request
    from compaction_platform.maintain.show import prospect_as_table, report_as_table

    settings = load_settings()
    request = Request(force, target_file_size_mb, max_files, where, expire_snapshots, snapshot_retention_hours, dry_run)
    with _stoppable(), contextlib.ExitStack() as until_done:
        session = functools.cache(lambda: until_done.enter_context(spark_session(settings)))

        def spread() -> Spread:
            return Spread(session(), task_slots(session(), settings))

        run = MaintainRun(_maintenance(table, settings), settings, spread, session, _say)
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
    from compaction_platform.lake.settings import load_settings
    from compaction_platform.maintain.assets import run_of

    settings = load_settings()
    run_of(_maintenance(table, settings), settings, say=_say).undo()


def _maintenance(table: str, settings: "Settings") -> "Maintenance":
    """The declaration of this table."""
    import warnings

    warnings.filterwarnings("ignore", module="dagster")
    import dagster as dg

    from compaction_platform.maintain.component import declared

    found = {
        each.table: each for each in declared(dg.ComponentTree.for_project(Path(__file__).parent), settings.profile)
    }
    if table not in found:
        known = ", ".join(sorted(found)) or "none"
        raise CompactionError(f"no table {table} is declared in defs/ to be maintained. There are: {known}.")
    return found[table]


Uri = Annotated[
    str, typer.Argument(help="A directory (`s3://bucket/prefix`, a local path) or a table: `glue://database/table`.")
]
TargetMb = Annotated[
    int | None, typer.Option(min=1, help="Size of the files to make, in MB: 128, or as a table is declared.")
]
DEFAULT_TARGET_MB = 128
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Where = Annotated[str | None, typer.Option(help="Only such partitions of a table, e.g. \"year='2023'\".")]
GLUE = "glue://"


@app.command()
def plan(uri: Uri, target_mb: TargetMb = None, where: Where = None, as_json: AsJson = False) -> None:
    """Show which small Parquet files in a directory or table would become which large ones. Changes nothing."""
    from compaction_platform.compact.show import plan_as_json, plan_as_table

    if uri.startswith(GLUE):
        _plan_glue(_glue_table(uri, target_mb), where, as_json)
        return
    _refuse_where(where)
    surveys = _compact_run(uri, target_mb).plan()
    _require_files(uri, surveys[0].before.files)
    if as_json:
        typer.echo(json.dumps(plan_as_json(surveys), indent=1))
    else:
        console.print(plan_as_table(surveys))
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
) -> None:
    """Make few large Parquet files of many small ones; the originals go once the new file is there."""
    from compaction_platform.compact.show import report_as_json, report_as_table

    if dry_run:
        plan(uri, target_mb, where, as_json)
        return
    if uri.startswith(GLUE):
        _compact_glue(_glue_table(uri, target_mb, delete_originals=delete_originals), where, as_json)
        return
    _refuse_where(where)
    with _stoppable(), contextlib.ExitStack() as until_done:
        run = _compact_run(uri, target_mb, until_done, verify)
        report = (run if as_json else until_done.enter_context(_shown(run))).run()
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


def _plan_glue(table: "KeptTable", where: str | None, as_json: bool) -> None:
    from compaction_platform.compact.glue.run import GlueRun
    from compaction_platform.compact.glue.show import plan_as_json, plan_as_table
    from compaction_platform.compact.glue.survey import Selection
    from compaction_platform.lake.settings import load_settings
    from compaction_platform.lake.spread import Spread

    surveys = GlueRun(table, load_settings(), Spread).plan(Selection(predicate=where))
    _require_partitions(table, surveys)
    if as_json:
        typer.echo(json.dumps(plan_as_json(surveys), indent=1))
    else:
        console.print(plan_as_table(surveys))
    if any(each.plan.problem for each in surveys):
        raise typer.Exit(1)


def _compact_glue(table: "KeptTable", where: str | None, as_json: bool) -> None:
    from compaction_platform.compact.glue.run import GlueRun
    from compaction_platform.compact.glue.show import report_as_json, report_as_table
    from compaction_platform.compact.glue.survey import Selection
    from compaction_platform.lake.settings import load_settings
    from compaction_platform.lake.spark import spark_session, task_slots
    from compaction_platform.lake.spread import Spread

    settings = load_settings()
    with _stoppable(), contextlib.ExitStack() as until_done:
        session = functools.cache(lambda: until_done.enter_context(spark_session(settings)))

        def spread() -> Spread:
            return Spread(session(), task_slots(session(), settings))

        run = GlueRun(table, settings, spread)
        report = (run if as_json else until_done.enter_context(_shown(run))).run(Selection(predicate=where))
    _require_partitions(table, report.results)
    if as_json:
        typer.echo(json.dumps(report_as_json(report), indent=1))
    else:
        console.print(report_as_table(report))
    if not report.is_clean:
        raise typer.Exit(1)


def _require_partitions(table: "KeptTable", found: "Sequence[object]") -> None:
    if not found:
        raise CompactionError(f"{table.database}.{table.name} has no such partition in the catalog.")


def _glue_table(uri: str, target_mb: int | None, *, delete_originals: bool = False) -> "KeptTable":
    """The declaration of this table, if it is declared; what the command says wins."""
    import dataclasses
    import warnings

    from compaction_platform.compact.glue.table import KeptTable
    from compaction_platform.compact.plan import MB, Policy

    warnings.filterwarnings("ignore", module="dagster")
    import dagster as dg

    from compaction_platform.compact.glue.component import CompactedGlueTable

    database, _, name = uri.removeprefix(GLUE).rstrip("/").partition("/")
    if not database or not name or "/" in name:
        raise CompactionError(f"{uri} is not of the form glue://database/table. Nothing was done.")
    tree = dg.ComponentTree.for_project(Path(__file__).parent)
    declared = [each.kept() for each in tree.get_all_components(of_type=CompactedGlueTable)]
    kept = {(each.database, each.name): each for each in declared}.get((database, name), KeptTable(database, name))
    policy = kept.rules.policy if target_mb is None else Policy.for_target(target_mb * MB, kept.rules.policy.min_files)
    delete = kept.rules.delete_originals or delete_originals
    return dataclasses.replace(kept, rules=dataclasses.replace(kept.rules, policy=policy, delete_originals=delete))


@contextlib.contextmanager
def _shown(run: "Run") -> "Iterator[Run]":
    """The run with a progress bar below what it says."""
    import dataclasses

    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = ("compacting", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=None, visible=False)
        yield dataclasses.replace(
            run,
            say=lambda text: progress.console.print(text, markup=False, highlight=False),
            progress=lambda total, done: progress.update(bar, total=total, completed=done, visible=True),
        )


def _require_files(uri: str, files: int) -> None:
    if files == 0:
        raise CompactionError(f"{uri} does not exist, or there is no file in it.")


def _compact_run(
    uri: str,
    target_mb: int | None,
    until_done: contextlib.ExitStack | None = None,
    verify: Literal["full", "pages"] = "full",
) -> "CompactRun":
    from compaction_platform.compact.plan import MB, Policy
    from compaction_platform.compact.run import CompactRun, Directory
    from compaction_platform.lake.settings import load_settings
    from compaction_platform.lake.spark import spark_session, task_slots
    from compaction_platform.lake.spread import Spread

    settings = load_settings()
    policy = Policy.for_target((target_mb or DEFAULT_TARGET_MB) * MB)

    def spread() -> Spread:
        if until_done is None:
            return Spread(None, os.cpu_count() or 1)
        session = until_done.enter_context(spark_session(settings))
        return Spread(session, task_slots(session, settings))

    place = uri if "://" in uri else str(Path(uri).resolve())
    return CompactRun(Directory(place, policy, verify=verify), settings, spread)


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Where to listen; only this machine unless told otherwise.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8080,
    dev: Annotated[
        bool, typer.Option("--dev", help="Make a token for all tenants, for this run, and print it.")
    ] = False,
) -> None:
    """Serve table operations over HTTP: create, write, query, compact."""
    import logging

    from compaction_platform.lake.settings import load_settings
    from compaction_platform.serve.app import create_app, service_of, tokens_of
    from compaction_platform.serve.server import listening, run
    from compaction_platform.serve.telemetry import log, log_to_stdout
    from compaction_platform.serve.tenants import ALL, Tokens, hash_of, new_token

    settings = load_settings()
    token = new_token()
    tokens = (lambda: Tokens({hash_of(token): frozenset({ALL})})) if dev else tokens_of(settings)
    with contextlib.ExitStack() as until_done:
        application = create_app(service_of(settings, until_done, lambda text: log(logging.INFO, text)), tokens)
        with listening(host, port) as listener:
            address = f"http://{host}:{listener.getsockname()[1]}"
            if dev:
                typer.echo(f"token, for this run only: {token}")
            typer.echo(f"serving on {address}   (operations: {address}/docs)   Ctrl-C stops it")
            log_to_stdout()
            run(application, listener)


@app.command("serve-token")
def serve_token(
    tenant: Annotated[list[str], typer.Option(help="Whom the token is for; may be given several times.")],
) -> None:
    """Make a token for the HTTP service. It is printed once; only its hash is kept."""
    from compaction_platform.lake.settings import load_settings
    from compaction_platform.serve.tenants import add_token

    settings = load_settings()
    settings.require("serve_tokens_file", purpose="keeping the hashes of tokens")
    typer.echo(add_token(Path(str(settings.serve_tokens_file)), tenant))


archive_app = typer.Typer(no_args_is_help=True, help="What a person decides about archived ranges of a chain.")
app.add_typer(archive_app, name="archive")
ChainId = Annotated[int, typer.Argument(help="The chain_id of a ColdRanges declaration.")]
RangeKey = Annotated[str, typer.Argument(help="A range of blocks: 1000000-1010000, the end not included.")]


def _archive(chain_id: int) -> "tuple[Archive, Settings]":
    """The declaration of this chain, and the settings to work on it with."""
    import dagster as dg

    from compaction_platform.archive.component import ColdRanges
    from compaction_platform.lake.settings import load_settings

    tree = dg.ComponentTree.for_project(Path(__file__).parent)
    declared = {each.chain_id: each.archive() for each in tree.get_all_components(of_type=ColdRanges)}
    if chain_id not in declared:
        known = ", ".join(str(each) for each in sorted(declared)) or "none"
        raise CompactionError(f"no chain {chain_id} is declared in defs/. There are: {known}.")
    return declared[chain_id], load_settings()


@archive_app.command("status")
def archive_status(chain_id: ChainId) -> None:
    """Show the head, and the state of every range that is archived or being worked on."""
    from compaction_platform.archive.hot import hot_url
    from compaction_platform.archive.ledger import Ledger
    from compaction_platform.archive.lookout import look

    archive, settings = _archive(chain_id)
    url = hot_url(archive, settings)
    standing = look(archive, url, remember=False)
    finality = standing.observed.finality
    known = "cannot be told" if finality.finalized is None else f"up to block {finality.finalized}"
    console.print(f"final: {known} ({finality.why})", markup=False, highlight=False)
    table = Table("blocks (end not included)", "version", "state", "rows", "remark")
    for version in Ledger(url, chain_id).versions():
        rows = sum(manifest.rows for manifest in version.manifests.values())
        withheld = version.withheld_because and f"purge withheld: {version.withheld_because}"
        remark = Text(version.invalid_because or withheld or version.error or "")
        table.add_row(version.blocks.key, str(version.version), version.state, f"{rows:,}", remark)
    for blocks in standing.missing:
        table.add_row(blocks.key, "", "final, not archived", "", "")
    console.print(table)


@archive_app.command("restore")
def archive_restore(chain_id: ChainId, blocks: RangeKey) -> None:
    """Bring the hot rows of a purged range back from its cold files. The cold files stay."""
    from compaction_platform.archive.ranges import BlockRange
    from compaction_platform.archive.restore import RestoreRun

    archive, settings = _archive(chain_id)
    RestoreRun(archive, settings, _say, owner="compaction archive restore").run(BlockRange.parsed(blocks))


@archive_app.command("believe")
def archive_believe(chain_id: ChainId, blocks: RangeKey) -> None:
    """Take back what is held against a range: that it is marked invalid, or that its purge is withheld."""
    from compaction_platform.archive.hot import hot_url
    from compaction_platform.archive.ledger import Ledger
    from compaction_platform.archive.ranges import BlockRange

    archive, settings = _archive(chain_id)
    ledger = Ledger(hot_url(archive, settings), chain_id)
    version = ledger.live(BlockRange.parsed(blocks))
    if version is None or (version.invalid_because is None and version.withheld_because is None):
        raise CompactionError(f"nothing is held against blocks {blocks} (end not included).")
    ledger.believe_again(version)
    _say(f"version {version.version} of blocks {blocks} (end not included) counts as any other again")


@archive_app.command("withhold")
def archive_withhold(
    chain_id: ChainId, blocks: RangeKey, because: Annotated[str, typer.Option(help="Why; shown in `status`.")]
) -> None:
    """Do not purge a range, until `believe` takes this back or a new version is committed."""
    from compaction_platform.archive.hot import hot_url
    from compaction_platform.archive.ledger import Ledger
    from compaction_platform.archive.ranges import BlockRange

    archive, settings = _archive(chain_id)
    ledger = Ledger(hot_url(archive, settings), chain_id)
    version = ledger.live(BlockRange.parsed(blocks))
    if version is None:
        raise CompactionError(f"blocks {blocks} (end not included) are not archived.")
    ledger.withhold(version, because)
    _say(f"blocks {blocks} (end not included) are not purged until this is taken back")


@archive_app.command("forget-head")
def archive_forget_head(chain_id: ChainId) -> None:
    """Believe the chain's next head whatever was seen before: after a deep reorganisation, or if it was begun anew."""
    from compaction_platform.archive.hot import hot_url
    from compaction_platform.archive.ledger import Ledger

    archive, settings = _archive(chain_id)
    forgotten = Ledger(hot_url(archive, settings), chain_id).forget_head()
    _say("the head that was believed last is forgotten" if forgotten else "no head was remembered")


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False)


@app.command()
def demo() -> None:
    """Show the platform at work on a lake of its own (kept apart from `up` and `dev`)."""
    from compaction_platform.demo import run_demo

    with _stoppable():
        run_demo(demo_directory(), console)


@app.command()
def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Benchmarks to run; all if none is named.")] = None,
) -> None:
    """Run the measured comparisons in bench/."""
    import subprocess

    directory = project_directory() / "bench"
    found = {path.stem: path for path in sorted(directory.glob("*.py")) if not path.stem.startswith("_")}
    if unknown := set(names or ()) - set(found):
        raise CompactionError(f"no benchmark {', '.join(sorted(unknown))}. There are: {', '.join(found)}.")
    for name in names or found:
        console.rule(name)
        subprocess.run([sys.executable, str(found[name])], check=True)


def demo_directory() -> Path:
    return state_directory() / "demo"


def _addresses(state: "StateDirectory") -> Table:
    """Where the servers that are recorded as running can be reached."""
    from compaction_platform.local.seaweedfs import BUCKET, TABLE_BUCKET

    ports = state.ports()
    where = {
        "seaweedfs": [
            ("S3", f"http://127.0.0.1:{ports.s3}   (bucket {BUCKET})"),
            ("Iceberg REST", f"http://127.0.0.1:{ports.iceberg}   (warehouse s3://{TABLE_BUCKET})"),
        ],
        "postgres": [("PostgreSQL", f"127.0.0.1:{ports.postgres}")],
        "spark": [("Spark Connect", f"sc://localhost:{ports.spark_connect}")],
        "dagster-webserver": [("Dagster", f"http://127.0.0.1:{ports.dagster}")],
    }
    table = Table("what", "where")
    for server, rows in where.items():
        if (state.records / f"{server}.json").exists():
            for row in rows:
                table.add_row(*row)
    table.add_row("credentials", f"{state.path / EMBEDDED_LAKE_FILE}   (only you can read it)")
    table.add_row("logs", str(state.logs))
    return table


def main() -> None:
    try:
        app()
    except CompactionError as error:
        errors.print(f"error: {error}", style="red", markup=False, highlight=False)
        sys.exit(1)
    except OSError as error:
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror
        errors.print(f"error: {error.filename or Path.cwd()}: {reason}.", style="red", markup=False, highlight=False)
        sys.exit(1)
