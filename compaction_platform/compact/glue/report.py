"""What a run over partitions of a Glue table did."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from compaction_platform.compact.glue.config import PartitionSurvey
from compaction_platform.compact.glue.plan.manifest import OutputFile
from compaction_platform.lake.storage.sizes import FileSizes

Outcome = Literal["compacted", "left alone", "conflict", "failed"]


@dataclass(frozen=True)
class PartitionResult:
    name: str
    outcome: Outcome
    why: str = ""
    is_unproved: bool = False  # something was made and did not pass the proof
    before: FileSizes = field(default_factory=FileSizes)
    after: FileSizes = field(default_factory=FileSizes)
    location_before: str = ""
    location: str = ""
    outputs: tuple[OutputFile, ...] = ()
    rows: int | None = None
    late: int = 0  # files that were brought in from an old location
    removed: int = 0  # replaced files
    leftovers: int = 0  # directories of dead runs
    not_removed: Mapping[str, str] = field(default_factory=dict)  # it was tried
    kept: Mapping[str, str] = field(default_factory=dict)  # places that are left as they are on purpose, and why
    problem: str | None = None  # for a person; the partition is whole
    seconds: float = 0.0

    @property
    def files_compacted(self) -> int:
        return sum(len(each.inputs) for each in self.outputs if each.how != "copy")

    @property
    def did_something(self) -> bool:
        return bool(self.outcome == "compacted" or self.late or self.removed or self.leftovers)


@dataclass(frozen=True)
class GlueReport:
    surveys: tuple[PartitionSurvey, ...]
    results: tuple[PartitionResult, ...]
    seconds: float = 0.0

    @property
    def before(self) -> FileSizes:
        return _total(each.before for each in self.results)

    @property
    def after(self) -> FileSizes:
        return _total(each.after for each in self.results)

    @property
    def compacted(self) -> list[PartitionResult]:
        return [each for each in self.results if each.outcome == "compacted"]

    @property
    def unfinished(self) -> list[PartitionResult]:
        return [each for each in self.results if each.outcome in ("conflict", "failed")]

    @property
    def not_removed(self) -> dict[str, str]:
        return {path: why for each in self.results for path, why in each.not_removed.items()}

    @property
    def kept(self) -> dict[str, str]:
        return {place: why for each in self.results for place, why in each.kept.items()}

    @property
    def problems(self) -> dict[str, str]:
        return {each.name: each.problem for each in self.results if each.problem}

    @property
    def is_clean(self) -> bool:
        return not (self.unfinished or self.not_removed or self.problems)


def _total(sizes: Iterable[FileSizes]) -> FileSizes:
    total = FileSizes()
    for each in sizes:
        total = total.plus(each)
    return total
