"""A compacted directory as a Dagster asset. A range of partitions is one run."""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from compaction_platform.compact.config import CompactedDataset
from compaction_platform.compact.dagster.checks import check_specs, results_after_a_run, results_alone
from compaction_platform.compact.dagster.partitions import partitions_of
from compaction_platform.compact.report import CompactionReport, DirectorySurvey, total_of
from compaction_platform.compact.show import plan_as_json
from compaction_platform.lake.dagster.metrics import send_metrics
from compaction_platform.lake.dagster.resources import LakeResource, SparkResource
from compaction_platform.lake.storage.sizes import MB, histogram
from compaction_platform.persisted_names import SUBJECT_TAG

SHOWN = 100


class CompactConfig(dg.Config):
    """How to run."""

    dry_run: bool = Field(default=False, description="Show what would be done; change nothing at all.")


def warehouse_key(dataset: CompactedDataset) -> dg.AssetKey:
    return dg.AssetKey(["warehouse", dataset.name])


def compacted_asset(dataset: CompactedDataset) -> dg.AssetsDefinition:
    key = warehouse_key(dataset)
    partitions = partitions_of(dataset)
    spec = dg.AssetSpec(
        key,
        description=f"Parquet files under {dataset.directory.uri}: small ones become files of about "
        f"{dataset.directory.policy.target_mb} MB with the same rows.",
        partitions_def=partitions,
        group_name="warehouse",
        kinds={"parquet", "file" if dataset.directory.uri.startswith(("/", "file:")) else "s3"},
        skippable=True,
    )

    @dg.multi_asset(
        name=f"rewrite_{dataset.name}",
        specs=[spec],
        check_specs=check_specs(key),
        can_subset=True,
        backfill_policy=dg.BackfillPolicy.single_run() if partitions else None,
        pool=f"compact_{dataset.name}",
    )
    def compact(
        context: dg.AssetExecutionContext, config: CompactConfig, lake: LakeResource, spark: SparkResource
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        run = dataset.run(lake.settings(), spark.spread, context.log.info)
        wanted = {check.name for check in context.selected_asset_check_keys}
        if not context.selected_asset_keys:
            yield from results_alone(dataset, run, wanted)
            return
        keys = list(context.partition_keys) if partitions else []
        dataset.require_closed(keys, run.now())
        prefixes = dataset.prefixes(keys)
        if config.dry_run:
            _show_dry_run(context, key, run.plan(prefixes))
            return
        report = run.run(prefixes)
        if problem := _send(dataset, report):
            context.log.warning(problem)
        if report.failed:
            yield from results_after_a_run(run, prefixes, report, wanted)
            raise _failure(report)
        _tell_partitions(context, key, keys, report)
        yield dg.MaterializeResult(asset_key=key, metadata=figures(report, keys))
        yield from results_after_a_run(run, prefixes, report, wanted)

    return compact


def compact_job(dataset: CompactedDataset) -> Any:
    return dg.define_asset_job(
        f"compact_{dataset.name}",
        selection=dg.AssetSelection.assets(warehouse_key(dataset)),
        description=f"Compact small files under {dataset.directory.uri}.",
        tags={SUBJECT_TAG: dataset.subject},
    )


# ---------------------------------------------------------------- what a person sees


def figures(report: CompactionReport, partitions: Sequence[str]) -> dict[str, Any]:
    names = dict(zip((survey.prefix for survey in report.surveys), partitions or ["all"], strict=True))
    speed = report.bytes_compacted / MB / report.seconds if report.seconds else 0.0
    return {
        "files_before": report.before.files,
        "files_after": report.after.files,
        "bytes_before": report.before.bytes,
        "bytes_after": report.after.bytes,
        "files_compacted": report.files_compacted,
        "partitions_skipped": len(report.skipped),
        "duration": round(report.seconds, 3),
        "mb_per_second": round(speed, 1),
        "file_sizes": dg.MetadataValue.md(histogram(report.before, report.after)),
        **_table("outputs", [_output(each) for each in report.made]),
        **_table("skipped", [{"partition": names[prefix], "why": why} for prefix, why in report.skipped.items()]),
        **_table("set_aside", [{"file": key, "why": why} for key, why in report.set_aside.items()]),
        **_table("not_removed", [{"file": key, "why": why} for key, why in report.not_removed.items()]),
    }


def _output(each: Any) -> dict[str, Any]:
    return {
        "output": each.output,
        "inputs": len(each.made_of.inputs),
        "rows": each.rows,
        "bytes": each.bytes,
        "engine": each.engine,
        "reason": each.reason,
        "seconds": round(each.seconds, 3),
        "proof_seconds": round(each.proof_seconds, 3),
    }


def _table(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: dg.MetadataValue.table([dg.TableRecord(row) for row in rows[:SHOWN]])} if rows else {}


def _tell_partitions(
    context: dg.AssetExecutionContext, key: dg.AssetKey, partitions: Sequence[str], report: CompactionReport
) -> None:
    """In a run of many partitions, what happened in each."""
    if len(partitions) < 2:
        return
    for partition, survey in zip(partitions, report.surveys, strict=True):
        made = [each for each in report.made if _is_below(each.made_of.directory, survey.prefix)]
        inputs = sum(len(each.made_of.inputs) for each in made)
        skipped = {"skipped": survey.why_nothing} if survey.why_nothing else {}
        here = {
            "partition_files_before": survey.before.files,
            "partition_files_compacted": inputs,
            "partition_outputs": len(made),
            **skipped,
        }
        context.add_asset_metadata(here, key, partition)


def _is_below(directory: str, prefix: str) -> bool:
    return f"{directory}/".startswith(f"{prefix}/")


def _show_dry_run(context: dg.AssetExecutionContext, key: dg.AssetKey, surveys: Sequence[DirectorySurvey]) -> None:
    """An observation, not a materialization: nothing was done."""
    plan = plan_as_json(surveys)
    bins = plan.pop("bins")
    context.log.info(f"dry run, nothing was changed: {plan['files_to_compact']} files would become {len(bins)}")
    outputs = [{"output": each["output"], "inputs": len(each["inputs"]), "bytes": each["bytes"]} for each in bins]
    counts = {name: value for name, value in plan.items() if isinstance(value, int)}
    left = [{"why": why, "files": some["files"], "bytes": some["bytes"]} for why, some in plan["left_alone"].items()]
    sizes = total_of(surveys)
    context.log_event(
        dg.AssetObservation(
            key,
            metadata={
                "dry_run": True,
                **counts,
                "file_sizes": dg.MetadataValue.md(histogram(sizes, sizes)),
                **_table("would_become", outputs),
                **_table("left_alone", left),
            },
        )
    )


def _failure(report: CompactionReport) -> dg.Failure:
    return dg.Failure(
        f"{len(report.failed)} outputs could not be made or finished; {len(report.made)} others are done. Nothing was "
        "removed that is not in one of those. The errors say more; the next run goes on.",
        metadata=_table("failed", [{"output": key, "error": error} for key, error in report.failed.items()]),
    )


def _send(dataset: CompactedDataset, report: CompactionReport) -> str | None:
    return send_metrics(
        counts={
            "compaction.runs": 1,
            "compaction.files_compacted": report.files_compacted,
            "compaction.partitions_skipped": len(report.skipped),
        },
        durations={"compaction.duration": report.seconds},
        attributes={"dataset": dataset.name, "outcome": "failed" if report.failed else "done"},
    )
