"""The HTTP face: FastAPI. One endpoint for all operations, one shape for all errors, never a stack trace."""

import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException

from compaction_platform.errors import CompactionError
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.lake.storage.sizes import MB
from compaction_platform.serve.http import models
from compaction_platform.serve.http.auth import Tokens, require_tenant
from compaction_platform.serve.http.errors import (
    InvalidRequest,
    LakeUnavailable,
    Problem,
    TooManyRequests,
    Unauthenticated,
)
from compaction_platform.serve.http.limits import ConcurrencyLimit, RateLimit, require_size, too_large
from compaction_platform.serve.http.telemetry import Metrics, log, log_to_stdout
from compaction_platform.serve.operations import Service
from compaction_platform.settings import Settings, load_settings

REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
THREADS = 128  # requests that are worked on at once; writers wait for each other's commits
COMPACTIONS = 4
REQUEST: TypeAdapter[Any] = TypeAdapter(models.Request)
SHOWN = 20
_SHOP = {"tenant_id": "acme", "namespace": "shop"}
_ORDERS = {**_SHOP, "table": "orders"}
EXAMPLES: list[dict[str, Any]] = [
    {
        "operation": "CREATE_TABLE",
        **_ORDERS,
        "schema": {
            "fields": {
                "id": {"type": "long", "required": True},
                "at": {"type": "timestamptz"},
                "price": {"type": "decimal(10, 2)"},
            }
        },
        "partition_by": ["day(at)"],
        "if_not_exists": True,
    },
    {
        "operation": "WRITE",
        **_ORDERS,
        "records": [{"id": 1, "at": "2026-05-01T10:00:00+02:00", "price": "12.50"}],
        "request_id": "order-1",
    },
    {
        "operation": "QUERY",
        **_ORDERS,
        "columns": ["id", "price"],
        "filters": [{"field": "price", "op": ">=", "value": "10"}],
        "order_by": [{"field": "at", "descending": True}],
        "limit": 100,
    },
    {"operation": "COMPACT", **_ORDERS, "force": True},
    {"operation": "LIST_TABLES", **_SHOP},
    {"operation": "DESCRIBE_TABLE", **_ORDERS},
    {"operation": "DROP_TABLE", **_ORDERS},
    {"operation": "RESTORE_TABLE", **_ORDERS},
]
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": models.ErrorAnswer, "description": what}
    for status, what in {
        400: "The request cannot be meant like this; nothing was done.",
        401: "No token, or an unknown one.",
        403: "The token is for other tenants.",
        404: "There is no such table.",
        409: "It does not go together with what is there.",
        413: "Too large.",
        429: "Too many requests.",
        500: "A defect; the log has it under the request id.",
        503: "The lake does not answer.",
        504: "The query took too long.",
    }.items()
}


def create_app(service: Service, tokens: Callable[[], Tokens], metrics: Metrics | None = None) -> FastAPI:
    """The application. `tokens` is asked with every request, so that new ones count at once."""
    face = _Face(service, tokens, metrics or Metrics())
    app = FastAPIOffline(  # its pages load nothing from elsewhere
        redoc_url=None,
        title="compaction_platform",
        version="1",
        description="Iceberg tables over HTTP.",
        lifespan=face.lifespan,
        swagger_ui_parameters={"docExpansion": "full", "defaultModelsExpandDepth": 0},
    )
    app.middleware("http")(face.told)
    app.exception_handler(Problem)(_problem)
    app.exception_handler(HTTPException)(_other)
    app.get("/health", response_model=models.Health, responses={503: {"model": models.Health}})(face.health)
    app.post("/database", response_model=models.AnyAnswer, responses=ERRORS, openapi_extra=_request_body())(
        face.database
    )
    app.openapi = cache(lambda: _document(app))  # type: ignore[method-assign]  # as FastAPI's documentation says
    return app


def _request_body() -> dict[str, Any]:
    """What `database` takes. It reads requests itself, away from the loop that all others wait for."""
    schema = REQUEST.json_schema(ref_template="#/components/schemas/{model}")
    examples = {each["operation"]: {"value": each} for each in EXAMPLES}
    content = {"application/json": {"schema": {k: v for k, v in schema.items() if k != "$defs"}, "examples": examples}}
    return {"requestBody": {"required": True, "content": content}, "security": [{"token": []}]}


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas |= REQUEST.json_schema(ref_template="#/components/schemas/{model}")["$defs"]
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return document


class _Face:
    """What every request passes, and the two things that can be asked for."""

    def __init__(self, service: Service, tokens: Callable[[], Tokens], metrics: Metrics) -> None:
        self._service, self._tokens, self._metrics = service, tokens, metrics
        self._allowance = RateLimit(service.settings.serve_requests_per_minute)
        self._most = service.settings.serve_max_request_mb * MB

        self._of_a_tenant = ConcurrencyLimit(THREADS // 2, "requests of one tenant")
        self._compactions = ConcurrencyLimit(COMPACTIONS, "compactions")

    @cached_property
    def _many(self) -> CapacityLimiter:
        return CapacityLimiter(THREADS)

    @cached_property
    def _few(self) -> CapacityLimiter:
        return CapacityLimiter(2)

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        yield
        self._metrics.close()

    async def told(self, request: Request, go_on: Callable[[Request], Any]) -> Any:
        """Whoever has no token does not come in; whatever happens is told."""
        began = time.monotonic()
        given = request.headers.get("x-request-id", "")
        state = request.state
        state.request_id = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        state.operation = state.tenant = None
        try:
            require_size(request.headers.get("content-length"), self._most)
            if request.url.path == "/database":
                state.tenants = self._tokens().tenants_of(request.headers.get("authorization"))
            response = await go_on(request)
        except Problem as problem:
            response = answered(problem)
        except Exception as error:  # noqa: BLE001 (never a stack trace to the caller)
            log(logging.ERROR, "a defect", {"request_id": state.request_id}, error)
            response = answered(Problem("something went wrong here; the log has more under the request id."))
        response.headers["x-request-id"] = state.request_id
        self._count(request, response.status_code, time.monotonic() - began)
        return response

    def _count(self, request: Request, status: int, seconds: float) -> None:
        state, path = request.state, request.url.path
        outcome = {"operation": state.operation or "", "status": str(status)}
        self._metrics.count(seconds, outcome)
        said = {"request_id": state.request_id, "method": request.method, "path": path, **outcome}
        log(logging.INFO, "request", said | {"tenant": state.tenant, "milliseconds": round(seconds * 1000, 1)})

    async def health(self) -> Any:
        """Whether the lake can be reached. Needs no token."""
        try:
            await to_thread.run_sync(self._service.require_reachable, limiter=self._few)
        except CompactionError:
            return JSONResponse({"status": "unavailable", "lake": "the catalog does not answer"}, 503)
        return models.Health(status="ok", lake="reachable")

    async def database(self, request: Request) -> Any:
        """All operations on tables. Which one is said by `operation`."""
        content = await _content(request, self._most)
        return await to_thread.run_sync(self._answered, request.state, content, limiter=self._many)

    def _answered(self, state: Any, content: bytes) -> JSONResponse:
        body = _parsed(content)
        state.operation, state.tenant = body.operation, body.tenant_id
        require_tenant(state.tenants, body.tenant_id)
        self._allowance.take(body.tenant_id)
        with ExitStack() as inside:
            inside.enter_context(self._of_a_tenant.taken(body.tenant_id))
            if isinstance(body, models.Compact):
                inside.enter_context(self._compactions.taken(""))
            return JSONResponse(self._service.answer(body).model_dump(mode="json"))


def _parsed(content: bytes) -> Any:
    try:
        return REQUEST.validate_json(content)
    except ValidationError as invalid:
        problems = [
            {"where": ".".join(str(part) for part in each["loc"])[:200], "what": str(each["msg"])[:300]}
            for each in invalid.errors(include_url=False, include_input=False, include_context=False)[:SHOWN]
        ]
        first = problems[0]
        raise InvalidRequest(f"{first['where'] or 'the body'}: {first['what']}.", {"problems": problems}) from None


# ---------------------------------------------------------------- errors


async def _problem(request: Request, problem: Exception) -> JSONResponse:
    return answered(problem if isinstance(problem, Problem) else Problem(str(problem)))


async def _other(request: Request, error: Exception) -> JSONResponse:
    """No such path, and the like."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    return _said(status, f"HTTP_{status}", str(getattr(error, "detail", "")), {}, headers)


def answered(problem: Problem) -> JSONResponse:
    headers = {}
    if isinstance(problem, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(problem, TooManyRequests):
        headers["Retry-After"] = str(max(1, round(problem.details["retry_after_seconds"])))
    return _said(problem.status, problem.code, str(problem), problem.details, headers)


def _said(status: int, code: str, message: str, details: dict[str, Any], headers: dict[str, str]) -> JSONResponse:
    error = models.ErrorAnswer(error=models.ErrorBody(code=code, message=message, details=details))
    return JSONResponse(error.model_dump(mode="json"), status, headers)


async def _content(request: Request, most: int) -> bytes:
    """A request that does not say how large it is may not be larger either."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise too_large(most)
        parts.append(part)
    return b"".join(parts)


# ---------------------------------------------------------------- by itself, and on Lambda


def service_of(settings: Settings, until_done: ExitStack, say: Callable[[str], None]) -> Service:
    """A service whose Spark session is opened when it is first needed, and then kept warm."""
    from compaction_platform.lake.spark.session import spark_session, task_slots

    session = cache(lambda: until_done.enter_context(spark_session(settings)))

    def spread() -> ParallelMap:
        return ParallelMap(session(), task_slots(session(), settings))

    return Service(settings, spread, session, say)


def tokens_of(settings: Settings) -> Callable[[], Tokens]:
    if settings.serve_tokens_file is None:
        raise LakeUnavailable(
            f"{settings.variable('serve_tokens_file')} is not set: nobody could enter. `compaction serve-token` makes "
            "a token; `compaction serve --dev` one for this run."
        )
    path = Path(settings.serve_tokens_file)
    return lambda: Tokens.read(path)


@cache
def _on_lambda() -> Any:
    from mangum import Mangum

    log_to_stdout()
    settings = load_settings()
    service = service_of(settings, ExitStack(), lambda text: log(logging.INFO, text))
    return Mangum(create_app(service, tokens_of(settings)), lifespan="off")


def lambda_handler(event: dict[str, Any], context: Any) -> Any:
    """For API Gateway's proxy events."""
    return _on_lambda()(event, context)
