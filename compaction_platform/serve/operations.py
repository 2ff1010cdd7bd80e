"""What the service does with a request, whatever it came by: HTTP, a Lambda event, or a test."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property, singledispatchmethod
from typing import TYPE_CHECKING, Any

from compaction_platform.errors import CompactionError
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.maintain.config import (
    CHECK_INTERVAL,
    MIN_FILES,
    MaintenanceRequest,
    MaintenanceRequestInvalid,
    TableMaintenance,
)
from compaction_platform.maintain.job import MaintainRun, MaintenanceReport
from compaction_platform.maintain.plan.file_groups import RewritePolicy
from compaction_platform.maintain.plan.partition_filter import FilterInvalid
from compaction_platform.serve.http import models
from compaction_platform.serve.http.errors import InvalidFilter, InvalidRequest, LakeUnavailable, RequestTooLarge
from compaction_platform.serve.tables.queries import Queries
from compaction_platform.serve.tables.table_writer import Writes
from compaction_platform.serve.tables.tenant_tables import TableRef, TenantTables
from compaction_platform.settings import Profile, Settings

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass
class Service:
    settings: Settings
    spread: Callable[[], ParallelMap]
    session: Callable[[], Any]
    say: Callable[[str], None] = lambda text: None
    tables: TenantTables = field(init=False)
    writes: Writes = field(init=False)
    queries: Queries = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        self.tables = TenantTables(settings, timedelta(hours=settings.serve_undo_hours))
        self.writes = Writes(settings, self.tables, settings.serve_group_ms / 1000)
        self.queries = Queries(settings.serve_max_rows, settings.serve_query_seconds)

    @cached_property
    def check_interval(self) -> int:
        return self.settings.serve_check_interval or CHECK_INTERVAL[Profile(self.settings.profile)]

    @singledispatchmethod
    def answer(self, request: Any) -> models.AnyAnswer:
        raise InvalidRequest(f"{type(request).__name__} is not an operation.")

    @answer.register
    def _create(self, request: models.CreateTable) -> models.Created:
        return models.Created(table=request.table, created=self.tables.create(request))

    @answer.register
    def _write(self, request: models.Write) -> models.Written:
        most = self.settings.serve_max_records
        if len(request.records) > most:
            raise RequestTooLarge(f"at most {most:,} records in one request; send them in several.")
        where = TableRef.of(request)
        done = self.writes.write(where, request.records, request.request_id)
        written = models.Written(records_written=done.records, snapshot=done.snapshot, repeated=done.repeated)
        if done.repeated or done.number % self.check_interval:
            return written
        return self._advised(where, written)

    def _advised(self, where: TableRef, written: models.Written) -> models.Written:
        """From the table's metadata. The write is done; if they cannot be read now, there is no advice."""
        try:
            health = self._maintain(where).health(look=self.writes.look(where))
        except Exception as error:  # noqa: BLE001 (whatever it is, the records are written)
            self.say(f"no advice for {where.called}: {type(error).__name__}")
            return written
        advice = {"compaction_recommended": bool(health.plan.groups), "small_files_count": health.small_files}
        return written.model_copy(update=advice)

    @answer.register
    def _query(self, request: models.Query) -> models.Rows:
        page = self.queries.page(self.tables.load(TableRef.of(request)), request)
        return models.Rows(records=page.records, snapshot=page.snapshot, cursor=page.cursor)

    @answer.register
    def _compact(self, request: models.Compact) -> models.CompactResult:
        where = TableRef.of(request)
        self.tables.load(where)
        try:
            report = self._maintain(where).run(
                MaintenanceRequest(
                    force=request.force,
                    target_file_size_mb=request.target_file_size_mb,
                    max_files=request.max_files,
                    partition_filter=request.partition_filter,
                    expire_snapshots=request.expire_snapshots,
                    snapshot_retention_hours=request.snapshot_retention_hours,
                )
            )
        except FilterInvalid as invalid:
            raise InvalidFilter(str(invalid)) from None
        except MaintenanceRequestInvalid as invalid:
            raise InvalidRequest(str(invalid)) from None
        stats = models.CompactStats(**report.figures())
        if report.committed:
            return models.CompactResult(compacted=True, stats=stats)
        problems = [*report.failed.values(), *([report.unknown] if report.unknown else [])]
        if problems:
            raise LakeUnavailable(f"nothing was compacted: {problems[0]}", {"problems": len(problems)})
        return models.CompactResult(compacted=False, reason=report.skipped or _conflicts(report), stats=stats)

    @answer.register
    def _list(self, request: models.ListTables) -> models.TableNames:
        return models.TableNames(tables=self.tables.names(request.tenant_id, request.namespace))

    @answer.register
    def _describe(self, request: models.DescribeTable) -> models.Description:
        return _description(request.table, self.tables.load(TableRef.of(request)))

    @answer.register
    def _drop(self, request: models.DropTable) -> models.Dropped:
        until = self.tables.drop(TableRef.of(request))
        return models.Dropped(table=request.table, restorable_until=until.isoformat().replace("+00:00", "Z"))

    @answer.register
    def _restore(self, request: models.RestoreTable) -> models.Restored:
        self.tables.restore(TableRef.of(request))
        return models.Restored(table=request.table)

    def _maintain(self, where: TableRef) -> MaintainRun:
        policy = RewritePolicy(min_files=MIN_FILES[Profile(self.settings.profile)])
        rules = TableMaintenance(where.called, where.name, policy, check_interval=self.check_interval)
        return MaintainRun(rules, self.settings, self.spread, self.session, self.say)

    def require_reachable(self) -> None:
        """Raises if the lake cannot be reached."""
        try:
            self.tables.catalog.namespace_exists("any")
        except CompactionError:
            raise
        except Exception as error:
            raise LakeUnavailable("the catalog does not answer.") from error


def _conflicts(report: MaintenanceReport) -> str:
    return "; ".join(report.conflicts.values()) or "there is nothing to do"


def _description(name: str, table: "Table") -> models.Description:
    snapshot = table.current_snapshot()
    totals = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
    schema = table.schema()
    return models.Description(
        table=name,
        fields={
            each.name: models.ColumnDescription(type=str(each.field_type), required=each.required, doc=each.doc or "")
            for each in schema.fields
        },
        partition_by=[f"{each.transform}({schema.find_column_name(each.source_id)})" for each in table.spec().fields],
        snapshot=snapshot.snapshot_id if snapshot else None,
        records=int(totals.get("total-records", 0)),
        files=int(totals.get("total-data-files", 0)),
        bytes=int(totals.get("total-files-size", 0)),
    )
