"""Try again what another one may have come before, after a wait that differs for each who tries."""

import random
import time
from collections.abc import Iterator

FIRST_WAIT_SECONDS = 0.05
LONGEST_WAIT_SECONDS = 5.0


def attempts(
    most: int, *, first_wait: float = FIRST_WAIT_SECONDS, longest_wait: float = LONGEST_WAIT_SECONDS
) -> Iterator[int]:
    """Count from 1 to `most`. Before each further attempt wait up to `first_wait`, twice that, four times …, by chance:
    those who came at the same time do not come again at the same time."""
    for number in range(1, most + 1):
        if number > 1:
            time.sleep(random.uniform(0, min(longest_wait, first_wait * 2 ** (number - 2))))  # noqa: S311
        yield number
