"""The hot tables of a chain, its cold datasets and the purge, as Dagster assets. A partition is a range of blocks."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
from pydantic import Field

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.chain.source import SourceUnfit
from compaction_platform.archive.cold.manifest import RangeManifest
from compaction_platform.archive.config import ArchivedChain, ArchivedTable
from compaction_platform.archive.dagster.checks import (
    CONTIGUOUS,
    EQUAL,
    FINAL,
    check_specs,
    cold_key,
    purged_key,
    result_of_a_failure,
    results_after_a_run,
    results_alone,
)
from compaction_platform.archive.dagster.partitions import partitions_of
from compaction_platform.archive.jobs.archive_range import Archived, ArchiveRun, CopyFailed, NotFinal
from compaction_platform.archive.jobs.purge_range import Purged, PurgeRun
from compaction_platform.lake.dagster.resources import LakeResource, SparkResource
from compaction_platform.persisted_names import SUBJECT_TAG

FAILED_CHECKS = {NotFinal: FINAL, SourceUnfit: CONTIGUOUS, CopyFailed: EQUAL}


class ArchiveConfig(dg.Config):
    """How to run."""

    dry_run: bool = Field(default=False, description="Check the range and show what would be written; change nothing.")
    invalidate_because: str = Field(
        default="",
        description="A reason to replace what is archived, whatever it is: after a reorganisation, or where fewer rows "
        "are right. Kept in the new manifest.",
    )


def hot_key(archive: ArchivedChain, dataset: ArchivedTable) -> dg.AssetKey:
    return dg.AssetKey(["hot", archive.chain, dataset.name])


def hot_assets(archive: ArchivedChain) -> list[dg.AssetSpec]:
    return [
        dg.AssetSpec(
            hot_key(archive, dataset),
            description=f"`{'.'.join(dataset.table)}`, where the indexer writes.",
            group_name=f"chain_{archive.chain}",
            kinds={"postgres"},
        )
        for dataset in archive.datasets
    ]


def cold_assets(archive: ArchivedChain) -> dg.AssetsDefinition:
    partitions = partitions_of(archive)
    specs = [
        dg.AssetSpec(
            cold_key(archive, dataset.name),
            deps=[hot_key(archive, dataset)],
            description=f"Final ranges of `{'.'.join(dataset.table)}` as Parquet: `{archive.uri}/{archive.chain}/"
            f"{dataset.name}/range=*/part-*.parquet`",
            partitions_def=partitions,
            group_name=f"chain_{archive.chain}",
            kinds={"parquet", "iceberg"} if archive.namespace else {"parquet"},
            skippable=True,
        )
        for dataset in archive.datasets
    ]

    @dg.multi_asset(
        name=f"copy_ranges_{archive.chain}",
        specs=specs,
        check_specs=check_specs(archive),
        can_subset=True,
        pool=f"archive_{archive.chain}",
    )
    def copy_ranges(
        context: dg.AssetExecutionContext, config: ArchiveConfig, lake: LakeResource, spark: SparkResource
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        run = ArchiveRun(archive, lake.settings(), spark.spread, context.log.info, owner=_owner(context))
        wanted = context.selected_asset_check_keys
        if not context.selected_asset_keys:
            yield from results_alone(run, wanted)
            return
        blocks = run.range_of(context.partition_key)
        if config.dry_run:
            _show_dry_run(context, archive, run.preview(blocks, config.invalidate_because or None))
            return
        try:
            done = run.run(blocks, config.invalidate_because or None)
        except tuple(FAILED_CHECKS) as error:
            yield from result_of_a_failure(archive, FAILED_CHECKS[type(error)], error, wanted)
            raise dg.Failure(str(error)) from error
        for dataset in archive.datasets:
            yield from _materialized(context, archive, dataset, done)
        yield from results_after_a_run(archive, done, wanted)

    return copy_ranges


def _materialized(
    context: dg.AssetExecutionContext, archive: ArchivedChain, dataset: ArchivedTable, done: Archived
) -> Iterator[dg.MaterializeResult[None]]:
    """All datasets of a range are committed together, whatever was selected."""
    key, manifest = cold_key(archive, dataset.name), done.manifests[dataset.name]
    metadata = figures(archive, manifest, done)
    if key in context.selected_asset_keys:
        version = dg.DataVersion(manifest.data_version)
        yield dg.MaterializeResult(asset_key=key, metadata=metadata, data_version=version)
    else:
        context.log_event(dg.AssetMaterialization(key, partition=context.partition_key, metadata=metadata))


def figures(archive: ArchivedChain, manifest: RangeManifest, done: Archived) -> dict[str, Any]:
    return {
        "dataset_uuid": manifest.dataset_uuid,
        "dataset_version": manifest.dataset_version,
        "partition_key": manifest.partition_key,
        "outcome": done.outcome,
        "why": done.why,
        "rows": manifest.rows,
        "files": len(manifest.files),
        "bytes": manifest.size,
        "first_block": manifest.start_block,
        "end_block_not_included": manifest.end_block,
        "last_hash": str(manifest.last_hash),
        "finalized": manifest.finality.finalized,
        "finality": manifest.finality.why,
        "path": f"{archive.uri}/{archive.chain}/{manifest.dataset}/range={manifest.partition_key}",
        "duration": round(done.seconds, 3),
    }


def _show_dry_run(
    context: dg.AssetExecutionContext, archive: ArchivedChain, preview: Archived | dict[str, Any]
) -> None:
    """An observation, not a materialization: nothing was done."""
    for dataset in archive.datasets:
        key = cold_key(archive, dataset.name)
        told = (
            {"would": preview.outcome, "why": preview.why}
            if isinstance(preview, Archived)
            else {"would": "archive", **preview[dataset.name]}
        )
        context.log.info(f"dry run, nothing was changed: {dataset.name}: {told}")
        context.log_event(dg.AssetObservation(key, partition=context.partition_key, metadata={"dry_run": True, **told}))


def purged_asset(archive: ArchivedChain) -> dg.AssetsDefinition:
    @dg.asset(
        key=purged_key(archive),
        deps=[cold_key(archive, dataset.name) for dataset in archive.datasets],
        partitions_def=partitions_of(archive),
        group_name=f"chain_{archive.chain}",
        kinds={"postgres"},
        description="Hot rows of archived ranges are deleted, file by file, if they are what the cold file holds.",
        pool=f"archive_{archive.chain}",
    )
    def purge(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
        run = PurgeRun(archive, lake.settings(), context.log.info, owner=_owner(context))
        return dg.MaterializeResult(metadata=_purge_figures(run.run(BlockRange.parsed(context.partition_key))))

    return purge


def _purge_figures(done: Purged) -> dict[str, Any]:
    return {
        "rows_deleted": sum(done.rows.values()),
        **{f"rows_deleted_{name}": rows for name, rows in done.rows.items()},
        "partitions_dropped": ", ".join(done.dropped) or "none",
        "dataset_version": done.version,
        "why": done.why or "deleted rows were, row for row, what the cold files hold",
    }


def _owner(context: dg.AssetExecutionContext) -> str:
    """The same for a run that died and for the one that Dagster makes to try it again."""
    return context.run.root_run_id or context.run.run_id


def archive_job(archive: ArchivedChain) -> Any:
    assets = [cold_key(archive, dataset.name) for dataset in archive.datasets]
    if archive.purge:
        assets.append(purged_key(archive))
    return dg.define_asset_job(
        f"archive_{archive.chain}",
        selection=dg.AssetSelection.assets(*assets),
        description=f"Archive a final range of chain {archive.chain}"
        + (", then purge its hot rows." if archive.purge else "."),
        tags={SUBJECT_TAG: archive.subject},
    )
