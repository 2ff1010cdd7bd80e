"""Plans and reports of maintenance as people read them at a terminal."""

from rich.table import Table
from rich.text import Text

from compaction_platform.maintain.job import MaintenancePlan, MaintenanceReport
from compaction_platform.maintain.plan.file_groups import RewritePlan

SHOWN_GROUPS = 20


def prospect_as_table(prospect: MaintenancePlan) -> Table:
    health = prospect.health
    title = f"{health.files:,} files now; health {health.score} of 100: {health.reason}"
    table = Table("what", "files", "MB", "", title=title, title_justify="left")
    _add_plan(table, prospect.plan)
    if prospect.skipped and prospect.plan.groups:
        table.add_row("not now", "", "", Text(prospect.skipped))
    if prospect.expiring:
        table.add_row("snapshots expire", f"{len(prospect.expiring):,}", "", "")
    for what, some in (("to quarantine", prospect.orphans.orphans), ("deleted from there", prospect.orphans.to_delete)):
        if some:
            table.add_row(f"orphans {what}", f"{len(some):,}", _mb(sum(each.size for each in some)), "")
    if prospect.trouble:
        table.add_row("trouble", "", "", Text(prospect.trouble))
    for name, (was, wanted) in prospect.drift.items():
        table.add_row("property", "", "", Text(f"{name}: {was or 'not set'} → {wanted}"))
    return table


def report_as_table(report: MaintenanceReport) -> Table:
    figures = report.figures()
    table = Table("what", "", show_header=False)
    if report.skipped:
        table.add_row("nothing was compacted", Text(report.skipped))
    table.add_row("files", f"{figures['files_before']:,} → {figures['files_after']:,}")
    table.add_row("MB", f"{_mb(figures['bytes_before'])} → {_mb(figures['bytes_after'])}")
    table.add_row("files compacted", f"{figures['files_compacted']:,}")
    table.add_row("small files remaining", f"{figures['small_files_remaining']:,}")
    table.add_row("snapshots expired", f"{figures['snapshots_expired']:,}")
    table.add_row("orphans to quarantine", f"{len(report.orphans.orphans):,}")
    table.add_row("seconds", f"{report.seconds:.1f}")
    table.add_row("health", f"{report.before.score} → {report.after.score}: {report.after.reason}")
    for partition, what in report.conflicts.items():
        table.add_row(Text(f"conflict in {partition or 'the table'}"), Text(what))
    for path, error in report.failed.items():
        table.add_row(Text(path), Text(error))
    for note in (*report.notes, *report.troubles, *([report.unknown] if report.unknown else [])):
        table.add_row("note", Text(note))
    return table


def _add_plan(table: Table, plan: RewritePlan) -> None:
    for group in plan.groups[:SHOWN_GROUPS]:
        become = f"become {group.expected_files:,}"
        why = f"{group.partition or 'the table'}: {group.reason}"
        table.add_row(become, f"{len(group.files):,}", _mb(group.bytes), Text(why))
    if rest := plan.groups[SHOWN_GROUPS:]:
        files, size = sum(len(group.files) for group in rest), sum(group.bytes for group in rest)
        table.add_row(f"{len(rest):,} more groups", f"{files:,}", _mb(size), "")
    for reason, left in sorted(plan.left_alone.items()):
        table.add_row("left alone", f"{left.files:,}", _mb(left.bytes), Text(f"{reason} (e.g. {left.examples[0]})"))


def _mb(size: int) -> str:
    megabytes = size / (1 << 20)
    return f"{megabytes:,.1f}" if megabytes >= 1 or not size else f"{megabytes:.2g}"
