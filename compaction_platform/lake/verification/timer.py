"""How long some parts of a work take in all: `with watch:` around each of them."""

import time
from contextlib import AbstractContextManager


class Timer(AbstractContextManager["Timer"]):
    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> "Timer":
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.monotonic() - self._began
