"""The set-up script on machines that are not as it wishes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit


def run(script: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_old_python_gets_one_sentence(project: Path) -> None:
    script = f"import sys, runpy; sys.version_info = (3, 9, 2); runpy.run_path({str(project / 'bootstrap.py')!r})"
    answer = run(script)
    assert answer.returncode == 1
    assert answer.stderr.strip().count("\n") == 0
    assert "Python 3.11 or newer is needed, this is 3.9" in answer.stderr


def test_no_java_and_no_apt_gets_one_sentence(project: Path, tmp_path: Path) -> None:
    script = f"import runpy; runpy.run_path({str(project / 'bootstrap.py')!r})"
    answer = run(script, PATH=str(tmp_path), JAVA_HOME="")
    assert answer.returncode == 1
    assert answer.stderr.strip().count("\n") == 0
    assert "Java 17 or newer is needed" in answer.stderr
    assert "openjdk-17-jre-headless" in answer.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed here")
def test_make_without_a_target_explains_itself(project: Path) -> None:
    answer = subprocess.run(["make"], cwd=project, capture_output=True, text=True, timeout=20, check=True)  # noqa: S607
    for target in ("demo", "dev", "test", "torture", "lint", "docs", "bench", "clean"):
        assert f"make {target}" in answer.stdout


def test_locked_requirements_have_hashes_and_name_no_host(project: Path) -> None:
    for name in ("uv", "runtime", "docs", "dev", "torture"):
        text = (project / "requirements" / f"{name}.txt").read_text()
        pinned = [line for line in text.splitlines() if "==" in line]
        assert pinned
        assert text.count("--hash=sha256:") >= len(pinned)
        assert "://" not in text
        assert "--index" not in text
