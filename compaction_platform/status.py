"""The health of everything that is declared, in one table, those that need something first."""

from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
from rich.table import Table
from rich.text import Text

from compaction_platform.lake.dagster.health import HealthRow
from compaction_platform.verbs import VERBS, load

if TYPE_CHECKING:
    from compaction_platform.settings import Settings

NEEDS_SOMETHING = 80


def health_of_all(settings: "Settings") -> list[HealthRow]:
    tree = dg.ComponentTree.for_project(Path(__file__).parent)
    rows = [row for verb in VERBS if verb.health for row in load(verb.health)(tree, settings)]
    return sorted(rows, key=lambda row: (row.health if row.health is not None else -1, row.what))


def as_table(rows: list[HealthRow]) -> Table:
    table = Table("what", "health", "files", "small", "MB", "why", title="Health, what needs most first")
    table.title_justify = "left"
    for column in table.columns[1:5]:
        column.justify = "right"
    for row in rows:
        health = Text("?" if row.health is None else str(row.health), style=_style(row.health))
        megabytes = f"{row.bytes / (1 << 20):,.1f}"
        table.add_row(row.what, health, f"{row.files:,}", f"{row.small_files:,}", megabytes, Text(row.why))
    return table


def _style(health: int | None) -> str:
    if health is None:
        return "red"
    return "green" if health >= NEEDS_SOMETHING else "yellow"
