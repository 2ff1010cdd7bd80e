"""uvicorn on a socket of ours. SIGTERM and Ctrl-C stop it when the requests it has accepted are answered."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

from compaction_platform.errors import CompactionError

if TYPE_CHECKING:
    from fastapi import FastAPI

LAST_ANSWERS_SECONDS = 60
BACKLOG = 2048


class ServicePortTaken(CompactionError):
    """Something else listens there."""


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ServicePortTaken(
                f"cannot listen on {host}:{port}: {error.strerror}. Choose another --port."
            ) from None
        listener.listen(BACKLOG)  # whoever comes before the server is ready waits for it
        yield listener


def run(application: "FastAPI", listener: socket.socket) -> None:
    config = uvicorn.Config(
        application, log_level="warning", access_log=False, timeout_graceful_shutdown=LAST_ANSWERS_SECONDS
    )
    uvicorn.Server(config).run([listener])
