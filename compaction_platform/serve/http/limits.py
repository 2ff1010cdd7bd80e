"""How much a caller may ask for: the size of a request, how many of them, and how many at once."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from compaction_platform.serve.http.errors import RequestTooLarge, TooManyRequests


@dataclass
class RateLimit:
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


@dataclass
class ConcurrencyLimit:
    """So many at once for each name: one tenant, or one kind of work, does not take all there is."""

    most: int
    what: str
    _inside: Counter[str] = field(default_factory=Counter)
    _door: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def taken(self, name: str) -> Iterator[None]:
        with self._door:
            if self._inside[name] >= self.most:
                raise TooManyRequests(f"at most {self.most} {self.what} at once; wait.", {"retry_after_seconds": 1})
            self._inside[name] += 1
        try:
            yield
        finally:
            with self._door:
                self._inside[name] -= 1


def require_size(content_length: str | None, most: int) -> None:
    """A request that says how large it is."""
    if content_length is not None and content_length.isdigit() and int(content_length) > most:
        raise too_large(most)


def too_large(most: int) -> RequestTooLarge:
    return RequestTooLarge(f"a request may have {most // (1 << 20)} MB at most; send fewer records.")
