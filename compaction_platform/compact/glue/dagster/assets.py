"""A Glue table as a Dagster asset with a partition for each of its own. Every partition is told by itself."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from compaction_platform.compact.glue.config import GlueTableConfig, PartitionSurvey
from compaction_platform.compact.glue.dagster.checks import check_specs, results_after_a_run, results_alone
from compaction_platform.compact.glue.job import GlueRun
from compaction_platform.compact.glue.plan.inventory import Selection
from compaction_platform.compact.glue.report import GlueReport, PartitionResult
from compaction_platform.lake.dagster.metrics import send_metrics
from compaction_platform.lake.dagster.resources import LakeResource, SparkResource
from compaction_platform.lake.storage.sizes import histogram
from compaction_platform.persisted_names import SUBJECT_TAG

SHOWN = 100
OP_PREFIX = "rewrite_"


class GlueConfig(dg.Config):
    """Which partitions, in a run that was not started for some; and how."""

    partitions: list[str] = Field(default=[], description="Names such as year=2023/month=05.")
    partition_predicate: str | None = Field(
        default=None, description="Such as year='2023'. Neither: the declared predicate."
    )
    dry_run: bool = Field(default=False, description="Show what would be done; change nothing at all.")


def glue_key(kept: GlueTableConfig) -> dg.AssetKey:
    return dg.AssetKey(["warehouse", kept.database, kept.name])


def partitions_of(kept: GlueTableConfig) -> dg.DynamicPartitionsDefinition:
    return dg.DynamicPartitionsDefinition(name=kept.subject)


def glue_asset(kept: GlueTableConfig) -> dg.AssetsDefinition:
    key = glue_key(kept)
    where = f" where {kept.predicate}" if kept.predicate else ""
    spec = dg.AssetSpec(
        key,
        description=f"Partitions of the Glue table {kept.database}.{kept.name}{where}: small Parquet files become "
        f"files of about {kept.rules.policy.target_mb} MB with the same rows.",
        partitions_def=partitions_of(kept),
        group_name="warehouse",
        kinds={"parquet", "glue"},
        skippable=True,  # each partition is told as soon as it is done
    )

    @dg.multi_asset(
        name=f"{OP_PREFIX}{kept.called}",
        specs=[spec],
        check_specs=check_specs(key),
        can_subset=True,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=f"compact_{kept.called}",
    )
    def compact(
        context: dg.AssetExecutionContext, config: GlueConfig, lake: LakeResource, spark: SparkResource
    ) -> Iterator[dg.AssetCheckResult]:
        started_for = context.partition_keys if context.has_partition_key or context.has_partition_key_range else ()

        def tell(result: PartitionResult) -> None:
            is_good = result.outcome in ("compacted", "left alone") and result.problem is None
            if is_good and (started_for or result.did_something):
                context.log_event(dg.AssetMaterialization(key, partition=result.name, metadata=figures(result)))

        run = GlueRun(kept, lake.settings(), spark.spread, context.log.info, tell)
        wanted = {check.name for check in context.selected_asset_check_keys}
        if not context.selected_asset_keys:
            yield from results_alone(run, wanted)
            return
        selection = _selection(config, started_for)
        if config.dry_run:
            _show_dry_run(context, key, run.plan(selection))
            return
        report = run.run(selection)
        context.log_event(dg.AssetObservation(key, metadata=summary(report)))
        if problem := _send(kept, report):
            context.log.warning(problem)
        yield from results_after_a_run(report, wanted)
        if report.unfinished:
            raise _failure(report)

    return compact


def partitions_told(kept: GlueTableConfig, messages: Sequence[Mapping[str, Any]]) -> Iterator[dg.AssetMaterialization]:
    """Partitions that a job elsewhere (`job.py`) has told of, by the messages it sent."""
    for told in messages:
        if told["outcome"] == "compacted":
            metadata = {name: value for name, value in told.items() if name not in ("partition", "outcome", "why")}
            yield dg.AssetMaterialization(glue_key(kept), partition=told["partition"], metadata=metadata)


def _selection(config: GlueConfig, started_for: Sequence[str]) -> Selection:
    if started_for:
        return Selection(tuple(started_for))
    return Selection(tuple(config.partitions) or None, config.partition_predicate)


def compact_job(kept: GlueTableConfig) -> Any:
    return dg.define_asset_job(
        f"compact_{kept.called}",
        selection=dg.AssetSelection.assets(glue_key(kept)),
        description=f"Compact partitions of {kept.database}.{kept.name}. Without a partition: those of the "
        "configuration, or all that the declaration looks after.",
        tags={SUBJECT_TAG: kept.subject},
    )


# ---------------------------------------------------------------- what a person sees


def figures(result: PartitionResult) -> dict[str, Any]:
    """Of one partition."""
    outputs = [
        {"output": each.name, "inputs": len(each.inputs), "bytes": each.size, "how": each.how, "reason": each.reason}
        for each in result.outputs
    ]
    return {
        "files_before": result.before.files,
        "files_after": result.after.files,
        "bytes_before": result.before.bytes,
        "bytes_after": result.after.bytes,
        "files_compacted": result.files_compacted,
        "late_files_brought_in": result.late,
        "originals_removed": result.removed,
        "duration": round(result.seconds, 3),
        "location": result.location,
        **({"location_before": result.location_before} if result.location_before != result.location else {}),
        **({"rows": result.rows} if result.rows is not None else {}),
        **({"left_alone": result.why} if result.outcome == "left alone" else {}),
        **_table("outputs", outputs),
        **_table("not_removed", [{"file": path, "why": why} for path, why in result.not_removed.items()]),
    }


def summary(report: GlueReport) -> dict[str, Any]:
    """Of a run."""
    reasons = Counter(each.why for each in report.results if each.outcome == "left alone")
    return {
        "partitions": len(report.results),
        "partitions_compacted": len(report.compacted),
        "partitions_unfinished": len(report.unfinished),
        "files_before": report.before.files,
        "files_after": report.after.files,
        "bytes_before": report.before.bytes,
        "bytes_after": report.after.bytes,
        "duration": round(report.seconds, 3),
        "file_sizes": dg.MetadataValue.md(histogram(report.before, report.after)),
        **_table("left_alone", [{"why": why, "partitions": count} for why, count in reasons.most_common()]),
        **_table("unfinished", [{"partition": each.name, "why": each.why} for each in report.unfinished]),
        **_table("problems", [{"partition": name, "what": what} for name, what in report.problems.items()]),
        **_table("not_removed", [{"file": path, "why": why} for path, why in report.not_removed.items()]),
        **_table("kept", [{"place": place, "why": why} for place, why in report.kept.items()]),
    }


def _show_dry_run(context: dg.AssetExecutionContext, key: dg.AssetKey, surveys: Sequence[PartitionSurvey]) -> None:
    """An observation, not a materialization: nothing was done."""
    due = [each for each in surveys if not each.plan.is_empty]
    context.log.info(f"dry run, nothing was changed: {len(due)} of {len(surveys)} partitions have something to do")
    rows = [
        {
            "partition": each.name,
            "files": each.sizes.files,
            "files_to_join": each.plan.inputs,
            "would_become": len(each.plan.bins),
            "copied_as_they_are": len(each.plan.copies),
            "late_files": len(each.plan.late),
            "originals_to_remove": len(each.plan.removable),
        }
        for each in due
    ]
    left = [{"partition": each.name, "why": each.plan.why_not} for each in surveys if each.plan.why_not]
    context.log_event(
        dg.AssetObservation(
            key,
            metadata={
                "dry_run": True,
                "partitions": len(surveys),
                "partitions_to_do": len(due),
                "files_to_compact": sum(each.plan.inputs for each in due),
                **_table("plan", rows),
                **_table("left_alone", left),
            },
        )
    )


def _table(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: dg.MetadataValue.table([dg.TableRecord(row) for row in rows[:SHOWN]])} if rows else {}


def _failure(report: GlueReport) -> dg.Failure:
    return dg.Failure(
        f"{len(report.unfinished)} partitions are as they were; {len(report.compacted)} others are done. Nothing was "
        "removed that is not in published files. The reasons say more; the next run goes on.",
        metadata=_table("unfinished", [{"partition": each.name, "why": each.why} for each in report.unfinished]),
    )


def _send(kept: GlueTableConfig, report: GlueReport) -> str | None:
    return send_metrics(
        counts={
            "compaction.runs": 1,
            "compaction.files_compacted": sum(each.files_compacted for each in report.results),
            "compaction.partitions_skipped": len(report.results) - len(report.compacted),
        },
        durations={"compaction.duration": report.seconds},
        attributes={"dataset": f"{kept.database}.{kept.name}", "outcome": "failed" if report.unfinished else "done"},
    )
