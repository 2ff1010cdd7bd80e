"""The service on a real port, for a test, and callers of it."""

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.serve.http.app import create_app
from compaction_platform.serve.http.auth import Tokens, hash_of, new_token
from compaction_platform.serve.http.server import listening
from compaction_platform.serve.operations import Service
from compaction_platform.settings import Settings

SCHEMA = {"fields": {"id": {"type": "long", "required": True}, "word": {"type": "string"}}}


class Caller:
    """Someone with a token."""

    def __init__(self, url: str, token: str | None, tenant: str) -> None:
        self.tenant, self.namespace = tenant, "shop"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.client = httpx.Client(base_url=url, headers=headers, timeout=120)

    def send(self, operation: str, table: str | None = None, **fields: Any) -> httpx.Response:
        body = {"operation": operation, "tenant_id": self.tenant, "namespace": self.namespace, **fields}
        return self.client.post("/database", json={**body, **({"table": table} if table else {})})

    def do(self, operation: str, table: str | None = None, **fields: Any) -> dict[str, Any]:
        answer = self.send(operation, table, **fields)
        assert answer.status_code == 200, answer.text
        said: dict[str, Any] = answer.json()
        assert said["success"] is True
        return said

    def refused(
        self, status: int, code: str, operation: str, table: str | None = None, **fields: Any
    ) -> dict[str, Any]:
        answer = self.send(operation, table, **fields)
        said: dict[str, Any] = answer.json()
        assert (answer.status_code, said["success"], said["error"]["code"]) == (status, False, code), answer.text
        assert set(said) == {"success", "error"} and set(said["error"]) == {"code", "message", "details"}
        assert "Traceback" not in answer.text and said["error"]["message"]
        error: dict[str, Any] = said["error"]
        return error

    def table(self, **fields: Any) -> str:
        """A new table of this tenant."""
        name = f"t_{secrets.token_hex(4)}"
        self.do("CREATE_TABLE", name, **{"schema": SCHEMA, **fields})
        return name

    def rows(self, table: str, **fields: Any) -> list[dict[str, Any]]:
        """All pages of a query."""
        found: list[dict[str, Any]] = []
        said = self.do("QUERY", table, **{"limit": 1000, **fields})
        found += said["records"]
        while said["cursor"]:
            said = self.do("QUERY", table, **{"limit": 1000, **fields, "cursor": said["cursor"]})
            found += said["records"]
        return found


class Served:
    def __init__(self, url: str, tokens: dict[str, frozenset[str]], service: Service) -> None:
        self.url, self.tokens, self.service = url, tokens, service
        self.callers: list[Caller] = []

    def caller(self, tenant: str | None = None, *others: str) -> Caller:
        tenant = tenant or f"tenant_{secrets.token_hex(4)}"
        token = new_token()
        self.tokens[hash_of(token)] = frozenset({tenant, *others})
        self.callers.append(Caller(self.url, token, tenant))
        return self.callers[-1]


@contextmanager
def serving(settings: Settings, spark: Any = None) -> Iterator[Served]:
    """On a port of its own, until the end."""
    tokens: dict[str, frozenset[str]] = {}
    service = Service(settings, lambda: ParallelMap(spark, 2), lambda: spark)
    with listening("127.0.0.1", 0) as listener:
        config = uvicorn.Config(create_app(service, lambda: Tokens(tokens)), log_level="error", access_log=False)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        until = time.monotonic() + 30
        while not server.started and time.monotonic() < until:
            thread.join(0.02)
        served = Served(f"http://127.0.0.1:{listener.getsockname()[1]}", tokens, service)
        try:
            yield served
        finally:
            for caller in served.callers:
                caller.client.close()
            server.should_exit = True
            thread.join(60)
