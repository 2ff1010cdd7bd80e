import time

import pytest

from compaction_platform.lake.storage.retry import attempts

pytestmark = pytest.mark.unit


def test_waits_grow_up_to_a_bound_and_only_between_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    assert list(attempts(6, first_wait=1, longest_wait=5)) == [1, 2, 3, 4, 5, 6]
    assert waits == [1, 2, 4, 5, 5]


def test_nothing_is_waited_for_if_the_first_attempt_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", pytest.fail)
    for _ in attempts(9):
        break
    assert list(attempts(1)) == [1]
