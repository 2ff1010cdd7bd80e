"""One run over a directory: list, plan, rewrite on Spark, clean up. Dagster, the command and the benchmarks call it."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from compaction_platform.compact.originals import TRASH, Originals, remove_originals
from compaction_platform.compact.outputs import known_inputs, listed
from compaction_platform.compact.plan import Bin, Listed, Plan, Policy, State, Version, make_plan
from compaction_platform.compact.reencode import Encoding
from compaction_platform.compact.rewrite import Rewrite, Rewritten
from compaction_platform.compact.set_aside import SetAside
from compaction_platform.lake.objects import Objects
from compaction_platform.lake.settings import Settings
from compaction_platform.lake.spread import SMALL_WORK_BYTES, Spread

SUMMARY = "_metadata"


@dataclass(frozen=True)
class Directory:
    """What is compacted, and how."""

    uri: str
    policy: Policy = field(default_factory=Policy)
    encoding: Encoding = field(default_factory=Encoding)
    originals: Originals = "delete"
    target_uri: str | None = None


@dataclass(frozen=True)
class Sizes:
    files: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, files: Sequence[Listed]) -> "Sizes":
        return cls(len(files), sum(file.size for file in files))


@dataclass(frozen=True)
class Report:
    """What a run found and did."""

    plan: Plan
    before: Sizes
    done: tuple[Rewritten, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)  # by output that was to be: the error
    removed_superseded: int = 0
    not_removed: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def made(self) -> list[Rewritten]:
        return [each for each in self.done if each.output is not None]

    @property
    def files_compacted(self) -> int:
        return sum(len(each.made_of.inputs) for each in self.made)

    @property
    def set_aside(self) -> dict[str, str]:
        return {key: reason for each in self.done for key, reason in each.set_aside.items()}


@dataclass(frozen=True)
class CompactRun:
    """What a run works with. `spread` is called only when there is something to do."""

    directory: Directory
    settings: Settings
    spread: Callable[[], Spread]
    say: Callable[[str], None] = lambda text: None

    @property
    def source(self) -> Objects:
        return Objects.at(self.directory.uri, self.settings)

    @property
    def target(self) -> Objects:
        return Objects.at(self.directory.target_uri or self.directory.uri, self.settings)

    def plan(self, prefix: str = "") -> tuple[Plan, Sizes]:
        """What would be done below a prefix. Nothing is changed."""
        files = [file for file in listed(self.source, prefix) if not file.is_hidden]
        return make_plan(files, self.directory.policy, self._states(files, prefix)), Sizes.of(files)

    def _states(self, files: Sequence[Listed], prefix: str) -> dict[str, State]:
        apart = SetAside(self.target).known()
        made_of = known_inputs(self.source, files)
        elsewhere: dict[str, set[Version]] = {}
        if self.directory.target_uri is not None:
            for key, inputs in known_inputs(self.target, listed(self.target, prefix)).items():
                elsewhere.setdefault(key.rpartition("/")[0], set()).update(inputs)
        states: dict[str, State] = {}
        for name, inside in groupby(files, key=lambda file: file.directory):
            own = {file.key: made_of[file.key] for file in inside if file.key in made_of}
            keeps = self.directory.originals == "keep"
            states[name] = State(own, frozenset(apart.get(name, ())), frozenset(elsewhere.get(name, ())), keeps)
        return states

    def run(self, prefix: str = "") -> Report:
        began = time.monotonic()
        plan, before = self.plan(prefix)
        not_removed = self._finish_earlier(plan)
        rewrite = Rewrite(self.source, self.target, self.directory.encoding, self.directory.originals)
        done: list[Rewritten] = []
        failed: dict[str, str] = {}
        if plan.bins:
            self.say(f"{plan.inputs:,} small files become {len(plan.bins):,}, {plan.input_bytes / 1e6:,.1f} MB")
            small = plan.input_bytes <= SMALL_WORK_BYTES
            spread = Spread(None, os.cpu_count() or 1) if small else self.spread()
            for outcome in spread.run(rewrite, plan.bins, weight=_size):
                if outcome.value is None:
                    failed[outcome.item.output] = outcome.error or ""
                    self.say(f"{outcome.item.output}: {outcome.error}")
                else:
                    done.append(outcome.value)
                    self._tell(outcome.value, len(done), len(plan.bins))
        SetAside(self.target).remember({file: reason for each in done for file, reason in _apart(each, plan).items()})
        not_removed |= self._remove_stale_summaries(done)
        return Report(
            plan,
            before,
            tuple(done),
            failed,
            len(plan.superseded) - len(not_removed),
            {**not_removed, **{key: why for each in done for key, why in each.not_removed.items()}},
            time.monotonic() - began,
        )

    def _finish_earlier(self, plan: Plan) -> dict[str, str]:
        """What an earlier run has left to do."""
        if plan.superseded:
            self.say(f"{len(plan.superseded)} files are in compacted ones already; removing them")
        failures = remove_originals(self.source, plan.superseded, self.directory.originals)
        return failures | remove_originals(self.target, plan.surplus, "delete")

    def _remove_stale_summaries(self, done: Sequence[Rewritten]) -> dict[str, str]:
        """A `_metadata` file lists the files of its directory and of those below; now it lists some that are gone."""
        if self.directory.originals == "keep":
            return {}
        above = {""}
        for each in done:
            parts = each.made_of.directory.split("/") if each.output is not None and each.made_of.directory else []
            above |= {"/".join(parts[: depth + 1]) for depth in range(len(parts))}
        if not any(each.output for each in done):
            return {}
        found = [self.source.stat(f"{directory}/{SUMMARY}".lstrip("/")) for directory in sorted(above)]
        stale = [Listed(stored.key, stored.size, stored.etag) for stored in found if stored is not None]
        for file in stale:
            self.say(f"{file.key} lists files that are gone; it was moved to {TRASH}")
        return remove_originals(self.source, stale, "trash")

    def _tell(self, result: Rewritten, done: int, total: int) -> None:
        if result.output is None:
            self.say(f"{done}/{total}: {result.made_of.directory or '.'}: nothing made: {result.reason}")
        else:
            self.say(
                f"{done}/{total}: {len(result.made_of.inputs)} files → {result.output}: {result.bytes / 1e6:.1f} MB, "
                f"{result.rows:,} rows, {result.engine} ({result.reason}), {result.seconds:.1f} s"
            )
        for key, reason in result.set_aside.items():
            self.say(f"{key}: set aside: {reason}")


def _size(each: Bin) -> int:
    return each.size


def _apart(result: Rewritten, plan: Plan) -> dict[Listed, str]:
    files = {file.key: file for each in plan.bins for file in each.inputs}
    return {files[key]: reason for key, reason in result.set_aside.items()}
