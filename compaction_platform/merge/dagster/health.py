"""How far the staging areas are merged into their tables."""

from collections.abc import Iterator

import dagster as dg

from compaction_platform.lake.dagster.health import HealthRow, share_done, unknown_health
from compaction_platform.merge.component import MergedTable
from compaction_platform.merge.config import MergeRules
from compaction_platform.merge.dagster.sensors import StagingCursor, staging_state
from compaction_platform.settings import Settings


def health_rows(tree: dg.ComponentTree, settings: Settings) -> Iterator[HealthRow]:
    for table in tree.get_all_components(of_type=MergedTable):
        rules = table.rules()
        what = f"staging of {rules.full_name}"
        try:
            yield _row(what, rules, settings)
        except Exception as error:  # noqa: BLE001 (one that cannot be looked at does not hide the others)
            yield unknown_health(what, error)


def _row(what: str, rules: MergeRules, settings: Settings) -> HealthRow:
    found = staging_state(rules, settings, StagingCursor())
    files = [file for batch in found.staged.values() for file in batch.files]
    due = len(found.plan.hours) + found.plan.left_for_later
    why = f"{due:,} of {len(found.staged):,} hours are to be merged" if due else "all that is over is merged"
    score = share_done(len(found.staged) - due, len(found.staged))
    return HealthRow(what, score, len(files), bytes=sum(file.size for file in files), why=why)
