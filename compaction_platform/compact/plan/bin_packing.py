"""Which small files become which large one: pure, from a listing. A dry run shows this very value.

Files are taken in the order of their names, directory by directory. One of ours is known by its name. It is taken
again only together with enough new small files, so what was compacted stays as it is: the next plan is empty.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime

from compaction_platform.compact.plan.listing import FileVersion, Version
from compaction_platform.compact.plan.reconcile import Decision, is_settled, reconcile
from compaction_platform.compact.plan.schema_groups import Unify
from compaction_platform.lake.storage.sizes import MB

LONGEST_STEM = 120
EXAMPLES = 20  # files that are named for each reason
MOST_INPUTS = 10_000  # of one output, which lists them in its footer
OWN_NAME = re.compile(r"(?P<stem>.*)\.compacted-(?P<target>\d+)mb-(?P<digest>[0-9a-f]{24})\.parquet", re.DOTALL)

LARGE = "large enough"
DONE = "compacted already"
TOO_FEW = "too few small files to make a larger one"
EMPTY = "empty: 0 bytes, not even a footer"
OTHER = "not Parquet, by its name"
LATER = "for the next run: this one takes no more files"
KEPT = "kept: its rows are in a compacted file"
SET_ASIDE = "set aside: it cannot be compacted"
YOUNG = "changed within the grace"
UNSETTLED = "its rows are in a file that another run has just made"
RELEASED = "for the next run: a compacted file with its rows, which others have too, is removed first"
SHARED = "it has inputs in common with another compacted file, or one was replaced: rows are there twice"
CONTESTED = "two compacted files share inputs: see the conflicts"
COPIED = "a copy of a file whose rows are in a compacted one: see the conflicts"
RESTORED = (
    "files beside it are copies of what went into it: a state that was copied or restored before it was finished, or "
    "files that were delivered again. If they are copies, delete them; if they are new data, rename them"
)
NOT_ALIKE = "no two of them have columns that go together; `--union` (unify: columns) joins more"
UNTOLD = "beside a file that is named like a compacted one but does not say what it is made of: see the conflicts"


@dataclass(frozen=True)
class PackingPolicy:
    """What a good file is."""

    target_bytes: int = 128 * MB
    max_bytes: int = 256 * MB
    small_bytes: int = 96 * MB
    min_files: int = 2
    max_files: int | None = None  # that one run may take
    unify: Unify = "additions"  # how columns may differ between files that become one

    @classmethod
    def for_target(cls, target_bytes: int, min_files: int = 2) -> "PackingPolicy":
        """At most twice the target; small is what is under three quarters of it."""
        return cls(target_bytes, 2 * target_bytes, target_bytes * 3 // 4, min_files)

    @property
    def target_mb(self) -> int:
        return self.target_bytes // MB


@dataclass(frozen=True)
class FileGroup:
    """Files that become one."""

    inputs: tuple[FileVersion, ...]
    target_mb: int
    generation: int = 0  # more than 0 where what was made of the same files before was withdrawn

    @property
    def directory(self) -> str:
        return self.inputs[0].directory

    @property
    def size(self) -> int:
        return sum(file.size for file in self.inputs)

    @property
    def output(self) -> str:
        """The key of the file they become. It sorts where the first of them did."""
        first = self.inputs[0].name
        own = OWN_NAME.fullmatch(first)
        stem = own["stem"] if own else first.removesuffix(".parquet")
        while len(stem.encode()) > LONGEST_STEM:
            stem = stem[:-1]
        versions = [file.version for file in self.inputs]
        if self.generation:
            versions.append(("generation", str(self.generation)))
        name = f"{stem}.compacted-{self.target_mb}mb-{digest_of(versions)}.parquet"
        return f"{self.directory}/{name}" if self.directory else name

    def without(self, keys: Set[str]) -> "FileGroup":
        return replace(self, inputs=tuple(file for file in self.inputs if file.key not in keys))


def mark_of(each: FileGroup, unify: Unify) -> str:
    """Tells a bin from every other, and from the same files when more may differ between them."""
    return digest_of([*(file.version for file in each.inputs), ("unify", unify)])


def digest_of(versions: Iterable[Version]) -> str:
    digest = hashlib.sha256()
    for name, etag in versions:
        for text in (name, etag):
            digest.update(len(text.encode()).to_bytes(4, "big") + text.encode())
    return digest.hexdigest()[:24]


@dataclass(frozen=True)
class SkippedFile:
    """Files that stay as they are, for one reason, and the names of some."""

    files: int = 0
    bytes: int = 0
    examples: tuple[str, ...] = ()

    def plus(self, file: FileVersion) -> "SkippedFile":
        examples = (*self.examples, file.key) if len(self.examples) < EXAMPLES else self.examples
        return SkippedFile(self.files + 1, self.bytes + file.size, examples)


@dataclass(frozen=True)
class CompactionPlan:
    """What is to be done in some directories."""

    bins: tuple[FileGroup, ...] = ()
    left_alone: Mapping[str, SkippedFile] = field(default_factory=dict)  # by reason
    superseded: tuple[FileVersion, ...] = ()  # their rows are in a compacted file; only their removal is left to do
    superseded_by: Mapping[str, FileVersion] = field(default_factory=dict)  # by key: that file
    conflicts: Mapping[str, str] = field(default_factory=dict)  # compacted files that a person must look at, and why
    surplus: tuple[FileVersion, ...] = ()  # compacted files whose inputs are all there, or in another compacted file
    directories: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.bins or self.superseded or self.surplus)

    @property
    def unsettled(self) -> int:
        """Files that another run is about to remove; or it has died, and nobody can tell yet."""
        return self.left_alone.get(UNSETTLED, SkippedFile()).files

    @property
    def inputs(self) -> int:
        return sum(len(each.inputs) for each in self.bins)

    @property
    def input_bytes(self) -> int:
        return sum(each.size for each in self.bins)


@dataclass(frozen=True)
class OutputTarget:
    """A directory of compacted files that is not the one their inputs are in."""

    files: tuple[FileVersion, ...] = ()
    outputs: Mapping[str, tuple[Version, ...]] = field(default_factory=dict)
    untold: Mapping[str, str] = field(default_factory=dict)
    decided: Mapping[str, Decision] = field(default_factory=dict)


@dataclass(frozen=True)
class DirectoryState:
    """What is known about a directory besides its listing."""

    outputs: Mapping[str, tuple[Version, ...]] = field(default_factory=dict)  # compacted files: what went into each
    set_aside: Set[Version] = frozenset()  # what cannot be compacted
    target: OutputTarget | None = None  # if compacted files go elsewhere
    keeps_originals: bool = False
    untold: Mapping[str, str] = field(default_factory=dict)  # files with such a name that do not say it, and why
    now: datetime | None = None  # by the store's clock, if it matters
    young_after: datetime | None = None  # files that changed later are left for the next run
    decided: Mapping[str, Decision] = field(default_factory=dict)  # compacted files in doubt: kept, or withdrawn
    copied: Mapping[str, str] = field(default_factory=dict)  # copies of inputs, by key: the file that has their rows
    nothing_gained: Set[str] = frozenset()  # marks of bins of which nothing could be made


def make_plan(
    listing: Iterable[FileVersion], policy: PackingPolicy, states: Mapping[str, DirectoryState] | None = None
) -> CompactionPlan:
    """The plan for a listing, directory by directory; so are `states`."""
    parts: list[CompactionPlan] = []
    taken = 0
    states = states or {}
    here = by_directory(listing)
    for directory in sorted({*here, *states}):
        allowed = None if policy.max_files is None else policy.max_files - taken
        part = plan_directory(here.get(directory, ()), policy, states.get(directory, DirectoryState()), allowed)
        parts.append(part)
        taken += part.inputs
    return together(parts)


def by_directory(listing: Iterable[FileVersion]) -> dict[str, list[FileVersion]]:
    """Files that are data, in the order of their names. (A listing may tell of a subdirectory in between.)"""
    found: dict[str, list[FileVersion]] = {}
    for file in listing:
        if not file.is_hidden:
            found.setdefault(file.directory, []).append(file)
    return {directory: sorted(found[directory]) for directory in sorted(found)}


def plan_directory(
    files: Sequence[FileVersion], policy: PackingPolicy, state: DirectoryState, allowed: int | None = None
) -> CompactionPlan:
    if untold := {**state.untold, **(state.target.untold if state.target else {})}:
        left = _left_alone(files, dict.fromkeys((file.key for file in files), UNTOLD))
        return CompactionPlan(left_alone=left, conflicts=untold, directories=1)
    found = _reconciled(files, state)
    gone = {file.key for file in (*found.superseded, *found.surplus)}
    new: list[FileVersion] = []
    own: list[FileVersion] = []
    reasons: dict[str, str] = {}
    for file in files:
        if file.key in gone:
            continue
        reason = found.left_alone.get(file.key) or _why_not(file, policy, state)
        if reason is None and (
            file.key in found.unfinished or (is_own(file, policy) and not is_settled(file, state.now))
        ):
            reason = DONE
        if reason in (LARGE, DONE) and state.target is not None:
            reason = None  # what goes elsewhere goes there as a whole
        if reason is None:
            (own if is_own(file, policy) and state.target is None else new).append(file)
        reasons[file.key] = reason or (DONE if is_own(file, policy) else TOO_FEW)
    fewest = max(2, policy.min_files) if state.target is None else 1
    possible = bins(new, own, policy, fewest)
    hopeless = [each for each in possible if mark_of(each, policy.unify) in state.nothing_gained]
    reasons |= {file.key: NOT_ALIKE for each in hopeless for file in each.inputs}
    taken, later = _at_most([each for each in possible if each not in hopeless], fewest, allowed)
    reasons |= {file.key: LATER for file in later}
    for each in taken:
        for file in each.inputs:
            del reasons[file.key]
    return CompactionPlan(
        tuple(taken),
        _left_alone(files, reasons),
        found.superseded,
        found.superseded_by,
        found.conflicts,
        found.surplus,
        1,
    )


@dataclass(frozen=True)
class _Found:
    superseded: tuple[FileVersion, ...]
    superseded_by: Mapping[str, FileVersion]
    surplus: tuple[FileVersion, ...]
    conflicts: Mapping[str, str]
    left_alone: Mapping[str, str]
    unfinished: Set[str]


def _reconciled(files: Sequence[FileVersion], state: DirectoryState) -> _Found:
    """What compacted files, here and in the target, tell about these."""
    here = reconcile(files, state.outputs, now=state.now, decided=state.decided)
    left_alone = {**dict.fromkeys(here.unsettled, UNSETTLED), **dict.fromkeys(here.contested, CONTESTED)}
    conflicts = dict.fromkeys(here.conflicts, SHARED) | dict.fromkeys(state.copied.values(), RESTORED)
    left_alone |= dict.fromkeys(state.copied, COPIED) | dict.fromkeys(state.copied.values(), CONTESTED)
    superseded, surplus = here.superseded, here.surplus
    left_alone |= _inputs_of(surplus, state.outputs, files)
    if state.target is not None:
        # Leftovers of a time when files were compacted in their own place are not removed, but not compacted either.
        conflicts |= {file.key: SHARED for file in surplus}
        left_alone |= {**dict.fromkeys(here.superseded, KEPT), **{file.key: CONTESTED for file in surplus}}
        target = state.target
        there = reconcile(files, target.outputs, target.files, state.now, target.decided)
        superseded, surplus = there.superseded, there.surplus
        left_alone |= _inputs_of(surplus, state.target.outputs, files)
        conflicts |= dict.fromkeys(there.conflicts, SHARED)
        left_alone |= {**dict.fromkeys(there.unsettled, UNSETTLED), **dict.fromkeys(there.contested, CONTESTED)}
    if state.keeps_originals:
        unsettled = [key for key, reason in left_alone.items() if reason == UNSETTLED]
        left_alone |= dict.fromkeys([*superseded, *unsettled], KEPT)  # they stay in any case
        superseded = {}
    listed = tuple(file for file in files if file.key in superseded)
    return _Found(listed, superseded, surplus, conflicts, left_alone, here.unfinished)


def _inputs_of(
    surplus: Iterable[FileVersion], outputs: Mapping[str, tuple[Version, ...]], files: Iterable[FileVersion]
) -> dict[str, str]:
    """What is new data again once a surplus file is gone: for the next plan, not for the one that removes it."""
    versions = {version for file in surplus for version in outputs[file.key]}
    return {file.key: RELEASED for file in files if file.version in versions}


def _left_alone(files: Sequence[FileVersion], reasons: Mapping[str, str]) -> dict[str, SkippedFile]:
    left: dict[str, SkippedFile] = {}
    for file in files:
        if file.key in reasons:
            left[reasons[file.key]] = left.get(reasons[file.key], SkippedFile()).plus(file)
    return left


def together(parts: Sequence[CompactionPlan]) -> CompactionPlan:
    left: dict[str, SkippedFile] = {}
    for part in parts:
        for reason, some in part.left_alone.items():
            before = left.get(reason, SkippedFile())
            examples = (*before.examples, *some.examples)[:EXAMPLES]
            left[reason] = SkippedFile(before.files + some.files, before.bytes + some.bytes, examples)
    return CompactionPlan(
        tuple(each for part in parts for each in part.bins),
        left,
        tuple(file for part in parts for file in part.superseded),
        {key: file for part in parts for key, file in part.superseded_by.items()},
        {key: why for part in parts for key, why in part.conflicts.items()},
        tuple(file for part in parts for file in part.surplus),
        sum(part.directories for part in parts),
    )


def is_own(file: FileVersion, policy: PackingPolicy) -> bool:
    """Made by us, for the same target."""
    own = OWN_NAME.fullmatch(file.name)
    return own is not None and int(own["target"]) == policy.target_mb


def _why_not(file: FileVersion, policy: PackingPolicy, state: DirectoryState) -> str | None:
    if file.version in state.set_aside:
        return SET_ASIDE
    if state.young_after is not None and file.changed_at is not None and file.changed_at > state.young_after:
        return YOUNG
    if not file.name.endswith(".parquet"):
        return OTHER
    if file.size == 0:
        return EMPTY
    if file.size >= policy.small_bytes:
        return DONE if is_own(file, policy) else LARGE
    if is_own(file, policy) and file.size * 2 >= policy.target_bytes:
        return DONE
    return None


def bins(new: Sequence[FileVersion], own: Sequence[FileVersion], policy: PackingPolicy, fewest: int) -> list[FileGroup]:
    """Bins of new files, and of small compacted ones that they take along.

    Only new files decide whether a bin is made, and they are gone over until those that are left make no bin among
    themselves: this is why the next plan is empty.
    """
    made: list[FileGroup] = []
    while found := _bins_in_order(new, own, policy, fewest):
        made += found
        taken = {file.key for each in found for file in each.inputs}
        new = [file for file in new if file.key not in taken]
        own = [file for file in own if file.key not in taken]
    return sorted(made, key=lambda each: each.inputs)


def _bins_in_order(
    new: Sequence[FileVersion], own: Sequence[FileVersion], policy: PackingPolicy, fewest: int
) -> list[FileGroup]:
    """One bin after the other, each closed once it has reached the target. What is left over at the end goes into the
    last bin, or takes small compacted files along."""
    closed: list[list[FileVersion]] = []
    rest: list[FileVersion] = []
    size = 0
    for file in new:
        if rest and (size + file.size > policy.max_bytes or len(rest) == MOST_INPUTS):
            closed.append(rest)
            rest, size = [], 0
        rest.append(file)
        size += file.size
        if size >= policy.target_bytes:
            closed.append(rest)
            rest, size = [], 0
    if rest and closed and len(closed[-1]) >= fewest and _size(closed[-1]) + size <= policy.max_bytes:
        closed[-1] = closed[-1] + rest
    elif len(rest) >= fewest:
        for file in own:
            if size + file.size <= policy.max_bytes:
                rest.append(file)
                size += file.size
        closed.append(sorted(rest))
    return [FileGroup(tuple(files), policy.target_mb) for files in closed if len(files) >= fewest]


def _size(files: Iterable[FileVersion]) -> int:
    return sum(file.size for file in files)


def _at_most(bins: Sequence[FileGroup], fewest: int, allowed: int | None) -> tuple[list[FileGroup], list[FileVersion]]:
    """As many bins as one run may do, the last one cut short, and the files of the others."""
    if allowed is None:
        return list(bins), []
    taken: list[FileGroup] = []
    later: list[FileVersion] = []
    for each in bins:
        now, rest = each.inputs[: max(0, allowed)], each.inputs[max(0, allowed) :]
        if len(now) < fewest:
            now, rest = (), each.inputs
        if now:
            taken.append(replace(each, inputs=now))
        later += rest
        allowed -= len(now)
    return taken, later
