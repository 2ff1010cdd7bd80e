"""How complete the inventories are."""

from collections.abc import Iterator

import dagster as dg
from compaction_platform.new_verb.component import NewVerbDirectory
from compaction_platform.new_verb.job import NewVerbJob

from compaction_platform.lake.dagster.health import HealthRow, share_done, unknown_health
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.settings import Settings


def health_rows(tree: dg.ComponentTree, settings: Settings) -> Iterator[HealthRow]:
    for declared in tree.get_all_components(of_type=NewVerbDirectory):
        what = f"inventory {declared.name}"
        try:
            plan = NewVerbJob(declared.config(), settings, ParallelMap).plan()
        except Exception as error:  # noqa: BLE001 (one that cannot be looked at does not hide the others)
            yield unknown_health(what, error)
            continue
        count = len(plan.to_read) + len(plan.skipped)
        why = f"{len(plan.to_read)} files are not in it" if plan.to_read else "complete"
        yield HealthRow(what, share_done(len(plan.skipped), count), count, why=why)
