"""The HTTP face: FastAPI. One endpoint for all operations, one shape for all errors, never a stack trace."""

import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from compaction_platform.lake.errors import CompactionError
from compaction_platform.lake.settings import Settings, load_settings
from compaction_platform.lake.spread import Spread
from compaction_platform.serve import models
from compaction_platform.serve.limits import Allowance, require_size, too_large
from compaction_platform.serve.problems import (
    InvalidRequest,
    LakeUnavailable,
    Problem,
    TooManyRequests,
    Unauthenticated,
)
from compaction_platform.serve.service import Service
from compaction_platform.serve.telemetry import Metrics, log, log_to_stdout
from compaction_platform.serve.tenants import Tokens, require_tenant

REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
MB = 1 << 20
THREADS = 128  # requests that are worked on at once; writers wait for each other's commits
SHOWN = 20
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
    app = FastAPI(
        title="compaction_platform",
        version="1",
        description="Iceberg tables over HTTP. Every request but /health needs `Authorization: Bearer <token>`.",
        lifespan=face.lifespan,
    )
    app.middleware("http")(face.told)
    app.exception_handler(Problem)(_problem)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(HTTPException)(_other)
    app.get("/health", response_model=models.Health, responses={503: {"model": models.Health}})(face.health)
    app.post("/database", response_model=models.AnyAnswer, responses=ERRORS)(face.database)
    return app


class _Face:
    """What every request passes, and the two things that can be asked for."""

    def __init__(self, service: Service, tokens: Callable[[], Tokens], metrics: Metrics) -> None:
        self._service, self._tokens, self._metrics = service, tokens, metrics
        self._allowance = Allowance(service.settings.serve_requests_per_minute)
        self._most = service.settings.serve_max_request_mb * MB

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        from anyio.to_thread import current_default_thread_limiter

        current_default_thread_limiter().total_tokens = THREADS
        yield
        self._metrics.close()

    async def told(self, request: Request, go_on: Callable[[Request], Any]) -> Any:
        """Whoever has no token does not come in; whatever happens is told."""
        began = time.monotonic()
        given = request.headers.get("x-request-id", "")
        state = request.state
        state.request_id = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        state.operation = state.tenant = None
        state.is_too_large = False
        try:
            require_size(request.headers.get("content-length"), self._most)
            _limit_body(request, self._most)
            if request.url.path == "/database":
                state.tenants = self._tokens().tenants_of(request.headers.get("authorization"))
            response = await go_on(request)
            if state.is_too_large:
                response = answered(too_large(self._most))
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

    def health(self) -> Any:
        """Whether the lake can be reached."""
        try:
            self._service.require_reachable()
        except CompactionError:
            return JSONResponse({"status": "unavailable", "lake": "the catalog does not answer"}, 503)
        return models.Health(status="ok", lake="reachable")

    def database(self, request: Request, body: Annotated[models.Request, Body()]) -> Any:
        """All operations on tables. Which one is said by `operation`."""
        request.state.operation, request.state.tenant = body.operation, body.tenant_id
        require_tenant(request.state.tenants, body.tenant_id)
        self._allowance.take(body.tenant_id)
        return JSONResponse(self._service.answer(body).model_dump(mode="json"))


# ---------------------------------------------------------------- errors


async def _problem(request: Request, problem: Exception) -> JSONResponse:
    return answered(problem if isinstance(problem, Problem) else Problem(str(problem)))


async def _invalid(request: Request, invalid: Exception) -> JSONResponse:
    errors = invalid.errors() if isinstance(invalid, RequestValidationError) else ()
    problems = [
        {"where": ".".join(str(part) for part in each["loc"][1:])[:200], "what": str(each["msg"])[:300]}
        for each in errors[:SHOWN]
    ]
    first = problems[0] if problems else {"where": "", "what": "it cannot be understood"}
    return answered(InvalidRequest(f"{first['where'] or 'the body'}: {first['what']}.", {"problems": problems}))


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


def _limit_body(request: Request, most: int) -> None:
    """A request that does not say how large it is may not be larger either."""
    receive = request._receive
    seen = 0

    async def counted() -> Any:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            request.state.is_too_large = True
            raise too_large(most)
        return message

    request._receive = counted


# ---------------------------------------------------------------- by itself, and on Lambda


def service_of(settings: Settings, until_done: ExitStack, say: Callable[[str], None]) -> Service:
    """A service whose Spark session is opened when it is first needed, and then kept warm."""
    from compaction_platform.lake.spark import spark_session, task_slots

    session = cache(lambda: until_done.enter_context(spark_session(settings)))

    def spread() -> Spread:
        return Spread(session(), task_slots(session(), settings))

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
