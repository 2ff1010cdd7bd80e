"""A table's partitions compacted where they are, as directories are: the catalog is not touched."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from compaction_platform.compact.glue.commit.catalog import GluePartition
from compaction_platform.compact.glue.config import PartitionSurvey
from compaction_platform.compact.glue.plan.inventory import LISTINGS_AT_ONCE, PartitionInventory, problematic
from compaction_platform.compact.glue.plan.manifest import OutputFile
from compaction_platform.compact.glue.plan.partition_plan import (
    PartitionFiles,
    PartitionLocation,
    PartitionPlan,
    place_of,
)
from compaction_platform.compact.glue.report import PartitionResult
from compaction_platform.compact.job import CompactRun, DirectoryConfig
from compaction_platform.compact.rewrite.compatible_inputs import in_one_line
from compaction_platform.compact.rewrite.rewrite_bin import CompactedGroup
from compaction_platform.errors import VerificationFailed
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.storage.threads import map_concurrently
from compaction_platform.persisted_names import GLUE_MANIFEST
from compaction_platform.settings import Settings


@dataclass(frozen=True)
class InPlace:
    surveyor: PartitionInventory
    settings: Settings
    spread: Callable[[], ParallelMap]
    say: Callable[[str], None]

    def surveys(self, partitions: Sequence[GluePartition]) -> list[PartitionSurvey]:
        self.surveyor.overlaps  # noqa: B018 (asked for once, not by every thread)
        return map_concurrently(self._survey, partitions, LISTINGS_AT_ONCE)

    def _survey(self, partition: GluePartition) -> PartitionSurvey:
        if why := self.surveyor.why_not(partition):
            return problematic(partition, why)
        uri = place_of(partition.location or "")
        try:
            if self.surveyor.places.look(uri).find(GLUE_MANIFEST):
                return problematic(partition, "swap_location has made its files; it cannot be compacted in place")
            run = self._run(uri)
            (survey,) = run.plan()
            plan = PartitionPlan(bins=survey.plan.bins, why_not=survey.why_nothing)
            return PartitionSurvey(partition, PartitionFiles(PartitionLocation(uri, tuple(run.listed("")))), plan)
        except Exception as error:  # noqa: BLE001 (whatever it is, the others go on)
            return problematic(partition, f"it cannot be looked at: {in_one_line(error)}")

    def run(self, surveys: Sequence[PartitionSurvey]) -> Iterator[PartitionResult]:
        for surveyed in surveys:
            result = PartitionResult(surveyed.name, "left alone", surveyed.plan.why_not or "")
            try:
                yield self._compacted(surveyed, replace(result, location=surveyed.found.current.uri))
            except Exception as error:  # noqa: BLE001 (of this partition; the others go on)
                yield replace(
                    result, outcome="failed", why=in_one_line(error), is_unproved=isinstance(error, VerificationFailed)
                )

    def _compacted(self, surveyed: PartitionSurvey, result: PartitionResult) -> PartitionResult:
        if surveyed.plan.problem:
            return replace(result, problem=surveyed.plan.problem)
        report = self._run(result.location).run()
        return replace(
            result,
            outcome="failed" if report.failed else "compacted" if report.made else "left alone",
            why="; ".join(report.failed.values()) or result.why,
            is_unproved=bool(report.unproved),
            before=report.before,
            after=report.after,
            location_before=result.location,
            outputs=tuple(map(_output, report.made)),
            rows=sum(each.rows for each in report.made),
            removed=report.removed_superseded,
            not_removed=report.not_removed,
            problem="; ".join(f"{key}: {why}" for key, why in report.plan.conflicts.items()) or None,
            seconds=report.seconds,
        )

    def _run(self, uri: str) -> CompactRun:
        rules = self.surveyor.kept.rules
        directory = DirectoryConfig(
            uri,
            rules.policy,
            originals="delete",
            exactly=True,
            grace=rules.quiet_for,
            second_reader=self.surveyor.kept.second_reader,
        )
        return CompactRun(directory, self.settings, self.spread, self.say)


def _output(each: CompactedGroup) -> OutputFile:
    return OutputFile(
        name=each.output or "",
        etag="",
        size=each.bytes,
        rows=each.rows,
        how=each.engine,
        reason=each.reason,
        inputs=tuple(file.key for file in each.made_of.inputs),
    )
