"""A Glue Data Catalog over HTTP on loopback (moto), with what moto lacks: pages, and faults on demand. S3, too."""

import io
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

from werkzeug.serving import make_server

Environ = dict[str, Any]
Respond = Callable[..., Any]


class CatalogServer:
    """`before` and `after` are called around each operation; an answer of `before` (status, code) is given instead."""

    def __init__(self, page: int = 100) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._moto = DomainDispatcherApplication(create_backend_app)
        self.page = page
        self.calls: list[str] = []
        self.before: Callable[[str, dict[str, Any]], tuple[int, str] | None] = lambda operation, request: None
        self.after: Callable[[str, dict[str, Any]], tuple[int, str] | None] = lambda operation, request: None
        self.denies_deletion = False  # on S3
        self.denied: list[str] = []
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "CatalogServer":
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def forget_hooks(self) -> None:
        self.before = self.after = lambda operation, request: None
        self.calls.clear()
        self.denies_deletion = False
        self.denied.clear()

    def _answer(self, environ: Environ, start_response: Respond) -> Iterable[bytes]:
        operation = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        request = json.loads(body) if operation and body else {}
        if not operation and self.denies_deletion and _deletes(environ):
            self.denied.append(environ["PATH_INFO"])
            return _denied(start_response)
        self.calls.append(operation)
        if refusal := self.before(operation, request):
            return _refused(start_response, *refusal)
        if operation == "GetPartitions":
            return self._page(environ, start_response, request)
        answer = list(self._moto(environ, start_response))
        if refusal := self.after(operation, request):
            return _refused(start_response, *refusal)
        return answer

    def _page(self, environ: Environ, start_response: Respond, request: dict[str, Any]) -> Iterable[bytes]:
        """Moto gives everything at once; AWS does not."""
        seen: dict[str, Any] = {}

        def keep(status: str, headers: list[tuple[str, str]], *more: Any) -> None:
            seen.update(status=status, headers=headers)

        body = b"".join(self._moto(environ, keep))
        if seen["status"].startswith("200"):
            found = json.loads(body)
            start = int(request.get("NextToken") or 0)
            rest = found["Partitions"][start:]
            if request.get("ExcludeColumnSchema"):
                for each in rest:
                    (each.get("StorageDescriptor") or {}).pop("Columns", None)
            more = {"NextToken": str(start + self.page)} if len(rest) > self.page else {}
            body = json.dumps({"Partitions": rest[: self.page], **more}).encode()
            seen["headers"] = [(name, value) for name, value in seen["headers"] if name.lower() != "content-length"] + [
                ("Content-Length", str(len(body)))
            ]
        start_response(seen["status"], seen["headers"])
        return [body]


def _deletes(environ: Environ) -> bool:
    return bool(environ["REQUEST_METHOD"] == "DELETE" or "delete" in environ.get("QUERY_STRING", "").split("&"))


def _denied(start_response: Respond) -> Iterable[bytes]:
    body = b"<Error><Code>AccessDenied</Code><Message>by the test</Message></Error>"
    start_response("403 Forbidden", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def _refused(start_response: Respond, status: int, code: str) -> Iterable[bytes]:
    body = json.dumps({"__type": code, "message": "by the test"}).encode()
    headers = [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(body)))]
    start_response(f"{status} Refused", headers)
    return [body]
