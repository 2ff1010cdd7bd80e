"""`compaction demo`: starts a lake of its own, runs the steps of every verb on it, stops it."""

import os
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from compaction_platform.embedded_lake.embedded import EmbeddedLake
from compaction_platform.embedded_lake.processes import end_leftovers
from compaction_platform.embedded_lake.state_dir import StateDirectory
from compaction_platform.lake.dagster.demo_step import STEPS as LAKE_STEPS
from compaction_platform.lake.dagster.demo_step import DemoContext, DemoFailed, DemoStep
from compaction_platform.lake.spark.session import spark_session
from compaction_platform.verbs import VERBS, load


def steps() -> list[DemoStep]:
    """First what all verbs stand on, then each verb."""
    return [*LAKE_STEPS, *(step for verb in VERBS if verb.demo_steps for step in load(verb.demo_steps))]


def run_demo(directory: Path, console: Console) -> None:
    """Show all steps. The data of an earlier demo in this directory is deleted first."""
    began = time.monotonic()
    _forget_earlier_demo(directory)
    report = Table(title="What happened", title_justify="left", show_lines=False)
    for heading in ("step", "result", "seconds"):
        report.add_column(heading, justify="right" if heading == "seconds" else "left", overflow="fold")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:

        def show(title: str, work: Callable[[Callable[[float], None]], str]) -> None:
            task = progress.add_task(title, total=1.0)
            start = time.monotonic()
            result = work(lambda share: progress.update(task, completed=share))
            progress.update(task, completed=1.0)
            report.add_row(title, result, f"{time.monotonic() - start:.1f}")

        lake = EmbeddedLake(directory)
        with ExitStack() as running:
            try:
                show("Start the embedded lake", lambda advance: _servers(running.enter_context(lake)))
                _isolate(lake)
                show("Run the set-up job in Dagster", _set_up)
                session = running.enter_context(spark_session(lake.settings()))
                context = DemoContext(lake.settings(), session, lake.state.data / "demo")
                for step in steps():
                    show(step.title, partial(_run_step, step, context))
            except Exception:
                lake.raise_if_server_died()  # the better explanation, where it applies
                raise
    console.print(report)
    console.print(f"Everything is stopped again; {time.monotonic() - began:.0f} s in all. Next: make dev")


def _run_step(step: DemoStep, context: DemoContext, advance: Callable[[float], None]) -> str:
    return step.run(replace(context, progress=advance))


def _servers(lake: EmbeddedLake) -> str:
    return ", ".join(running.server.name for running in lake.running)


def _forget_earlier_demo(directory: Path) -> None:
    state = StateDirectory(directory)
    with state.owned():
        end_leftovers(state.records)
        shutil.rmtree(state.data, ignore_errors=True)
        for remembered in ("ports.json", "credentials.json"):
            (state.path / remembered).unlink(missing_ok=True)


def _isolate(lake: EmbeddedLake) -> None:
    """From here on this process knows the demo's lake only, whatever the user's settings say."""
    environment = lake.isolated_environment(os.environ)
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)


def _set_up(advance: Callable[[float], None]) -> str:
    import logging
    import warnings

    logging.getLogger("dagster").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="dagster")  # notes on beta APIs are for us, not for the person watching
    import dagster as dg

    from compaction_platform.definitions import defs

    with dg.DagsterInstance.ephemeral() as instance:
        quietly = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
        job = defs().get_job_def("setup")
        result = job.execute_in_process(run_config=quietly, instance=instance, raise_on_error=False)
    if not result.success:
        raise DemoFailed("the set-up job failed; run it in Dagster (`make dev`) to see its log.")
    return "the bucket, namespaces and database schemas are there"
