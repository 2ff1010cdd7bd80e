"""What must be true of a maintained table, as Dagster checks."""

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from compaction_platform.maintain.job import MaintainRun, MaintenanceReport
from compaction_platform.maintain.operations.remove_dangling_deletes import dangling_deletes
from compaction_platform.maintain.operations.verify_rows import missing_files, retention_gap, rows_differ
from compaction_platform.maintain.plan.health import TableHealth

RECOMMENDED = "compaction_recommended"
UNCHANGED = "rows_unchanged_by_compaction"
RETENTION = "retention_kept"
NO_DANGLING = "no_dangling_deletes"
SMALL_METADATA = "metadata_is_small"

MOST_METADATA_BYTES = 8 << 20
MOST_SNAPSHOTS = 1_000
READ_AGAIN_BYTES = 64 << 20  # more is compared before each commit, and again when the checks run alone
SHOWN = 50


def check_specs(asset: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    described = {
        RECOMMENDED: "No compaction is worth its while. Warns with the number of small files.",
        UNCHANGED: "Compaction changed no row: as compared before each commit, and by reading the files of the last "
        "compaction again, those it replaced and those it made. After a run of more than 64 MB only the former.",
        RETENTION: "Every snapshot inside the retention is there with all its files, so time travel works.",
        NO_DANGLING: "No delete file is left that deletes nothing.",
        SMALL_METADATA: "Snapshots, manifests and the table's metadata are few and small enough to plan quickly.",
    }
    return [
        dg.AssetCheckSpec(name, asset=asset, blocking=name == UNCHANGED, description=text)
        for name, text in described.items()
    ]


def recommendation(health: TableHealth) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        check_name=RECOMMENDED,
        passed=not health.recommended,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{health.plan.files:,} files could become {health.plan.expected_files:,}"
        if health.recommended
        else None,
        metadata={
            "small_files_count": health.small_files,
            "files": health.files,
            "files_after": health.expected_files,
            "health": health.score,
            "why": health.reason,
        },
    )


def results_after_a_run(
    run: MaintainRun, report: MaintenanceReport, wanted: Collection[str]
) -> Iterator[dg.AssetCheckResult]:
    if UNCHANGED in wanted:
        different = {path: report.failed[path] for path in sorted(report.unproved)}
        rows = sum(each.result.rows for each in report.committed)
        read_again = report.committed and sum(each.group.bytes for each in report.committed) <= READ_AGAIN_BYTES
        if read_again:
            different |= rows_differ(run.table(), run.settings)[1]
        figures = {
            "rows": rows,
            "read_again": bool(read_again),
            "stitch_failures": len(report.stitch_failures),
        }
        if different or not report.stitch_failures:
            yield _result(UNCHANGED, different, "groups or snapshots are not what they were made of", figures)
        else:
            what = "groups could not be stitched because of a defect: please report it. They were re-encoded and proved"
            yield _result(UNCHANGED, dict(report.stitch_failures), what, dict(figures), warn=True)
    yield from _look(run, report.after, wanted)


def results_alone(run: MaintainRun, wanted: Collection[str]) -> Iterator[dg.AssetCheckResult]:
    if UNCHANGED in wanted:
        rows, problems = rows_differ(run.table(), run.settings)
        yield _result(UNCHANGED, problems, "snapshots hold other rows than the one before", {"rows": rows})
    yield from _look(run, run.health(), wanted)


def _look(run: MaintainRun, health: TableHealth, wanted: Collection[str]) -> Iterator[dg.AssetCheckResult]:
    if RECOMMENDED in wanted:
        yield recommendation(health)
    if RETENTION in wanted:
        yield _retention(run)
    if NO_DANGLING in wanted:
        found = dict.fromkeys(dangling_deletes(run.table(), run.settings), "no data file is left that it applies to")
        yield _result(NO_DANGLING, found, "delete files delete nothing; the next run removes them", {})
    if SMALL_METADATA in wanted:
        yield _metadata(health)


def _retention(run: MaintainRun) -> dg.AssetCheckResult:
    table = run.table()
    problems = dict.fromkeys(missing_files(table, run.settings), "a retained snapshot needs it, and it is gone")
    if gap := retention_gap(table.metadata, run.rules.retention, datetime.now(UTC)):
        problems["history"] = gap
    figures = {"snapshots": len(table.metadata.snapshots), "retention_hours": run.rules.retention.hours}
    return _result(RETENTION, problems, "things are missing for time travel inside the retention", figures)


def _metadata(health: TableHealth) -> dg.AssetCheckResult:
    counts = health.counts
    limits: list[tuple[str, int, int, str]] = [
        ("snapshots", counts.snapshots, MOST_SNAPSHOTS, "shorten snapshots.retention_hours, or let them expire"),
        ("metadata_bytes", counts.metadata_bytes, MOST_METADATA_BYTES, "shorten snapshots.retention_hours"),
        ("small_manifests", counts.manifests_to_merge, 0, "the next run merges them"),
    ]
    problems = {name: f"{value:,}: {advice}" for name, value, most, advice in limits if value > most}
    figures = {"snapshots": counts.snapshots, "manifests": counts.manifests, "metadata_bytes": counts.metadata_bytes}
    return _result(SMALL_METADATA, problems, "things are more than they should be", figures, warn=True)


def _result(
    name: str, problems: dict[str, str], what: str, figures: dict[str, Any], *, warn: bool = False
) -> dg.AssetCheckResult:
    rows = [dg.TableRecord({"what": key, "why": text}) for key, text in list(problems.items())[:SHOWN]]
    return dg.AssetCheckResult(
        check_name=name,
        passed=not problems,
        severity=dg.AssetCheckSeverity.WARN if warn else dg.AssetCheckSeverity.ERROR,
        description=f"{len(problems)} {what}" if problems else None,
        metadata={**figures, **({"problems": dg.MetadataValue.table(rows)} if rows else {})},
    )
