"""The checks on a merged table. After a merge they report what its audit proved; alone, as in CI, they look again."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
from pyiceberg.table import Table

from compaction_platform.lake.dagster.provisioning import IcebergTable, TableColumn
from compaction_platform.lake.iceberg.types import arrow_type
from compaction_platform.lake.spark.session import qualified_name
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.merge.intake.hour_manifest import (
    HourManifest,
    MergeReceipt,
    batch_of,
    manifests_of,
    receipts_of,
    short_uuid,
)
from compaction_platform.merge.intake.whereabouts import Whereabouts
from compaction_platform.merge.job import MergeOutcome, MergeRun
from compaction_platform.merge.plan.partition_bounds import Bounds
from compaction_platform.merge.publish import sql
from compaction_platform.merge.publish.audit import AuditFailed
from compaction_platform.merge.publish.merger import Merger

STAGED_ROWS = "every_staged_row_is_in_silver"
UNIQUE = "key_is_unique"
SCHEMA = "schema_as_declared"
QUARANTINE = "nothing_quarantined"
SET_ASIDE = "what_was_set_aside_is_kept"
FRESH = "event_time_is_fresh"

SHOWN = 20
FAR = 100 * 365 * 86_400  # seconds; ages beyond that are not told apart
HOURS_CHECKED_ALONE = 24


@dataclass(frozen=True)
class EventTime:
    """The column with the data's own time, and how old the newest may be."""

    column: str
    warn_after: timedelta | None
    fail_after: timedelta | None


def check_specs(asset: dg.AssetKey, event_time: EventTime | None) -> list[dg.AssetCheckSpec]:
    specs = [
        dg.AssetCheckSpec(
            STAGED_ROWS,
            asset=asset,
            blocking=True,
            description="Every staged row that was not rejected is in the table with its content or a newer one.",
        ),
        dg.AssetCheckSpec(UNIQUE, asset=asset, blocking=True, description="No key is in the table twice."),
        dg.AssetCheckSpec(SCHEMA, asset=asset, description="The declared columns are there with the declared types."),
        dg.AssetCheckSpec(QUARANTINE, asset=asset, description="No staged file was bad, no row without a key."),
        dg.AssetCheckSpec(
            SET_ASIDE,
            asset=asset,
            description="Bad files and rows without a key are in quarantine, or their file is staged or archived.",
        ),
    ]
    if event_time is not None:
        specs.append(
            dg.AssetCheckSpec(FRESH, asset=asset, description="The newest event is recent, by the data's own time.")
        )
    return specs


def results_after_a_merge(
    run: MergeRun,
    outcome: MergeOutcome,
    columns: Sequence[TableColumn],
    event_time: EventTime | None,
    wanted: Collection[str],
) -> Iterator[dg.AssetCheckResult]:
    """The audit has passed, or nothing would have been published."""
    audit = outcome.merged.audit if outcome.merged else None
    if audit is not None:
        seen = {"scope": "the partitions this merge touched, before it was published", "rows": audit.rows_after}
    else:
        seen = {"scope": "nothing was merged: all staged rows were in the table already"}
    if STAGED_ROWS in wanted:
        yield _result(STAGED_ROWS, run, passed=True, metadata={**seen, "keys": audit.staged_keys if audit else 0})
    if UNIQUE in wanted:
        yield _result(UNIQUE, run, passed=True, metadata=seen)
    yield from _look_at_table(run, columns, event_time, wanted)


def results_of_a_failed_audit(
    run: MergeRun, failed: AuditFailed, wanted: Collection[str]
) -> Iterator[dg.AssetCheckResult]:
    rows = [dg.TableRecord({name: str(value) for name, value in row.items()}) for row in failed.rows]
    evidence = {"rows": dg.MetadataValue.table(rows)} if rows and _alike(rows) else {"rows": str(failed.rows)}
    doubled = failed.audit.doubled_keys > 0
    if STAGED_ROWS in wanted:
        yield _result(STAGED_ROWS, run, passed=False, description=str(failed), metadata=evidence)
    if UNIQUE in wanted:
        yield _result(UNIQUE, run, passed=not doubled, description=str(failed) if doubled else None, metadata=evidence)


def results_alone(
    run: MergeRun, columns: Sequence[TableColumn], event_time: EventTime | None, wanted: Collection[str]
) -> Iterator[dg.AssetCheckResult]:
    if STAGED_ROWS in wanted:
        yield _staged_rows_are_there(run)
    if UNIQUE in wanted:
        yield _keys_are_unique(run)
    yield from _look_at_table(run, columns, event_time, wanted)


def _look_at_table(
    run: MergeRun, columns: Sequence[TableColumn], event_time: EventTime | None, wanted: Collection[str]
) -> Iterator[dg.AssetCheckResult]:
    table = run.table()
    if SCHEMA in wanted:
        yield _schema_is_as_declared(run, table, columns)
    if QUARANTINE in wanted:
        yield _nothing_is_quarantined(run)
    if SET_ASIDE in wanted:
        yield _what_was_set_aside_is_kept(run, table)
    if FRESH in wanted and event_time is not None:
        yield _event_time_is_fresh(run, table, event_time)


def _staged_rows_are_there(run: MergeRun) -> dg.AssetCheckResult:
    """Read the merged files that are still staged, of the latest hours, and compare them with the table. Of those that
    are not, none may belong to a merge that was rolled back."""
    if gone := _whereabouts(run, run.table()).rolled_back_and_gone():
        return _result(
            STAGED_ROWS,
            run,
            passed=False,
            description=f"the merge of {len(gone)} files was rolled back, and they are neither staged nor archived any "
            "more: their rows are in no place that this platform knows. Roll the table forward while the snapshot is "
            "kept, or have the files delivered again.",
            metadata={"files": len(gone), "list": dg.MetadataValue.json(gone[:SHOWN])},
        )
    manifests = _latest_merged(run)
    staged = {stored.key: stored.etag for stored in ObjectStore.at(run.places.staging, run.settings).list()}
    files = [file for manifest in manifests for file in batch_of(manifest).files if staged.get(file.key) == file.etag]
    scope = {"hours": len(manifests), "files": len(files)}
    if not files:
        return _result(STAGED_ROWS, run, passed=True, metadata={**scope, "note": "no merged file is staged any more"})
    from compaction_platform.merge.intake.intake import Intake

    spread = run.spread()
    assert spread.session is not None  # noqa: S101 (for the type checker)
    rules = replace(run.rules, on_new_column="ignore")  # a column that was added since is no business of this check
    taken = Intake(rules, run.settings, spread, dry_run=True, say=run.say).take_in(files, run.table(), "comparison")
    try:
        merger = Merger(run.rules, run.settings, spread.session, spread.slots, run.run_id, run.say)
        rows = merger.missing_or_wrong(taken)
    finally:
        taken.release()
    return _result(STAGED_ROWS, run, passed=not rows, metadata={**scope, "rows": taken.count, **_shown(rows)})


def _whereabouts(run: MergeRun, table: Table) -> Whereabouts:
    return Whereabouts(run.places, run.settings, table, HOURS_CHECKED_ALONE)


def _latest_merged(run: MergeRun) -> list[HourManifest]:
    receipts, manifests = receipts_of(run.places, run.settings), manifests_of(run.places, run.settings)
    table = short_uuid(run.table())
    found = sorted(receipts.all().items(), reverse=True)[:HOURS_CHECKED_ALONE]
    merged = {
        (hour, receipt.digest)
        for hour, names in found
        for receipt in map(MergeReceipt.from_name, names)
        if receipt.table == table
    }
    texts = [manifests.get(hour, digest) for hour, digest in sorted(merged)]
    return [HourManifest.from_json(text) for text in texts if text is not None]


def _keys_are_unique(run: MergeRun) -> dg.AssetCheckResult:
    session = run.spread().session
    assert session is not None  # noqa: S101 (for the type checker)
    name = qualified_name(run.settings, *run.rules.identifier)
    doubled = session.sql(sql.doubled_keys(run.rules, result=name, bounds=Bounds(), limit=SHOWN)).collect()
    rows = [row.asDict() for row in doubled]
    return _result(UNIQUE, run, passed=not rows, metadata={"scope": "the whole table", **_shown(rows)})


def _schema_is_as_declared(run: MergeRun, table: Table, columns: Sequence[TableColumn]) -> dg.AssetCheckResult:
    declared = IcebergTable(run.rules.namespace, run.rules.table, tuple(columns)).schema()
    found = {field.name: field.field_type for field in table.schema().fields}
    problems = [
        f"{field.name} is {found[field.name]}, declared {field.field_type}"
        if field.name in found
        else f"{field.name} is missing"
        for field in declared.fields
        if field.name not in found or arrow_type(found[field.name]) != arrow_type(field.field_type)
    ]
    added = [name for name in found if name not in declared.column_names]
    return _result(
        SCHEMA,
        run,
        passed=not problems,
        description="; ".join(problems) or None,
        metadata={"added_by_files": ", ".join(added) or "none"},
    )


def _nothing_is_quarantined(run: MergeRun) -> dg.AssetCheckResult:
    listed = list(ObjectStore.at(run.places.quarantine, run.settings).list())
    bad = [stored.key for stored in listed if not stored.key.endswith(".reason.json")]
    return _result(
        QUARANTINE,
        run,
        passed=not bad,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{len(bad)} under {run.places.quarantine}; the reason is beside each." if bad else None,
        metadata={"files": len(bad), "list": dg.MetadataValue.json(sorted(bad)[-100:])},
    )


def _what_was_set_aside_is_kept(run: MergeRun, table: Table) -> dg.AssetCheckResult:
    gone = _whereabouts(run, table).set_aside_and_gone()
    return _result(
        SET_ASIDE,
        run,
        passed=not gone,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{len(gone)} files are not staged any more, and what was set aside of them is missing under "
        f"{run.places.quarantine}. If nobody has dealt with it and removed it, have the files delivered again."
        if gone
        else None,
        metadata={"hours": HOURS_CHECKED_ALONE, "list": dg.MetadataValue.json(gone[:SHOWN])},
    )


def _event_time_is_fresh(run: MergeRun, table: Table, event_time: EventTime) -> dg.AssetCheckResult:
    newest = _newest(table, event_time.column)
    if newest is None:
        return _result(FRESH, run, passed=False, severity=dg.AssetCheckSeverity.WARN, description="no event yet")
    now = ObjectStore.at(run.places.state, run.settings).now()
    age = timedelta(seconds=min(max(now.timestamp() - newest / 1e6, -FAR), FAR))
    too_old = event_time.fail_after is not None and age > event_time.fail_after
    old = event_time.warn_after is not None and age > event_time.warn_after
    return _result(
        FRESH,
        run,
        passed=not (old or too_old),
        severity=dg.AssetCheckSeverity.ERROR if too_old else dg.AssetCheckSeverity.WARN,
        description=f"the newest event is {str(age).split('.')[0]} old",
        metadata={"newest_event": _shown_moment(newest), "age_seconds": round(age.total_seconds())},
    )


def _shown_moment(microseconds: int) -> str:
    try:
        return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return f"{microseconds} microseconds since 1970, outside the calendar"


def _newest(table: Table, column: str) -> int | None:
    """In microseconds, from the statistics that every data file has in the table's metadata; no data is read.

    A row that was deleted may have been the newest, so this may be later than the truth, never earlier.
    """
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import PrimitiveType

    field = table.schema().find_field(column)
    if table.metadata.current_snapshot_id is None or not isinstance(field.field_type, PrimitiveType):
        return None
    bounds = [(task.file.upper_bounds or {}).get(field.field_id) for task in table.scan().plan_files()]
    values: list[Any] = [from_bytes(field.field_type, bound) for bound in bounds if bound is not None]
    return int(max(values)) if values else None


def _shown(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"keys": dg.MetadataValue.json([{name: str(value) for name, value in row.items()} for row in rows])}


def _alike(rows: Sequence[dg.TableRecord]) -> bool:
    return len({tuple(row.data) for row in rows}) == 1


def _result(
    name: str,
    run: MergeRun,
    *,
    passed: bool,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    description: str | None = None,
    metadata: dict[str, Any] | None = None,
) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=dg.AssetKey(["silver", run.rules.table]),
        check_name=name,
        passed=passed,
        severity=severity,
        description=description,
        metadata=metadata or {},
    )
