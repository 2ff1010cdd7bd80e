import contextlib
import json
import multiprocessing
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compaction_platform.embedded_lake.state_dir import (
    Credentials,
    LakeAlreadyRunning,
    PortTaken,
    StateDirectory,
    StateUnusable,
    free_ports,
    require_free,
    require_room,
)

pytestmark = pytest.mark.unit


def test_ports_and_credentials_are_chosen_once_and_remembered(tmp_path: Path) -> None:
    first, second = StateDirectory(tmp_path), StateDirectory(tmp_path)
    assert first.ports() == second.ports()
    assert first.credentials() == second.credentials()
    assert first.ports(new=True) != first.ports(new=True)


def test_credentials_differ_between_lakes_and_are_private(tmp_path: Path) -> None:
    one, other = StateDirectory(tmp_path / "one"), StateDirectory(tmp_path / "other")
    assert one.credentials() != other.credentials()
    for name in ("credentials.json", "ports.json"):
        other.ports()
        assert stat.S_IMODE((other.path / name).stat().st_mode) == 0o600


def test_credentials_do_not_show_in_a_repr() -> None:
    credentials = Credentials.generate()
    assert credentials.secret_access_key not in repr(credentials)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"s3": 1}', "\0\0\0"])
@pytest.mark.parametrize("name", ["ports.json", "credentials.json"])
def test_a_corrupt_state_file_is_named_with_what_to_do(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    state = StateDirectory(tmp_path)
    with pytest.raises(StateUnusable, match=f"{name}.*(--new-ports|make clean)"):
        state.ports() if name == "ports.json" else state.credentials()
    assert (tmp_path / name).read_text() == content, "what the user may want to look at is kept"


def test_a_port_of_the_wrong_type_is_refused(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    good = vars(state.ports())
    for wrong in ("8333", 99_999, 80, 1.5):
        (tmp_path / "ports.json").write_text(json.dumps({**good, "s3": wrong}))
        with pytest.raises(StateUnusable, match="ports.json"):
            state.ports()


def test_lost_credentials_are_not_replaced_while_there_is_data(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    state.credentials()
    state.data.mkdir()
    (tmp_path / "credentials.json").unlink()
    with pytest.raises(StateUnusable, match="Restore the file"):
        state.credentials()


def test_a_lock_that_cannot_be_opened_is_explained(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(StateUnusable, match="lock cannot be opened"), StateDirectory(tmp_path).owned():
        pass


def test_a_taken_port_is_named_with_its_purpose() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"port {port}, remembered for postgres.*--new-ports"):
            require_free({"postgres": port})


def test_chosen_ports_are_free_and_different() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    require_free({str(port): port for port in ports})


def test_a_full_disk_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(StateUnusable, match="MB are free"):
        require_room(tmp_path, needed_bytes=1 << 60)


def test_a_state_directory_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateUnusable, match="COMPACTION_STATE_DIR"):
        StateDirectory(tmp_path / "file" / "state")


def _hold(path: Path, held: Any, release: Any) -> None:
    with StateDirectory(path).owned():
        held.set()
        release.wait(30)


def test_a_second_owner_is_refused_while_the_first_lives_and_let_in_afterwards(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(tmp_path, held, release))
    holder.start()
    assert held.wait(30)
    state = StateDirectory(tmp_path)
    with pytest.raises(LakeAlreadyRunning, match=rf"process {holder.pid}"), state.owned():
        pass
    holder.kill()  # as kill -9 does: nothing is cleaned up
    holder.join()
    with state.owned():
        assert state.owner() is not None
    assert state.owner() is None


def test_two_processes_that_choose_at_the_same_time_do_not_get_the_same_port() -> None:
    """Of forty ports each takes twenty, before anybody listens on one."""
    script = """
import sys
from compaction_platform.embedded_lake import state_dir
state_dir.LOWEST_PORT, state_dir.HIGHEST_PORT = 24000, 24044
print(state_dir.free_ports(20), flush=True)
sys.stdin.read()
"""
    chosen: list[int] = []
    with contextlib.ExitStack() as running:
        for _ in range(2):
            process = running.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            assert process.stdin is not None
            assert process.stdout is not None
            running.callback(process.stdin.close)
            chosen += json.loads(process.stdout.readline())
    assert len(chosen) == len(set(chosen)) == 40
