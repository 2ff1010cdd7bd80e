"""Which files of a bin go together by their columns: pure, so that a plan shows what a run will do.

Files of one table gain columns over time: then the columns of one are among those of the other. Where each has columns
that the other lacks, they may be of two tables that lie in one directory: nobody joins those without being asked.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

Unify = Literal["additions", "columns"]  # what may differ between files that become one
ALIKE = 0.5  # of the columns of one, so many at least are those of the other

Columns = frozenset[str]


def grouped(columns: Mapping[str, Iterable[str]], unify: Unify) -> list[list[str]]:
    """Files (keys with their columns) that go together, the most common columns first; each group in its order."""
    kinds = {key: frozenset(name.lower() for name in names) for key, names in columns.items()}
    often = Counter(kinds.values())
    groups: list[list[Columns]] = []
    for kind in sorted(often, key=lambda each: (-often[each], -len(each), sorted(each))):
        group = next((some for some in groups if _fits(kind, some, unify)), None)
        if group is None:
            groups.append([kind])
        else:
            group.append(kind)
    return [[key for key, kind in kinds.items() if kind in group] for group in groups]


def _fits(kind: Columns, group: Sequence[Columns], unify: Unify) -> bool:
    if unify == "columns":
        union = frozenset[str]().union(*group)
        return len(kind & union) >= ALIKE * min(len(kind), len(union))
    return all((kind <= other or other <= kind) and _are_alike(kind, other) for other in group)


def _are_alike(one: Columns, other: Columns) -> bool:
    return len(one & other) >= ALIKE * max(len(one), len(other))


def differences(columns: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Columns that some of these files lack, and how many files lack each. They are null there, joined."""
    names = {key: list(some) for key, some in columns.items()}
    count = Counter(name for some in names.values() for name in some)
    return {name: len(names) - number for name, number in sorted(count.items()) if number < len(names)}
