"""Many callers at once, processes that die, and the other ways in: whatever was acknowledged is there, once."""

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from schemathesis.generation import GenerationMode

from compaction_platform.lake.iceberg import replace_files
from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.serve.http import app as serve_app
from compaction_platform.serve.http.auth import add_token
from compaction_platform.serve.tables import table_writer
from compaction_platform.settings import Settings
from compaction_platform_tests.serve.served import Caller, Served, serving

pytestmark = pytest.mark.integration

WRITERS = 32
WRITES = 8


def test_writers_a_compaction_and_queries_at_once_lose_and_double_nothing(served: Served) -> None:
    caller = served.caller()
    table = caller.table()
    stop = threading.Event()
    problems: list[str] = []

    def write(number: int) -> None:
        own = Caller(served.url, caller.client.headers["authorization"].removeprefix("Bearer "), caller.tenant)
        try:
            for turn in range(WRITES):
                own.do("WRITE", table, records=[{"id": number * 1000 + turn * 10 + each} for each in range(3)])
        finally:
            own.client.close()

    def until_stopped(work: Any) -> None:
        own = Caller(served.url, caller.client.headers["authorization"].removeprefix("Bearer "), caller.tenant)
        try:
            while not stop.is_set():
                work(own)
        except AssertionError as error:
            problems.append(str(error)[:500])
        finally:
            own.client.close()

    def look(own: Caller) -> None:
        found = Counter(row["id"] for row in own.rows(table))
        assert not [key for key, count in found.items() if count > 1]

    others = [
        threading.Thread(target=until_stopped, args=(look,)),
        threading.Thread(target=until_stopped, args=(lambda own: own.do("COMPACT", table, force=True),)),
    ]
    for each in others:
        each.start()
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    stop.set()
    for each in others:
        each.join(120)
    assert problems == []
    expected = sorted(n * 1000 + t * 10 + e for n in range(WRITERS) for t in range(WRITES) for e in range(3))
    assert sorted(row["id"] for row in caller.rows(table)) == expected


def test_writes_at_the_same_time_share_commits(served: Served, settings: Settings) -> None:
    caller = served.caller()
    table = caller.table()
    with ThreadPoolExecutor(16) as pool:
        said = list(pool.map(lambda number: caller.do("WRITE", table, records=[{"id": number}]), range(64)))
    assert all(each["records_written"] == 1 for each in said)
    snapshots = {each["snapshot"] for each in said}
    assert len(snapshots) <= 32
    described = caller.do("DESCRIBE_TABLE", table)
    assert described["records"] == 64 and described["files"] == len(snapshots)
    # The answer names the state in which the records are first seen.
    name = f"t{len(caller.tenant)}_{caller.tenant}_shop.{table}"
    loaded = open_catalog(settings).load_table(name)
    first = said[0]["snapshot"]
    assert 0 in loaded.scan(snapshot_id=first).to_arrow()["id"].to_pylist()


def test_two_services_on_one_table_lose_nothing(served: Served, settings: Settings) -> None:
    caller = served.caller()
    table = caller.table()
    with serving(settings) as another:
        other = another.caller(caller.tenant)
        with ThreadPoolExecutor(8) as pool:
            list(
                pool.map(
                    lambda number: (caller if number % 2 else other).do("WRITE", table, records=[{"id": number}]),
                    range(40),
                )
            )
    assert sorted(row["id"] for row in caller.rows(table)) == list(range(40))


def test_one_bad_write_does_not_spoil_those_it_came_with(served: Served) -> None:
    """A moment that cannot be a partition is found when the file is written, together with others."""
    caller = served.caller()
    schema = {"fields": {"id": {"type": "long"}, "at": {"type": "timestamptz"}}}
    table = caller.table(schema=schema, partition_by=["day(at)"])
    ready = threading.Barrier(8)

    def write(number: int) -> int:
        ready.wait(30)
        moment = "2026-01-01T00:00:00Z" if number else "0001-01-01T00:00:00Z"
        return caller.send("WRITE", table, records=[{"id": number, "at": moment}]).status_code

    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(write, range(8)))
    assert said[1:] == [200] * 7 and said[0] in (200, 400)
    assert sorted(row["id"] for row in caller.rows(table))[-7:] == list(range(1, 8))


def test_a_commit_whose_answer_is_lost_is_not_written_twice(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = served.caller()
    table = caller.table()
    caller.do("WRITE", table, records=[{"id": 0}])
    happened: list[str] = []
    real = replace_files.commit

    def lost(*arguments: Any) -> None:
        real(*arguments)
        if not happened:
            happened.append("applied")
            raise ConnectionError("the answer is lost")

    monkeypatch.setattr(replace_files, "commit", lost)
    caller.do("WRITE", table, records=[{"id": 1}], request_id="once")
    assert happened
    assert caller.do("WRITE", table, records=[{"id": 1}], request_id="once")["repeated"] is True
    assert sorted(row["id"] for row in caller.rows(table)) == [0, 1]


def test_a_commit_of_which_nothing_is_known_is_told_and_can_be_sent_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = served.caller()
    table = caller.table()
    happened: list[str] = []
    real = table_writer.commit_change

    def unknown(*arguments: Any) -> Any:
        made = real(*arguments)
        if not happened:
            happened.append("applied")
            raise replace_files.CommitUnknown("by the test")
        return made

    monkeypatch.setattr(table_writer, "commit_change", unknown)
    caller.refused(503, "WRITE_UNKNOWN", "WRITE", table, records=[{"id": 1}], request_id="once")
    assert caller.do("WRITE", table, records=[{"id": 1}], request_id="once")["repeated"] is True
    assert [row["id"] for row in caller.rows(table)] == [1]


def test_files_of_a_commit_that_may_have_been_taken_are_never_deleted(
    served: Served, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is applied, its answer is lost, and then the catalog cannot be asked."""
    caller = served.caller()
    table = caller.table()
    caller.do("WRITE", table, records=[{"id": 0}])
    happened: list[str] = []
    real = replace_files.commit

    def lost(*arguments: Any) -> None:
        real(*arguments)
        happened.append("applied")
        raise ConnectionError("the answer is lost")

    with monkeypatch.context() as patched:
        patched.setattr(replace_files, "commit", lost)
        patched.setattr(replace_files, "_is_published", lambda table, snapshot: None)
        caller.refused(503, "WRITE_UNKNOWN", "WRITE", table, records=[{"id": 1}], request_id="once")
    assert happened
    assert sorted(row["id"] for row in caller.rows(table)) == [0, 1]
    assert caller.do("WRITE", table, records=[{"id": 1}], request_id="once")["repeated"] is True


def test_a_repeated_request_to_a_table_that_was_made_again_is_written(served: Served, settings: Settings) -> None:
    caller = served.caller()
    table = caller.table()
    caller.do("WRITE", table, records=[{"id": 1}], request_id="once")
    with serving(settings) as another:  # another process drops it, and makes it again
        other = another.caller(caller.tenant)
        other.do("DROP_TABLE", table)
        caller.refused(404, "TABLE_NOT_FOUND", "WRITE", table, records=[{"id": 1}], request_id="once")
        other.do("CREATE_TABLE", table, schema={"fields": {"id": {"type": "long"}}})
        assert caller.do("WRITE", table, records=[{"id": 1}], request_id="once")["repeated"] is False
    assert caller.rows(table) == [{"id": 1}]


def test_a_repeated_request_that_was_rolled_back_is_written_again(
    served: Served, settings: Settings, spark: Any
) -> None:
    caller = served.caller()
    table = caller.table()
    before = caller.do("WRITE", table, records=[{"id": 0}])["snapshot"]
    caller.do("WRITE", table, records=[{"id": 1}], request_id="once")
    name = f"t{len(caller.tenant)}_{caller.tenant}_shop.{table}"
    spark.sql(f"CALL lake.system.rollback_to_snapshot('{name}', {before})").collect()
    assert caller.do("WRITE", table, records=[{"id": 1}], request_id="once")["repeated"] is False
    assert sorted(row["id"] for row in caller.rows(table)) == [0, 1]


def test_a_write_that_cannot_be_stored_fails_alone(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = served.caller()
    table = caller.table()
    real = table_writer.DataFileWriter.write
    refused: list[int] = []

    def picky(self: Any, rows: Any) -> Any:
        if 3 in rows["id"].to_pylist():
            refused.append(rows.num_rows)
            raise table_writer.StoreRefused("by the test")
        return real(self, rows)

    monkeypatch.setattr(table_writer.DataFileWriter, "write", picky)
    ready = threading.Barrier(8)

    def write(number: int) -> int:
        ready.wait(30)
        return caller.send("WRITE", table, records=[{"id": number}]).status_code

    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(write, range(8)))
    assert refused and said == [200, 200, 200, 503, 200, 200, 200, 200]
    assert sorted(row["id"] for row in caller.rows(table)) == [0, 1, 2, 4, 5, 6, 7]


def test_one_table_that_hangs_does_not_stop_the_others(served: Served) -> None:
    caller, other = served.caller(), served.caller()
    table, free = caller.table(), other.table()
    caller.do("WRITE", table, records=[{"id": 0}])
    (writer,) = [each for where, each in served.service.writes._writers.items() if where.name == table]
    with ThreadPoolExecutor(80) as pool, writer._turn:
        waiting = [pool.submit(caller.send, "WRITE", table, records=[{"id": number}]) for number in range(1, 81)]
        assert other.do("WRITE", free, records=[{"id": 1}])["records_written"] == 1
        assert httpx.get(f"{served.url}/health", timeout=30).status_code == 200
        writer._turn.release()
        codes = [each.result().status_code for each in waiting]
        writer._turn.acquire()
    assert set(codes) <= {200, 429}
    assert len(caller.rows(table)) == 1 + codes.count(200)


def test_advice_is_given_at_every_nth_write_however_they_are_grouped(served: Served) -> None:
    caller = served.caller()
    table = caller.table()
    with ThreadPoolExecutor(7) as pool:
        said = list(pool.map(lambda number: caller.do("WRITE", table, records=[{"id": number}]), range(35)))
    assert sum(each["small_files_count"] is not None for each in said) == 7


def test_a_flood_of_nonsense_is_refused_quickly(served: Served) -> None:
    caller = served.caller()
    body = json.dumps(
        {"operation": "WRITE", "tenant_id": caller.tenant, "namespace": "shop", "table": "t", "records": [1] * 500_000}
    )
    answer = caller.client.post("/database", content=body)
    assert answer.status_code == 400 and len(answer.content) < 10_000


def test_two_drops_within_a_second_are_two(served: Served) -> None:
    caller = served.caller()
    table = caller.table()
    for turn in range(3):
        if turn:
            caller.do("CREATE_TABLE", table, schema={"fields": {"id": {"type": "long"}}})
        caller.do("DROP_TABLE", table)
    caller.do("RESTORE_TABLE", table)
    assert caller.do("LIST_TABLES")["tables"] == [table]


# ---------------------------------------------------------------- death


@pytest.fixture
def process(lake_environment: dict[str, str], tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """`compaction serve` as people start it: the process, its address, a token."""
    tokens = tmp_path / "tokens.json"
    token = add_token(tokens, ["acme"])
    environment = {**os.environ, **lake_environment, "COMPACTION_SERVE_TOKENS_FILE": str(tokens)}
    command = [str(Path(sys.executable).with_name("compaction")), "serve", "--port", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        line = running.stdout.readline()
        yield running, line.split()[2], token
        running.kill()


def test_kill_loses_nothing_that_was_acknowledged(
    served: Served, process: tuple[subprocess.Popen[str], str, str]
) -> None:
    running, url, token = process
    survivor = served.caller("acme")
    table = survivor.table()
    acknowledged: list[int] = []
    sent: list[int] = []

    def write(worker: int) -> None:
        own = Caller(url, token, "acme")
        try:
            for number in range(200):
                sent.append(worker * 1000 + number)
                if own.send("WRITE", table, records=[{"id": sent[-1]}]).status_code == 200:
                    acknowledged.append(worker * 1000 + number)
                if len(acknowledged) > 40:
                    running.send_signal(signal.SIGKILL)
        except httpx.HTTPError:
            return  # it is dead
        finally:
            own.client.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert running.wait(30) == -signal.SIGKILL
    found = Counter(row["id"] for row in survivor.rows(table))
    assert set(acknowledged) <= set(found) and len(acknowledged) > 40
    assert max(found.values()) == 1 and set(found) <= {w * 1000 + n for w in range(4) for n in range(200)}


def test_sigterm_finishes_what_was_accepted(process: tuple[subprocess.Popen[str], str, str]) -> None:
    running, url, token = process
    caller = Caller(url, token, "acme")
    table = caller.table()
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(caller.send, "WRITE", table, records=[{"id": number}]) for number in range(8)]
        while not any(each.done() for each in answers):
            threading.Event().wait(0.005)
        running.send_signal(signal.SIGTERM)
        codes = []
        for each in answers:
            try:
                codes.append(each.result().status_code)
            except httpx.HTTPError:
                codes.append(0)  # it was not accepted any more
    caller.client.close()
    assert running.wait(60) in (0, -signal.SIGTERM)
    assert running.stdout is not None
    lines = [json.loads(line) for line in running.stdout.read().splitlines() if line.startswith("{")]
    writes_told = [line for line in lines if line.get("operation") == "WRITE"]
    assert codes.count(200) == len([line for line in writes_told if line["status"] == "200"]) >= 1
    assert {code for code in codes if code} == {200}


# ---------------------------------------------------------------- other ways in


def test_the_same_application_on_lambda(
    served: Served, lake_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tmp_path / "tokens.json"
    token = add_token(tokens, ["acme"])
    monkeypatch.setenv("COMPACTION_SERVE_TOKENS_FILE", str(tokens))
    serve_app._on_lambda.cache_clear()
    caller = served.caller("acme")
    table = caller.table()
    caller.do("WRITE", table, records=[{"id": 5}])

    def event(body: dict[str, Any], authorization: str | None) -> dict[str, Any]:
        """As API Gateway sends them."""
        headers = {"content-type": "application/json", **({"authorization": authorization} if authorization else {})}
        return {
            "resource": "/database",
            "path": "/database",
            "httpMethod": "POST",
            "headers": headers,
            "multiValueHeaders": {name: [value] for name, value in headers.items()},
            "queryStringParameters": None,
            "multiValueQueryStringParameters": None,
            "pathParameters": None,
            "stageVariables": None,
            "requestContext": {"httpMethod": "POST", "path": "/database", "identity": {"sourceIp": "127.0.0.1"}},
            "body": base64.b64encode(json.dumps(body).encode()).decode(),
            "isBase64Encoded": True,
        }

    query = {"operation": "QUERY", "tenant_id": "acme", "namespace": "shop", "table": table}
    answer = serve_app.lambda_handler(event(query, f"Bearer {token}"), None)
    assert answer["statusCode"] == 200 and json.loads(answer["body"])["records"] == [{"id": 5, "word": None}]
    assert serve_app.lambda_handler(event(query, None), None)["statusCode"] == 401
    serve_app._on_lambda.cache_clear()


@pytest.mark.filterwarnings("ignore")  # schemathesis and what it brings along have some of their own
def test_whatever_the_documentation_allows_gets_an_answer_of_its_shape(served: Served) -> None:
    """Requests made up from the OpenAPI document, valid and not: every answer is one of those it promises."""
    caller = served.caller("acme")
    headers = {"Authorization": caller.client.headers["authorization"]}
    document = httpx.get(f"{served.url}/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.base_url = served.url
    schema.config.generation.modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
    from hypothesis import HealthCheck, given, settings

    operation = schema["/database"]["POST"]

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(case=operation.as_strategy())
    def every(case: Any) -> None:
        response = case.call(headers=headers)
        assert response.status_code < 500, response.text
        said = response.json()
        assert said["success"] is (response.status_code == 200)
        if response.status_code != 200:
            assert set(said["error"]) == {"code", "message", "details"}

    every()
