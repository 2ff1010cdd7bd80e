"""Which small files become which large one: pure, from a listing. A dry run shows this very value.

Files are taken in the order of their names, directory by directory. One of ours is known by its name. It is taken
again only together with enough new small files, so what was compacted stays as it is: the next plan is empty.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import groupby

MB = 1 << 20
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
KEPT = "kept: its rows are in a compacted file of the target"
SET_ASIDE = "set aside: it cannot be compacted"
YOUNG = "changed within the grace"
CONTESTED = "two compacted files share inputs, and nobody can tell which is right: see the conflicts"

Version = tuple[str, str]  # a file's name inside its directory, and its etag


@dataclass(frozen=True)
class Policy:
    """What a good file is."""

    target_bytes: int = 128 * MB
    max_bytes: int = 256 * MB
    small_bytes: int = 96 * MB
    min_files: int = 2
    max_files: int | None = None  # that one run may take

    @property
    def target_mb(self) -> int:
        return self.target_bytes // MB


@dataclass(frozen=True, order=True)
class Listed:
    """A file as the listing told."""

    key: str
    size: int
    etag: str
    is_young: bool = field(default=False, compare=False)

    @property
    def directory(self) -> str:
        return self.key.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def version(self) -> Version:
        return self.name, self.etag

    @property
    def is_hidden(self) -> bool:
        return any(part.startswith(("_", ".")) for part in self.key.split("/") if "=" not in part)


@dataclass(frozen=True)
class Bin:
    """Files that become one."""

    inputs: tuple[Listed, ...]
    target_mb: int

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
        name = f"{stem}.compacted-{self.target_mb}mb-{digest_of(file.version for file in self.inputs)}.parquet"
        return f"{self.directory}/{name}" if self.directory else name

    def without(self, keys: Set[str]) -> "Bin":
        return replace(self, inputs=tuple(file for file in self.inputs if file.key not in keys))


def digest_of(versions: Iterable[Version]) -> str:
    digest = hashlib.sha256()
    for name, etag in versions:
        for text in (name, etag):
            digest.update(len(text.encode()).to_bytes(4, "big") + text.encode())
    return digest.hexdigest()[:24]


@dataclass(frozen=True)
class LeftAlone:
    """Files that stay as they are, for one reason, and the names of some."""

    files: int = 0
    bytes: int = 0
    examples: tuple[str, ...] = ()

    def plus(self, file: Listed) -> "LeftAlone":
        examples = (*self.examples, file.key) if len(self.examples) < EXAMPLES else self.examples
        return LeftAlone(self.files + 1, self.bytes + file.size, examples)


@dataclass(frozen=True)
class Plan:
    """What is to be done in some directories."""

    bins: tuple[Bin, ...] = ()
    left_alone: Mapping[str, LeftAlone] = field(default_factory=dict)  # by reason
    superseded: tuple[Listed, ...] = ()  # their rows are in a compacted file; only their removal is left to do
    conflicts: tuple[str, ...] = ()  # compacted files that share inputs: rows may be there twice
    surplus: tuple[Listed, ...] = ()  # compacted files whose inputs are all there, or in another compacted file
    directories: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.bins or self.superseded or self.surplus)

    @property
    def inputs(self) -> int:
        return sum(len(each.inputs) for each in self.bins)

    @property
    def input_bytes(self) -> int:
        return sum(each.size for each in self.bins)


@dataclass(frozen=True)
class State:
    """What is known about a directory besides its listing."""

    outputs: Mapping[str, tuple[Version, ...]] = field(default_factory=dict)  # compacted files: what went into each
    set_aside: Set[Version] = frozenset()  # what cannot be compacted
    elsewhere: Set[Version] = frozenset()  # what is in compacted files at another place
    keeps_originals: bool = False


def make_plan(listing: Iterable[Listed], policy: Policy, states: Mapping[str, State] | None = None) -> Plan:
    """The plan for a listing in which the files of a directory are together; `states` by directory."""
    parts: list[Plan] = []
    taken = 0
    shown = (file for file in listing if not file.is_hidden)
    for directory, files in groupby(shown, key=lambda file: file.directory):
        allowed = None if policy.max_files is None else policy.max_files - taken
        part = plan_directory(sorted(files), policy, (states or {}).get(directory, State()), allowed)
        parts.append(part)
        taken += part.inputs
    return together(parts)


def plan_directory(files: Sequence[Listed], policy: Policy, state: State, allowed: int | None = None) -> Plan:
    found = reconcile(files, state.outputs)
    if not state.keeps_originals:
        moved = tuple(file for file in files if file.version in state.elsewhere)
        found = replace(found, superseded=(*found.superseded, *moved))
    gone = {file.key for file in (*found.superseded, *found.surplus)}
    new: list[Listed] = []
    own: list[Listed] = []
    reasons: dict[str, str] = {}
    for file in files:
        if file.key in gone:
            continue
        reason = CONTESTED if file.key in found.contested else _why_not(file, policy, state, found.unfinished)
        if reason is None:
            (own if is_own(file, policy) else new).append(file)
        reasons[file.key] = reason or (DONE if is_own(file, policy) else TOO_FEW)
    bins, later = _at_most(_bins(new, own, policy), policy, allowed)
    reasons |= {file.key: LATER for file in later}
    taken = {file.key for each in bins for file in each.inputs}
    left: dict[str, LeftAlone] = {}
    for file in files:
        if file.key in reasons and file.key not in taken:
            left[reasons[file.key]] = left.get(reasons[file.key], LeftAlone()).plus(file)
    return Plan(tuple(bins), left, found.superseded, found.conflicts, found.surplus, 1)


def together(parts: Sequence[Plan]) -> Plan:
    left: dict[str, LeftAlone] = {}
    for part in parts:
        for reason, some in part.left_alone.items():
            before = left.get(reason, LeftAlone())
            examples = (*before.examples, *some.examples)[:EXAMPLES]
            left[reason] = LeftAlone(before.files + some.files, before.bytes + some.bytes, examples)
    return Plan(
        tuple(each for part in parts for each in part.bins),
        left,
        tuple(file for part in parts for file in part.superseded),
        tuple(key for part in parts for key in part.conflicts),
        tuple(file for part in parts for file in part.surplus),
        sum(part.directories for part in parts),
    )


def is_own(file: Listed, policy: Policy) -> bool:
    """Made by us, for the same target."""
    own = OWN_NAME.fullmatch(file.name)
    return own is not None and int(own["target"]) == policy.target_mb


def _why_not(file: Listed, policy: Policy, state: State, unfinished: Set[str]) -> str | None:
    if file.version in state.elsewhere:
        return KEPT
    if file.version in state.set_aside:
        return SET_ASIDE
    if file.is_young:
        return YOUNG
    if not file.name.endswith(".parquet"):
        return OTHER
    if file.size == 0:
        return EMPTY
    if file.size >= policy.small_bytes:
        return DONE if is_own(file, policy) else LARGE
    if is_own(file, policy) and (file.key in unfinished or file.size * 2 >= policy.target_bytes):
        return DONE
    return None


def _bins(new: Sequence[Listed], own: Sequence[Listed], policy: Policy) -> list[Bin]:
    """Bins of new files, and of small compacted ones that they take along.

    Only new files decide whether a bin is made, and they are gone over until those that are left make no bin among
    themselves: this is why the next plan is empty.
    """
    made: list[Bin] = []
    while found := _bins_in_order(new, own, policy):
        made += found
        taken = {file.key for each in found for file in each.inputs}
        new = [file for file in new if file.key not in taken]
        own = [file for file in own if file.key not in taken]
    return sorted(made, key=lambda each: each.inputs)


def _bins_in_order(new: Sequence[Listed], own: Sequence[Listed], policy: Policy) -> list[Bin]:
    """One bin after the other, each closed once it has reached the target. What is left over at the end goes into the
    last bin, or takes small compacted files along."""
    fewest = max(2, policy.min_files)
    closed: list[list[Listed]] = []
    rest: list[Listed] = []
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
    return [Bin(tuple(files), policy.target_mb) for files in closed if len(files) >= fewest]


def _size(files: Iterable[Listed]) -> int:
    return sum(file.size for file in files)


def _at_most(bins: Sequence[Bin], policy: Policy, allowed: int | None) -> tuple[list[Bin], list[Listed]]:
    """As many bins as one run may do, the last one cut short, and the files of the others."""
    if allowed is None:
        return list(bins), []
    taken: list[Bin] = []
    later: list[Listed] = []
    for each in bins:
        now, rest = each.inputs[: max(0, allowed)], each.inputs[max(0, allowed) :]
        if len(now) < max(2, policy.min_files):
            now, rest = (), each.inputs
        if now:
            taken.append(replace(each, inputs=now))
        later += rest
        allowed -= len(now)
    return taken, later


# ---------------------------------------------------------------- after a crash, or two runs at once


@dataclass(frozen=True)
class Reconciled:
    """What compacted files tell about the files beside them."""

    superseded: tuple[Listed, ...] = ()
    surplus: tuple[Listed, ...] = ()
    conflicts: tuple[str, ...] = ()
    contested: frozenset[str] = frozenset()  # they, and their inputs that are still there
    unfinished: frozenset[str] = frozenset()  # compacted files that still lie beside their inputs


def reconcile(files: Sequence[Listed], outputs: Mapping[str, tuple[Version, ...]]) -> Reconciled:
    """Which inputs are still there although their rows are in a compacted file.

    Two runs at once may have put the same file into two outputs. One of them is surplus if all that went into it
    is still there, or is in the other as well.
    """
    there = {file.version: file for file in files}
    known = {file.key: file for file in files if file.key in outputs}
    surplus: list[Listed] = []
    conflicts: list[str] = []
    kept = dict(sorted((key, outputs[key]) for key in known))
    for key in list(kept):
        others = {version for other, inputs in kept.items() if other != key for version in inputs}
        if known[key].version in others or not others.intersection(kept[key]):
            continue  # taken into another one as a whole, or nothing in common
        if all(version in there or version in others for version in kept[key]):
            surplus.append(known[key])
            del kept[key]
    for key, inputs in kept.items():
        others = {version for other, theirs in kept.items() if other != key for version in theirs}
        if others.intersection(inputs):
            conflicts.append(key)
    superseded = {
        there[version].key: there[version]
        for key, inputs in kept.items()
        if key not in conflicts
        for version in inputs
        if version in there and there[version].key != key
    }
    contested = {there[version].key for key in conflicts for version in outputs[key] if version in there}
    unfinished = frozenset(key for key, inputs in kept.items() if any(version in there for version in inputs))
    return Reconciled(
        tuple(superseded.values()),
        tuple(surplus),
        tuple(conflicts),
        frozenset({*conflicts, *contested}),
        unfinished,
    )
