"""Finds a Java that Spark can run on. Used by the set-up before anything is installed: standard library only."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from compaction_platform.errors import CompactionError

OLDEST_JAVA = 17


class JavaMissing(CompactionError):
    """There is no Java on this machine that Spark 4 can run on."""


def find_java() -> Path:
    """The java command Spark will use: the one in JAVA_HOME, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if home and not Path(str(java)).exists():
        raise JavaMissing(f"JAVA_HOME is {home}, and there is no bin/java. Correct it, or unset it to use PATH's Java.")
    if java is None:
        raise JavaMissing(f"Java {OLDEST_JAVA} or newer is needed and none was found on PATH. {_what_to_do()}")
    version = _major_version(java)
    if version is None:
        raise JavaMissing(f"{java} did not tell its version, so it cannot be used. {_what_to_do()}")
    if version < OLDEST_JAVA:
        raise JavaMissing(f"Java {OLDEST_JAVA} or newer is needed; {java} is Java {version}. {_what_to_do()}")
    return Path(java)


def _major_version(java: str) -> int | None:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major  # Java 8 calls itself 1.8


def _what_to_do() -> str:
    return (
        "Install one (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; "
        "macOS: brew install openjdk@17) or point JAVA_HOME at it."
    )
