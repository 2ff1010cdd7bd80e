"""Server processes: start them recorded, wait until ready, stop them, end leftovers of a dead parent.

A process is only ever ended if its pid *and* its start time are the recorded ones.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from compaction_platform.errors import CompactionError

READY_LIMIT_SECONDS = 90
STOP_LIMIT_SECONDS = 15
PATIENCE_SECONDS = 3  # with what must end, for each signal
POLL_SECONDS = 0.05
MARK = "EMBEDDED_LAKE_RECORD"  # in the environment of every server and so of what it starts


class ServerFailed(CompactionError):
    """A server of the embedded lake did not start, or died while running."""


@dataclass(frozen=True)
class ProcessRecord:
    """Who a process is: a pid alone may belong to somebody else by now."""

    name: str
    pid: int
    started: str

    @classmethod
    def of(cls, name: str, pid: int) -> "ProcessRecord":
        return cls(name, pid, start_mark(pid))

    @classmethod
    def read(cls, path: Path) -> "ProcessRecord | None":
        """The record in this file; None if there is none or it cannot be trusted."""
        try:
            record = cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return record if type(record.pid) is int and record.pid > 0 and type(record.started) is str else None

    def write(self, path: Path) -> None:
        unfinished = path.with_name(f".{path.name}.{self.pid}")
        unfinished.write_text(json.dumps(asdict(self)))
        unfinished.replace(path)

    def process(self) -> psutil.Process | None:
        """The living process this record is about."""
        try:
            process = psutil.Process(self.pid)
            same = start_mark(self.pid) == self.started
            alive = process.status() != psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, OSError, TypeError):
            return None
        return process if same and alive else None

    def helpers(self, path: Path) -> list[psutil.Process]:
        """Living processes of the session this process leads or led, that carry the mark of its record.

        They are workers it started. The mark matters when the leader is dead: its number alone could have
        become the number of another session since.
        """
        return [process for process in psutil.process_iter() if _is_helper(process, self.pid, str(path))]

    def end(self, limit_seconds: float) -> None:
        """Ask the process to end and wait until it has."""
        if process := self.process():
            process.terminate()
        deadline = time.monotonic() + limit_seconds
        while self.process():
            if time.monotonic() > deadline:
                raise ServerFailed(f"process {self.pid} was asked to end and has not within {limit_seconds:.0f} s.")
            time.sleep(POLL_SECONDS)


def start_mark(pid: int) -> str:
    """When a process started, in a form that a change of the clock does not touch where the system offers one."""
    try:
        # after the command, which may contain anything but ends with the last ")": field 22 of the line
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{ticks}"
    except FileNotFoundError:
        return f"{psutil.Process(pid).create_time():.2f}"


def _is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _is_helper(process: psutil.Process, leader: int, mark: str) -> bool:
    try:
        if process.pid == leader or os.getsid(process.pid) != leader:
            return False
        return bool(process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE)
    except (ProcessLookupError, PermissionError, psutil.Error):
        return False


@dataclass(frozen=True)
class Server:
    """How one server is started, recognised as ready, and stopped."""

    name: str
    command: Sequence[str]
    is_ready: Callable[[], bool]
    environment: Mapping[str, str | None] = field(default_factory=dict)  # None takes a variable away
    stop_signal: signal.Signals = signal.SIGTERM
    user: str = ""


@dataclass
class RunningServer:
    server: Server
    popen: subprocess.Popen[bytes]
    record: Path
    log: Path
    log_begins_at: int

    def exit_code(self) -> int | None:
        return self.popen.poll()

    def failure(self, event: str) -> ServerFailed:
        return ServerFailed(f"{self.server.name} {event}. {_last_lines(self.log, self.log_begins_at)}")

    def raise_if_dead(self) -> None:
        code = self.exit_code()
        if code is not None:
            raise self.failure(f"ended by itself (exit code {code})")

    def wait_until_ready(self, limit_seconds: float = READY_LIMIT_SECONDS) -> None:
        deadline = time.monotonic() + limit_seconds
        while not self.server.is_ready():
            self.raise_if_dead()
            if time.monotonic() > deadline:
                raise self.failure(f"was not ready within {limit_seconds:.0f} s")
            time.sleep(POLL_SECONDS)
        self.raise_if_dead()  # an answer may have come from another process on the same port

    def ask_to_stop(self) -> None:
        _signal_group(self.popen.pid, self.server.stop_signal)

    def stop(self) -> None:
        """Wait for the end, also that of its helpers; after the limit, force it."""
        record = ProcessRecord.read(self.record)
        try:
            self.popen.wait(STOP_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            _signal_group(self.popen.pid, signal.SIGKILL)
            self.popen.wait()
        if record and record.pid == self.popen.pid:
            _end(record.helpers(self.record))
        self.record.unlink(missing_ok=True)


def start(server: Server, records: Path, logs: Path) -> RunningServer:
    """Start a server in a process group of its own. Does not wait for it.

    Must be called from a thread that lives as long as the server should: Linux sends the parent-death
    signal when the starting *thread* ends.
    """
    record = records / f"{server.name}.json"
    log = logs / f"{server.name}.log"
    command = [
        *(sys.executable, "-m", "compaction_platform.embedded_lake.exec_recorded"),
        *(str(record), server.user, str(int(server.stop_signal)), str(os.getpid())),
        *server.command,
    ]
    variables = {**os.environ, **server.environment, MARK: str(record)}
    with log.open("ab") as output:
        log_begins_at = output.tell()  # earlier lines are of earlier starts
        popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in variables.items() if value is not None},
            start_new_session=True,
        )
    return RunningServer(server, popen, record, log, log_begins_at)


def end_leftovers(records: Path) -> list[str]:
    """End the processes recorded here that outlived their parent, and their helpers; returns their names."""
    ended = []
    for path in sorted(records.glob("*.json")):
        record = ProcessRecord.read(path)
        if record:
            leader = record.process()
            left = [*([leader] if leader else []), *record.helpers(path)]
            if left:
                _end(left)
                ended.append(record.name)
        path.unlink(missing_ok=True)
    return ended


def _end(processes: list[psutil.Process]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):  # PostgreSQL waits for clients on SIGTERM
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        _, processes = psutil.wait_procs(processes, timeout=PATIENCE_SECONDS)
        processes = [process for process in processes if not _is_zombie(process.pid)]
        if not processes:
            return


def _signal_group(pid: int, number: signal.Signals) -> None:
    # Servers lead their own group, so that their helpers (Spark's Python workers) end with them.
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def _last_lines(log: Path, begin: int, count: int = 15) -> str:
    with contextlib.suppress(OSError):
        lines = log.read_bytes()[begin:].decode(errors="replace").strip().splitlines()[-count:]
        return f"The end of its log ({log}):\n  " + "\n  ".join(lines)
    return f"Its log is {log}."
