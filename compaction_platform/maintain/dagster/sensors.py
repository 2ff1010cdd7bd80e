"""Look at a table every Nth commit and say how it is. A run is asked for only where the declaration says so."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import dagster as dg

from compaction_platform.lake.dagster.resources import LakeResource
from compaction_platform.lake.dagster.run_requests import WHOLE, DuePartition, run_requests
from compaction_platform.lake.iceberg.history import published
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.maintain.config import TableMaintenance
from compaction_platform.maintain.dagster.assets import health_figures, maintenance_key, run_of
from compaction_platform.maintain.dagster.checks import RECOMMENDED, recommendation
from compaction_platform.maintain.operations.commit_groups import COMPACTION
from compaction_platform.maintain.plan.health import TableHealth
from compaction_platform.maintain.table_state import TableMissing
from compaction_platform.persisted_names import COMMIT_KIND
from compaction_platform.settings import Profile, Settings

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True)
class HealthCursor:
    """The snapshot that was looked at last, and what came of it."""

    table: str = ""
    snapshot_id: int | None = None
    asked: bool = False  # for a run
    waiting: bool = False  # until writers have left partitions alone for a while

    def to_cursor(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_cursor(cls, cursor: str | None) -> "HealthCursor":
        return cls(**json.loads(cursor)) if cursor else cls()

    def since(self, table: "Table") -> "ChangesSince | None":
        """What was committed since then; None if that cannot be told any more."""
        if self.table != str(table.metadata.table_uuid):
            return None
        commits, compacted = 0, False
        for snapshot in published(table).snapshots:
            if snapshot.snapshot_id == self.snapshot_id:
                return ChangesSince(commits, compacted)
            kind = (snapshot.summary.additional_properties if snapshot.summary else {}).get(COMMIT_KIND)
            commits += kind is None  # our own commits are no news
            compacted |= kind == COMPACTION
        return ChangesSince(commits, compacted) if self.snapshot_id is None else None


@dataclass(frozen=True)
class ChangesSince:
    commits: int  # of writers
    compacted: bool

    @property
    def nothing(self) -> bool:
        return not self.commits and not self.compacted


def health_sensor(
    example: TableMaintenance, rules_for: Callable[[Profile], TableMaintenance], job: object
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
        before = HealthCursor.from_cursor(context.cursor)
        if reason := _why_not_now(before, table, rules, settings):
            return dg.SensorResult(skip_reason=reason, cursor=context.cursor)
        now = _now(settings)
        found = run.health(now)
        to_do, waits = run.work_to_do(found, now)
        wanted = rules.automatic and to_do
        seen = HealthCursor(
            str(table.metadata.table_uuid), table.metadata.current_snapshot_id, wanted, rules.automatic and waits
        )
        requests: list[dg.RunRequest] = []
        notes = [f"health {found.score} of 100: {found.reason}"]
        if wanted and _is_open(rules, now):
            requests, said = run_requests(_due(rules, seen), context.instance)
            notes += said
        elif wanted:
            notes.append(f"not asked for: outside of the window ({rules.window})")
        elif seen.waiting:
            notes.append(f"partitions are left to their writers for {rules.policy.settle}")
        is_news = seen.snapshot_id != before.snapshot_id or before.table != seen.table
        return dg.SensorResult(
            run_requests=requests,
            cursor=seen.to_cursor(),
            skip_reason=None if requests else dg.SkipReason("; ".join(notes)),
            asset_events=_events(rules, found) if is_news else [],
        )

    return health


def _why_not_now(before: HealthCursor, table: "Table", rules: TableMaintenance, settings: Settings) -> str | None:
    """Why this is not the moment for a look; None if it is."""
    since = before.since(table)
    if since is None or since.commits >= rules.check_interval:
        return None
    # A run takes so many files and no more, and the next goes on; one that got nowhere is not tried at every commit.
    if before.waiting or (before.asked and (since.compacted or since.nothing)):
        return None if _is_open(rules, _now(settings)) else f"waiting for the window ({rules.window})"
    return f"{since.commits} commits since the last look; the next is after {rules.check_interval}"


def _now(settings: Settings) -> datetime:
    return ObjectStore.at(settings.place("_compaction"), settings).now()


def _is_open(rules: TableMaintenance, now: datetime) -> bool:
    return rules.window is None or rules.window.contains(now)


def _events(rules: TableMaintenance, found: TableHealth) -> list[dg.AssetObservation | dg.AssetCheckEvaluation]:
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


def _due(rules: TableMaintenance, seen: HealthCursor) -> DuePartition:
    digest = hashlib.sha256(f"{seen.table} {seen.snapshot_id}".encode()).hexdigest()
    return DuePartition(
        f"maintenance.{rules.name}",
        [WHOLE],
        {WHOLE: digest},
        lambda partitions: [(each, each) for each in partitions],
        called="tables",
    )
