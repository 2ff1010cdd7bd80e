"""The YAML a user writes: what it becomes, and how mistakes are reported."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from compaction_platform.merge.component import MergedTable
from compaction_platform.merge.glue_table import GlueParquetTable

unit = pytest.mark.unit
integration = pytest.mark.integration


def declared(project: Path) -> dict[str, Any]:
    text = (project / "compaction_platform" / "defs" / "events" / "defs.yaml").read_text()
    attributes: dict[str, Any] = yaml.safe_load(text)["attributes"]
    return attributes


@unit
def test_roles_say_what_the_lists_say(project: Path) -> None:
    attributes = declared(project)
    by_role = MergedTable(**attributes).rules()
    assert (by_role.key, by_role.order_by, by_role.keep_when_null) == (("event_id",), ("updated_at",), ("country",))
    for column in attributes["table"]["columns"]:
        if column.get("role") != "event_time":
            column.pop("role", None)
    lists = {"key": ["event_id"], "order_by": ["updated_at"], "keep_when_null": ["country"]}
    assert MergedTable(**attributes, **lists).rules() == by_role


@unit
def test_the_staging_area_becomes_a_glue_table_where_there_is_glue(project: Path) -> None:
    staging = [need for need in MergedTable(**declared(project)).needs() if isinstance(need, GlueParquetTable)]
    assert [need.description for need in staging] == ["Glue table bronze.staging_events"]


@unit
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"order_by": ["nope"]}, "order_by: ['nope'] is given, but the columns of role version are ['updated_at']"),
        ({"keep_when_null": ["event_id"]}, "keep_when_null: ['event_id'] is given"),
        ({"arrival_grace": "soon"}, "'soon' is not a duration; examples: 90s"),
        ({"cleanup": "burn"}, "'lifecycle', 'archive' or 'delete'"),
        ({"table.partition_by": ["day(when)"]}, "day(when) names no column"),
        ({"table.partition_by": ["week(event_time)"]}, "week is not a transform"),
        ({"table.partition_by": ["day(event_id)"]}, "day needs a date or a timestamp"),
        ({"table.name": "drop table"}, "not a usable name"),
        (
            {
                "table.columns": [{"name": "a", "type": "text", "role": "key"}],
                "freshness": None,
                "table.partition_by": [],
            },
            "'text' is not a type. Examples: string",
        ),
        (
            {"table.columns": [{"name": "a", "type": "string"}], "freshness": None, "table.partition_by": []},
            "none has role key",
        ),
        ({"table.columns": [{"name": "_staged_file", "type": "string"}]}, "the platform's own"),
        ({"source.first_hour": "yesterday"}, "'yesterday' is not an hour"),
        ({"shedule": "0 6 * * *"}, "shedule"),
        ({"schedule": "at six"}, "'at six' is not a cron expression"),
    ],
)
def test_mistakes_are_named(project: Path, change: dict[str, Any], complaint: str) -> None:
    attributes = declared(project)
    for path, value in change.items():
        *parents, last = path.split(".")
        place = attributes
        for parent in parents:
            place = place[parent]
        place[last] = value
    with pytest.raises(ValidationError) as invalid:
        MergedTable(**attributes)
    assert complaint in str(invalid.value)


@unit
@pytest.mark.parametrize("kind", ["double", "list<string>"])
def test_a_key_needs_one_order(project: Path, kind: str) -> None:
    attributes = declared(project)
    attributes["table"]["columns"][0]["type"] = kind
    with pytest.raises(ValidationError, match="needs a type with one order"):
        MergedTable(**attributes)


LOADED_AGAIN_AND_AGAIN = """
import json, sys, traceback
from pathlib import Path
from compaction_platform.definitions import defs

file = Path(sys.argv[1])
right = file.read_text()
told = []
for wrong in json.loads(sys.argv[2]):
    file.write_text(wrong)
    try:
        defs()
        told.append("")
    except Exception:
        told.append(traceback.format_exc())
file.write_text(right)
defs()
print(json.dumps(told))
"""


@integration  # Dagster takes seconds to load: once for all mistakes
def test_a_mistake_is_reported_with_its_file_and_line(project: Path, tmp_path: Path) -> None:
    mistakes = [
        ("cleanup: lifecycle", "cleanup: burn", "'lifecycle', 'archive' or 'delete'"),
        ("arrival_grace: 10m", "arrival_grace: soon", "is not a duration"),
        ("partition_by: [day(event_time)]", "partition_by: [day(nope)]", "names no column"),
    ]
    copy = tmp_path / "copy"
    shutil.copytree(project / "compaction_platform", copy / "compaction_platform")
    for name in ("pyproject.toml", "workspace.yaml"):
        shutil.copy(project / name, copy / name)
    file = copy / "compaction_platform" / "defs" / "events" / "defs.yaml"
    text = file.read_text()
    assert all(right in text for right, _, _ in mistakes)
    changed = [text.replace(right, wrong) for right, wrong, _ in mistakes]
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOADED_AGAIN_AND_AGAIN, str(file), json.dumps(changed)],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout.splitlines()[-1])
    for (_, wrong, complaint), content, said in zip(mistakes, changed, told, strict=True):
        line = next(number for number, each in enumerate(content.splitlines(), start=1) if wrong in each)
        assert f"defs.yaml:{line}" in said
        assert complaint in said
