"""Runs the real `compaction` command for tests, and talks to the Dagster it starts."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from compaction_platform.embedded_lake.processes import ProcessRecord

COMPACTION = [sys.executable, "-c", "from compaction_platform.cli import main; main()"]

LAUNCH = """mutation Launch($selector: JobOrPipelineSelector!) {
  launchRun(executionParams: {selector: $selector, runConfigData: {}}) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
STATUS = """query Status($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"""


def environment(state: Path) -> dict[str, str]:
    return {**os.environ, "COMPACTION_STATE_DIR": str(state), "COLUMNS": "300"}


def compaction(state: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMPACTION, *arguments], env=environment(state), capture_output=True, text=True, timeout=120, check=False
    )


class Command:
    """A `compaction` command that keeps running, and whose output can be awaited."""

    def __init__(self, *arguments: str, state: Path) -> None:
        self.log = state.with_name(f"{state.name}-{arguments[0]}-{time.monotonic_ns()}.log")
        self.state = state
        with self.log.open("wb") as output:
            self.popen = subprocess.Popen(
                [*COMPACTION, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(state),
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str, seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.output:
            assert self.popen.poll() is None, f"ended with {self.popen.returncode}: {self.output}"
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)

    def servers(self) -> list[psutil.Process]:
        records = [ProcessRecord.read(path) for path in (self.state / "processes").glob("*.json")]
        processes = [record.process() for record in records if record]
        return [process for process in processes if process]

    def everything(self) -> list[psutil.Process]:
        """The servers and all processes they have started."""
        return [each for server in self.servers() for each in (server, *server.children(recursive=True))]

    def server(self, name: str) -> psutil.Process:
        record = ProcessRecord.read(self.state / "processes" / f"{name}.json")
        process = record.process() if record else None
        assert process is not None
        return process


def assert_all_gone(processes: list[psutil.Process]) -> None:
    assert processes, "there was nothing to look at"
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert alive == []


def graphql(url: str, query: str, **variables: Any) -> Any:
    body = json.dumps({"query": query, "variables": variables}).encode()
    request = urllib.request.Request(f"{url}/graphql", body, {"Content-Type": "application/json"})  # noqa: S310 (loopback)
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        content = json.loads(answer.read())
    assert "errors" not in content, content
    return content["data"]


def run_job(url: str, name: str) -> tuple[str, str]:
    """Launch a job through the webserver and wait for its end: run id and status."""
    selector = {
        "repositoryLocationName": "compaction_platform",
        "repositoryName": "__repository__",
        "pipelineName": name,
    }
    launched = graphql(url, LAUNCH, selector=selector)["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    run_id = launched["run"]["runId"]
    deadline = time.monotonic() + 120
    while (status := graphql(url, STATUS, id=run_id)["runOrError"]["status"]) not in ("SUCCESS", "FAILURE"):
        assert time.monotonic() < deadline, status
        time.sleep(0.5)
    return run_id, status
