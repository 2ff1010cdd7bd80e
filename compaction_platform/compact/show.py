"""Plans and reports as people and programs read them."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from compaction_platform.compact.plan.bin_packing import CompactionPlan, together
from compaction_platform.compact.plan.column_survey import ColumnGroup, ColumnSurvey
from compaction_platform.compact.report import CompactionReport, DirectorySurvey, total_of
from compaction_platform.lake.storage.sizes import MB, FileSizes

SHOWN_BINS = 20
SHOWN_COLUMNS = 8


def plan_as_json(surveys: Sequence[DirectorySurvey], columns: ColumnSurvey | None = None) -> dict[str, Any]:
    columns = columns or ColumnSurvey()
    plan, before = together([survey.plan for survey in surveys]), total_of(surveys)
    return {
        "directories": plan.directories,
        "files": before.files,
        "bytes": before.bytes,
        "files_to_compact": plan.inputs,
        "bytes_to_compact": plan.input_bytes,
        "files_after": _files_after(plan, before),
        "bins": [
            {
                "output": each.output,
                "bytes": each.size,
                "inputs": [file.key for file in each.inputs],
                "columns": [_columns_as_json(group) for group in columns.groups.get(each.output, ())],
            }
            for each in plan.bins
        ],
        "left_alone": {
            reason: {"files": some.files, "bytes": some.bytes, "examples": list(some.examples)}
            for reason, some in plan.left_alone.items()
        },
        "superseded": [file.key for file in plan.superseded],
        "surplus": [file.key for file in plan.surplus],
        "conflicts": dict(plan.conflicts),
    }


def _columns_as_json(group: ColumnGroup) -> dict[str, Any]:
    return {"files": list(group.files), "columns": group.columns, "lacking": dict(group.lacking)}


def report_as_json(report: CompactionReport) -> dict[str, Any]:
    return {
        "plan": plan_as_json(report.surveys),
        "files_after": report.after.files,
        "bytes_after": report.after.bytes,
        "files_compacted": report.files_compacted,
        "outputs": [
            {
                "output": each.output,
                "inputs": len(each.made_of.inputs),
                "bytes": each.bytes,
                "rows": each.rows,
                "engine": each.engine,
                "reason": each.reason,
                "seconds": round(each.seconds, 3),
                "proof_seconds": round(each.proof_seconds, 3),
            }
            for each in report.made
        ],
        "set_aside": report.set_aside,
        "failed": dict(report.failed),
        "stitch_failures": report.stitch_failures,
        "not_removed": dict(report.not_removed),
        "removed_superseded": report.removed_superseded,
        "seconds": round(report.seconds, 3),
    }


def plan_as_table(surveys: Sequence[DirectorySurvey], columns: ColumnSurvey | None = None) -> Table:
    plan, before = together([survey.plan for survey in surveys]), total_of(surveys)
    after = _files_after(plan, before)
    table = Table(
        "what", "files", "MB", "", title=f"{before.files:,} files now, {after:,} afterwards", title_justify="left"
    )
    for each in plan.bins[:SHOWN_BINS]:
        table.add_row("become one", f"{len(each.inputs):,}", _mb(each.size), each.output)
    if len(plan.bins) > SHOWN_BINS:
        rest = plan.bins[SHOWN_BINS:]
        files, size = sum(len(each.inputs) for each in rest), sum(each.size for each in rest)
        table.add_row(f"become {len(rest):,} more", f"{files:,}", _mb(size), "")
    for output, groups in (columns or ColumnSurvey()).differing.items():
        for number, group in enumerate(groups, start=1):
            table.add_row(*_columns_row(output, group, number, len(groups)))
    if columns and columns.not_looked_at:
        table.add_row("columns", f"{columns.not_looked_at:,}", "", "not looked at: too many files for one plan")
    if plan.superseded:
        size = sum(file.size for file in plan.superseded)
        table.add_row("removed", f"{len(plan.superseded):,}", _mb(size), "their rows are in a compacted file already")
    if plan.surplus:
        table.add_row("removed", f"{len(plan.surplus):,}", "", "compacted twice by two runs at once")
    for key, why in plan.conflicts.items():
        table.add_row("conflict", "1", "", f"{key}: {why}")
    for reason, some in sorted(plan.left_alone.items()):
        table.add_row("left alone", f"{some.files:,}", _mb(some.bytes), f"{reason} (e.g. {some.examples[0]})")
    return table


def _columns_row(output: str, group: ColumnGroup, number: int, count: int) -> tuple[str, str, str, str]:
    """What is special about the columns of files that become one."""
    what = "columns differ" if count > 1 else "columns added"
    lacking = ", ".join(f"{name} (null in {files:,})" for name, files in list(group.lacking.items())[:SHOWN_COLUMNS])
    more = f" and {len(group.lacking) - SHOWN_COLUMNS} more" if len(group.lacking) > SHOWN_COLUMNS else ""
    told = [output]
    if count > 1:
        joined = "become one" if len(group.files) > 1 else "stays as it is"
        told.append(f"group {number} of {count}, {group.columns} columns, {joined}: {group.files[0]} …")
    if lacking:
        told.append(f"unified: {lacking}{more}")
    return what, f"{len(group.files):,}", "", "; ".join(told)


def report_as_table(report: CompactionReport) -> Table:
    made = report.made
    size = sum(each.bytes for each in made)
    read = sum(each.made_of.size for each in made)
    table = Table("what", "", show_header=False)
    if not made:
        table.add_row("nothing was compacted", _why_nothing(report))
    table.add_row("files", f"{report.before.files:,} → {report.after.files:,}")
    table.add_row("files compacted", f"{report.files_compacted:,} → {len(made):,}")
    table.add_row("MB", f"{_mb(read)} → {_mb(size)}")
    engines = {each.engine for each in made}
    for engine in sorted(engines):
        table.add_row(engine, f"{sum(each.engine == engine for each in made):,} files")
    table.add_row("seconds", f"{report.seconds:.1f} ({read / MB / max(report.seconds, 1e-3):,.0f} MB/s)")
    for key, reason in sorted({**report.set_aside, **report.failed, **report.not_removed}.items()):
        table.add_row(key, reason)
    return table


def _why_nothing(report: CompactionReport) -> str:
    left = sorted(report.plan.left_alone.items())
    reasons = [f"{some.files:,} files: {reason}" for reason, some in left]
    return "; ".join(reasons + [each.reason for each in report.done if each.output is None]) or "there are no files"


def _files_after(plan: CompactionPlan, before: FileSizes) -> int:
    return before.files - plan.inputs + len(plan.bins) - len(plan.superseded) - len(plan.surplus)


def _mb(size: int) -> str:
    megabytes = size / (1 << 20)
    return f"{megabytes:,.1f}" if megabytes >= 1 or not size else f"{megabytes:.2g}"
