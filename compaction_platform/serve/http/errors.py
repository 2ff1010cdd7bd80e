"""Errors that a caller can act on: each has a code, an HTTP status, and a message that says what to do."""

from collections.abc import Mapping
from typing import Any

from compaction_platform.errors import CompactionError


class Problem(CompactionError):
    """What goes back to the caller."""

    code = "INTERNAL_ERROR"
    status = 500

    def __init__(self, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details = dict(details or {})


class InvalidRequest(Problem):
    code, status = "INVALID_REQUEST", 400


class InvalidRecords(Problem):
    code, status = "INVALID_RECORDS", 400


class InvalidSchema(Problem):
    code, status = "INVALID_SCHEMA", 400


class InvalidFilter(Problem):
    code, status = "INVALID_FILTER", 400


class InvalidCursor(Problem):
    code, status = "INVALID_CURSOR", 400


class Unauthenticated(Problem):
    code, status = "UNAUTHENTICATED", 401


class Forbidden(Problem):
    code, status = "FORBIDDEN", 403


class TableNotFound(Problem):
    code, status = "TABLE_NOT_FOUND", 404


class TableExists(Problem):
    code, status = "TABLE_EXISTS", 409


class TableDropped(Problem):
    code, status = "TABLE_DROPPED", 409


class RequestIdReused(Problem):
    code, status = "REQUEST_ID_REUSED", 409


class WriteConflict(Problem):
    code, status = "WRITE_CONFLICT", 409


class RequestTooLarge(Problem):
    code, status = "REQUEST_TOO_LARGE", 413


class TooManyRequests(Problem):
    code, status = "TOO_MANY_REQUESTS", 429


class LakeUnavailable(Problem):
    code, status = "LAKE_UNAVAILABLE", 503


class WriteUnknown(Problem):
    code, status = "WRITE_UNKNOWN", 503


class QueryTimeout(Problem):
    code, status = "QUERY_TIMEOUT", 504
