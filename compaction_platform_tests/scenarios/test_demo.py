"""The demo as a stranger runs it, and killed at an awkward moment."""

import re
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from compaction_platform.embedded_lake.processes import ProcessRecord
from compaction_platform_tests.running import COMPACTION, environment

pytestmark = pytest.mark.integration

DEMO = [*COMPACTION, "demo"]


@pytest.mark.timeout(480)  # a minute alone; beside two other Sparks on two cores, four
def test_the_demo_runs_again_after_being_killed_in_the_middle_of_its_work(tmp_path: Path) -> None:
    # Settings of the user that lead elsewhere must not be touched by a demo.
    elsewhere = {"COMPACTION_LAKE_URI": "s3://production", "COMPACTION_S3_ENDPOINT": "http://127.0.0.1:9"}
    variables = {**environment(tmp_path), **elsewhere}
    log = tmp_path / "first.log"
    with log.open("wb") as output:
        first = subprocess.Popen(DEMO, env=variables, stdout=output, stderr=subprocess.STDOUT)
    records = tmp_path / "demo" / "processes"
    lake_file = tmp_path / "demo" / "lake.env"
    deadline = time.monotonic() + 60
    while not lake_file.exists():  # from here on the steps run
        assert first.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    left = [record.process() for path in records.glob("*.json") if (record := ProcessRecord.read(path))]
    servers = [process for process in left if process is not None]
    assert len(servers) == 3
    first.kill()
    first.wait()

    second = subprocess.run(DEMO, env=variables, capture_output=True, text=True, timeout=400, check=False)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "Traceback" not in second.stderr
    assert re.search(r"300,000 rows decoded with checksums", second.stdout)
    assert re.search(r"300,000 rows of 37 sensors read back by Spark, the same fingerprint", second.stdout)
    _, alive = psutil.wait_procs(servers, timeout=10)
    assert alive == []
    assert list(records.iterdir()) == [], "the second demo stopped everything it started"
