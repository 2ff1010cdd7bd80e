"""A receiver of OpenTelemetry metrics over HTTP, on loopback."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest


class Receiver(HTTPServer):
    """Takes what OTLP exporters send, on loopback."""

    def __init__(self) -> None:
        self.received: list[ExportMetricsServiceRequest] = []
        super().__init__(("127.0.0.1", 0), _Take)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Take(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        receiver: Any = self.server
        receiver.received.append(ExportMetricsServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def receiving() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
