"""The compose file without a Docker engine: it is complete, and every service's command, run as a plain process
with the environment the file gives it, comes up healthy by the file's own health check. Then a run goes through
the webserver, the queue, the daemon and the code server, and its log lands in S3."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction_platform.embedded_lake.jars import jars_directory
from compaction_platform.embedded_lake.postgres import postgres, postgres_binaries
from compaction_platform.embedded_lake.processes import start
from compaction_platform.embedded_lake.state_dir import StateDirectory, free_ports
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.settings import settings_from
from compaction_platform_tests.running import run_job

SECRETS = {"POSTGRES_PASSWORD": "pg0secret", "S3_ACCESS_KEY_ID": "s3id0", "S3_SECRET_ACCESS_KEY": "s3secret0"}
OUR_IMAGE = "compaction-platform"


@pytest.fixture(scope="module")
def compose(project: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((project / "docker" / "compose.yaml").read_text())
    return loaded


@pytest.mark.unit
def test_every_service_is_complete(compose: dict[str, Any], project: Path) -> None:
    services = compose["services"]
    assert set(services) == {
        *("postgres", "seaweedfs", "spark-master", "spark-worker", "spark-connect"),
        *("user-code", "webserver", "daemon"),
    }
    for name, service in services.items():
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert service["command"], name
        assert set(service["networks"]) <= set(compose["networks"]), name
        assert set(service.get("depends_on", {})) <= set(services), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (project / "docker" / source).exists(), volume


@pytest.mark.unit
def test_only_the_webserver_is_published_and_only_on_loopback(compose: dict[str, Any]) -> None:
    published = {name: service["ports"] for name, service in compose["services"].items() if "ports" in service}
    assert published == {"webserver": ["127.0.0.1:3000:3000"]}
    assert compose["networks"]["lake"] == {"internal": True}


@pytest.mark.unit
def test_secrets_have_no_default_and_are_in_the_example(compose: dict[str, Any], project: Path) -> None:
    text = (project / "docker" / "compose.yaml").read_text()
    used = re.findall(r"\$\{(\w+)(:\?)?", text)
    assert {name for name, _ in used} == set(SECRETS)
    assert all(required for _, required in used)
    example = (project / "docker" / ".env.example").read_text()
    assert all(f"\n{name}=\n" in example for name in SECRETS)
    for service in compose["services"].values():
        for name, value in service.get("environment", {}).items():
            if re.search("password|secret", name, re.IGNORECASE):
                assert "${" in str(value), name


@dataclass
class PlainHost:
    """Runs compose services as plain processes: host names become 127.0.0.1, ports free ones, /data a directory."""

    compose: dict[str, Any]
    project: Path
    place: Path
    stack: ExitStack
    ports: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        text = json.dumps(self.compose["services"])
        # Every number of four or five digits in the services is a port.
        numbers = sorted(set(re.findall(r"(?<![\d.])\d{4,5}(?!\d)", text)))
        self.ports = dict(zip(numbers, map(str, free_ports(len(numbers))), strict=True))
        conf = self.place / "spark-conf"
        conf.mkdir()
        defaults = subprocess.run(
            [sys.executable, "-m", "compaction_platform.lake.spark.session"], capture_output=True, text=True, check=True
        ).stdout
        (conf / "spark-defaults.conf").write_text(defaults)
        home = self.place / "dagster"
        home.mkdir()
        for name in ("dagster.yaml", "workspace.yaml"):
            (home / name).write_text((self.project / "docker" / name).read_text())
        self.image_environment = {
            "SPARK_HOME": str(jars_directory().parent),
            "SPARK_CONF_DIR": str(conf),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "DAGSTER_HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{postgres_binaries()}:{os.environ['PATH']}",
        }

    def translated(self, text: object) -> str:
        result = re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: SECRETS[found[1]], str(text))
        for name in sorted(self.compose["services"], key=len, reverse=True):
            result = re.sub(rf"(?:(?<=^)|(?<=[@='\s])|(?<=//)){name}(?=$|[:/'\s])", "127.0.0.1", result)
        result = result.replace("0.0.0.0", "127.0.0.1")  # noqa: S104
        result = re.sub(r"(?<![\d.])\d{4,5}(?!\d)", lambda found: self.ports.get(found[0], found[0]), result)
        result = result.replace("/opt/venv/lib/python3.11/site-packages/pyspark", str(jars_directory().parent))
        result = result.replace("/opt/compaction/dagster", str(self.place / "dagster"))
        return re.sub("(?:(?<==)|(?<=^))(/data)", str(self.place) + r"\1", result)

    def environment(self, name: str) -> dict[str, str]:
        declared = self.compose["services"][name].get("environment", {})
        # CODE_SERVER_HOST and the like name a service as their whole value
        return {**os.environ, **self.image_environment, **{k: self.translated(v) for k, v in declared.items()}}

    def start(self, name: str) -> None:
        log = (self.place / f"{name}.log").open("wb")
        self.stack.callback(log.close)
        command = [self.translated(part) for part in self.compose["services"][name]["command"]]
        (self.place / "data").mkdir(exist_ok=True)
        process = subprocess.Popen(
            command,
            env=self.environment(name),
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=self.place,
            start_new_session=True,
        )
        self.stack.callback(self._stop, process)

    def _stop(self, process: "subprocess.Popen[bytes]") -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def wait_until_healthy(self, name: str, seconds: float = 90) -> None:
        check = [self.translated(part) for part in self.compose["services"][name]["healthcheck"]["test"][1:]]
        deadline = time.monotonic() + seconds
        while True:
            answer = subprocess.run(check, env=self.environment(name), capture_output=True, text=True, check=False)
            if answer.returncode == 0:
                return
            log = self.place / f"{name}.log"
            tail = log.read_text()[-2000:] if log.exists() else ""
            assert time.monotonic() < deadline, f"{name} is not healthy: {answer.stderr}\n{tail}"
            time.sleep(0.3)


@pytest.fixture
def host(compose: dict[str, Any], project: Path, tmp_path: Path) -> Iterator[PlainHost]:
    with ExitStack() as stack:
        yield PlainHost(compose, project, tmp_path, stack)


def start_postgres(host: PlainHost) -> None:
    """The official image's entry point is not ours to run: the server it would start is."""
    import psycopg

    state = StateDirectory(host.place / "postgres-state")
    ports = state.ports()
    host.ports["5432"] = str(ports.postgres)
    credentials = state.credentials()
    running = start(postgres(state.path / "pg", ports, credentials), state.records, state.logs)
    host.stack.callback(running.stop)
    host.stack.callback(running.ask_to_stop)
    running.wait_until_ready()
    url = f"postgresql://compaction:{credentials.postgres_password}@127.0.0.1:{ports.postgres}/postgres"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER USER compaction PASSWORD '{SECRETS['POSTGRES_PASSWORD']}'")
        connection.execute("CREATE DATABASE dagster")
        connection.execute((host.project / "docker" / "create-hot-database.sql").read_text())


@pytest.mark.integration
def test_all_services_come_up_healthy_and_run_the_setup_job(host: PlainHost) -> None:
    start_postgres(host)
    host.wait_until_healthy("postgres")
    for group in (
        ["seaweedfs", "spark-master"],
        ["spark-worker"],
        ["spark-connect", "user-code"],
        ["webserver", "daemon"],
    ):
        for name in group:
            host.start(name)
        for name in group:
            host.wait_until_healthy(name)
    run_id, status = run_job(f"http://127.0.0.1:{host.ports['3000']}", "setup")
    logs = "\n".join((host.place / f"{name}.log").read_text()[-3000:] for name in ("user-code", "daemon"))
    assert status == "SUCCESS", logs

    settings = settings_from(
        {name: value for name, value in host.environment("user-code").items() if name.startswith("COMPACTION_")
         and name not in ("COMPACTION_ENV_FILE", "COMPACTION_STATE_DIR")}
    )  # fmt: skip
    kept = [stored.key for stored in ObjectStore.at("s3://dagster-logs", settings).list("runs")]
    assert any(run_id in key for key in kept), "the log of the run is in S3"
    shown = "".join(path.read_text(errors="replace") for path in host.place.glob("*.log"))
    for secret in ("pg0secret", "s3secret0"):
        assert secret not in shown

    from compaction_platform.lake.spark.session import spark_session, task_slots

    with spark_session(settings) as session:
        assert session.sql("SHOW NAMESPACES IN lake").count() >= 3
        assert task_slots(session, settings) == 2
