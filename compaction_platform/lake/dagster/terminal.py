"""What the commands share: where they print, how they are stopped, how progress is shown."""

import contextlib
import dataclasses
import signal
from collections.abc import Iterator
from typing import Any, TypeVar

import typer
from rich.console import Console

console = Console()
errors = Console(stderr=True)


def say(text: str) -> None:
    console.print(text, markup=False, highlight=False)


class Stopped(Exception):
    """A signal asked this process to end."""


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
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


Run = TypeVar("Run", bound=Any)  # what says `say` and `progress`


@contextlib.contextmanager
def stoppable_output(run: Run) -> Iterator[Run]:
    """The run with a progress bar below what it says."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = ("compacting", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=None, visible=False)
        yield dataclasses.replace(
            run,
            say=lambda text: progress.console.print(text, markup=False, highlight=False),
            progress=lambda total, done: progress.update(bar, total=total, completed=done, visible=True),
        )
