"""What happens to the embedded lake when things die. Everything here runs the real command and real servers."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction_platform.embedded_lake.state_dir import StateDirectory
from compaction_platform_tests.running import Command, assert_all_gone, compaction

pytestmark = pytest.mark.integration


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "state"
    yield directory
    compaction(directory, "down")


def test_up_status_down(state: Path) -> None:
    assert compaction(state, "status").returncode == 1
    up = Command("up", "--no-spark", state=state)
    up.wait_for("Ctrl-C")
    assert len(up.servers()) == 2
    servers = up.everything()
    status = compaction(state, "status")
    assert status.returncode == 0
    assert "runs" in status.stdout
    second = compaction(state, "up", "--no-spark")
    assert second.returncode == 1
    assert f"already run by process {up.popen.pid}" in second.stderr
    secrets = (state / "credentials.json").read_text()
    assert not [line for line in secrets.split('"') if len(line) > 15 and line in up.output], "a secret was printed"
    down = compaction(state, "down")
    assert "stopped the lake" in down.stdout
    assert up.popen.wait(30) == 130
    assert_all_gone(servers)
    assert compaction(state, "status").returncode == 1
    assert not (state / "lake.env").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_starting_leaves_nothing(state: Path, number: signal.Signals) -> None:
    up = Command("up", "--no-spark", state=state)
    deadline = time.monotonic() + 60
    while not (servers := up.servers()):
        assert time.monotonic() < deadline
    os.kill(up.popen.pid, number)
    assert up.popen.wait(60) == 130
    assert_all_gone(servers)
    assert up.servers() == []


def test_a_killed_parent_leaves_nothing_that_the_next_start_does_not_end(state: Path) -> None:
    up = Command("up", "--no-spark", state=state)
    up.wait_for("Ctrl-C")
    servers = up.everything()
    up.popen.kill()
    up.popen.wait()
    again = Command("up", "--no-spark", state=state)
    again.wait_for("Ctrl-C")
    assert_all_gone(servers)
    assert {process.pid for process in again.servers()}.isdisjoint({process.pid for process in servers})
    again.popen.terminate()
    again.popen.wait(60)


@pytest.mark.parametrize("name", ["seaweedfs", "postgres"])
def test_a_server_that_dies_ends_the_lake_with_its_name(state: Path, name: str) -> None:
    up = Command("up", "--no-spark", state=state)
    up.wait_for("Ctrl-C")
    servers = up.everything()
    up.server(name).kill()
    assert up.popen.wait(60) == 1
    assert f"error: {name} ended by itself (exit code -9)" in up.output
    assert f"{name}.log" in up.output
    assert "Traceback" not in up.output
    assert_all_gone(servers)


def test_a_taken_port_is_said_and_new_ports_help(state: Path) -> None:
    port = StateDirectory(state).ports().postgres
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        refused = compaction(state, "up", "--no-spark")
        assert refused.returncode == 1
        assert f"port {port}, remembered for postgres, is taken" in refused.stderr
        assert list((state / "processes").iterdir()) == []
        up = Command("up", "--no-spark", "--new-ports", state=state)
        up.wait_for("Ctrl-C")
        up.popen.terminate()
        up.popen.wait(60)


def test_data_outlives_a_restart(state: Path) -> None:
    from compaction_platform.embedded_lake.embedded import EmbeddedLake
    from compaction_platform.lake.dagster.provisioning import IcebergTable, TableColumn
    from compaction_platform.lake.iceberg.catalog import open_catalog
    from compaction_platform.lake.storage.object_store import ObjectStore

    table = IcebergTable("kept", "numbers", (TableColumn("a", "long"),))
    with EmbeddedLake(state, spark=False) as lake:
        ObjectStore.at("s3://lake", lake.settings()).write("kept.txt", b"kept")
        assert table.ensure(lake.settings())
    with EmbeddedLake(state, spark=False) as lake:
        assert bytes(ObjectStore.at("s3://lake", lake.settings()).read("kept.txt")) == b"kept"
        assert open_catalog(lake.settings()).table_exists("kept.numbers")


def test_two_lakes_run_side_by_side(tmp_path: Path) -> None:
    from compaction_platform.embedded_lake.embedded import EmbeddedLake
    from compaction_platform.lake.storage.object_store import ObjectStore

    with EmbeddedLake(tmp_path / "one", spark=False) as one, EmbeddedLake(tmp_path / "two", spark=False) as two:
        ObjectStore.at("s3://lake", one.settings()).write("mine.txt", b"one")
        assert list(ObjectStore.at("s3://lake", two.settings()).list()) == []


def test_a_damaged_database_directory_is_explained_and_nothing_is_left_running(state: Path) -> None:
    from compaction_platform.embedded_lake.embedded import EmbeddedLake

    with EmbeddedLake(state, spark=False):
        pass
    (state / "data" / "postgres" / "PG_VERSION").write_text("9.1\n")
    refused = compaction(state, "up", "--no-spark")
    assert refused.returncode == 1
    assert "error: postgres ended by itself" in refused.stderr
    assert "incompatible" in refused.stderr, "the server's own words are shown"
    assert list((state / "processes").iterdir()) == []


def test_an_interrupted_first_start_is_begun_again(state: Path) -> None:
    """initdb was killed half way: its directory is there, the finished one is not."""
    from compaction_platform.embedded_lake.embedded import EmbeddedLake

    StateDirectory(state).credentials()  # the first thing a first start makes
    half_made = state / "data" / "postgres.initialising" / "base"
    half_made.mkdir(parents=True)
    with EmbeddedLake(state, spark=False):
        assert (state / "data" / "postgres" / "PG_VERSION").exists()
    assert not half_made.exists()
