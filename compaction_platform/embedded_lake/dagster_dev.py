"""Dagster's webserver and daemon as two more servers of the embedded lake, for `compaction dev`."""

import http.client
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from compaction_platform.embedded_lake.processes import Server
from compaction_platform.embedded_lake.state_dir import StateDirectory

DAEMON = "dagster-daemon"


def dagster_home(state: StateDirectory, project: Path) -> Path:
    """DAGSTER_HOME inside the state directory, with the project's dagster.yaml."""
    home = state.path / "dagster"
    home.mkdir(exist_ok=True)
    link = home / "dagster.yaml"
    link.unlink(missing_ok=True)
    link.symlink_to(project / "dagster.yaml")
    return home


def webserver(project: Path, home: Path, port: int, environment: Mapping[str, str | None]) -> Server:
    return Server(
        name="dagster-webserver",
        command=[
            *(sys.executable, "-m", "dagster_webserver", "--host", "127.0.0.1", "--port", str(port)),
            *("--workspace", str(project / "workspace.yaml")),
        ],
        environment={**environment, "DAGSTER_HOME": str(home)},
        is_ready=lambda: _answers(port),
    )


def daemon(project: Path, home: Path, records: Path, environment: Mapping[str, str | None]) -> Server:
    return Server(
        name=DAEMON,
        command=[
            sys.executable,
            "-m",
            "dagster._daemon",
            "run",
            "--workspace",
            str(project / "workspace.yaml"),
        ],
        environment={**environment, "DAGSTER_HOME": str(home)},
        is_ready=(records / f"{DAEMON}.json").exists,  # it opens no port
    )


LOAD_ERRORS = """{ workspaceOrError { ... on Workspace { locationEntries {
  locationOrLoadError { ... on PythonError { message errorChain { error { message } } } } } } } }"""


def load_error(port: int) -> str | None:
    """Why the webserver could not load this project, if it could not: it serves an empty page then."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        body = json.dumps({"query": LOAD_ERRORS})
        connection.request("POST", "/graphql", body, {"Content-Type": "application/json"})
        entries = json.loads(connection.getresponse().read())["data"]["workspaceOrError"]["locationEntries"]
    finally:
        connection.close()
    for error in (entry["locationOrLoadError"] for entry in entries):
        if "message" in error:
            return "".join([error["message"], *(link["error"]["message"] for link in error["errorChain"])])
    return None


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/server_info")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
