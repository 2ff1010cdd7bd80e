"""The checks on a compacted directory. After a run they look at what it left; alone, as in CI, at the latest data."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import dagster as dg

from compaction_platform.compact.audit import OutputAudit
from compaction_platform.compact.config import CompactedDataset
from compaction_platform.compact.job import CompactRun
from compaction_platform.compact.plan.bin_packing import OWN_NAME, together
from compaction_platform.compact.plan.lineage import listed
from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.compact.report import CompactionReport

FEW_SMALL = "few_small_files"
NO_SUPERSEDED = "no_superseded_inputs_left"
UNCHANGED = "rows_unchanged"

SHOWN = 20
CHECKED_ALONE = timedelta(days=1)


def check_specs(asset: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    return [
        dg.AssetCheckSpec(FEW_SMALL, asset=asset, description="No small files are left that could become a large one."),
        dg.AssetCheckSpec(
            NO_SUPERSEDED,
            asset=asset,
            description="No file lies beside a compacted one that holds its rows: none is read twice.",
        ),
        dg.AssetCheckSpec(
            UNCHANGED,
            asset=asset,
            blocking=True,
            description="Compacted files hold exactly the rows they were made of. After a run: as compared before each "
            "was published. Alone: all of them read again.",
        ),
    ]


def results_after_a_run(
    run: CompactRun, prefixes: Sequence[str], report: CompactionReport, wanted: Collection[str]
) -> Iterator[dg.AssetCheckResult]:
    if UNCHANGED in wanted:
        different = {key: report.failed[key] for key in sorted(report.unproved)}
        figures = {
            "rows": sum(each.rows for each in report.made),
            "outputs": len(report.made),
            "stitch_failures": len(report.stitch_failures),
        }
        yield unchanged_result(different, report.stitch_failures, figures)
    yield from _look(run, prefixes, wanted)


def results_alone(dataset: CompactedDataset, run: CompactRun, wanted: Collection[str]) -> Iterator[dg.AssetCheckResult]:
    partitions: list[str] = []
    if dataset.layout is not None:
        closed = dataset.layout.closed(dataset.first, run.now(), dataset.grace)
        partitions = closed[-(CHECKED_ALONE // dataset.layout.step) :]
    prefixes = dataset.prefixes(partitions)
    if UNCHANGED in wanted:
        yield _rows_are_still_the_same(run, prefixes)
    yield from _look(run, prefixes, wanted)


def _look(run: CompactRun, prefixes: Sequence[str], wanted: Collection[str]) -> Iterator[dg.AssetCheckResult]:
    plan = together([survey.plan for survey in run.plan(prefixes)])
    if FEW_SMALL in wanted:
        small = {each.output: f"{len(each.inputs)} small files could become this one" for each in plan.bins}
        figures = {"small_files": plan.inputs, "could_become": len(plan.bins)}
        yield check_result(FEW_SMALL, small, "directories have small files", figures, dg.AssetCheckSeverity.WARN)
    if NO_SUPERSEDED in wanted:
        left = {file.key: "its rows are in a compacted file" for file in (*plan.superseded, *plan.surplus)}
        left |= plan.conflicts
        figures = {"superseded": len(plan.superseded), "surplus": len(plan.surplus), "conflicts": len(plan.conflicts)}
        yield check_result(
            NO_SUPERSEDED, left, "files hold rows that are there twice; the next run removes them", figures
        )


def _rows_are_still_the_same(run: CompactRun, prefixes: Sequence[str]) -> dg.AssetCheckResult:
    outputs = [file for prefix in prefixes for file in listed(run.target, prefix) if _is_data(file)]
    spread = run.spread_for(sum(file.size for file in outputs))
    rows = 0
    problems: dict[str, str] = {}
    for outcome in spread.run(OutputAudit(run.target), outputs, weight=lambda file: file.size):
        rows += outcome.value.rows if outcome.value else 0
        if problem := outcome.error or (outcome.value.problem if outcome.value else None):
            problems[outcome.item.key] = problem
    figures = {"outputs": len(outputs), "rows": rows, "scope": "compacted files of the latest day, read again"}
    return check_result(UNCHANGED, problems, "compacted files are not what they were", figures)


def unchanged_result(
    different: Mapping[str, str], stitch_failures: Mapping[str, str], figures: dict[str, Any]
) -> dg.AssetCheckResult:
    """A failed proof blocks; a defect of stitching, after which files were re-encoded and proved, is a warning."""
    if different or not stitch_failures:
        what = "outputs were not what was read; they were not published, and nothing was removed"
        return check_result(UNCHANGED, different, what, figures)
    what = "outputs could not be stitched because of a defect: please report it. They were re-encoded and proved"
    return check_result(UNCHANGED, stitch_failures, what, figures, dg.AssetCheckSeverity.WARN)


def _is_data(file: FileVersion) -> bool:
    return OWN_NAME.fullmatch(file.name) is not None and not file.is_hidden


def check_result(
    name: str,
    problems: Mapping[str, str],
    what: str,
    figures: dict[str, Any],
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
) -> dg.AssetCheckResult:
    rows = [dg.TableRecord({"file": key, "what": text}) for key, text in list(problems.items())[:SHOWN]]
    return dg.AssetCheckResult(
        check_name=name,
        passed=not problems,
        severity=severity,
        description=f"{len(problems)} {what}" if problems else None,
        metadata={**figures, **({"files": dg.MetadataValue.table(rows)} if rows else {})},
    )
