"""`make new-verb` in a copy of the project: what it makes is registered, works, and keeps the rules."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
PARTS = ("compaction_platform", "compaction_platform_tests", "docs", "examples", "pyproject.toml")


def test_a_new_verb_works_and_keeps_the_rules(project: Path, tmp_path: Path) -> None:
    for part in PARTS:
        if (project / part).is_dir():
            shutil.copytree(project / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(project / part, tmp_path / part)

    def python(*arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTEST_ADDOPTS": ""},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    python("examples/new_verb.py", "dedupe")
    python("-m", "ruff", "check", ".")
    names = ("dedupe", "golden", "test_verbs.py", "test_names.py", "test_docs.py")
    tests = [f"compaction_platform_tests/{name}" for name in names]
    python("-m", "pytest", "-q", "-m", "unit", f"--basetemp={tmp_path / 'pytest'}", *tests)
