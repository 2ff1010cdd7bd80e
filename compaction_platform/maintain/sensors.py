"""Look at a table every Nth commit and say how it is. A run is asked for only where the declaration says so."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from compaction_platform.lake.history import published
from compaction_platform.lake.objects import Objects
from compaction_platform.lake.resources import LakeResource
from compaction_platform.lake.run_requests import WHOLE, Due, run_requests
from compaction_platform.lake.settings import Profile, Settings
from compaction_platform.maintain.assets import health_figures, maintenance_key, run_of
from compaction_platform.maintain.checks import RECOMMENDED, recommendation
from compaction_platform.maintain.dangling import KIND_PROPERTY
from compaction_platform.maintain.health import Health
from compaction_platform.maintain.look import TableMissing
from compaction_platform.maintain.run import Maintenance

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True)
class Seen:
    """The snapshot that was looked at last, and whether there is still something to do."""

    table: str = ""
    snapshot_id: int | None = None
    unfinished: bool = False

    def to_cursor(self) -> str:
        return json.dumps({"table": self.table, "snapshot_id": self.snapshot_id, "unfinished": self.unfinished})

    @classmethod
    def from_cursor(cls, cursor: str | None) -> "Seen":
        return cls(**json.loads(cursor)) if cursor else cls()

    def commits_since(self, table: "Table") -> int | None:
        """Commits of writers since then; None if that cannot be told any more."""
        if self.table != str(table.metadata.table_uuid):
            return None
        commits = 0
        for snapshot in published(table).snapshots:
            if snapshot.snapshot_id == self.snapshot_id:
                return commits
            properties = snapshot.summary.additional_properties if snapshot.summary else {}
            commits += KIND_PROPERTY not in properties  # our own commits are no news
        return commits if self.snapshot_id is None else None


def health_sensor(
    example: Maintenance, rules_for: Callable[[Profile], Maintenance], job: object
) -> dg.SensorDefinition:
    @dg.sensor(
        name=f"health_{example.name}",
        job=job,  # type: ignore[arg-type]  # an unresolved asset job is one of the kinds this takes
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Looks at the metadata of {example.table} every few commits, and recommends a compaction when one "
        "would pay.",
    )
    def health(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult:
        settings = lake.settings()
        rules = rules_for(settings.profile)
        run = run_of(rules, settings, say=context.log.info)
        try:
            table = run.table()
        except TableMissing as missing:
            return dg.SensorResult(skip_reason=str(missing), cursor=context.cursor)
        before = Seen.from_cursor(context.cursor)
        if reason := _why_not_now(before, table, rules, settings):
            return dg.SensorResult(skip_reason=reason, cursor=context.cursor)
        found = run.health()
        wanted = rules.automatic and (found.recommended or found.counts.snapshots_due >= rules.check_interval)
        seen = Seen(str(table.metadata.table_uuid), table.metadata.current_snapshot_id, unfinished=wanted)
        requests: list[dg.RunRequest] = []
        notes = [f"health {found.score} of 100: {found.reason}"]
        if wanted and _is_open(rules, settings):
            requests, said = run_requests(_due(rules, seen), context.instance)
            notes += said
        elif wanted:
            notes.append(f"not asked for: outside of the window ({rules.window})")
        is_news = seen.snapshot_id != before.snapshot_id or before.table != seen.table
        return dg.SensorResult(
            run_requests=requests,
            cursor=seen.to_cursor(),
            skip_reason=None if requests else dg.SkipReason("; ".join(notes)),
            asset_events=_events(rules, found) if is_news else [],
        )

    return health


def _why_not_now(before: Seen, table: "Table", rules: Maintenance, settings: Settings) -> str | None:
    """Why this is not the moment for a look; None if it is."""
    commits = before.commits_since(table)
    if commits is None or commits >= rules.check_interval:
        return None
    if before.unfinished:  # a run takes so many files and no more; the next goes on
        return None if _is_open(rules, settings) else f"waiting for the window ({rules.window})"
    return f"{commits} commits since the last look; the next is after {rules.check_interval}"


def _is_open(rules: Maintenance, settings: Settings) -> bool:
    return rules.window is None or rules.window.contains(Objects.at(settings.place("_compaction"), settings).now())


def _events(rules: Maintenance, found: Health) -> list[dg.AssetObservation | dg.AssetCheckEvaluation]:
    key, result = maintenance_key(rules), recommendation(found)
    check = dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=RECOMMENDED,
        passed=result.passed,
        metadata=result.metadata,
        severity=result.severity,
        description=result.description,
    )
    return [dg.AssetObservation(key, metadata=health_figures(found)), check]


def _due(rules: Maintenance, seen: Seen) -> Due:
    digest = hashlib.sha256(seen.to_cursor().encode()).hexdigest()
    return Due(
        f"maintenance.{rules.name}",
        [WHOLE],
        {WHOLE: digest},
        lambda partitions: [(each, each) for each in partitions],
        called="tables",
    )
