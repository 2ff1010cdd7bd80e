"""Plans and reports of Glue tables as people and programs read them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from compaction_platform.compact.glue.config import PartitionSurvey
from compaction_platform.compact.glue.report import GlueReport
from compaction_platform.lake.storage.sizes import MB

SHOWN = 30


def plan_as_json(surveys: Sequence[PartitionSurvey]) -> dict[str, Any]:
    return {
        "partitions": [
            {
                "partition": each.name,
                "location": each.partition.location,
                "files": each.sizes.files,
                "bytes": each.sizes.bytes,
                "files_to_join": each.plan.inputs,
                "would_become": len(each.plan.bins),
                "copied_as_they_are": [file.key for file in each.plan.copies],
                "late_files": [f"{late.place}/{late.file.key}" for late in each.plan.late],
                "originals_to_remove": [f"{file.place}/{file.name}" for file in each.plan.removable],
                "left_alone": each.plan.why_not,
                "problem": each.plan.problem,
            }
            for each in surveys
        ]
    }


def report_as_json(report: GlueReport) -> dict[str, Any]:
    return {
        "partitions": [
            {
                "partition": each.name,
                "outcome": each.outcome,
                "why": each.why,
                "location": each.location,
                "location_before": each.location_before,
                "files_before": each.before.files,
                "files_after": each.after.files,
                "bytes_before": each.before.bytes,
                "bytes_after": each.after.bytes,
                "rows": each.rows,
                "late_files_brought_in": each.late,
                "originals_removed": each.removed,
                "not_removed": dict(each.not_removed),
                "kept": dict(each.kept),
                "problem": each.problem,
            }
            for each in report.results
        ],
        "seconds": round(report.seconds, 3),
    }


def plan_as_table(surveys: Sequence[PartitionSurvey]) -> Group:
    due = [each for each in surveys if not each.plan.is_empty]
    table = Table(
        "partition",
        "files",
        "joined",
        "become",
        "copied",
        "late",
        "removed",
        title=f"{len(due):,} of {len(surveys):,} partitions have something to do",
        title_justify="left",
    )
    for each in due[:SHOWN]:
        plan = each.plan
        figures = (each.sizes.files, plan.inputs, len(plan.bins), len(plan.copies), len(plan.late), len(plan.removable))
        table.add_row(Text(each.name), *(f"{figure:,}" for figure in figures))
    if len(due) > SHOWN:
        table.add_row(f"and {len(due) - SHOWN:,} more", *[""] * 6)
    problems = {each.name: each.plan.problem for each in surveys if each.plan.problem}
    reasons = Counter(each.plan.why_not for each in surveys if each.plan.is_empty and not each.plan.problem)
    for reason, count in reasons.most_common():
        table.add_row(Text(f"{count:,} left alone: {reason}"), *[""] * 6)
    return Group(table, *(Text(f"{name}: {problem}", overflow="fold") for name, problem in problems.items()))


def report_as_table(report: GlueReport) -> Table:
    table = Table(Column("what", overflow="fold"), Column("", overflow="fold"), show_header=False)
    table.add_row("partitions", f"{len(report.results):,}, {len(report.compacted):,} compacted")
    table.add_row("files", f"{report.before.files:,} → {report.after.files:,}")
    table.add_row("MB", f"{report.before.bytes / MB:,.1f} → {report.after.bytes / MB:,.1f}")
    table.add_row("late files brought in", f"{sum(each.late for each in report.results):,}")
    table.add_row("originals removed", f"{sum(each.removed for each in report.results):,}")
    table.add_row("seconds", f"{report.seconds:.1f}")
    reasons = Counter(each.why for each in report.results if each.outcome == "left alone" and not each.problem)
    for reason, count in reasons.most_common():
        table.add_row(f"{count:,} left alone", Text(reason))
    for each in report.unfinished:
        table.add_row(Text(each.name), Text(f"{each.outcome}: {each.why}"))
    for name, what in {**report.problems, **report.not_removed, **report.kept}.items():
        table.add_row(Text(name), Text(what))
    return table
