"""The only list of verbs. What the command, the demo, `status` and Dagster know of a verb, they know from here.

Everything is named as "module:attribute" and imported when it is asked for: the command and Spark tasks do not pay for
Dagster.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

_PACKAGE = __name__.rpartition(".")[0]


@dataclass(frozen=True)
class Verb:
    """One verb: a package of this project, whole from the YAML that declares it down to the bytes."""

    name: str
    components: tuple[str, ...] = ()  # what YAML names: the attribute is the type
    cli: str | None = None  # a typer.Typer with its commands
    has_command_group: bool = False  # its commands are `compaction <verb> …`
    demo_steps: str | None = None  # a sequence of DemoStep
    health: str | None = None  # (ComponentTree, Settings) -> iterable of HealthRow, for `compaction status`
    more_definitions: str | None = None  # (ComponentTree) -> Definitions, beside those of each component
    more_prerequisites: str | None = None  # (ComponentTree) -> list of Prerequisite, beside those of each component


# In the order in which a person should see them.
MERGE = Verb(
    "merge",
    components=("merge.component:MergedTable",),
    demo_steps="merge.demo:STEPS",
    health="merge.dagster.health:health_rows",
)
COMPACT = Verb(
    "compact",
    components=("compact.component:CompactedDirectory", "compact.glue.component:CompactedGlueTable"),
    cli="compact.cli:app",
    demo_steps="compact.demo:STEPS",
    health="compact.dagster.health:health_rows",
)
ARCHIVE = Verb(
    "archive",
    components=("archive.component:ColdRanges",),
    cli="archive.cli:app",
    has_command_group=True,
    demo_steps="archive.demo:STEPS",
    health="archive.dagster.health:health_rows",
)
MAINTAIN = Verb(
    "maintain",
    components=("maintain.component:MaintainedTable",),
    cli="maintain.cli:app",
    demo_steps="maintain.demo:STEPS",
    health="maintain.dagster.health:health_rows",
    more_definitions="maintain.component:care_of_other_verbs",
    more_prerequisites="maintain.component:needs_of_other_verbs",
)
SERVE = Verb("serve", cli="serve.cli:app")

VERBS = (MERGE, COMPACT, ARCHIVE, MAINTAIN, SERVE)


def load(place: str) -> Any:
    """Import what "module:attribute" names, below this package."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(f"{_PACKAGE}.{module}"), attribute)
