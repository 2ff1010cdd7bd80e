"""How the declared tables are doing, by the score that their maintenance goes by."""

from collections.abc import Iterator

import dagster as dg

from compaction_platform.lake.dagster.health import HealthRow, unknown_health
from compaction_platform.maintain.component import declared
from compaction_platform.maintain.dagster.assets import run_of
from compaction_platform.settings import Settings


def health_rows(tree: dg.ComponentTree, settings: Settings) -> Iterator[HealthRow]:
    for rules in declared(tree, settings.profile):
        what = f"table {rules.table}"
        try:
            health = run_of(rules, settings).health()
        except Exception as error:  # noqa: BLE001 (one that cannot be looked at does not hide the others)
            yield unknown_health(what, error)
            continue
        yield HealthRow(what, health.score, health.files, health.small_files, health.bytes, health.reason)
