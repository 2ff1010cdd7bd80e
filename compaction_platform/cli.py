"""The `compaction` command."""

import errno
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from compaction_platform.errors import CompactionError
from compaction_platform.lake.dagster.terminal import console, errors, stoppable
from compaction_platform.settings import EMBEDDED_LAKE_FILE, project_directory, refuse_misspelt, state_directory
from compaction_platform.verbs import VERBS, load

if TYPE_CHECKING:
    from compaction_platform.embedded_lake.embedded import EmbeddedLake
    from compaction_platform.embedded_lake.state_dir import StateDirectory

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals may hold secrets
)
for verb in VERBS:
    if verb.cli:
        app.add_typer(load(verb.cli), name=verb.name if verb.has_command_group else None)


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
    from compaction_platform.embedded_lake.embedded import EmbeddedLake

    with stoppable(), EmbeddedLake(state_directory(), spark=spark, new_ports=new_ports, say=console.print) as lake:
        console.print(_addresses(lake.state))
        console.print("Ctrl-C (or `compaction down` elsewhere) stops it. The data stays.")
        _wait_while_healthy(lake)


@app.command()
def dev(new_ports: NewPorts = False) -> None:
    """Start the embedded lake and Dagster (webserver and daemon) and keep them until Ctrl-C."""
    from compaction_platform.embedded_lake.dagster_dev import daemon, dagster_home, load_error, webserver
    from compaction_platform.embedded_lake.embedded import EmbeddedLake

    project = project_directory()
    with stoppable(), EmbeddedLake(state_directory(), new_ports=new_ports, say=console.print) as lake:
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
    from compaction_platform.embedded_lake.processes import end_leftovers
    from compaction_platform.embedded_lake.state_dir import StateDirectory

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
    from compaction_platform.settings import load_settings

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
    from compaction_platform.embedded_lake.processes import ProcessRecord
    from compaction_platform.embedded_lake.state_dir import StateDirectory

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


@app.command()
def demo() -> None:
    """Show the platform at work on a lake of its own (kept apart from `up` and `dev`)."""
    from compaction_platform.demo import run_demo

    with stoppable():
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
        if code := subprocess.run([sys.executable, str(found[name])], check=False).returncode:
            raise CompactionError(f"the benchmark {name} failed (exit code {code}): see above.")


def demo_directory() -> Path:
    return state_directory() / "demo"


def _addresses(state: "StateDirectory") -> Table:
    """Where the servers that are recorded as running can be reached."""
    from compaction_platform.embedded_lake.seaweedfs import BUCKET, TABLE_BUCKET

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
