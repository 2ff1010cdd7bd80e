"""One Spark for all processes of a test run: each has a lake of its own, and a young JVM is what takes the most time.

Sessions of Spark Connect have a catalog each, so tables of one process are not seen by another. The process that needs
Spark first starts it, and stops it when no other process uses it any more.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from compaction_platform.embedded_lake.embedded import EmbeddedLake
from compaction_platform.embedded_lake.processes import ProcessRecord, RunningServer, start
from compaction_platform.embedded_lake.spark_connect import spark_connect, variables_of
from compaction_platform.embedded_lake.state_dir import StateDirectory
from compaction_platform.lake.spark.session import session_config
from compaction_platform.settings import PREFIX


@dataclass(frozen=True)
class SharedSpark:
    directory: Path
    port: int
    token: str

    @property
    def process(self) -> psutil.Process:
        process = _process(self.directory)
        assert process is not None, "Spark is not running"
        return process

    @property
    def files(self) -> list[Path]:
        """Where it writes what others might read."""
        return [self.directory / "logs" / "spark.log", self.directory / "data" / "spark" / "spark.properties"]


class LakeBesideSpark(EmbeddedLake):
    """An embedded lake whose Spark is one that runs already."""

    def __init__(self, directory: Path, spark: SharedSpark) -> None:
        super().__init__(directory, spark=False)
        self.spark = spark

    def variables(self) -> dict[str, str]:
        there = variables_of(self.spark.port, self.spark.token)
        return {**super().variables(), **{f"{PREFIX}{name}": value for name, value in there.items()}}


@contextmanager
def one_spark(place: Path) -> Iterator[SharedSpark]:
    """`place` is the same for all who share. At its end, the one who has started Spark waits for the others. (xdist
    then gives it ten seconds; if it is ended meanwhile, the kernel ends Spark.)"""
    state = StateDirectory(place)
    address = place / "address.json"
    with (place / "starting").open("w") as starting, (place / "in-use").open("w") as in_use:
        fcntl.flock(in_use, fcntl.LOCK_SH)
        fcntl.flock(starting, fcntl.LOCK_EX)
        mine = None
        if not (address.exists() and _process(place)):
            mine = _started(state)
            address.write_text(json.dumps([state.ports().spark_connect, state.credentials().spark_token]))
        fcntl.flock(starting, fcntl.LOCK_UN)
        try:
            yield SharedSpark(place, *json.loads(address.read_text()))
        finally:
            fcntl.flock(in_use, fcntl.LOCK_UN)
            if mine is not None:
                fcntl.flock(in_use, fcntl.LOCK_EX)  # nobody uses it any more; who comes now starts one of its own
                address.unlink()
                mine.ask_to_stop()
                mine.stop()


def _process(place: Path) -> psutil.Process | None:
    record = ProcessRecord.read(place / "processes" / "spark.json")
    return record.process() if record else None


def _started(state: StateDirectory) -> RunningServer:
    spark = spark_connect(state.data / "spark", state.ports(), state.credentials(), session_config())
    running = start(spark, state.records, state.logs)
    try:
        running.wait_until_ready()
    except BaseException:
        running.ask_to_stop()
        running.stop()
        raise
    return running
