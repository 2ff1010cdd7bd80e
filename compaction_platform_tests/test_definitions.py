import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

unit = pytest.mark.unit
slow = pytest.mark.integration  # Dagster takes seconds to load


def run(project: Path, *command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=project,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@slow
def test_definitions_load_without_touching_anything(project: Path, tmp_path: Path) -> None:
    """No setting, no server, no network: only files are read. Production without settings must load, too."""
    script = """
import socket, subprocess, json
import dagster  # looks at its own executable when it is imported
def refuse(*arguments, **named):
    raise AssertionError("I/O while loading definitions")
socket.socket.connect = refuse
subprocess.Popen.__init__ = refuse
from compaction_platform.definitions import defs
loaded = defs()
import sys
print(json.dumps({
    "jobs": sorted(job.name for job in loaded.resolve_all_job_defs() if not job.name.startswith("__")),
    "assets": sorted(key.to_user_string() for key in loaded.resolve_all_asset_keys()),
    "checks": sorted(key.name for key in loaded.resolve_asset_graph().asset_check_keys),
    "sensors": sorted(sensor.name for sensor in loaded.sensors),
    "schedules": sorted(schedule.name for schedule in loaded.schedules),
    "resources": sorted(loaded.resources),
    "pyspark": "pyspark.sql" in sys.modules,
}))
"""
    answer = run(project, sys.executable, "-W", "ignore", "-c", script, COMPACTION_PROFILE="production")
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout.splitlines()[-1])
    # A change of what the project defines shows here, in review.
    assert found == {
        "jobs": [
            "archive_10143",
            "checks",
            "compact_clicks",
            "maintain_events",
            "merge_events",
            "setup",
            "undo_compaction_events",
        ],
        "assets": [
            "bronze/events",
            *(f"cold/10143/{name}" for name in ("blocks", "logs", "transactions")),
            *(f"hot/10143/{name}" for name in ("blocks", "logs", "transactions")),
            "maintenance/events",
            "purged/10143",
            "silver/events",
            "warehouse/clicks",
        ],
        "checks": [
            "blocks_are_contiguous",
            *["cold_equals_source"] * 3,
            "compaction_recommended",
            "event_time_is_fresh",
            "every_staged_row_is_in_silver",
            "few_small_files",
            "finality_lag",
            "hot_retention",
            "key_is_unique",
            "metadata_is_small",
            "no_dangling_deletes",
            "no_range_missing_below_the_tip",
            "no_reorg_after_archiving",
            "no_superseded_inputs_left",
            "nothing_quarantined",
            "range_is_final",
            "retention_kept",
            "rows_unchanged",
            "rows_unchanged_by_compaction",
            "schema_as_declared",
            "what_was_set_aside_is_kept",
        ],
        "sensors": ["final_ranges_10143", "health_events", "late_clicks", "staged_events"],
        "schedules": ["compact_clicks_schedule", "maintain_events_schedule"],
        "resources": ["lake", "spark"],
        "pyspark": False,
    }


@slow
def test_dg_checks_the_definitions(project: Path) -> None:
    answer = run(project, str(Path(sys.executable).with_name("dg")), "check", "defs")
    assert answer.returncode == 0, answer.stderr
    assert "All definitions loaded successfully" in answer.stdout


@slow
def test_a_mistake_in_yaml_is_reported_with_file_and_line(project: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(project / "compaction_platform", copy / "compaction_platform")
    for name in ("pyproject.toml", "workspace.yaml"):
        shutil.copy(project / name, copy / name)
    declared = copy / "compaction_platform" / "defs" / "lake" / "defs.yaml"
    declared.write_text(declared.read_text().replace("namespaces:", "namespasces:"))
    answer = run(copy, str(Path(sys.executable).with_name("dg")), "check", "yaml", PYTHONPATH=str(copy))
    assert answer.returncode != 0
    assert "defs.yaml:" in answer.stdout + answer.stderr
    assert "namespasces" in answer.stdout + answer.stderr


@unit
def test_the_workspace_names_the_same_module(project: Path) -> None:
    workspace = yaml.safe_load((project / "workspace.yaml").read_text())
    (location,) = workspace["load_from"]
    assert location["python_module"]["module_name"] == "compaction_platform.definitions"
