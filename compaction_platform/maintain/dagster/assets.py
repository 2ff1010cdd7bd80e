"""A table's maintenance as a Dagster asset, and the job that takes its last compaction back."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from compaction_platform.lake.dagster.metrics import send_metrics
from compaction_platform.lake.dagster.resources import LakeResource, SparkResource
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.storage.sizes import FileSizes, histogram
from compaction_platform.maintain.config import MaintenanceRequest, TableMaintenance
from compaction_platform.maintain.dagster.checks import check_specs, results_after_a_run, results_alone
from compaction_platform.maintain.job import MaintainRun, MaintenancePlan, MaintenanceReport
from compaction_platform.maintain.operations.commit_groups import Committed
from compaction_platform.maintain.plan.file_groups import RewritePlan
from compaction_platform.maintain.plan.health import TableHealth
from compaction_platform.persisted_names import SUBJECT_TAG
from compaction_platform.settings import Profile, Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOWN = 100


class MaintainConfig(dg.Config):
    """What a run is asked for. What is not given is as declared."""

    force: bool = Field(
        default=False,
        description="Compact partitions of two small files and more, also outside of the window and where writers were "
        "just busy.",
    )
    target_file_size_mb: int | None = Field(default=None, description="About how large files become.")
    max_files: int | None = Field(default=None, description="Rewrite no more files than this.")
    partition_filter: str | None = Field(
        default=None, description="Only partitions that may hold such rows, e.g. country = 'de'."
    )
    expire_snapshots: bool | None = Field(default=None, description="Whether snapshots expire.")
    snapshot_retention_hours: int | None = Field(
        default=None, description="Keep snapshots for so long after another took their place."
    )
    dry_run: bool = Field(default=False, description="Show what would be done; change nothing at all.")

    def request(self) -> MaintenanceRequest:
        return MaintenanceRequest(**self.model_dump())


def maintenance_key(rules: TableMaintenance) -> dg.AssetKey:
    return dg.AssetKey(["maintenance", rules.name])


def run_of(
    rules: TableMaintenance,
    settings: Settings,
    spark: SparkResource | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> MaintainRun:
    def session() -> "SparkSession":
        if spark is None:
            raise RuntimeError("a look needs no Spark")
        found: SparkSession = spark.session
        return found

    return MaintainRun(rules, settings, spark.spread if spark else ParallelMap, session, say)


def maintained_asset(
    example: TableMaintenance, rules_for: Callable[[Profile], TableMaintenance]
) -> dg.AssetsDefinition:
    key = maintenance_key(example)
    spec = dg.AssetSpec(
        key,
        deps=[dg.AssetKey(example.table.split("."))],
        description=f"The Iceberg table {example.table}, kept healthy: few files of about "
        f"{example.write.target_file_size_mb} MB, few snapshots, no orphans.",
        group_name="maintenance",
        kinds={"iceberg", "parquet"},
        skippable=True,
    )

    @dg.multi_asset(
        name=f"maintain_table_{example.name}",
        specs=[spec],
        check_specs=check_specs(key),
        can_subset=True,
        pool=pool_of(example),
    )
    def maintain(
        context: dg.AssetExecutionContext, config: MaintainConfig, lake: LakeResource, spark: SparkResource
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        settings = lake.settings()
        rules = rules_for(settings.profile)
        run = run_of(rules, settings, spark, context.log.info)
        wanted = {check.name for check in context.selected_asset_check_keys}
        if not context.selected_asset_keys:
            yield from results_alone(run, wanted)
            return
        request = config.request()
        if request.dry_run:
            _show_dry_run(context, key, run.prospect(request))
            return
        report = run.run(request)
        if problem := _send(rules, report):
            context.log.warning(problem)
        if report.skipped:
            context.log.info(f"nothing was compacted: {report.skipped}")
        yield dg.MaterializeResult(asset_key=key, metadata=figures(report))
        yield from results_after_a_run(run, report, wanted)
        if report.failed or report.unknown or report.troubles:
            raise _failure(report)

    return maintain


def maintain_job(rules: TableMaintenance) -> Any:
    return dg.define_asset_job(
        f"maintain_{rules.name}",
        selection=dg.AssetSelection.assets(maintenance_key(rules)),
        description=f"Compact {rules.table}, expire its snapshots, clear its orphans.",
        tags={SUBJECT_TAG: f"maintenance.{rules.name}"},
    )


def undo_job(rules: TableMaintenance) -> dg.JobDefinition:
    @dg.op(
        name=f"take_back_{rules.name}",
        description="The table goes back to the snapshot before its last compaction, if nobody has committed since.",
        pool=pool_of(rules),
    )
    def take_back(context: dg.OpExecutionContext, lake: LakeResource) -> None:
        undone = run_of(rules, lake.settings(), say=context.log.info).undo()
        context.add_output_metadata(
            {"from_snapshot": str(undone.from_snapshot), "to_snapshot": str(undone.to_snapshot)}
        )

    @dg.job(
        name=f"undo_compaction_{rules.name}",
        description=f"Roll {rules.table} back to before its last compaction: while that snapshot is retained, and only "
        "if no writer has committed since.",
    )
    def undo() -> None:
        take_back()

    return undo


def pool_of(rules: TableMaintenance) -> str:
    return f"maintain_{rules.name}"


# ---------------------------------------------------------------- what a person sees


def health_figures(health: TableHealth) -> dict[str, Any]:
    """Health as numbers, so that Dagster plots them over time."""
    oldest = health.counts.oldest_snapshot_ms
    return {
        "health": health.score,
        "why": health.reason,
        "files": health.files,
        "small_files": health.small_files,
        "delete_files": health.counts.delete_files,
        "bytes": health.bytes,
        "snapshots": health.counts.snapshots,
        "manifests": health.counts.manifests,
        "files_fewer_after_compaction": health.files_fewer,
        **({"oldest_snapshot": dg.MetadataValue.timestamp(oldest / 1000)} if oldest else {}),
        **_table(
            "partitions",
            [
                {
                    "partition": each.partition,
                    "files": each.files,
                    "small_files": each.small_files,
                    "with_deletes": each.with_deletes,
                    "bytes": each.bytes,
                }
                for each in health.partitions
            ],
        ),
    }


def figures(report: MaintenanceReport) -> dict[str, Any]:
    return {
        **report.figures(),
        "health": report.after.score,
        "health_before": report.before.score,
        "why": report.after.reason,
        "manifests_merged": report.manifests_merged,
        "orphans_quarantined": len(report.orphans.orphans),
        "file_sizes": dg.MetadataValue.md(
            histogram(FileSizes.of(report.before.sizes), FileSizes.of(report.after.sizes))
        ),
        **({"skipped": report.skipped} if report.skipped else {}),
        **_plan(report.plan),
        **_table("compacted", [_compacted(each) for each in report.committed]),
        **_table("conflicts", [{"partition": name, "what": what} for name, what in report.conflicts.items()]),
        **_table("failed", [{"file": path, "error": error} for path, error in report.failed.items()]),
        **_table(
            "drift",
            [{"property": name, "was": was or "", "set_to": wanted} for name, (was, wanted) in report.drift.items()],
        ),
        **({"notes": "\n".join(notes)} if (notes := [*report.notes, *report.troubles]) else {}),
    }


def _compacted(each: Committed) -> dict[str, Any]:
    """What was done with one group, and by what it was proved."""
    result = each.result
    return {
        "partition": each.group.partition,
        "files": len(each.group.files),
        "became": len(result.outputs),
        "rows": result.rows,
        "deleted_rows_left_out": result.rows_read - result.rows,
        "fingerprint": result.digest,
        "engine": result.engine,
        "reason": result.reason,
        "seconds": round(result.seconds, 3),
        "proof_seconds": round(result.proof_seconds, 3),
        "snapshot": str(each.snapshot_id),
    }


def _plan(plan: RewritePlan) -> dict[str, Any]:
    groups = [
        {
            "partition": group.partition,
            "files": len(group.files),
            "bytes": group.bytes,
            "expected_files": group.expected_files,
            "reason": group.reason,
        }
        for group in plan.groups
    ]
    left = [
        {"why": why, "files": some.files, "bytes": some.bytes, "such_as": some.examples[0]}
        for why, some in sorted(plan.left_alone.items())
    ]
    return {**_table("plan", groups), **_table("left_alone", left)}


def _table(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: dg.MetadataValue.table([dg.TableRecord(row) for row in rows[:SHOWN]])} if rows else {}


def _show_dry_run(context: dg.AssetExecutionContext, key: dg.AssetKey, prospect: MaintenancePlan) -> None:
    """An observation, not a materialization: nothing was done."""
    plan = prospect.plan
    context.log.info(
        f"dry run, nothing was changed: {plan.files} files would become about {plan.expected_files}; "
        f"{len(prospect.expiring)} snapshots would expire"
    )
    sizes = FileSizes.of(prospect.health.sizes)
    context.log_event(
        dg.AssetObservation(
            key,
            metadata={
                "dry_run": True,
                "files_to_compact": plan.files,
                "expected_files": plan.expected_files,
                "snapshots_to_expire": len(prospect.expiring),
                "orphans_to_quarantine": len(prospect.orphans.orphans),
                "orphans_to_delete": len(prospect.orphans.to_delete),
                **health_figures(prospect.health),
                "file_sizes": dg.MetadataValue.md(histogram(sizes, sizes)),
                **({"skipped": prospect.skipped} if prospect.skipped else {}),
                **({"trouble": prospect.trouble} if prospect.trouble else {}),
                **_plan(plan),
                **_table(
                    "drift",
                    [
                        {"property": name, "was": was or "", "would_be": wanted}
                        for name, (was, wanted) in prospect.drift.items()
                    ],
                ),
            },
        )
    )


def _failure(report: MaintenanceReport) -> dg.Failure:
    if report.unknown:
        return dg.Failure(report.unknown)
    if not report.failed:
        return dg.Failure(f"the compaction is done, but not all that comes after it: {'; '.join(report.troubles)}")
    first, error = next(iter(report.failed.items()))
    return dg.Failure(
        f"{len(report.failed)} files or groups could not be rewritten and are left as they are; the others are "
        f"committed. The first: {first}: {error}",
        metadata=_table("failed", [{"file": path, "error": error} for path, error in report.failed.items()]),
    )


def _send(rules: TableMaintenance, report: MaintenanceReport) -> str | None:
    counts = {f"maintain.{name}": value for name, value in report.figures().items() if name.startswith("files_")}
    return send_metrics(counts, {"maintain.duration": report.seconds}, {"table": rules.table})
