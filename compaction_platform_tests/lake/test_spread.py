import functools
import os
import signal
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction_platform.lake.spark.parallel_map import WORTH_A_TASK_BYTES, ParallelMap, share_out

HEAVY = WORTH_A_TASK_BYTES


def double_unless_unlucky(number: int) -> int:
    if number == 13:
        raise ValueError("thirteen")
    return number * 2


def process_id(_: int) -> int:
    return os.getpid()


def half(base: int, number: int) -> Decimal:
    return Decimal(number) / base


def something_that_cannot_travel(number: int) -> object:
    return threading.Lock() if number == 1 else number


def note_and_wait(work: tuple[int, str]) -> int:
    number, place = work
    (Path(place) / str(number)).touch()
    threading.Event().wait(1.0)
    return number


def wait_for_free_slots(session: Any, slots: int) -> None:
    """Tasks of a barrier begin together or not at all: they wait for whatever holds a slot."""
    session.range(0, slots, 1, slots).mapInArrow(lambda batches: batches, "id long", barrier=True).collect()


def die(number: int) -> int:
    if number == 5:
        os._exit(9)  # as the kernel's out-of-memory killer would do it
    return number


def die_once(work: tuple[int, str]) -> int:
    number, marker = work
    if number == 3 and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def wait_for_permission(work: tuple[int, str]) -> int:
    number, permission = work
    deadline = time.monotonic() + 60
    while number == 0 and not Path(permission).exists():
        if time.monotonic() > deadline:
            raise TimeoutError("nobody asked for the other results first")
        threading.Event().wait(0.02)
    return number


unit = pytest.mark.unit
integration = pytest.mark.integration


@unit
@given(st.lists(st.integers(0, 10**12), max_size=60), st.integers(1, 8))
def test_every_item_is_in_one_task_and_no_task_is_empty(weights: list[int], slots: int) -> None:
    tasks = share_out(weights, slots)
    assert sorted(number for task in tasks for number in task) == list(range(len(weights)))
    assert all(tasks)
    assert len(tasks) >= min(slots, len(weights))


@unit
def test_heavy_items_come_first_and_tasks_weigh_about_the_same() -> None:
    weights = [100, 1, 1, 1, 97, 1, 1, 1, 1, 1]
    tasks = share_out(weights, 2)
    assert [task[0] for task in tasks] == [0, 4]
    loads = [sum(weights[number] for number in task) for task in tasks]
    assert max(loads) - min(loads) <= 1


@unit
def test_much_work_becomes_more_tasks_than_slots_but_not_too_many() -> None:
    assert len(share_out([HEAVY] * 10, 2)) == 10
    assert len(share_out([HEAVY] * 1000, 2)) == 32
    assert len(share_out([1] * 1000, 2)) == 2


@unit
def test_without_spark_the_work_is_done_here() -> None:
    outcomes = list(ParallelMap().run(double_unless_unlucky, range(20)))
    assert {outcome.item: outcome.value for outcome in outcomes if not outcome.failed} == {
        number: number * 2 for number in range(20) if number != 13
    }
    (failed,) = (outcome for outcome in outcomes if outcome.failed)
    assert failed.item == 13
    assert failed.error == "ValueError: thirteen"
    assert "double_unless_unlucky" in str(failed.trace)


@integration
def test_an_item_that_raises_is_an_error_result_and_stops_no_other(spark: Any) -> None:
    outcomes = list(ParallelMap(spark, 2).run(double_unless_unlucky, range(20), weight=lambda _: 1, in_driver=False))
    assert sorted(outcome.item for outcome in outcomes) == list(range(20))
    assert all(outcome.value == outcome.item * 2 for outcome in outcomes if not outcome.failed)
    (failed,) = (outcome for outcome in outcomes if outcome.failed)
    assert (failed.item, failed.error) == (13, "ValueError: thirteen")
    assert failed.has_raised(ValueError) and failed.has_raised(Exception) and not failed.has_raised(KeyError)
    assert "double_unless_unlucky" in str(failed.trace)


@integration
def test_small_work_stays_in_the_driver_and_large_work_does_not(spark: Any) -> None:
    spread = ParallelMap(spark, 2)
    small = {outcome.value for outcome in spread.run(process_id, range(4), weight=lambda _: 1_000)}
    large = {outcome.value for outcome in spread.run(process_id, range(4), weight=lambda _: HEAVY)}
    assert small == {os.getpid()}
    assert os.getpid() not in large


@integration
def test_a_worker_that_dies_costs_its_items_a_retry(spark: Any, tmp_path: Path) -> None:
    marker = str(tmp_path / "died")
    items = [(number, marker) for number in range(8)]
    outcomes = list(ParallelMap(spark, 2).run(die_once, items, weight=lambda _: 1, in_driver=False))
    assert Path(marker).exists(), "the fault was not injected"
    assert sorted(outcome.value for outcome in outcomes) == list(range(8))


@integration
def test_an_item_that_always_kills_its_worker_fails_alone(spark: Any) -> None:
    outcomes = list(ParallelMap(spark, 2).run(die, range(8), weight=lambda _: 1, in_driver=False))
    assert sorted(outcome.item for outcome in outcomes) == list(range(8))
    (failed,) = (outcome for outcome in outcomes if outcome.failed)
    assert failed.item == 5
    assert "worker process died" in str(failed.error)


@integration
def test_results_arrive_while_other_items_still_run(spark: Any, tmp_path: Path) -> None:
    """Item 0 only ends after a result of another item has been seen here."""
    permission = tmp_path / "permission"
    items = [(number, str(permission)) for number in range(4)]
    seen = []
    for outcome in ParallelMap(spark, 2).run(wait_for_permission, items, weight=lambda _: HEAVY):
        seen.append(outcome)
        permission.touch()
    assert sorted(outcome.value for outcome in seen) == [0, 1, 2, 3]
    assert seen[0].value != 0


@integration
def test_partial_functions_and_values_of_any_library_travel(spark: Any) -> None:
    outcomes = list(ParallelMap(spark, 2).run(functools.partial(half, 2), range(3), in_driver=False))
    assert {outcome.item: outcome.value for outcome in outcomes} == {0: 0, 1: Decimal("0.5"), 2: 1}


@integration
def test_a_value_that_cannot_travel_is_an_error_of_its_item_alone(spark: Any) -> None:
    outcomes = list(
        ParallelMap(spark, 2).run(something_that_cannot_travel, range(3), weight=lambda _: 1, in_driver=False)
    )
    errors = {outcome.item: outcome.error for outcome in outcomes}
    assert errors[0] is errors[2] is None
    assert "pickle" in str(errors[1])


@pytest.mark.parametrize("in_driver", [pytest.param(True, marks=unit), pytest.param(False, marks=integration)])
def test_a_caller_who_stops_early_stops_the_work(
    in_driver: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    session = None if in_driver else request.getfixturevalue("spark")
    items = [(number, str(tmp_path)) for number in range(60)]
    outcomes = ParallelMap(session, 2).run(note_and_wait, items, weight=lambda _: HEAVY, in_driver=in_driver)
    next(outcomes)
    outcomes.close()  # type: ignore[attr-defined]
    begun = len(list(tmp_path.iterdir()))
    if session is not None:
        wait_for_free_slots(session, 2)  # Spark takes some seconds to end a worker
        begun = len(list(tmp_path.iterdir()))
    assert begun < 60
    list(ParallelMap(session, 2).run(process_id, range(2), in_driver=in_driver))  # whatever still ran had time to go on
    assert len(list(tmp_path.iterdir())) == begun


@integration
def test_nothing_to_do_is_done_at_once(spark: Any) -> None:
    assert list(ParallelMap(spark, 2).run(process_id, [], in_driver=False)) == []
