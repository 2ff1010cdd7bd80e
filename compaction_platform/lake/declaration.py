"""What all declarations share: a mistake in YAML is reported with its file and line."""

import re
from typing import Annotated, Any, Self

import dagster as dg
from pydantic import AfterValidator, ValidationError

from compaction_platform.lake.errors import CompactionError


class DeclarationInvalid(CompactionError):
    """A declaration says something it cannot mean."""


def _checked_cron(value: str) -> str:
    try:
        dg.ScheduleDefinition(name="checked", job_name="any", cron_schedule=value)
    except dg.DagsterInvalidDefinitionError:
        raise ValueError(f"{value!r} is not a cron expression, such as `0 6 * * *` for six o'clock") from None
    return value


Cron = Annotated[str, AfterValidator(_checked_cron)]


class Declaration(dg.Component, dg.Model, dg.Resolvable):
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
