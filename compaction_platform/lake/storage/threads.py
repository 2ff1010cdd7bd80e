"""Do many small things that wait for a store or a catalog, some at a time."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

AT_ONCE = 16

Item = TypeVar("Item")
Value = TypeVar("Value")


def map_concurrently(
    function: Callable[[Item], Value], items: Iterable[Item], at_once: int = AT_ONCE, *, in_threads: bool = True
) -> list[Value]:
    """Apply a function to all items, so many of them at a time. Returns the values in the order of the items. Raises
    what the first of them raises, and begins no other then."""
    waiting = list(items)
    if len(waiting) <= 1 or not in_threads:
        return [function(item) for item in waiting]
    pool = ThreadPoolExecutor(min(at_once, len(waiting)))
    try:
        return list(pool.map(function, waiting))
    finally:
        pool.shutdown(cancel_futures=True)
