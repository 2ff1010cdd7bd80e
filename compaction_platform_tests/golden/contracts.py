"""What users and stored data rely on, as plain values: names on disk, YAML fields, commands, settings, tables."""

from typing import Any

import typer.main

import compaction_platform
from compaction_platform import persisted_names
from compaction_platform.archive.ledger.schema import TABLES
from compaction_platform.cli import app
from compaction_platform.settings import PREFIX, Settings


def contracts() -> dict[str, Any]:
    return {
        "names": {name: str(value) for name, value in vars(persisted_names).items() if name.isupper()},
        "yaml": {name: _yaml_fields(getattr(compaction_platform, name)) for name in compaction_platform.__all__},
        "commands": dict(_commands(typer.main.get_command(app), ())),
        "settings": sorted(f"{PREFIX}{name.upper()}" for name in Settings.model_fields),
        "ledger": [" ".join(statement.split()) for statement in TABLES],
    }


def _yaml_fields(component: Any) -> dict[str, Any]:
    schema = component.get_model_cls().model_json_schema()
    return dict(sorted(_fields(schema, schema.get("$defs", {}), "")))


def _fields(schema: dict[str, Any], definitions: dict[str, Any], prefix: str) -> Any:
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        yield path, {"required": name in schema.get("required", []), "default": field.get("default")}
        for inner in _referred(field, definitions):
            yield from _fields(inner, definitions, f"{path}.")


def _referred(field: dict[str, Any], definitions: dict[str, Any]) -> Any:
    """The models that a field may hold, by itself, in a list or as one of several kinds."""
    if "$ref" in field:
        yield definitions[field["$ref"].rpartition("/")[2]]
    for inner in (
        *field.get("anyOf", ()),
        *field.get("oneOf", ()),
        field.get("items"),
        field.get("additionalProperties"),
    ):
        if isinstance(inner, dict):
            yield from _referred(inner, definitions)


def _commands(command: Any, path: tuple[str, ...]) -> Any:
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*path, name))
    if path and not hasattr(command, "commands"):
        options = sorted(option for each in command.params for option in (*each.opts, *each.secondary_opts))
        yield " ".join(path), options
