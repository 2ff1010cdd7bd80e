"""One maintenance of one table: look, plan, rewrite, verify, commit, then expire, merge manifests, clear orphans."""

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from pyiceberg.exceptions import CommitFailedException

from compaction_platform.errors import CompactionError
from compaction_platform.lake.spark.parallel_map import SMALL_WORK_BYTES, ParallelMap
from compaction_platform.lake.storage.abandoned_uploads import abort_uploads
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.lake.storage.sizes import MB
from compaction_platform.maintain.config import (
    FEWEST,
    MaintenanceRequest,
    MaintenanceRequestInvalid,
    TableMaintenance,
)
from compaction_platform.maintain.operations import expire_snapshots as expiry
from compaction_platform.maintain.operations.commit_groups import Committed, CommittedGroups, GroupCommits
from compaction_platform.maintain.operations.remove_dangling_deletes import remove_dangling
from compaction_platform.maintain.operations.remove_orphan_files import OrphanFiles, OrphanRemoval
from compaction_platform.maintain.operations.rewrite_manifests import merge_manifests, to_merge
from compaction_platform.maintain.operations.rollback import RolledBack, roll_back_last
from compaction_platform.maintain.operations.write_properties import drift, keep
from compaction_platform.maintain.plan.file_groups import RewritePlan, RewritePolicy, make_plan
from compaction_platform.maintain.plan.health import FileCounts, TableHealth, health_of
from compaction_platform.maintain.plan.partition_filter import PartitionFilter
from compaction_platform.maintain.plan.snapshot_retention import Retention
from compaction_platform.maintain.table_state import TableState, load_table, require_fit
from compaction_platform.persisted_names import COMPACTED_FILE_PREFIX

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from compaction_platform.settings import Settings

Done = TypeVar("Done")
PASSES = 4  # a group that met a writer is planned again; what others write meanwhile is not chased for ever


@dataclass(frozen=True)
class MaintenanceReport:
    """What a run did."""

    before: TableHealth
    after: TableHealth
    committed: tuple[Committed, ...] = ()
    plan: RewritePlan = field(default_factory=RewritePlan)
    conflicts: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    unproved: frozenset[str] = frozenset()  # those of them that were made and did not pass the proof
    stitch_failures: Mapping[str, str] = field(default_factory=dict)
    unknown: str | None = None
    snapshots_expired: int = 0
    dangling_removed: int = 0  # delete files that deleted nothing, beside those that compaction left without a use
    manifests_merged: int = 0
    orphans: OrphanFiles = field(default_factory=OrphanFiles)
    drift: Mapping[str, tuple[str | None, str]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    troubles: Sequence[str] = ()  # steps after the compaction that could not be done
    skipped: str | None = None  # why nothing was compacted
    seconds: float = 0.0

    def figures(self) -> dict[str, int]:
        """The ten numbers every compaction is told by, over HTTP as well."""
        inputs = [file for each in self.committed for file in each.group.files]
        deletes = sum(each.delete_files_removed for each in self.committed)
        return {
            "files_before": self.before.files,
            "files_after": self.after.files,
            "files_compacted": len(inputs),
            "files_removed": len(inputs) + deletes + self.dangling_removed,
            "bytes_before": self.before.bytes,
            "bytes_after": self.after.bytes,
            "bytes_saved": self.before.bytes - self.after.bytes,
            "snapshots_expired": self.snapshots_expired,
            "compaction_time_ms": round(self.seconds * 1000),
            "small_files_remaining": self.after.small_files,
        }


@dataclass(frozen=True)
class MaintenancePlan:
    """What a run would do."""

    health: TableHealth
    plan: RewritePlan
    skipped: str | None
    expiring: Sequence[int]
    drift: Mapping[str, tuple[str | None, str]]
    orphans: OrphanFiles
    trouble: str | None = None


@dataclass
class MaintainRun:
    rules: TableMaintenance
    settings: "Settings"
    spread: Callable[[], ParallelMap]
    session: "Callable[[], SparkSession]"
    say: Callable[[str], None] = lambda text: None
    clock: Callable[[], datetime] | None = None  # the store's, unless told otherwise
    _referred_to: dict[str, frozenset[str]] = field(default_factory=dict)  # what delete files are about, once read

    # ------------------------------------------------------------ look

    def table(self) -> "Table":
        return load_table(self.settings, self.rules.table)

    def health(self, now: datetime | None = None, look: TableState | None = None) -> TableHealth:
        """Metadata only: neither Spark nor data files are touched."""
        look = look or TableState.at(self.table())
        return self._health(look, self.rules.policy, self.rules.retention, now or datetime.now(UTC))

    def _health(self, look: TableState, policy: RewritePolicy, retention: Retention, now: datetime) -> TableHealth:
        files = look.live_files(PartitionFilter.parsed(self.rules.partition_filter, look.metadata))
        stamps = [snapshot.timestamp_ms for snapshot in look.metadata.snapshots]
        counts = FileCounts(
            delete_files=len(look.files.deletes),
            snapshots=len(stamps),
            snapshots_due=len(expiry.due(look.metadata, retention, now)),
            oldest_snapshot_ms=min(stamps, default=0),
            manifests=len(look.files.manifests),
            manifests_to_merge=len(to_merge(look, self.rules.manifests_from)),
            metadata_bytes=len(look.metadata.model_dump_json()),
        )
        return health_of(files, counts, policy)

    def work_to_do(self, health: TableHealth, now: datetime) -> tuple[bool, bool]:
        """Whether a run would do something now; and whether it only waits until writers have left partitions alone."""
        due = self.rules.expire_snapshots and health.counts.snapshots_due >= self.rules.check_interval
        if not self.rules.policy.enabled:
            return due, False
        plan = make_plan(health.live_files, self.rules.policy, round(now.timestamp() * 1000))
        return due or bool(plan.groups), bool(health.plan.groups) and not plan.groups

    # ------------------------------------------------------------ plan

    def prospect(self, request: MaintenanceRequest) -> MaintenancePlan:
        """What `run` would do now; nothing is changed."""
        table, now = self.table(), self._now()
        require_fit(table.metadata, self.rules.table)
        policy, retention = self._policy(request), self._retention(request)
        look = TableState.at(table)
        health = self._health(look, policy, retention, now)
        plan = self._plan(look, policy, request, now)
        expiring = expiry.due(table.metadata, retention, now) if self._expires(request) else []
        trouble = None
        orphans = OrphanFiles()
        try:
            orphans = self._orphans(table).find(now) if self.rules.orphans.enabled else OrphanFiles()
        except CompactionError as error:
            trouble = f"orphans: {error}"
        why_not = self._why_not(plan, request, now)
        return MaintenancePlan(health, plan, why_not, expiring, drift(table, self.rules.write), orphans, trouble)

    def _plan(
        self,
        look: TableState,
        policy: RewritePolicy,
        request: MaintenanceRequest,
        now: datetime,
        apart: frozenset[str] = frozenset(),
    ) -> RewritePlan:
        wanted = PartitionFilter.parsed(request.partition_filter or self.rules.partition_filter, look.metadata)
        files = [
            replace(file, unreadable="a run could not rewrite it") if file.path in apart else file
            for file in look.live_files(wanted)
        ]
        return make_plan(files, policy, round(now.timestamp() * 1000), force=request.force)

    def _policy(self, request: MaintenanceRequest) -> RewritePolicy:
        policy = self.rules.policy
        if request.target_file_size_mb is not None:
            target = request.target_file_size_mb * MB
            policy = replace(policy, target_bytes=target, small_bytes=min(policy.small_bytes, target * 3 // 4))
        return replace(policy, max_files=request.max_files or policy.max_files)

    def _retention(self, request: MaintenanceRequest) -> Retention:
        hours = request.snapshot_retention_hours
        return self.rules.retention if hours is None else replace(self.rules.retention, hours=hours)

    def _expires(self, request: MaintenanceRequest) -> bool:
        return self.rules.expire_snapshots if request.expire_snapshots is None else request.expire_snapshots

    def _why_not(self, plan: RewritePlan, request: MaintenanceRequest, now: datetime) -> str | None:
        if not self.rules.policy.enabled and not request.force:
            return "compaction is not enabled for this table; `force` does it all the same"
        if not self._may_run(request, now):
            return f"outside of the window ({self.rules.window}); `force` does it all the same"
        return None if plan.groups else plan.why_nothing()

    def _may_run(self, request: MaintenanceRequest, now: datetime) -> bool:
        return self.rules.window is None or self.rules.window.contains(now) or request.force

    def _keep_properties(self, table: "Table") -> dict[str, tuple[str | None, str]]:
        try:
            drifted = keep(table, self.rules.write)
        except CommitFailedException:
            table.refresh()
            self.say("another commit came first; write properties are left for the next run")
            return drift(table, self.rules.write)
        for name, (was, wanted) in drifted.items():
            self.say(f"{name} was {was or 'not set'}; set to {wanted} as declared")
        return drifted

    def _now(self) -> datetime:
        if self.clock is not None:
            return self.clock()
        return ObjectStore.at(self.settings.place("_compaction"), self.settings).now()

    def _orphans(self, table: "Table") -> OrphanRemoval:
        rules = self.rules.orphans
        return OrphanRemoval(table, self.settings, rules.older_than, rules.quarantined_for)

    def undo(self) -> RolledBack:
        """Take the last compaction back."""
        return roll_back_last(self.table(), self.rules.retention, self._now(), self.say)

    # ------------------------------------------------------------ run

    def run(self, request: MaintenanceRequest | None = None) -> MaintenanceReport:
        request = request or MaintenanceRequest()
        if request.dry_run:
            raise MaintenanceRequestInvalid("dry_run: what would be done is asked for by `prospect`. Nothing was done.")
        began = time.monotonic()
        table, now = self.table(), self._now()
        require_fit(table.metadata, self.rules.table)
        policy, retention = self._policy(request), self._retention(request)
        drifted = self._keep_properties(table) if self._may_run(request, now) else drift(table, self.rules.write)
        look = TableState.at(table)
        report = MaintenanceReport(
            self._health(look, policy, retention, now), TableHealth(0, 0, 0, 0, FileCounts()), drift=drifted
        )
        report = self._compact(look, policy, request, now, report)
        compacted_in = time.monotonic() - began
        if self._may_run(request, now):
            report = self._tidy(table, retention, request, now, report)
        table.refresh()
        after = self._health(TableState.at(table), policy, retention, now)
        return replace(report, after=after, seconds=compacted_in)

    def _compact(
        self,
        look: TableState,
        policy: RewritePolicy,
        request: MaintenanceRequest,
        now: datetime,
        report: MaintenanceReport,
    ) -> MaintenanceReport:
        """Until nothing is left to do: a group that met a writer is planned again from what the writer left."""
        run_id = secrets.token_hex(8)
        apart: frozenset[str] = frozenset()
        room = policy.max_files
        for number in range(PASSES):
            plan = self._plan(look, replace(policy, max_files=room), request, now, apart)
            why_not = self._why_not(plan, request, now)
            if number == 0:
                report = replace(report, plan=plan, skipped=why_not)
            if why_not or room < FEWEST:
                break
            self.say(f"{plan.files:,} files in {len(plan.groups):,} groups become about {plan.expected_files:,}")
            encoding = self.rules.write.encoding()
            compaction = GroupCommits(look, policy, encoding, self.settings, run_id, self.say, self._referred_to)
            compaction.second_reader = self.rules.second_reader
            done = compaction.run(plan, self._spread_for(plan))
            report = _with(report, done)
            room -= sum(len(each.group.files) for each in done.committed)
            failed = [group for group in plan.groups if group.files[0].path in done.failed]
            apart |= {file.path for group in failed for file in group.files} | done.damaged.keys()
            if done.unknown or done.busy:
                break
            look.table.refresh()
            look = TableState.at(look.table, look.manifests)
        return report

    def _spread_for(self, plan: RewritePlan) -> ParallelMap:
        """Little work needs no Spark session."""
        return ParallelMap(None, os.cpu_count() or 1) if plan.bytes <= SMALL_WORK_BYTES else self.spread()

    def _tidy(
        self,
        table: "Table",
        retention: Retention,
        request: MaintenanceRequest,
        now: datetime,
        report: MaintenanceReport,
    ) -> MaintenanceReport:
        """Each step by itself: one that fails takes neither the others nor the report of the compaction with it."""
        troubles: list[str] = []

        def attempt(what: str, step: Callable[[], Done], otherwise: Done) -> Done:
            try:
                table.refresh()
                return step()
            except Exception as error:  # noqa: BLE001 (whatever it is, it is told)
                troubles.append(f"{what}: {(str(error).strip() or type(error).__name__).splitlines()[0]}")
                self.say(troubles[-1])
                return otherwise

        return replace(
            report,
            dangling_removed=attempt(
                "delete files that delete nothing",
                lambda: remove_dangling(table, self.settings, self._referred_to, self.say),
                0,
            ),
            manifests_merged=attempt(
                "manifests", lambda: merge_manifests(table, self.rules.manifests_from, self.say), 0
            ),
            snapshots_expired=attempt("snapshots", lambda: self._expire(table, retention, request, now), 0),
            orphans=attempt("orphans", lambda: self._clear_orphans(table, now), OrphanFiles()),
            troubles=tuple(troubles),
        )

    def _expire(self, table: "Table", retention: Retention, request: MaintenanceRequest, now: datetime) -> int:
        due = expiry.due(table.metadata, retention, now) if self._expires(request) else []
        if not due:
            return 0
        expiry.require_no_own_retention(table.metadata)
        before = {each.snapshot_id for each in table.metadata.snapshots}
        expiry.expire(self.session(), self.settings, self.rules.table, due)
        table.refresh()
        expired = len(before - {each.snapshot_id for each in table.metadata.snapshots})
        self.say(f"{expired} snapshots expired")
        return expired

    def _clear_orphans(self, table: "Table", now: datetime) -> OrphanFiles:
        if not self.rules.orphans.enabled:
            return OrphanFiles()
        orphans = self._orphans(table)
        found = orphans.find(now)
        orphans.clear(found, self.say)
        location = str(table.location())
        abort_uploads(location, COMPACTED_FILE_PREFIX, self.settings, now - self.rules.orphans.older_than, self.say)
        return found


def _with(report: MaintenanceReport, done: CommittedGroups) -> MaintenanceReport:
    return replace(
        report,
        committed=(*report.committed, *done.committed),
        conflicts={**report.conflicts, **done.conflicts},
        failed={**report.failed, **done.failed, **done.damaged},
        unproved=report.unproved | done.unproved,
        stitch_failures={**report.stitch_failures, **done.stitch_failures},
        unknown=done.unknown,
        notes=[*report.notes, *([done.busy] if done.busy else [])],
    )
