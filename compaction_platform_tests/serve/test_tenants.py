"""Who may enter, and that nobody gets at another's tables, whatever is tried."""

import base64
import json
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from compaction_platform.cli import app
from compaction_platform.serve.http.auth import (
    ALL,
    Tokens,
    TokensUnreadable,
    add_token,
    catalog_namespace,
    hash_of,
    new_token,
    require_tenant,
)
from compaction_platform.serve.http.errors import Forbidden, TooManyRequests, Unauthenticated
from compaction_platform.serve.http.limits import RateLimit
from compaction_platform.serve.http.telemetry import Metrics
from compaction_platform.settings import Settings
from compaction_platform_tests.metrics_receiver import Receiver
from compaction_platform_tests.serve.served import Caller, Served, serving

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)


@pytest.mark.unit
@given(names, names, names, names)
def test_different_pairs_are_different_namespaces(one: str, two: str, three: str, four: str) -> None:
    assert (catalog_namespace(one, two) == catalog_namespace(three, four)) == ((one, two) == (three, four))


@pytest.mark.unit
def test_underscores_do_not_confuse_tenants() -> None:
    parts = ["a", "b", "a_b", "b_c", "a_b_c", "c", "t1_a", "_"]
    found = [catalog_namespace(tenant, namespace) for tenant, namespace in product(parts, parts)]
    assert len(set(found)) == len(found)


@pytest.mark.unit
def test_a_token_is_kept_as_a_hash_and_belongs_to_its_tenants(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "tokens.json"
    one, two = add_token(file, ["acme"]), add_token(file, ["acme", "other"])
    assert one not in file.read_text() and two not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    tokens = Tokens.read(file)
    assert tokens.tenants_of(f"Bearer {one}") == {"acme"}
    assert tokens.tenants_of(f"bearer {two}") == {"acme", "other"}
    for wrong in (None, "", "Bearer", "Bearer ", f"Basic {one}", f"Bearer {one}x", f"Bearer {one[:-1]}", one):
        with pytest.raises(Unauthenticated):
            tokens.tenants_of(wrong)
    with pytest.raises(Forbidden):
        require_tenant(frozenset({"acme"}), "acme2")
    require_tenant(frozenset({ALL}), "anyone")
    assert Tokens.read(tmp_path / "missing").tenants == {}
    file.write_text("{")
    with pytest.raises(TokensUnreadable):
        Tokens.read(file)


@pytest.mark.unit
def test_an_allowance_fills_up_again() -> None:
    now = [0.0]
    allowance = RateLimit(60, lambda: now[0])
    for _ in range(60):
        allowance.take("acme")
    with pytest.raises(TooManyRequests) as refused:
        allowance.take("acme")
    assert refused.value.details["retry_after_seconds"] == 1.0
    allowance.take("other")
    now[0] += 1.0
    allowance.take("acme")
    with pytest.raises(TooManyRequests):
        allowance.take("acme")


@pytest.mark.unit
def test_the_command_makes_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPACTION_SERVE_TOKENS_FILE", str(tmp_path / "tokens.json"))
    made = CliRunner().invoke(app, ["serve-token", "--tenant", "acme", "--tenant", "other"])
    assert made.exit_code == 0
    assert Tokens.read(tmp_path / "tokens.json").tenants_of(f"Bearer {made.output.strip()}") == {"acme", "other"}


# ---------------------------------------------------------------- through HTTP


@pytest.mark.integration
def test_without_a_token_there_is_no_entry(served: Served) -> None:
    for header in ({}, {"Authorization": f"Bearer {new_token()}"}, {"Authorization": "Basic YTpi"}):
        answer = httpx.post(f"{served.url}/database", json={"operation": "LIST_TABLES"}, headers=header)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "UNAUTHENTICATED")
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("operation", "fields"),
    [
        ("LIST_TABLES", {}),
        ("DESCRIBE_TABLE", {"table": "secret"}),
        ("QUERY", {"table": "secret"}),
        ("WRITE", {"table": "secret", "records": [{"id": 1}]}),
        ("COMPACT", {"table": "secret", "force": True}),
        ("DROP_TABLE", {"table": "secret"}),
        ("RESTORE_TABLE", {"table": "secret"}),
        ("CREATE_TABLE", {"table": "secret", "schema": {"fields": {"id": {"type": "long"}}}}),
    ],
)
def test_a_token_opens_no_other_tenants_door(served: Served, operation: str, fields: dict[str, Any]) -> None:
    owner, thief = served.caller(), served.caller()
    owner.do("CREATE_TABLE", "secret", schema={"fields": {"id": {"type": "long"}}})
    owner.do("WRITE", "secret", records=[{"id": 42}])
    thief.tenant = owner.tenant
    thief.refused(403, "FORBIDDEN", operation, **fields)
    assert owner.rows("secret") == [{"id": 42}]


@pytest.mark.integration
def test_neighbouring_names_lead_nowhere(served: Served) -> None:
    """Tenant a with namespace b_c is not tenant a_b with namespace c."""
    one, two = served.caller("n_a"), served.caller("n_a_b")
    one.namespace, two.namespace = "b_c", "c"
    one.do("CREATE_TABLE", "t", schema={"fields": {"id": {"type": "long"}}}, if_not_exists=True)
    one.do("WRITE", "t", records=[{"id": 1}])
    assert two.do("LIST_TABLES")["tables"] == []
    two.refused(404, "TABLE_NOT_FOUND", "QUERY", "t")


HOSTILE = [
    "",
    "A",
    "a.b",
    "a/b",
    "../b",
    "a b",
    "a;b",
    "a'b",
    'a"b',
    "a`b",
    "1a",
    "_a",
    "é",
    "a" * 64,
    "a\x00",
    "0dropped_1_t",
]


@pytest.mark.integration
@pytest.mark.parametrize("field", ["tenant_id", "namespace", "table"])
def test_hostile_names_are_refused(served: Served, field: str) -> None:
    caller = served.caller()
    for name in HOSTILE:
        body = {"operation": "QUERY", "tenant_id": caller.tenant, "namespace": "shop", "table": "t", field: name}
        answer = caller.client.post("/database", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST"), name


@pytest.mark.integration
def test_cursors_of_others_and_forged_ones_are_refused(served: Served) -> None:
    owner, other = served.caller(), served.caller()
    for caller in (owner, other):
        caller.do("CREATE_TABLE", "t", schema={"fields": {"id": {"type": "long"}}})
        caller.do("WRITE", "t", records=[{"id": number} for number in range(5)])
    cursor = owner.do("QUERY", "t", limit=2)["cursor"]
    other.refused(400, "INVALID_CURSOR", "QUERY", "t", limit=2, cursor=cursor)
    owner.refused(400, "INVALID_CURSOR", "QUERY", "t", limit=3, cursor=cursor)
    theirs = other.do("QUERY", "t", limit=2)
    said = json.loads(base64.urlsafe_b64decode(theirs["cursor"]))
    said[1] = owner.do("DESCRIBE_TABLE", "t")["snapshot"]  # another table's state
    forged = base64.urlsafe_b64encode(json.dumps(said).encode()).decode()
    other.refused(400, "INVALID_REQUEST", "QUERY", "t", limit=2, cursor=forged)
    for part, value in product((1, 2, 3), (-1, 2**70, "x", None, 1.5, [1])):
        wrong = [*said]
        wrong[part] = value
        forged = base64.urlsafe_b64encode(json.dumps(wrong).encode()).decode()
        assert other.send("QUERY", "t", limit=2, cursor=forged).status_code == 400


@pytest.mark.integration
def test_limits_are_told_plainly(settings: Settings) -> None:
    tight = settings.model_copy(
        update={
            "serve_max_request_mb": 1,
            "serve_max_records": 10,
            "serve_requests_per_minute": 60,
            "serve_max_rows": 5,
        }
    )
    with serving(tight) as served:
        caller = served.caller()
        caller.do("CREATE_TABLE", "t", schema={"fields": {"id": {"type": "long"}, "word": {"type": "string"}}})
        caller.refused(413, "REQUEST_TOO_LARGE", "WRITE", "t", records=[{"id": 1, "word": "x" * (1 << 20)}])
        caller.refused(413, "REQUEST_TOO_LARGE", "WRITE", "t", records=[{"id": 1}] * 11)
        caller.refused(400, "INVALID_REQUEST", "QUERY", "t", limit=6)

        def endless() -> Any:
            for _ in range(64):
                yield b" " * (1 << 15)

        headers = {"content-type": "application/json"}
        answer = caller.client.post("/database", content=endless(), headers=headers)  # it does not say how large it is
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "REQUEST_TOO_LARGE")
        said = [caller.send("LIST_TABLES") for _ in range(80)]
        refused = [answer for answer in said if answer.status_code == 429]
        assert refused and refused[0].json()["error"]["code"] == "TOO_MANY_REQUESTS"
        assert int(refused[0].headers["retry-after"]) >= 1
        assert served.caller().send("LIST_TABLES").status_code == 200  # another tenant


@pytest.mark.integration
def test_a_query_that_takes_too_long_ends(settings: Settings) -> None:
    with serving(settings.model_copy(update={"serve_query_seconds": 1e-9})) as served:
        caller = served.caller()
        table = caller.table()
        caller.do("WRITE", table, records=[{"id": 1}])
        caller.refused(504, "QUERY_TIMEOUT", "QUERY", table)


@pytest.mark.integration
def test_a_lake_that_does_not_answer_is_told(settings: Settings) -> None:
    nowhere = settings.model_copy(update={"catalog_uri": "http://127.0.0.1:9"})
    with serving(nowhere) as served:
        caller = served.caller()
        assert "LAKE_UNAVAILABLE" in caller.send("QUERY", "t").text
        assert httpx.get(f"{served.url}/health").status_code == 503


@pytest.mark.integration
def test_requests_have_ids_and_tokens_are_never_logged(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caller: Caller = served.caller()
    token = caller.client.headers["authorization"].removeprefix("Bearer ")
    with caplog.at_level("INFO", logger="compaction_platform.serve"):
        answer = caller.client.post("/database", json={"operation": "x"}, headers={"x-request-id": "mine-1"})
        odd = caller.client.post("/database", json={"operation": "x"}, headers={"x-request-id": 'a"b c'})
    assert answer.headers["x-request-id"] == "mine-1" and odd.headers["x-request-id"] != 'a"b c'
    fields = [getattr(record, "fields", {}) for record in caplog.records]
    assert any(each.get("request_id") == "mine-1" and each["status"] == "400" for each in fields)
    assert token not in caplog.text and hash_of(token) not in caplog.text
    assert not any(token in json.dumps(each, default=str) for each in fields)


@pytest.mark.unit
def test_requests_are_counted_where_otel_variables_say(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = Metrics()
    quiet.count(0.5, {"operation": "WRITE", "status": "200"})
    quiet.close()
    assert receiver.received == []
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.address)
    metrics = Metrics()
    for status in ("200", "200", "400"):
        metrics.count(0.5, {"operation": "WRITE", "status": status})
    metrics.close()
    (resource,) = receiver.received[-1].resource_metrics
    found = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    counts = {
        next(each.value.string_value for each in point.attributes if each.key == "status"): point.as_int
        for point in found["serve.requests"].sum.data_points
    }
    assert counts == {"200": 2, "400": 1}
    assert sum(point.sum for point in found["serve.duration"].histogram.data_points) == 1.5
