"""How compact the declared directories and Glue tables are."""

from collections.abc import Iterator

import dagster as dg

from compaction_platform.compact.component import CompactedDirectory
from compaction_platform.compact.glue.component import CompactedGlueTable
from compaction_platform.compact.glue.job import GlueRun
from compaction_platform.compact.report import total_of
from compaction_platform.lake.dagster.health import HealthRow, unknown_health
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.storage.sizes import FileSizes
from compaction_platform.settings import Settings


def health_rows(tree: dg.ComponentTree, settings: Settings) -> Iterator[HealthRow]:
    for directory in tree.get_all_components(of_type=CompactedDirectory):
        yield _directory(directory, settings)
    for table in tree.get_all_components(of_type=CompactedGlueTable):
        yield _glue_table(table, settings)


def _directory(directory: CompactedDirectory, settings: Settings) -> HealthRow:
    what = f"directory {directory.name}"
    try:
        surveys = directory.dataset().run(settings, ParallelMap, lambda text: None).plan()
    except Exception as error:  # noqa: BLE001 (one that cannot be looked at does not hide the others)
        return unknown_health(what, error)
    small = sum(survey.plan.inputs for survey in surveys)
    return _row(what, total_of(surveys), small, sum(len(survey.plan.bins) for survey in surveys))


def _glue_table(table: CompactedGlueTable, settings: Settings) -> HealthRow:
    kept = table.kept()
    what = f"Glue table {kept.database}.{kept.name}"
    try:
        surveys = GlueRun(kept, settings, ParallelMap).plan()
    except Exception as error:  # noqa: BLE001
        return unknown_health(what, error)
    sizes = FileSizes.of(file.size for each in surveys for file in each.found.current.data)
    small = sum(each.plan.inputs for each in surveys)
    return _row(what, sizes, small, sum(len(each.plan.bins) for each in surveys))


def _row(what: str, sizes: FileSizes, small: int, outputs: int) -> HealthRow:
    score = 100 if sizes.files == 0 else round(100 - 100 * (small - outputs) / sizes.files)
    why = f"{small:,} of {sizes.files:,} files could become {outputs:,}" if small else "healthy"
    return HealthRow(what, score, sizes.files, small, sizes.bytes, why if sizes.files else "no files")
