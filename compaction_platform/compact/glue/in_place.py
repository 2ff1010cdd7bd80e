"""A table's partitions compacted where they are, as directories are: the catalog is not touched."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from compaction_platform.compact.glue.catalog import GluePartition
from compaction_platform.compact.glue.manifest import OutputFile
from compaction_platform.compact.glue.plan import Found, PartitionPlan, Place, place_of
from compaction_platform.compact.glue.report import PartitionResult
from compaction_platform.compact.glue.survey import LISTINGS_AT_ONCE, Surveyor
from compaction_platform.compact.glue.table import Surveyed
from compaction_platform.compact.plan import Plan
from compaction_platform.compact.rewrite import Rewritten
from compaction_platform.compact.run import CompactRun, Directory
from compaction_platform.lake.file_sizes import Sizes
from compaction_platform.lake.settings import Settings
from compaction_platform.lake.spread import Spread


@dataclass(frozen=True)
class InPlace:
    surveyor: Surveyor
    settings: Settings
    spread: Callable[[], Spread]
    say: Callable[[str], None]

    def surveys(self, partitions: Sequence[GluePartition]) -> list[Surveyed]:
        self.surveyor.overlaps  # noqa: B018 (asked for once, not by every thread)
        with ThreadPoolExecutor(LISTINGS_AT_ONCE) as pool:
            return list(pool.map(self._survey, partitions))

    def _survey(self, partition: GluePartition) -> Surveyed:
        if why := self.surveyor.why_not(partition):
            return Surveyed(partition, Found(Place("")), PartitionPlan(problem=why, why_not=why))
        uri = place_of(partition.location or "")
        run = self._run(uri)
        (survey,) = run.plan()
        plan = PartitionPlan(bins=survey.plan.bins, why_not=survey.why_nothing)
        return Surveyed(partition, Found(Place(uri, tuple(run.listed("")))), plan)

    def run(self, surveys: Sequence[Surveyed]) -> Iterator[PartitionResult]:
        for surveyed in surveys:
            uri = surveyed.found.current.uri
            result = PartitionResult(surveyed.name, "left alone", surveyed.plan.why_not or "", location=uri)
            if surveyed.plan.problem:
                yield replace(result, problem=surveyed.plan.problem)
                continue
            report = self._run(uri).run()
            plan: Plan = report.plan
            yield replace(
                result,
                outcome="failed" if report.failed else "compacted" if report.made else "left alone",
                why="; ".join(report.failed.values()) or result.why,
                before=report.before,
                after=Sizes(report.after.files, report.after.bytes, report.after.in_class),
                location_before=uri,
                outputs=tuple(map(_output, report.made)),
                rows=sum(each.rows for each in report.made),
                removed=report.removed_superseded,
                not_removed=report.not_removed,
                problem="; ".join(f"{key}: {why}" for key, why in plan.conflicts.items()) or None,
                seconds=report.seconds,
            )

    def _run(self, uri: str) -> CompactRun:
        rules = self.surveyor.kept.rules
        directory = Directory(uri, rules.policy, originals="delete", exactly=True, grace=rules.quiet_for)
        return CompactRun(directory, self.settings, self.spread, self.say)


def _output(each: Rewritten) -> OutputFile:
    return OutputFile(
        name=each.output or "",
        etag="",
        size=each.bytes,
        rows=each.rows,
        how=each.engine,
        reason=each.reason,
        inputs=tuple(file.key for file in each.made_of.inputs),
    )
