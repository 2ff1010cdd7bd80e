"""The checks on a Glue table. After a run they tell what it left; alone, as in CI, they look at all partitions."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import dagster as dg

from compaction_platform.compact.audit import AuditedOutput, OutputAudit
from compaction_platform.compact.dagster.checks import check_result
from compaction_platform.compact.glue.audit import AuditPublished, gone_files, published_files
from compaction_platform.compact.glue.config import PartitionSurvey
from compaction_platform.compact.glue.job import GlueRun
from compaction_platform.compact.glue.report import GlueReport
from compaction_platform.compact.plan.bin_packing import OWN_NAME
from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.persisted_names import GLUE_SWAPPED

FEW_SMALL = "few_small_files"
WHOLE = "partitions_are_whole"
UNCHANGED = "rows_unchanged"
READ_AGAIN = 20  # partitions, those swapped last


def check_specs(asset: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    return [
        dg.AssetCheckSpec(
            FEW_SMALL, asset=asset, description="No partition has small files that could become a large one."
        ),
        dg.AssetCheckSpec(
            WHOLE,
            asset=asset,
            description="The catalog leads to everything that a swap has published, and that is there as it was; no "
            "rows are left outside, and no partition is one that cannot be looked after.",
        ),
        dg.AssetCheckSpec(
            UNCHANGED,
            asset=asset,
            blocking=True,
            description="Compacted files hold exactly the rows they were made of. After a run: as compared before each "
            "was published. Alone: those of the partitions swapped last are read again, and compared, as another "
            "Parquet decoder reads both, with the originals that still exist.",
        ),
    ]


def results_after_a_run(report: GlueReport, wanted: Collection[str]) -> Iterator[dg.AssetCheckResult]:
    if UNCHANGED in wanted:
        different = {each.name: each.why for each in report.unfinished if each.is_unproved}
        figures = {"rows": sum(each.rows or 0 for each in report.compacted), "partitions": len(report.compacted)}
        yield check_result(UNCHANGED, different, "partitions: what was written is not what was read", figures)
    if FEW_SMALL in wanted:
        left = {each.name: each.why for each in report.unfinished}
        yield check_result(
            FEW_SMALL, left, "partitions could not be finished", {"unfinished": len(left)}, dg.AssetCheckSeverity.WARN
        )
    if WHOLE in wanted:
        yield check_result(WHOLE, report.problems, "partitions need a person", {"problems": len(report.problems)})


def results_alone(run: GlueRun, wanted: Collection[str]) -> Iterator[dg.AssetCheckResult]:
    surveys = run.plan()
    if UNCHANGED in wanted:
        yield _rows_are_still_the_same(run, surveys)
    if FEW_SMALL in wanted:
        small = {each.name: f"{each.plan.inputs} small files" for each in surveys if each.plan.bins}
        figures = {"small_files": sum(each.plan.inputs for each in surveys), "partitions": len(surveys)}
        yield check_result(FEW_SMALL, small, "partitions have small files", figures, dg.AssetCheckSeverity.WARN)
    if WHOLE in wanted:
        problems = {each.name: each.plan.problem for each in surveys if each.plan.problem}
        late = {
            each.name: f"{len(each.plan.late)} files came to an old location; the next run brings them in"
            for each in surveys
            if each.plan.late
        }
        yield check_result(WHOLE, {**late, **problems}, "partitions are not whole", {"partitions": len(surveys)})


@dataclass(frozen=True)
class _AuditAt:
    """It travels to where the work is done."""

    objects: ObjectStore

    def __call__(self, item: tuple[str, FileVersion]) -> AuditedOutput:
        place, file = item
        return OutputAudit(replace(self.objects, uri=place))(file)


def _rows_are_still_the_same(run: GlueRun, surveys: Collection[PartitionSurvey]) -> dg.AssetCheckResult:
    if run.kept.publish == "in_place":
        return _audited_in_place(run, surveys)
    latest = sorted((each for each in surveys if each.found.manifest), key=_swapped_at)[-READ_AGAIN:]
    items = [file for each in latest for file in published_files(each)]
    spread = run.spread_for(sum(item.size for item in items))
    problems = gone_files(latest)
    rows = 0
    for outcome in spread.run(AuditPublished(run.surveyor.places.objects), items, weight=lambda item: item.size):
        rows += outcome.value.rows if outcome.value else 0
        if problem := outcome.error or (outcome.value.problem if outcome.value else None):
            problems[outcome.item.path] = problem
    figures = {
        "files": len(items),
        "rows": rows,
        "compared_with_originals": sum(1 for item in items if item.originals and OWN_NAME.fullmatch(item.output.name)),
        "scope": f"the {READ_AGAIN} partitions swapped last, read again",
    }
    return check_result(UNCHANGED, problems, "compacted files are not what they were", figures)


def _audited_in_place(run: GlueRun, surveys: Collection[PartitionSurvey]) -> dg.AssetCheckResult:
    places = [each.found.current for each in surveys][-READ_AGAIN:]
    items = [(place.uri, file) for place in places for file in place.data if OWN_NAME.fullmatch(file.name)]
    spread = run.spread_for(sum(file.size for _, file in items))
    problems: dict[str, str] = {}
    rows = 0
    for outcome in spread.run(_AuditAt(run.surveyor.places.objects), items, weight=lambda item: item[1].size):
        rows += outcome.value.rows if outcome.value else 0
        if problem := outcome.error or (outcome.value.problem if outcome.value else None):
            problems["/".join((outcome.item[0], outcome.item[1].key))] = problem
    figures = {"files": len(items), "rows": rows, "scope": f"{READ_AGAIN} partitions, read again"}
    return check_result(UNCHANGED, problems, "compacted files are not what they were", figures)


def _swapped_at(surveyed: PartitionSurvey) -> float:
    marker = surveyed.found.current.find(GLUE_SWAPPED)
    return marker.changed_at.timestamp() if marker and marker.changed_at else 0.0
