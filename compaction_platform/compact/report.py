"""What a run found and did, as values that people and programs are shown."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from compaction_platform.compact.plan import MB, Plan, together
from compaction_platform.compact.rewrite import Rewritten

SIZE_CLASSES_MB = (1, 8, 32, 128, 256)


@dataclass(frozen=True)
class Sizes:
    """How many files of which size there are."""

    files: int = 0
    bytes: int = 0
    in_class: tuple[int, ...] = (0,) * (len(SIZE_CLASSES_MB) + 1)

    @classmethod
    def of(cls, sizes: Iterable[int]) -> "Sizes":
        in_class = [0] * (len(SIZE_CLASSES_MB) + 1)
        files = total = 0
        for size in sizes:
            in_class[bisect_right(SIZE_CLASSES_MB, size / MB)] += 1
            files, total = files + 1, total + size
        return cls(files, total, tuple(in_class))

    def plus(self, other: "Sizes") -> "Sizes":
        in_class = tuple(one + two for one, two in zip(self.in_class, other.in_class, strict=True))
        return Sizes(self.files + other.files, self.bytes + other.bytes, in_class)


@dataclass(frozen=True)
class Survey:
    """What was found below one prefix, and what is to be done there."""

    prefix: str
    plan: Plan
    before: Sizes
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
class Report:
    """What a run found and did."""

    surveys: tuple[Survey, ...]
    after: Sizes
    done: tuple[Rewritten, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)  # by output that was to be: the error
    removed_superseded: int = 0
    not_removed: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @cached_property
    def plan(self) -> Plan:
        return together([survey.plan for survey in self.surveys])

    @property
    def before(self) -> Sizes:
        return total_of(self.surveys)

    @property
    def made(self) -> list[Rewritten]:
        return [each for each in self.done if each.output is not None]

    @property
    def files_compacted(self) -> int:
        return sum(len(each.made_of.inputs) for each in self.made)

    @property
    def bytes_compacted(self) -> int:
        return sum(each.made_of.size for each in self.made)

    @property
    def set_aside(self) -> dict[str, str]:
        return {key: reason for each in self.done for key, reason in each.set_aside.items()}

    @property
    def skipped(self) -> dict[str, str]:
        """By prefix: why nothing was compacted there."""
        return {survey.prefix: survey.why_nothing for survey in self.surveys if survey.why_nothing}

    @property
    def is_clean(self) -> bool:
        return not (self.failed or self.not_removed or self.plan.conflicts)


def total_of(surveys: Iterable[Survey]) -> Sizes:
    total = Sizes()
    for survey in surveys:
        total = total.plus(survey.before)
    return total
