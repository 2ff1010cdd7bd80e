"""Bronze and Silver as Dagster assets of one step, so that a run of both reads every staged file once."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from compaction_platform.lake.dagster.provisioning import TableColumn
from compaction_platform.lake.dagster.resources import LakeResource, SparkResource
from compaction_platform.merge.cleanup_staging import clean_up
from compaction_platform.merge.config import MergeRules
from compaction_platform.merge.dagster.checks import (
    EventTime,
    check_specs,
    results_after_a_merge,
    results_alone,
    results_of_a_failed_audit,
)
from compaction_platform.merge.dagster.partitions import arrival_hours
from compaction_platform.merge.intake.hour_manifest import HourManifest
from compaction_platform.merge.job import MergeOutcome, MergeRun
from compaction_platform.merge.publish.audit import AuditFailed

SHOWN_FILES = 100


class MergeConfig(dg.Config):
    """How to run. Both are off in what the sensor and the schedule request."""

    dry_run: bool = Field(default=False, description="Show what would happen; write nothing at all.")
    again: bool = Field(
        default=False, description="Read and merge these hours again, though the same files were merged before."
    )


def bronze_key(rules: MergeRules) -> dg.AssetKey:
    return dg.AssetKey(["bronze", rules.table])


def silver_key(rules: MergeRules) -> dg.AssetKey:
    return dg.AssetKey(["silver", rules.table])


def cleaned_key(rules: MergeRules) -> dg.AssetKey:
    return dg.AssetKey(["cleaned", rules.table])


def merge_assets(
    rules: MergeRules, columns: Sequence[TableColumn], event_time: EventTime | None
) -> dg.AssetsDefinition:
    partitions = arrival_hours(rules)
    bronze = dg.AssetSpec(
        bronze_key(rules),
        description=f"Parquet files staged under {rules.source}, by hour of arrival: decoded, judged, listed.",
        partitions_def=partitions,
        group_name="bronze",
        kinds={"parquet", "s3"},
        skippable=True,
    )
    silver = dg.AssetSpec(
        silver_key(rules),
        deps=[bronze],
        description=f"Iceberg table {rules.full_name}: one row for each {', '.join(rules.key)}, the newest.",
        partitions_def=partitions,
        group_name="silver",
        kinds={"iceberg", "spark"},
        skippable=True,
        freshness_policy=_freshness(event_time),
        metadata={
            "dagster/column_schema": _column_schema(columns),
            "dagster/table_name": rules.full_name,
        },
    )

    @dg.multi_asset(
        name=f"take_in_and_merge_{rules.table}",
        specs=[bronze, silver],
        check_specs=check_specs(silver_key(rules), event_time),
        can_subset=True,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=f"merge_{rules.namespace}_{rules.table}",
    )
    def merge(
        context: dg.AssetExecutionContext, config: MergeConfig, lake: LakeResource, spark: SparkResource
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        run = MergeRun(
            rules=rules,
            settings=lake.settings(),
            spread=spark.spread,
            run_id=context.run.run_id,
            dry_run=config.dry_run,
            again=config.again,
            say=context.log.info,
        )
        wanted = {key.name for key in context.selected_asset_check_keys}
        if not context.selected_asset_keys:
            yield from results_alone(run, columns, event_time, wanted)
            return
        takes_in = bronze_key(rules) in context.selected_asset_keys
        merges = silver_key(rules) in context.selected_asset_keys
        try:
            outcome = _run(run, context.partition_keys, takes_in=takes_in, merges=merges)
        except AuditFailed as failed:
            yield from results_of_a_failed_audit(run, failed, wanted)
            raise
        if config.dry_run:
            _show_dry_run(context, rules, outcome)
            return
        if takes_in:
            yield _bronze_result(context, rules, outcome)
        if merges:
            yield _silver_result(context, rules, columns, outcome)
            yield from results_after_a_merge(run, outcome, columns, event_time, wanted)

    return merge


def _run(run: MergeRun, hours: Sequence[str], *, takes_in: bool, merges: bool) -> MergeOutcome:
    if not merges:
        return run.take_in(hours)
    return run.take_in_and_merge(hours) if takes_in else run.merge(hours)


def cleaned_asset(rules: MergeRules) -> dg.AssetsDefinition:
    verb = {"delete": "Deletes", "archive": "Moves to the archive"}[rules.cleanup]

    @dg.asset(
        key=cleaned_key(rules),
        deps=[silver_key(rules)],
        description=f"{verb} the staged file versions that were merged. Runs only after the blocking checks passed.",
        partitions_def=arrival_hours(rules),
        backfill_policy=dg.BackfillPolicy.single_run(),
        group_name="bronze",
        pool=f"merge_{rules.namespace}_{rules.table}",
    )
    def cleaned(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
        result = clean_up(rules, lake.settings(), context.partition_keys, context.log.info)
        kept = [dg.TableRecord({"file": key, "reason": reason}) for key, reason in list(result.kept.items())]
        return dg.MaterializeResult(
            metadata={
                "files_removed": len(result.removed),
                "bytes_removed": result.bytes,
                "files_kept": len(result.kept),
                **({"kept": dg.MetadataValue.table(kept[:SHOWN_FILES])} if kept else {}),
            }
        )

    return cleaned


def merge_job(rules: MergeRules) -> Any:
    keys = [bronze_key(rules), silver_key(rules)]
    if rules.cleanup != "lifecycle":
        keys.append(cleaned_key(rules))
    return dg.define_asset_job(
        f"merge_{rules.table}",
        selection=dg.AssetSelection.assets(*keys),
        description=f"Take in staged files and merge them into {rules.full_name}.",
        tags={"compaction/table": rules.full_name},
    )


# ---------------------------------------------------------------- what a person sees


def _bronze_result(context: dg.AssetExecutionContext, rules: MergeRules, outcome: MergeOutcome) -> Any:
    manifests = list(outcome.manifests.values())
    if len(manifests) > 1:
        for manifest in manifests:
            context.add_asset_metadata(
                {**_intake_figures([manifest]), "digest": manifest.digest}, bronze_key(rules), manifest.hour
            )
    digests = {"digest": manifests[0].digest} if len(manifests) == 1 else {}
    return dg.MaterializeResult(
        asset_key=bronze_key(rules),
        metadata={**_intake_figures(manifests), **digests, **_fates(manifests), "seconds": round(outcome.seconds, 3)},
        data_version=dg.DataVersion(manifests[0].digest) if len(manifests) == 1 else None,
    )


def _silver_result(
    context: dg.AssetExecutionContext, rules: MergeRules, columns: Sequence[TableColumn], outcome: MergeOutcome
) -> Any:
    if len(outcome.manifests) > 1:  # what belongs to the run as a whole is below
        for manifest in outcome.read:
            hour = {"hour_files": len(manifest.sound), "hour_rows": manifest.rows}
            context.add_asset_metadata(hour, silver_key(rules), manifest.hour)
    return dg.MaterializeResult(
        asset_key=silver_key(rules),
        metadata={
            **silver_figures(outcome),
            **_fates(outcome.read),
            "dagster/column_schema": _column_schema(columns),
        },
        data_version=dg.DataVersion(str(outcome.merged.snapshot_id if outcome.merged else None)),
    )


def silver_figures(outcome: MergeOutcome) -> dict[str, Any]:
    merged, read = outcome.merged, outcome.read
    assert merged is not None  # noqa: S101 (for the type checker)
    rows = sum(manifest.rows for manifest in read)
    return {
        "files": sum(len(manifest.sound) for manifest in read),
        "rows_read": rows,
        "rows_inserted": merged.inserted,
        "rows_updated": merged.updated,
        "rows_unchanged": merged.unchanged,
        "rows_rejected": sum(manifest.rejected for manifest in read),
        "bytes_read": sum(manifest.bytes for manifest in read),
        "bytes_written": merged.bytes_written,
        "partitions_touched": merged.partitions,
        "hours_merged": len(outcome.planned),
        "seconds": round(outcome.seconds, 3),
        "rows_per_second": round(rows / outcome.seconds, 1) if outcome.seconds else 0.0,
        "new_snapshot": merged.published,
        "snapshot_id": str(merged.snapshot_id),
    }


def _intake_figures(manifests: Sequence[HourManifest]) -> dict[str, Any]:
    return {
        "files": sum(len(manifest.files) for manifest in manifests),
        "bytes": sum(manifest.bytes for manifest in manifests),
        "rows": sum(manifest.rows for manifest in manifests),
        "rows_rejected": sum(manifest.rejected for manifest in manifests),
        "bad_files": sum(len(manifest.quarantined) for manifest in manifests),
    }


def _fates(manifests: Sequence[HourManifest]) -> Mapping[str, Any]:
    """A small table of the files with their fate, the bad ones first."""
    files = [file for manifest in manifests for file in manifest.files]
    files.sort(key=lambda file: (file.fate == "sound", file.key))
    records = [
        dg.TableRecord(
            {
                "file": file.key,
                "fate": file.fate,
                "rows": file.rows,
                "rejected": file.rejected,
                "bytes": file.size,
                "reason": file.reason,
            }
        )
        for file in files[:SHOWN_FILES]
    ]
    return {"file_fates": dg.MetadataValue.table(records)} if records else {}


def _show_dry_run(context: dg.AssetExecutionContext, rules: MergeRules, outcome: MergeOutcome) -> None:
    """An observation, not a materialization: nothing was done."""
    manifests = list(outcome.manifests.values())
    figures = silver_figures(outcome) if outcome.merged else _intake_figures(manifests)
    key = silver_key(rules) if outcome.merged else bronze_key(rules)
    context.log.info(f"dry run, nothing was written: {figures}")
    context.log_event(dg.AssetObservation(key, metadata={"dry_run": True, **figures, **_fates(manifests)}))


def _column_schema(columns: Sequence[TableColumn]) -> dg.TableSchema:
    return dg.TableSchema(
        columns=[dg.TableColumn(column.name, column.type, description=column.doc or None) for column in columns]
    )


def _freshness(event_time: EventTime | None) -> dg.FreshnessPolicy | None:
    """For the UI. It looks at the time of the last run; the check event_time_is_fresh looks at the data."""
    if event_time is None or event_time.fail_after is None:
        return None
    warn = event_time.warn_after
    return dg.FreshnessPolicy.time_window(
        fail_window=event_time.fail_after,
        warn_window=warn if warn and timedelta() < warn < event_time.fail_after else None,
    )
