"""One line of `compaction status`: how something that is declared is doing."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HealthRow:
    """What needs something, and what. The lower `health` is, the more."""

    what: str
    health: int | None  # of 100; None: it could not be looked at
    files: int = 0
    small_files: int = 0
    bytes: int = 0
    why: str = ""


def unknown_health(what: str, error: Exception) -> HealthRow:
    """The row of something that could not be looked at: it does not hide the others."""
    return HealthRow(what, None, why=(str(error).strip() or type(error).__name__).splitlines()[0])


def share_done(done: int, of: int) -> int:
    """A score: how much of the work there is done. Only all of it is 100."""
    return 100 if done >= of else min(99, round(100 * done / of))
