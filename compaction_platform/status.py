"""The health of everything that is declared, in one table, those that need something first."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
from rich.table import Table
from rich.text import Text

from compaction_platform.compact.component import CompactedDirectory
from compaction_platform.compact.glue.component import CompactedGlueTable
from compaction_platform.compact.glue.job import GlueRun
from compaction_platform.compact.report import total_of
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.storage.sizes import FileSizes
from compaction_platform.maintain.component import declared
from compaction_platform.maintain.dagster.assets import run_of

if TYPE_CHECKING:
    from compaction_platform.compact.config import CompactedDataset
    from compaction_platform.compact.glue.config import GlueTableConfig
    from compaction_platform.maintain.job import TableMaintenance
    from compaction_platform.settings import Settings

NEEDS_SOMETHING = 80


@dataclass(frozen=True)
class HealthRow:
    what: str
    health: int | None  # None: it could not be looked at
    files: int = 0
    small_files: int = 0
    bytes: int = 0
    why: str = ""


def health_of_all(settings: "Settings") -> list[HealthRow]:
    tree = dg.ComponentTree.for_project(Path(__file__).parent)
    directories = {each.name: each.dataset() for each in tree.get_all_components(of_type=CompactedDirectory)}
    glue = [each.kept() for each in tree.get_all_components(of_type=CompactedGlueTable)]
    lines = [
        *_tables(declared(tree, settings.profile), settings),
        *_directories(directories, settings),
        *_glue_tables(glue, settings),
    ]
    return sorted(lines, key=lambda line: (line.health if line.health is not None else -1, line.what))


def _tables(tables: "list[TableMaintenance]", settings: "Settings") -> Iterator[HealthRow]:
    for rules in tables:
        what = f"table {rules.table}"
        try:
            health = run_of(rules, settings).health()
        except Exception as error:  # noqa: BLE001 (one that cannot be looked at does not hide the others)
            yield _unknown(what, error)
            continue
        yield HealthRow(what, health.score, health.files, health.small_files, health.bytes, health.reason)


def _directories(directories: "dict[str, CompactedDataset]", settings: "Settings") -> Iterator[HealthRow]:
    for name, dataset in directories.items():
        what = f"directory {name}"
        try:
            surveys = dataset.run(settings, ParallelMap, lambda text: None).plan()
        except Exception as error:  # noqa: BLE001
            yield _unknown(what, error)
            continue
        small = sum(survey.plan.inputs for survey in surveys)
        yield _line(what, total_of(surveys), small, sum(len(survey.plan.bins) for survey in surveys))


def _glue_tables(tables: "list[GlueTableConfig]", settings: "Settings") -> Iterator[HealthRow]:
    for kept in tables:
        what = f"Glue table {kept.database}.{kept.name}"
        try:
            surveys = GlueRun(kept, settings, ParallelMap).plan()
        except Exception as error:  # noqa: BLE001
            yield _unknown(what, error)
            continue
        sizes = FileSizes.of(file.size for each in surveys for file in each.found.current.data)
        small = sum(each.plan.inputs for each in surveys)
        yield _line(what, sizes, small, sum(len(each.plan.bins) for each in surveys))


def _line(what: str, sizes: FileSizes, small: int, outputs: int) -> HealthRow:
    score = 100 if sizes.files == 0 else round(100 - 100 * (small - outputs) / sizes.files)
    why = f"{small:,} of {sizes.files:,} files could become {outputs:,}" if small else "healthy"
    return HealthRow(what, score, sizes.files, small, sizes.bytes, why if sizes.files else "no files")


def _unknown(what: str, error: Exception) -> HealthRow:
    return HealthRow(what, None, why=(str(error).strip() or type(error).__name__).splitlines()[0])


def as_table(lines: list[HealthRow]) -> Table:
    table = Table("what", "health", "files", "small", "MB", "why", title="Health, what needs most first")
    table.title_justify = "left"
    for column in table.columns[1:5]:
        column.justify = "right"
    for line in lines:
        health = Text("?" if line.health is None else str(line.health), style=_style(line.health))
        megabytes = f"{line.bytes / (1 << 20):,.1f}"
        table.add_row(line.what, health, f"{line.files:,}", f"{line.small_files:,}", megabytes, Text(line.why))
    return table


def _style(health: int | None) -> str:
    if health is None:
        return "red"
    return "green" if health >= NEEDS_SOMETHING else "yellow"
