"""`make dev`, as a person uses it: open Dagster, run a job, press Ctrl-C."""

import os
import re
import signal
from pathlib import Path

import pytest

from compaction_platform_tests.running import Command, assert_all_gone, compaction, run_job

pytestmark = pytest.mark.integration


def test_dev_starts_dagster_on_the_lake_and_ctrl_c_stops_everything(tmp_path: Path, project: Path) -> None:
    state = tmp_path / "state"
    dev = Command("dev", state=state)
    try:
        dev.wait_for("Ctrl-C stops everything")
        assert len(dev.servers()) == 5
        assert "cannot load" not in dev.output, dev.output
        found = re.search(r"Open (http://127\.0\.0\.1:\d+)", dev.output)
        assert found is not None
        run_id, status = run_job(found[1], "setup")
        assert status == "SUCCESS"
        assert list((state / "dagster").rglob(f"*{run_id}*")), "Dagster's state is in the one ignored directory"
        assert (state / "dagster" / "dagster.yaml").resolve() == project / "dagster.yaml"
        assert found[1] in compaction(state, "status").stdout
        processes = dev.everything()
        os.kill(dev.popen.pid, signal.SIGINT)
        assert dev.popen.wait(60) == 130
        assert_all_gone(processes)
    finally:
        compaction(state, "down")
        dev.popen.wait(30)
