"""Writes per second of the service with 1, 8 and 32 callers, against one commit for each write; queries before and
after compaction; two minutes of everything at once. The load comes from Locust on the same two cores.

compaction bench serve
"""

import contextlib
import csv
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from _report import show

from compaction_platform.embedded_lake.embedded import EmbeddedLake
from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.serve.http.auth import add_token, catalog_namespace
from compaction_platform.settings import Settings

SECONDS = 20
SOAK_SECONDS = 120
TENANT = "bench"
ONE_BY_ONE = "from compaction_platform.serve import writes; writes.MOST_ROWS = 0; "
START = (
    "import sys; sys.argv = ['compaction', 'serve', '--port', '0']; from compaction_platform.cli import main; main()"
)


@contextlib.contextmanager
def service(environment: dict[str, str], *, grouped: bool = True) -> Iterator[str]:
    """A process of its own; its address."""
    script = ("" if grouped else ONE_BY_ONE) + START
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        ) as running,
    ):
        assert running.stdout is not None
        address = running.stdout.readline().split()[2]
        drain = threading.Thread(target=lambda: [None for _ in running.stdout or ()], daemon=True)
        drain.start()
        try:
            yield address
        finally:
            running.terminate()
            running.wait(90)


class Caller:
    def __init__(self, address: str, token: str) -> None:
        self.client = httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=300)
        self.address, self.token = address, token

    def do(self, operation: str, table: str, **fields: Any) -> dict[str, Any]:
        body = {"operation": operation, "tenant_id": TENANT, "namespace": "bench", "table": table, **fields}
        answer = self.client.post("/database", json=body)
        assert answer.status_code == 200, answer.text
        said: dict[str, Any] = answer.json()
        return said

    def table(self) -> str:
        name = f"t_{secrets.token_hex(4)}"
        self.do("CREATE_TABLE", name, schema={"fields": {"id": {"type": "long"}, "word": {"type": "string"}}})
        return name

    def load(self, table: str, users: int, seconds: int, *, reads: bool = False) -> dict[str, dict[str, str]]:
        """What Locust counted, by operation."""
        with tempfile.TemporaryDirectory() as place:
            command = [str(Path(sys.executable).with_name("locust")), "-f", "bench/_serve_load.py", "--headless"]
            command += ["-u", str(users), "-r", str(users), "-t", f"{seconds}s", "--host", self.address]
            command += ["--csv", f"{place}/found", "--only-summary", "--loglevel", "ERROR", "--stop-timeout", "30"]
            told = {"BENCH_TENANT": TENANT, "BENCH_TABLE": table, "BENCH_TOKEN": self.token}
            environment = {**os.environ, **told, "BENCH_READS": "yes" if reads else "no"}
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            with Path(f"{place}/found_stats.csv").open() as file:
                return {row["Name"]: row for row in csv.DictReader(file)}


def rows_there(settings: Settings, table: str) -> int:
    loaded = open_catalog(settings).load_table((catalog_namespace(TENANT, "bench"), table))
    return loaded.scan(selected_fields=("id",)).to_arrow().num_rows


def writes(caller: Caller, settings: Settings, what: str, users: int) -> tuple[list[str], float]:
    table = caller.table()
    found = caller.load(table, users, SECONDS)["WRITE"]
    there, acknowledged = rows_there(settings, table), 10 * (int(found["Request Count"]) - int(found["Failure Count"]))
    assert there >= acknowledged, f"{there} rows are there, {acknowledged} were acknowledged"
    speed = float(found["Requests/s"])
    commits = caller.do("DESCRIBE_TABLE", table)["files"]
    return [
        what,
        str(users),
        f"{speed:.1f}",
        found["50%"],
        found["95%"],
        found["99%"],
        f"{int(found['Request Count']) / max(1, commits):.1f}",
        found["Failure Count"],
    ], speed


def query_milliseconds(caller: Caller, table: str) -> str:
    took = []
    for _ in range(15):
        start = time.perf_counter()
        caller.do("QUERY", table, filters=[{"field": "id", "op": "<", "value": 2**52}], limit=100)
        took.append((time.perf_counter() - start) * 1000)
    return f"{statistics.median(took):.0f} ({min(took):.0f} to {max(took):.0f})"


def main() -> None:
    with tempfile.TemporaryDirectory() as place, EmbeddedLake(Path(place)) as lake:
        tokens = Path(place) / "tokens.json"
        token = add_token(tokens, [TENANT])
        environment = lake.isolated_environment(os.environ) | {
            "COMPACTION_SERVE_TOKENS_FILE": str(tokens),
            "COMPACTION_SERVE_REQUESTS_PER_MINUTE": "1000000",
        }
        settings = lake.settings()
        rows = []
        with service(environment) as address:
            caller = Caller(address, token)
            for users in (1, 8, 32):
                row, speed = writes(caller, settings, "shared commits", users)
                rows.append(row)
            with service(environment, grouped=False) as other:
                row, alone = writes(Caller(other, token), settings, "one commit for each write", 32)
                rows.append(row)
            heads = ["", "callers", "writes/s", "median ms", "95 % ms", "99 % ms", "writes/commit", "errors"]
            show(f"writes of 10 records, {SECONDS} s each", heads, rows)
            show("at 32 callers", ["shared / one for each"], [[f"{speed / alone:.1f}"]])

            table = caller.table()
            caller.load(table, 8, SECONDS)
            files = caller.do("DESCRIBE_TABLE", table)["files"]
            before = query_milliseconds(caller, table)
            stats = caller.do("COMPACT", table, force=True, max_files=10_000)["stats"]
            after = query_milliseconds(caller, table)
            show(
                "a filtered query, median of 15 (least to most), ms",
                ["files", "before", "files", "after", "compaction ms"],
                [[str(files), before, str(stats["files_after"]), after, str(stats["compaction_time_ms"])]],
            )
            soak(caller, settings)


def soak(caller: Caller, settings: Settings) -> None:
    table = caller.table()
    stop = threading.Event()
    compactions: list[int] = []

    def compact() -> None:
        own = Caller(caller.address, caller.token)
        while not stop.wait(10):
            own.do("COMPACT", table, force=True, max_files=10_000)
            compactions.append(1)

    beside = threading.Thread(target=compact)
    beside.start()
    found = caller.load(table, 32, SOAK_SECONDS, reads=True)
    stop.set()
    beside.join()
    written = int(found["WRITE"]["Request Count"]) - int(found["WRITE"]["Failure Count"])
    rows = [
        [
            name,
            found[name]["Request Count"],
            found[name]["Failure Count"],
            found[name]["50%"],
            found[name]["95%"],
            found[name]["99%"],
        ]
        for name in ("WRITE", "QUERY")
    ]
    show(
        f"{SOAK_SECONDS} s of 32 callers that write and read, {len(compactions)} compactions beside them",
        ["", "requests", "errors", "median ms", "95 % ms", "99 % ms"],
        rows,
    )
    there = rows_there(settings, table)
    show("afterwards", ["rows acknowledged", "rows there"], [[f"{written * 10:,}", f"{there:,}"]])
    assert there >= written * 10


if __name__ == "__main__":
    main()
