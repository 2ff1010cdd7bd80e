"""What compacted files tell about the files beside them: after a crash, or after two runs at once. Pure.

For some time a compacted file is left to the run that made it. Later whoever comes by finishes what is left to do, each
step protected by a decision (`decisions`) that holds whatever the first run does when it wakes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from compaction_platform.compact.plan.listing import FileVersion, Version

SETTLED_AFTER = timedelta(minutes=1)  # from then on others finish what the run that made it has left to do
ABANDONED_AFTER = timedelta(hours=1)  # from then on others withdraw one of two that share inputs

Decision = Literal["kept", "withdrawn"]


@dataclass(frozen=True)
class Reconciled:
    superseded: Mapping[str, FileVersion] = field(default_factory=dict)  # by key: the compacted file that has its rows
    surplus: tuple[FileVersion, ...] = ()
    conflicts: tuple[str, ...] = ()
    contested: frozenset[str] = frozenset()  # the conflicts, and their inputs that are still there
    unsettled: frozenset[str] = frozenset()  # inputs of a file that another run has just made
    unfinished: frozenset[str] = frozenset()  # compacted files that still lie beside their inputs


def reconcile(
    there: Sequence[FileVersion],
    outputs: Mapping[str, tuple[Version, ...]],
    made: Sequence[FileVersion] | None = None,
    now: datetime | None = None,
    decided: Mapping[str, Decision] | None = None,
) -> Reconciled:
    """Which files are still there although their rows are in a compacted file. `made` are the compacted files if they
    lie elsewhere; without a time, all of them are old. `decided`: what was decided about those in doubt.

    Two runs at once may have put the same file into two outputs. One of them is surplus if all that went into it
    is still there, or is in the other as well. One that was withdrawn is surplus, one that was kept never is.
    """
    decided = decided or {}
    versions = {file.version: file for file in there}
    present = {file.key: file for file in (there if made is None else made) if file.key in outputs}
    withdrawn = [file for key, file in present.items() if decided.get(key) == "withdrawn"]
    known = {key: file for key, file in present.items() if decided.get(key) != "withdrawn"}
    kept = {key: _of_its_own(outputs[key], known, outputs) for key in known}
    count = Counter(version for inputs in kept.values() for version in set(inputs))
    sharing = [key for key, inputs in kept.items() if any(count[version] > 1 for version in inputs)]
    surplus: list[FileVersion] = list(withdrawn)
    if all(_is_older(known[key], ABANDONED_AFTER, now) for key in sharing):
        for key in sorted(sharing, key=lambda key: (-_moment(known[key]), key)):
            mine = set(kept[key])
            if decided.get(key) == "kept" or count[known[key].version]:
                continue  # or taken into another one as a whole
            if not any(count[version] > 1 for version in mine):
                continue  # nothing in common any more
            if all(version in versions or count[version] > 1 for version in mine):
                surplus.append(known[key])
                count.subtract(mine)
                del kept[key]
    shared = [key for key, inputs in kept.items() if any(count[version] > 1 for version in inputs)]
    names = {file.name for file in there}
    replaced = [
        key
        for key, inputs in kept.items()
        if any(version in versions and versions[version].key != key for version in inputs)
        and any(version not in versions and version[0] in names for version in inputs)
    ]
    conflicts = tuple(dict.fromkeys([*shared, *replaced]))
    superseded: dict[str, FileVersion] = {}
    unsettled: set[str] = set()
    for key, inputs in kept.items():
        left = [versions[version].key for version in inputs if version in versions and versions[version].key != key]
        if key in conflicts:
            continue
        if is_settled(known[key], now):
            superseded |= dict.fromkeys(left, known[key])
        else:
            unsettled |= set(left)
    contested = {versions[version].key for key in conflicts for version in kept[key] if version in versions}
    return Reconciled(
        superseded,
        tuple(surplus),
        conflicts,
        frozenset({*conflicts, *contested}),
        frozenset(unsettled),
        frozenset(key for key, inputs in kept.items() if any(version in versions for version in inputs)),
    )


def _of_its_own(
    inputs: tuple[Version, ...], known: Mapping[str, FileVersion], outputs: Mapping[str, tuple[Version, ...]]
) -> tuple[Version, ...]:
    """What went into a compacted file, without what went into another one that was taken into it as a whole."""
    direct = set(inputs)
    nested = {version for key, file in known.items() if file.version in direct for version in outputs[key]}
    return tuple(version for version in inputs if version not in nested)


def in_doubt(there: Sequence[FileVersion], outputs: Mapping[str, tuple[Version, ...]]) -> list[str]:
    """Compacted files with inputs that are still there, or in common: their age matters, and what was decided."""
    versions = {file.version for file in there}
    count = Counter(version for inputs in outputs.values() for version in set(inputs))
    return [
        key
        for key, inputs in outputs.items()
        if not versions.isdisjoint(inputs) or any(count[version] > 1 for version in inputs)
    ]


def _moment(file: FileVersion) -> float:
    return file.changed_at.timestamp() if file.changed_at else 0.0


def is_settled(file: FileVersion, now: datetime | None) -> bool:
    """Whether the run that made it cannot take it back any more."""
    return _is_older(file, SETTLED_AFTER, now)


def _is_older(file: FileVersion, age: timedelta, now: datetime | None) -> bool:
    return now is None or file.changed_at is None or now - file.changed_at >= age
