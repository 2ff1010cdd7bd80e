import threading

import pytest

from compaction_platform.lake.storage.threads import map_concurrently

pytestmark = pytest.mark.unit


def test_values_come_in_the_order_of_the_items_and_so_many_are_at_work() -> None:
    together = threading.Barrier(4)

    def double(number: int) -> int:
        together.wait(10)  # all four at once, or none
        return number * 2

    assert map_concurrently(double, range(8), at_once=4) == [0, 2, 4, 6, 8, 10, 12, 14]


def test_after_an_error_nothing_more_is_begun() -> None:
    begun: list[int] = []
    gate = threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        if number == 0:
            gate.set()
            raise ValueError("zero")
        gate.wait(10)

    with pytest.raises(ValueError, match="zero"):
        map_concurrently(work, range(1000), at_once=2)
    assert len(begun) < 1000


def test_a_lone_item_needs_no_thread() -> None:
    assert map_concurrently(lambda _: threading.current_thread(), ["one"]) == [threading.current_thread()]
