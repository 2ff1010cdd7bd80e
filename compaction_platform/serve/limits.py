"""How much a caller may ask for: the size of a request, and how many of them."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from compaction_platform.serve.problems import RequestTooLarge, TooManyRequests

Receive = Callable[[], Any]


@dataclass
class Allowance:
    """A bucket of requests for each tenant that fills up evenly."""

    per_minute: int
    clock: Callable[[], float] = time.monotonic
    _left: dict[str, tuple[float, float]] = field(default_factory=dict)  # how many, and as of when
    _door: threading.Lock = field(default_factory=threading.Lock)

    def take(self, tenant: str) -> None:
        now = self.clock()
        with self._door:
            left, then = self._left.get(tenant, (float(self.per_minute), now))
            left = min(float(self.per_minute), left + (now - then) * self.per_minute / 60)
            if left < 1:
                self._left[tenant] = (left, now)
                wait = (1 - left) * 60 / self.per_minute
                raise TooManyRequests(
                    f"at most {self.per_minute:,} requests a minute; wait.", {"retry_after_seconds": round(wait, 3)}
                )
            self._left[tenant] = (left - 1, now)


def require_size(content_length: str | None, most: int) -> None:
    """A request that says how large it is."""
    if content_length is not None and content_length.isdigit() and int(content_length) > most:
        raise too_large(most)


def too_large(most: int) -> RequestTooLarge:
    return RequestTooLarge(f"a request may have {most // (1 << 20)} MB at most; send fewer records.")
