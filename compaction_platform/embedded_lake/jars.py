"""Puts the pinned Spark jars into pyspark's own jars directory, once.

There they are on every classpath (local sessions, Connect server, cluster daemons) without configuration
and without a network. Apache Ivy, which pyspark ships, does the download; the sha256 in jars.txt decides
whether the result is used.
"""

import hashlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from compaction_platform.embedded_lake.java import find_java
from compaction_platform.errors import CompactionError

PINNED = Path(__file__).with_name("jars.txt")


class JarUnavailable(CompactionError):
    """A pinned jar could not be fetched, or is not the one that was pinned."""


@dataclass(frozen=True)
class Jar:
    group: str
    name: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"


def pinned_jars() -> list[Jar]:
    lines = (line.split("#")[0].split() for line in PINNED.read_text().splitlines())
    entries = [(*coordinates.split(":"), sha256) for coordinates, sha256 in filter(None, lines)]
    return [Jar(group, name, version, sha256) for group, name, version, sha256 in entries]


def jars_directory() -> Path:
    from importlib.util import find_spec

    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise JarUnavailable("pyspark is not installed in this environment. Run `make test` or `make demo` once.")
    return Path(pyspark.origin).parent / "jars"


def missing_jars(directory: Path) -> list[Jar]:
    return [jar for jar in pinned_jars() if not (directory / jar.file_name).exists()]


def fetch_jars(directory: Path | None = None) -> list[Jar]:
    """Fetch what is missing in this directory (pyspark's own by default); returns what was fetched."""
    directory = directory or jars_directory()
    missing = missing_jars(directory)
    for jar in missing:
        with tempfile.TemporaryDirectory(dir=directory, prefix=".fetch-") as scratch:
            fetched = _fetch(jar, Path(scratch))
            found = hashlib.sha256(fetched.read_bytes()).hexdigest()
            if found != jar.sha256:
                raise JarUnavailable(
                    f"{jar.file_name} has sha256 {found}, pinned is {jar.sha256}. It was not installed. "
                    "If the mirror in use is trusted, correct compaction_platform/embedded_lake/jars.txt."
                )
            fetched.replace(directory / jar.file_name)
    return missing


def _fetch(jar: Jar, scratch: Path) -> Path:
    # COMPACTION_IVY_SETTINGS points at an Ivy settings file where jars come from a company mirror.
    settings = os.environ.get("COMPACTION_IVY_SETTINGS")
    command = [
        *(str(find_java()), "-cp", f"{jars_directory()}/*", "org.apache.ivy.Main", "-error"),
        *(("-settings", settings) if settings else ()),
        *("-cache", str(scratch / "cache"), "-notransitive", "-types", "jar"),
        *("-dependency", jar.group, jar.name, jar.version),
        *("-retrieve", f"{scratch}/[artifact]-[revision].[ext]"),
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    fetched = scratch / jar.file_name
    if answer.returncode != 0 or not fetched.exists():
        problem = (answer.stderr.strip() or answer.stdout.strip() or "no message").splitlines()[-1]
        raise JarUnavailable(
            f"could not fetch {jar.group}:{jar.name}:{jar.version}: {problem}. The network is needed once; "
            "behind a mirror, set COMPACTION_IVY_SETTINGS to an Ivy settings file."
        )
    return fetched


if __name__ == "__main__":
    try:
        fetch_jars()
    except CompactionError as error:
        raise SystemExit(str(error)) from None
