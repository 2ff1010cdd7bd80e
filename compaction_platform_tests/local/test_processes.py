import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from compaction_platform.embedded_lake.processes import (
    ProcessRecord,
    Server,
    ServerFailed,
    end_leftovers,
    start,
    start_mark,
)

pytestmark = pytest.mark.unit

LISTEN = """
import signal, socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
signal.pause()
"""


def server(port: int, code: str = LISTEN, name: str = "example") -> Server:
    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    return Server(name=name, command=[sys.executable, "-c", code, str(port)], is_ready=answers)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "records").mkdir()
    (tmp_path / "logs").mkdir()
    return tmp_path / "records", tmp_path / "logs"


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_server_is_recorded_awaited_and_stopped(places: tuple[Path, Path], port: int) -> None:
    running = start(server(port), *places)
    running.wait_until_ready(20)
    record = ProcessRecord.read(running.record)
    assert record is not None
    assert record.pid == running.popen.pid
    assert record.process() is not None
    running.ask_to_stop()
    running.stop()
    assert record.process() is None
    assert not running.record.exists()
    assert "listening" in running.log.read_text()


def test_a_server_that_ends_at_once_is_reported_with_its_log(places: tuple[Path, Path], port: int) -> None:
    running = start(server(port, "raise SystemExit('the disk is gone')"), *places)
    with pytest.raises(ServerFailed, match=r"(?s)example ended by itself \(exit code 1\).*the disk is gone"):
        running.wait_until_ready(20)


def test_a_server_that_never_gets_ready_is_given_up(places: tuple[Path, Path], port: int) -> None:
    running = start(server(port, "import signal; signal.pause()"), *places)
    try:
        with pytest.raises(ServerFailed, match="not ready within 0 s"):
            running.wait_until_ready(0.3)
    finally:
        running.ask_to_stop()
        running.stop()


def test_a_server_that_ignores_the_request_is_forced(
    places: tuple[Path, Path], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compaction_platform.embedded_lake.processes.STOP_LIMIT_SECONDS", 0.2)
    running = start(server(port, "import signal; signal.signal(15, signal.SIG_IGN)\n" + LISTEN), *places)
    running.wait_until_ready(20)
    running.ask_to_stop()
    running.stop()
    assert running.popen.returncode == -signal.SIGKILL


def test_a_server_ends_when_asked_even_if_this_process_ignores_signals(places: tuple[Path, Path], port: int) -> None:
    """As a background job of a shell does."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        running = start(server(port), *places)
    finally:
        signal.signal(signal.SIGTERM, before)
    running.wait_until_ready(20)
    running.ask_to_stop()
    running.stop()
    assert running.popen.returncode == -signal.SIGTERM


def test_leftovers_are_ended_by_pid_and_start_time(places: tuple[Path, Path], port: int) -> None:
    running = start(server(port), *places)
    running.wait_until_ready(20)
    assert end_leftovers(places[0]) == [Path(sys.executable).name]
    running.popen.wait(10)
    assert end_leftovers(places[0]) == []


def test_a_process_that_only_has_the_pid_of_a_leftover_is_left_alone(places: tuple[Path, Path]) -> None:
    """The pid in an old record may belong to an innocent process by now."""
    innocent = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    try:
        record = ProcessRecord.of("example", innocent.pid)
        dataclasses.replace(record, started=start_mark(os.getpid())).write(places[0] / "example.json")
        assert end_leftovers(places[0]) == []
        assert innocent.poll() is None
        record.write(places[0] / "example.json")
        assert end_leftovers(places[0]) == ["example"], "with the right start time it is ended"
    finally:
        innocent.kill()
        innocent.wait()


STUBBORN_HELPER = """
import subprocess, sys
helper = "from signal import *; signal(15, SIG_IGN); signal(2, SIG_IGN); print('helping', flush=True); pause()"
subprocess.Popen([sys.executable, "-c", helper])
"""


@pytest.mark.parametrize("leader_dies", [False, True])
def test_helpers_of_a_server_end_with_it(
    places: tuple[Path, Path], port: int, leader_dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compaction_platform.embedded_lake.processes.PATIENCE_SECONDS", 0.2)
    running = start(server(port, STUBBORN_HELPER + LISTEN), *places)
    running.wait_until_ready(20)
    (helper,) = psutil.Process(running.popen.pid).children()
    while "helping" not in running.log.read_text():
        assert helper.is_running()
    if leader_dies:  # what a killed parent leaves behind may itself be half dead
        running.popen.kill()
        running.popen.wait()
        assert helper.is_running()
        assert end_leftovers(places[0]) == [Path(sys.executable).name]
    else:
        running.ask_to_stop()
        running.stop()
    helper.wait(10)


def test_a_stranger_in_a_session_of_the_same_number_is_left_alone(places: tuple[Path, Path]) -> None:
    """The number of a dead server has become that of another session, whose leader is dead, too."""
    wait = [sys.executable, "-c", "import signal; signal.pause()"]
    code = f"import subprocess; print(subprocess.Popen({wait}).pid)"
    leader = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    record = ProcessRecord.of("example", leader.pid)
    assert leader.stdout is not None
    stranger = psutil.Process(int(leader.stdout.readline()))
    leader.wait()
    leader.stdout.close()
    try:
        record.write(places[0] / "example.json")
        assert end_leftovers(places[0]) == []
        assert stranger.is_running()
    finally:
        stranger.kill()


def test_a_launcher_whose_parent_is_dead_starts_nothing(places: tuple[Path, Path]) -> None:
    nobody = "1" if os.getppid() != 1 else "2"
    launch = [sys.executable, "-m", "compaction_platform.embedded_lake.exec_recorded"]
    answer = subprocess.run(
        [*launch, str(places[0] / "x.json"), "", "15", nobody, "echo", "started"], check=False, capture_output=True
    )
    assert answer.returncode == 1
    assert answer.stdout == b""
    assert list(places[0].iterdir()) == []


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"name": "x", "pid": "no", "started": null}', "\0"])
def test_an_unreadable_record_ends_nothing(places: tuple[Path, Path], content: str) -> None:
    (places[0] / "example.json").write_text(content)
    assert end_leftovers(places[0]) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the children of a dead parent")
def test_servers_end_when_their_parent_is_killed(places: tuple[Path, Path], port: int) -> None:
    parent_code = f"""
import os, signal, sys
from pathlib import Path
from compaction_platform.embedded_lake.processes import Server, start
server = Server("example", [sys.executable, "-c", {LISTEN!r}, "{port}"], is_ready=lambda: True)
start(server, Path({str(places[0])!r}), Path({str(places[1])!r}))
signal.pause()
"""
    parent = subprocess.Popen([sys.executable, "-c", parent_code])
    child = _recorded(places[0] / "example.json")
    while "listening" not in (places[1] / "example.log").read_text():
        assert child.is_running()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    child.wait(10)


def _recorded(path: Path) -> psutil.Process:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        record = ProcessRecord.read(path)
        process = record.process() if record else None
        if process:
            return process
    raise AssertionError("the server was never recorded")
