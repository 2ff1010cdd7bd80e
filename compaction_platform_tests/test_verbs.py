"""The list of verbs is complete, and what it names is there."""

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

import compaction_platform
from compaction_platform.verbs import VERBS, Verb, load

pytestmark = pytest.mark.unit
NOT_VERBS = {"lake", "embedded_lake", "defs"}


def test_every_package_beside_the_lake_is_a_verb(project: Path) -> None:
    packages = {path.parent.name for path in (project / "compaction_platform").glob("*/__init__.py")}
    assert packages - NOT_VERBS == {verb.name for verb in VERBS}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_what_a_verb_names_is_there(verb: Verb) -> None:
    named = [value for field in fields(verb) if isinstance(value := getattr(verb, field.name), str) and ":" in value]
    for place in (*named, *verb.components):
        assert place.startswith(f"{verb.name}.")
        assert load(place) is not None


def test_components_are_attributes_of_the_package() -> None:
    for verb in VERBS:
        for place in verb.components:
            assert getattr(compaction_platform, place.partition(":")[2]) is load(place)


def test_import_contracts_know_every_verb(project: Path) -> None:
    contracts = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = " ".join(contracts[0]["layers"])
    assert [verb.name for verb in VERBS if f"(compaction_platform.{verb.name})" not in layers] == []
