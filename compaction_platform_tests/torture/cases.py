"""A case: the files of a base, maybe one of them damaged, and what is done to them. A seed gives the same again."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compaction_platform_tests.torture import mutations, writers
from compaction_platform_tests.torture.writers import BASES, Base

TABLES = ("plain", "texts", "nested", "required", "empty")  # what Iceberg has types for
SMALL_ROW_GROUPS = 40_000
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "pages": {"verify": "pages"},
    "sorted": {"sort_by": ["id"]},
    "groups": {"row_group_bytes": SMALL_ROW_GROUPS},
    "exactly": {"exactly": True},
}
MAINTAINED = "maintained"
SHARES = {"default": 50, "pages": 20, "sorted": 10, "groups": 10, "exactly": 5, MAINTAINED: 5}


@dataclass(frozen=True)
class Input:
    """A file as it is before; a sound one is the corpus's own."""

    path: Path
    is_sound: bool = True

    @property
    def name(self) -> str:
        return self.path.name


@dataclass(frozen=True)
class Case:
    base: Base
    way: str
    seed: int | None = None  # of the damage

    @property
    def name(self) -> str:
        return f"{self.base.name}:{self.way}" if self.seed is None else str(self.seed)

    @property
    def command(self) -> str:
        return f"make torture CASE={self.name}" if self.seed is None else f"make torture SEED={self.seed}"

    @property
    def options(self) -> Mapping[str, Any]:
        return WAYS.get(self.way, {})

    @property
    def is_ordered(self) -> bool:
        return self.way not in ("sorted", MAINTAINED)

    def prepare(self, corpus: Path, place: Path) -> "Prepared":
        """Lay out the inputs. Raises FileNotFoundError if the base could not be written."""
        files = self.base.files(corpus)
        if not files:
            raise FileNotFoundError(f"{self.base.name} is not in the corpus")
        if self.seed is None:
            return Prepared(self, [Input(file) for file in files])
        generator = random.Random(f"damage {self.seed}")
        number = generator.randrange(len(files))
        data = files[number].read_bytes()
        kind, damaged = mutations.damaged(generator, data)
        place.mkdir(parents=True, exist_ok=True)
        path = place / files[number].name
        path.write_bytes(damaged)
        inputs = [Input(path, damaged == data) if each is files[number] else Input(each) for each in files]
        return Prepared(self, inputs, f"{kind} of {path.name}")


@dataclass(frozen=True)
class Prepared:
    case: Case
    inputs: list[Input]
    damage: str = "none"
    by_name: Mapping[str, Input] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {each.name: each for each in self.inputs})


def of_seed(seed: int) -> Case:
    generator = random.Random(f"case {seed}")
    base = writers.chosen(generator)
    (way,) = generator.choices(list(SHARES), list(SHARES.values()))
    if way == MAINTAINED and base.dataset not in TABLES:
        way = "default"
    return Case(base, way, seed)


def sound() -> list[Case]:
    """Every base in every way that suits it. First each base as by default, mixed with each dataset in each way: a run
    that ends early has seen something of everything."""
    generator = random.Random("the order of sound cases")
    every = [Case(base, way) for base in BASES for way in (*WAYS, MAINTAINED) if _suits(base, way)]
    generator.shuffle(every)
    first = {(case.base.dataset, case.way): case for case in every}.values()
    early = [case for case in every if case.way == "default" or case in first]
    return [*early, *(case for case in every if case not in early)]


def _suits(base: Base, way: str) -> bool:
    if base.dataset == "large":
        return way in ("default", "pages")
    return way != MAINTAINED or base.dataset in TABLES


def named(name: str) -> Case:
    """The sound case of this name. Raises ValueError."""
    base, _, way = name.rpartition(":")
    for each in BASES:
        if each.name == base and (way in WAYS or way == MAINTAINED):
            return Case(each, way)
    raise ValueError(f"there is no case {name!r}; a name is dataset/writer-settings:way, such as {sound()[0].name}")
