"""Dagster's webserver, when the project it should show cannot be loaded."""

from pathlib import Path

import pytest

from compaction_platform.embedded_lake.dagster_dev import dagster_home, load_error, webserver
from compaction_platform.embedded_lake.processes import start
from compaction_platform.embedded_lake.state_dir import StateDirectory, free_ports

pytestmark = pytest.mark.integration


def test_a_project_that_cannot_be_loaded_is_told_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise ValueError('the YAML [of] orders is wrong')")
    (tmp_path / "workspace.yaml").write_text(f"load_from: [{{python_file: {tmp_path}/broken.py}}]")
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}")
    state = StateDirectory(tmp_path / "state")
    (port,) = free_ports(1)
    running = start(webserver(tmp_path, dagster_home(state, tmp_path), port, {}), state.records, state.logs)
    try:
        running.wait_until_ready()
        assert "the YAML [of] orders is wrong" in (load_error(port) or "")
    finally:
        running.ask_to_stop()
        running.popen.wait(30)
