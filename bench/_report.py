"""What benchmarks share: best-of timing and a table."""

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table


def best_seconds(work: Callable[[], Any], repeats: int = 5) -> float:
    """The fastest of some runs: the least disturbed one."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def show(title: str, headings: list[str], rows: list[list[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)
