"""What a run found and did, as values that people and programs are shown."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from compaction_platform.compact.plan.bin_packing import CompactionPlan, together
from compaction_platform.compact.rewrite.rewrite_bin import CompactedGroup
from compaction_platform.lake.storage.sizes import FileSizes


@dataclass(frozen=True)
class DirectorySurvey:
    """What was found below one prefix, and what is to be done there."""

    prefix: str
    plan: CompactionPlan
    before: FileSizes
    known: frozenset[str] = frozenset()  # compacted files that were there

    @property
    def why_nothing(self) -> str | None:
        """Why there is nothing to compact; None if there is."""
        if self.plan.bins:
            return None
        if self.before.files == 0:
            return "no files"
        return "; ".join(f"{some.files} {reason}" for reason, some in sorted(self.plan.left_alone.items()))


@dataclass(frozen=True)
class CompactionReport:
    """What a run found and did."""

    surveys: tuple[DirectorySurvey, ...]
    after: FileSizes
    done: tuple[CompactedGroup, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)  # by output that was to be: the error
    unproved: frozenset[str] = frozenset()  # those of them that were made and did not pass the proof
    removed_superseded: int = 0
    not_removed: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @cached_property
    def plan(self) -> CompactionPlan:
        return together([survey.plan for survey in self.surveys])

    @property
    def before(self) -> FileSizes:
        return total_of(self.surveys)

    @property
    def made(self) -> list[CompactedGroup]:
        return [each for each in self.done if each.output is not None]

    @property
    def files_compacted(self) -> int:
        return sum(len(each.made_of.inputs) for each in self.made)

    @property
    def bytes_compacted(self) -> int:
        return sum(each.made_of.size for each in self.made)

    @property
    def stitch_failures(self) -> dict[str, str]:
        """By output: why stitching failed that should have worked. It was encoded anew instead."""
        return {each.output or "": each.stitch_failure for each in self.done if each.stitch_failure}

    @property
    def set_aside(self) -> dict[str, str]:
        return dict(sorted((key, reason) for each in self.done for key, reason in each.set_aside.items()))

    @property
    def skipped(self) -> dict[str, str]:
        """By prefix: why nothing was compacted there."""
        return {survey.prefix: survey.why_nothing for survey in self.surveys if survey.why_nothing}

    @property
    def is_clean(self) -> bool:
        return not (self.failed or self.not_removed or self.plan.conflicts)


def total_of(surveys: Iterable[DirectorySurvey]) -> FileSizes:
    total = FileSizes()
    for survey in surveys:
        total = total.plus(survey.before)
    return total
