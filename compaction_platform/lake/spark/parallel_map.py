"""Run one Python function over many work items on Spark, through `mapInArrow`.

The function gets an item and returns a value; both must be picklable, and the function must be safe to run
twice on one item, because Spark repeats what a dead executor was doing. An item that raises becomes an
error result and never stops the others.

A task costs about half a second whatever it does, so there are as many tasks as slots (more when there is
enough work to show progress for), and work too small for that is done in this process.
"""

import heapq
import math
import os
import pickle
import re
import secrets
import sys
import sysconfig
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from compaction_platform.errors import CompactionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Value = TypeVar("Value")

SMALL_WORK_BYTES = 32 << 20
SMALL_WORK_ITEMS = 512
WORTH_A_TASK_BYTES = 256 << 20  # some seconds of work: the cost of the task is lost in it
MOST_TASKS_PER_SLOT = 16
MOST_JOBS_AT_ONCE = 16
# What Spark says when it was the work that ended a Python worker, or the executor around it.
SIGNS_OF_DEATH = ("exited unexpectedly", "ExecutorLostFailure", "ExecutorDeadException", "killed by an external signal")


class SparkLost(CompactionError):
    """Spark itself stopped answering, as opposed to one work item failing."""


@dataclass(frozen=True)
class TaskResult(Generic[Item, Value]):
    """What became of one item: a value, or an error with its traceback."""

    item: Item
    value: Value | None = None
    error: str | None = None
    trace: str | None = None
    raised: tuple[str, ...] = ()  # the error's class and those it derives from; the class itself may not be known here
    worker_died: bool = False  # nothing was raised: the process that worked on the item is gone

    @property
    def failed(self) -> bool:
        return self.error is not None

    def has_raised(self, kind: type[Exception]) -> bool:
        return _full_name(kind) in self.raised


@dataclass(frozen=True)
class ParallelMap:
    """Where work goes. Without a session, all of it is done in this process."""

    session: "SparkSession | None" = None
    slots: int = 1

    def run(
        self,
        function: Callable[[Item], Value],
        items: Sequence[Item],
        weight: Callable[[Item], int] = lambda item: WORTH_A_TASK_BYTES,
        *,
        in_driver: bool | None = None,
    ) -> Generator[TaskResult[Item, Value], None, None]:
        """Outcomes as they come, in any order, one for each item.

        `weight` is about how many bytes an item makes us read; it decides how items are shared out.
        `in_driver` overrides the choice between this process and Spark.
        """
        with closing(self.run_together(function, items, weight, in_driver=in_driver)) as batches:
            for batch in batches:
                yield from batch

    def run_together(
        self,
        function: Callable[[Item], Value],
        items: Sequence[Item],
        weight: Callable[[Item], int] = lambda item: WORTH_A_TASK_BYTES,
        *,
        in_driver: bool | None = None,
    ) -> Generator[list[TaskResult[Item, Value]], None, None]:
        """As `run`, with all outcomes that are there at one time together. Work goes on while the caller looks."""
        weights = [weight(item) for item in items]
        small = len(items) <= SMALL_WORK_ITEMS and sum(weights) <= SMALL_WORK_BYTES
        if self.session is None or (small if in_driver is None else in_driver):
            return _run_here(function, items, self.slots)
        return _run_on_spark(self.session, function, items, share_out(weights, self.slots), self.slots)


def share_out(weights: Sequence[int], slots: int) -> list[list[int]]:
    """Item numbers for each task: heavy items first, every task about as heavy as the others."""
    if not weights:
        return []
    worth = round(sum(weights) / WORTH_A_TASK_BYTES)
    rounds = max(1, min(math.ceil(worth / slots), MOST_TASKS_PER_SLOT))  # a round that is not full leaves slots idle
    count = min(len(weights), rounds * slots)
    tasks: list[list[int]] = [[] for _ in range(count)]
    lightest = [(0, 0, task) for task in range(count)]
    for number in sorted(range(len(weights)), key=lambda number: -weights[number]):
        load, length, task = heapq.heappop(lightest)
        tasks[task].append(number)
        heapq.heappush(lightest, (load + weights[number], length + 1, task))
    return tasks


Attempt = tuple[Value | None, str | None, str | None, tuple[str, ...]]


def _attempt(function: Callable[[Item], Value], item: Item) -> Attempt[Value]:
    try:
        return function(item), None, None, ()
    except Exception as error:  # noqa: BLE001 (whatever the item raised is its outcome)
        raised = tuple(map(_full_name, type(error).__mro__))
        return None, f"{type(error).__name__}: {error}", traceback.format_exc(), raised


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _run_here(
    function: Callable[[Item], Value], items: Sequence[Item], slots: int
) -> Generator[list[TaskResult[Item, Value]], None, None]:
    pool = ThreadPoolExecutor(max(slots, min(8, os.cpu_count() or 1)))
    try:
        running = {pool.submit(_attempt, function, item): item for item in items}
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            yield [TaskResult(running.pop(each), *each.result()) for each in done]
    finally:
        pool.shutdown(cancel_futures=True)  # a caller who stops early waits only for what has begun


def _run_on_spark(
    session: "SparkSession",
    function: Callable[[Item], Value],
    items: Sequence[Item],
    tasks: list[list[int]],
    slots: int,
) -> Generator[list[TaskResult[Item, Value]], None, None]:
    """Several Spark jobs at a time, so that outcomes arrive as tasks end and a job that dies is one of many.

    A worker that dies (out of memory, a crash in native code) fails its job once Spark has tried its task
    often enough. The items of that job are run again in halves, until the deadly one is alone.
    """
    from pyspark.errors import PySparkException

    tag = f"spread-{secrets.token_hex(8)}"
    tasks_per_job = math.ceil(slots / MOST_JOBS_AT_ONCE)
    jobs = [tasks[start : start + tasks_per_job] for start in range(0, len(tasks), tasks_per_job)]
    pool = ThreadPoolExecutor(math.ceil(slots / tasks_per_job), thread_name_prefix="spread")
    running: dict[Future[list[TaskResult[Item, Value]]], list[list[int]]] = {}
    try:
        running |= {pool.submit(_job, session, tag, function, items, job): job for job in jobs}
        while running:
            ready: list[TaskResult[Item, Value]] = []
            for done in wait(running, return_when=FIRST_COMPLETED)[0]:
                numbers = [number for task in running.pop(done) for number in task]
                try:
                    ready += done.result()
                except PySparkException as error:
                    _raise_if_lost(session, error)
                    if len(numbers) == 1:
                        reason = f"the worker process died, or could not start: {_reason(error)}"
                        died = any(sign in str(error) for sign in SIGNS_OF_DEATH)
                        ready.append(TaskResult(items[numbers[0]], error=reason, trace=str(error), worker_died=died))
                        continue
                    for half in (numbers[::2], numbers[1::2]):
                        running[pool.submit(_job, session, tag, function, items, [half])] = [half]
            if ready:
                yield ready
    except GeneratorExit:  # the caller stops early: Spark ends what still runs, within some four seconds
        pool.shutdown(wait=False, cancel_futures=True)
        session.interruptTag(tag)
        wait([job for job in running if not job.cancelled()])  # a cancelled one never counts as done
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _job(
    session: "SparkSession",
    tag: str,
    function: Callable[[Item], Value],
    items: Sequence[Item],
    tasks: list[list[int]],
) -> list[TaskResult[Item, Value]]:
    session.addTag(tag)  # for this thread's jobs
    work = [(task, _packed(function, [items[number] for number in task])) for task in tasks]

    def do_tasks(batches: Iterable[Any]) -> Iterable[Any]:
        import pyarrow

        for batch in batches:
            for task in batch.column(0).to_pylist():
                for number, answer in _answers(*work[task]):
                    yield pyarrow.RecordBatch.from_arrays(
                        [pyarrow.array([number], pyarrow.int64()), pyarrow.array([answer], pyarrow.binary())],
                        ["number", "answer"],
                    )

    rows = session.range(0, len(tasks), 1, len(tasks)).mapInArrow(do_tasks, "number long, answer binary")
    outcomes = []
    for row in rows.collect():
        value, error, trace, raised = pickle.loads(row.answer)  # noqa: S301 (pickled by our own tasks)
        value = None if value is None else pickle.loads(value)  # noqa: S301
        outcomes.append(TaskResult[Item, Value](items[row.number], value, error, trace, raised))
    return outcomes


def _answers(numbers: list[int], packed: bytes) -> Iterator[tuple[int, bytes]]:
    """In the task: each item's number and packed outcome."""
    from pyspark import cloudpickle

    unpacked, error, trace, raised = _attempt(pickle.loads, packed)
    for place, number in enumerate(numbers):
        if unpacked is None:  # the function cannot be imported here: that is every item's outcome
            yield number, pickle.dumps((None, error, trace, raised))
        else:
            function, items = unpacked

            def packed_value(item: Any, function: Callable[[Any], Any] = function) -> bytes:
                value: bytes = cloudpickle.dumps(function(item))  # type: ignore[no-untyped-call]
                return value  # a value that cannot travel is the item's error, too

            yield number, pickle.dumps(_attempt(packed_value, items[place]))


def _packed(function: Callable[[Any], Any], items: list[Any]) -> bytes:
    from pyspark import cloudpickle

    home = sys.modules.get(getattr(getattr(function, "func", function), "__module__", None) or "")
    if home is not None and _is_callers_own(home):
        cloudpickle.register_pickle_by_value(home)  # type: ignore[no-untyped-call]
    packed: bytes = cloudpickle.dumps((function, items))  # type: ignore[no-untyped-call]
    return packed


def _is_callers_own(module: ModuleType) -> bool:
    """Whether this module may be missing where tasks run, so that its functions must travel with the work.

    Installed packages, this one included, are expected there.
    """
    file = getattr(module, "__file__", None)
    if file is None or module.__name__.split(".")[0] == "compaction_platform":
        return False
    return not any(Path(file).is_relative_to(place) for place in set(sysconfig.get_paths().values()))


def _raise_if_lost(session: "SparkSession", cause: Exception) -> None:
    from pyspark.errors import PySparkException

    try:
        session.range(1).mapInArrow(_unchanged, "id long").collect()  # a worker that does nothing, too
    except PySparkException:
        raise SparkLost(
            f"Spark stopped answering ({_reason(cause)}). Results received so far stand; run again to do the rest."
        ) from cause


def _unchanged(batches: Iterable[Any]) -> Iterable[Any]:
    return batches


def _reason(error: Exception) -> str:
    """The one line that says something: gRPC hides it behind "details"."""
    text = str(error).strip()
    details = re.search(r'details = "(.*)"', text)
    return (details[1] if details else text.split("\n", 1)[0])[:300]
