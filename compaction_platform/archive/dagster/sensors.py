"""Newly final ranges become partitions, and are asked for."""

import dagster as dg

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.chain.status import chain_status, due_ranges
from compaction_platform.archive.config import ArchivedChain
from compaction_platform.archive.dagster.partitions import partitions_of
from compaction_platform.archive.hot.snapshot import hot_url
from compaction_platform.errors import CompactionError
from compaction_platform.lake.dagster.resources import LakeResource
from compaction_platform.lake.dagster.run_requests import DuePartition, run_requests


def final_ranges_sensor(archive: ArchivedChain, job: object) -> dg.SensorDefinition:
    partitions = partitions_of(archive)

    @dg.sensor(
        name=f"final_ranges_{archive.chain}",
        job=job,  # type: ignore[arg-type]  # an unresolved asset job is one of the kinds this takes
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Asks for the ranges of {archive.range_size:,} blocks of chain {archive.chain} that are final.",
    )
    def final(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult:
        try:
            standing = chain_status(archive, hot_url(archive, lake.settings()))
        except CompactionError as error:
            return _wait(str(error))
        if standing.observed.finalized is None:
            return _wait(f"waiting: {standing.observed.finality.why}")
        due = due_ranges(archive, standing)
        wanted = DuePartition(
            archive.subject,
            [blocks.key for blocks in due],
            {blocks.key: standing.digest(blocks) for blocks in due},
            ranges=lambda keys: [(key, key) for key in keys],
            called="ranges",
        )
        requests, notes = run_requests(wanted, context.instance)
        requests.sort(key=lambda request: BlockRange.parsed(str(request.partition_key)))
        if len(requests) > archive.ranges_per_tick:
            notes.append(f"{len(requests) - archive.ranges_per_tick} more are asked for later")
        requests = requests[: archive.ranges_per_tick]
        known = set(context.instance.get_dynamic_partitions(str(partitions.name)))
        new = [str(request.partition_key) for request in requests if request.partition_key not in known]
        finality = standing.observed.finality
        said = f"final up to block {finality.finalized} ({finality.why}); {len(due)} ranges due"
        context.log.info("; ".join([said, *notes]))
        return dg.SensorResult(
            run_requests=requests,
            dynamic_partitions_requests=[partitions.build_add_request(new)] if new else [],
            skip_reason=None if requests else dg.SkipReason("; ".join([said, *notes])),
        )

    return final


def _wait(why: str) -> dg.SensorResult:
    return dg.SensorResult(skip_reason=dg.SkipReason(why))
