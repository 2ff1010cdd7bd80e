"""The foreign readers: how each is built, started and asked, and what it answered."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compaction_platform_tests.torture.processes import Answering, ProcessFailed

PROJECT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "readers"
MODULE = "compaction_platform_tests.torture.python_reader"
ANSWERS_WITHIN = 60.0
GIVES_UP_WITHIN = 10.0  # on a damaged input: some readers take a minute to refuse one
OWN_PYTHON = ("pyarrow", "duckdb", "polars", "spark")
EXTRA_PYTHON = ("chdb", "datafusion")
COMPILED = ("parquet_rs", "arrow_go", "parquet_go", "hyparquet")
NAMES = (*OWN_PYTHON, *EXTRA_PYTHON, *COMPILED)
SLOW = ("spark", "chdb")  # asked about fewer files
# By reader: settings of writers whose sound files it misreads by a defect of its own. It is not asked about them.
DEFECTS = {"parquet_go": ("v1-lz4-pages",)}  # parquet-go 0.32 decodes LZ4_RAW wrongly


def build_place() -> Path:
    return Path(os.environ.get("TORTURE_BUILD") or PROJECT / ".venv" / "torture").absolute()


def command_of(name: str, build: Path) -> list[str]:
    if name in OWN_PYTHON:
        return [sys.executable, "-m", MODULE, name]
    if name in EXTRA_PYTHON:
        return [str(build / "py" / "bin" / "python"), "-m", MODULE, name]
    if name == "hyparquet":
        return ["node", str(build / "hyparquet" / "main.mjs")]
    if name == "parquet_rs":
        return [str(build / "cargo" / "release" / name)]
    return [str(build / "bin" / name)]


# ------------------------------------------------------------ build


def build_all(build: Path, say: Callable[[str], None]) -> dict[str, str]:
    """Build what is not built yet. Returns why a reader is missing, by its name."""
    build.mkdir(parents=True, exist_ok=True)
    missing: dict[str, str] = {}
    for names, make in (
        (EXTRA_PYTHON, _python_environment),
        (("arrow_go", "parquet_go"), _go_programs),
        (("hyparquet",), _node_program),
        (("parquet_rs",), _rust_program),
    ):
        try:
            make(build, say)
        except (OSError, subprocess.CalledProcessError) as failed:
            missing |= dict.fromkeys(names, str(failed))
    return missing


def _run(*command: str | Path, cwd: Path = PROJECT) -> None:
    subprocess.run([str(part) for part in command], cwd=cwd, check=True, stdout=sys.stderr)


def _is_fresh(build: Path, name: str, sources: Sequence[Path]) -> Callable[[], None] | None:
    """None if this was built from these very sources; otherwise what notes that it is."""
    files = sorted(file for source in sources for file in ([source] if source.is_file() else source.rglob("*")))
    digest = hashlib.sha256(b"\n".join(file.read_bytes() for file in files if file.is_file())).hexdigest()
    stamp = build / f"{name}.stamp"
    if stamp.is_file() and stamp.read_text() == digest:
        return None
    return lambda: (stamp.write_text(digest), None)[1]


def _python_environment(build: Path, say: Callable[[str], None]) -> None:
    locked = PROJECT / "requirements" / "torture.txt"
    if (done := _is_fresh(build, "py", [locked])) is not None:
        say("building the Python environment of chdb and DataFusion")
        uv = Path(sys.executable).with_name("uv")
        _run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, build / "py")
        _run(uv, "pip", "sync", "--quiet", "--require-hashes", "--python", build / "py" / "bin" / "python", locked)
        done()


def _go_programs(build: Path, say: Callable[[str], None]) -> None:
    if (done := _is_fresh(build, "go", [SOURCES / "go"])) is not None:
        say("building arrow-go and parquet-go (a minute or two)")
        (build / "bin").mkdir(exist_ok=True)
        _run("go", "build", "-mod=readonly", "-o", f"{build / 'bin'}/", "./...", cwd=SOURCES / "go")
        done()


def _node_program(build: Path, say: Callable[[str], None]) -> None:
    if (done := _is_fresh(build, "hyparquet", [SOURCES / "hyparquet"])) is not None:
        say("installing hyparquet")
        shutil.rmtree(build / "hyparquet", ignore_errors=True)
        shutil.copytree(SOURCES / "hyparquet", build / "hyparquet")
        _run("npm", "ci", "--silent", "--ignore-scripts", cwd=build / "hyparquet")
        done()


def _rust_program(build: Path, say: Callable[[str], None]) -> None:
    if (done := _is_fresh(build, "cargo", [SOURCES / "parquet_rs"])) is not None:
        say("building parquet-rs (some minutes the first time)")
        _run(
            *("cargo", "build", "--release", "--locked", "--quiet", "--target-dir", build / "cargo"),
            cwd=SOURCES / "parquet_rs",
        )
        done()


# ------------------------------------------------------------ ask


@dataclass(frozen=True)
class Seen:
    """What a reader saw in a file: digests by column, one for each cut; or why it saw nothing."""

    rows: int = 0
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unsupported: Mapping[str, str] = field(default_factory=dict)
    refused: str | None = None

    @classmethod
    def told(cls, answer: Mapping[str, Any]) -> "Seen":
        if "error" in answer:
            return cls(refused=str(answer["error"]))
        columns = {name: tuple(digests) for name, digests in answer["columns"].items()}
        return cls(int(answer["rows"]), columns, answer["unsupported"])


@dataclass
class Reader:
    """One reader process, and what it saw in files that are asked about again and again."""

    name: str
    process: Answering
    known: dict[tuple[str, bool], Seen] = field(default_factory=dict)

    def read(
        self,
        file: Path,
        cuts: Sequence[int] | None = None,
        *,
        unordered: bool = False,
        within: float = ANSWERS_WITHIN,
    ) -> Seen:
        question = {"do": "read", "file": str(file), "cuts": cuts, "unordered": unordered}
        try:
            return Seen.told(self.process.ask(question, within))
        except ProcessFailed as failed:
            return Seen(refused=f"{type(failed).__name__}: {failed}")

    def read_input(self, file: Path, *, is_sound: bool = True, unordered: bool = False) -> Seen:
        """As `read`, remembered by the path: for inputs, which nobody changes."""
        key = (str(file), unordered)
        if key not in self.known:
            within = ANSWERS_WITHIN if is_sound else GIVES_UP_WITHIN
            self.known[key] = self.read(file, unordered=unordered, within=within)
        return self.known[key]

    def forget(self, place: Path) -> None:
        """Forget what was seen below this directory: it is about to be deleted."""
        self.known = {key: seen for key, seen in self.known.items() if not key[0].startswith(f"{place}/")}

    def wrong_predicates(self, file: Path) -> dict[str, str]:
        try:
            answer = self.process.ask({"do": "predicates", "file": str(file)}, ANSWERS_WITHIN)
        except ProcessFailed:
            return {}  # whether it can be read at all is asked elsewhere
        return dict(answer.get("wrong", {}))


def reader(name: str, build: Path, logs: Path) -> Reader:
    logs.mkdir(parents=True, exist_ok=True)
    environment = {"PYTHONPATH": str(PROJECT), "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    return Reader(name, Answering(command_of(name, build), logs / f"{name}.log", environment))
