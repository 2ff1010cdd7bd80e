"""What all declarations share: a mistake in YAML is reported with its file and line."""

import re
from datetime import timedelta
from typing import Annotated, Any, Self

import dagster as dg
from pydantic import AfterValidator, Field, ValidationError

from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage.identifiers import NameInvalid, checked_identifier
from compaction_platform.lake.verification.extent import Extent


class DeclarationInvalid(CompactionError):
    """A declaration says something it cannot mean."""


def _checked_cron(value: str) -> str:
    try:
        dg.ScheduleDefinition(name="checked", job_name="any", cron_schedule=value)
    except dg.DagsterInvalidDefinitionError:
        raise ValueError(f"{value!r} is not a cron expression, such as `0 6 * * *` for six o'clock") from None
    return value


def _duration(text: str) -> str:
    if not re.fullmatch(r"\d+[smhd]", text):
        raise ValueError(f"{text!r} is not a duration; examples: 90s, 10m, 2h, 1d")
    return text


def as_timedelta(text: str) -> timedelta:
    unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[text[-1]]
    return timedelta(**{unit: int(text[:-1])})


def _name(name: str) -> str:
    if name.startswith("_"):
        raise ValueError(f"{name!r}: names that begin with an underscore are the platform's own")
    try:
        return checked_identifier(name)
    except NameInvalid as error:
        raise ValueError(str(error)) from None


Cron = Annotated[str, AfterValidator(_checked_cron)]
Duration = Annotated[str, AfterValidator(_duration)]
Name = Annotated[str, AfterValidator(_name)]
SecondReader = Annotated[
    Extent,
    Field(
        description="How much of each run DuckDB reads as a second Parquet decoder. sample: some rows of each file "
        "that is written and of some that are read; all; none. What it refuses is neither taken in nor published."
    ),
]


class ComponentBase(dg.Component, dg.Model, dg.Resolvable):
    """A component whose checks may say `field.of.it: what is wrong`; that field's line is then reported."""

    @classmethod
    def load(cls, attributes: Any, context: dg.ComponentLoadContext) -> Self:
        try:
            return super().load(attributes, context)
        except ValidationError as invalid:
            problems = [_located(error, context) for error in invalid.errors(include_url=False)]
            raise DeclarationInvalid("\n".join(problems)) from None


def _located(error: Any, context: dg.ComponentLoadContext) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    path = list(error["loc"])
    named = re.match(r"([a-z_]+(\.[a-z_]+)*):", message)
    if not path and named:
        path = named[1].split(".")
    elif path:
        message = f"{'.'.join(str(part) for part in path)}: {message}"
    tree = context.resolution_context.source_position_tree
    if tree is None:
        return message
    position, _ = tree.lookup_closest_and_path(["attributes", *path], None)
    return f"{position}: {message}"
