"""Run by test_spark in a process of its own: uses the session the environment leads to, through Dagster's resource."""

import json
import os
import signal
import sys
from typing import Any

import dagster as dg
import psutil

from compaction_platform.lake.dagster.resources import SparkResource
from compaction_platform.lake.spark.session import qualified_name
from compaction_platform.settings import load_settings


def double(work: tuple[int, str]) -> int:
    """Doubles; where a marker is given, the first task to see it kills the executor (the JVM) it runs in."""
    number, marker = work
    if marker and not os.path.exists(marker):  # noqa: PTH110
        with open(marker, "w") as file:  # noqa: PTH123
            executor = next(parent for parent in psutil.Process().parents() if "java" in parent.name())
            file.write(str(executor.pid))
        os.kill(executor.pid, signal.SIGKILL)
    return number * 2


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # a worker that has just ended
        return ""


def use_table(session: Any) -> list[list[Any]]:
    name = qualified_name(load_settings(), "three_ways", "numbers")
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.three_ways")
    session.sql(f"CREATE OR REPLACE TABLE {name} (id int, name string) USING iceberg")
    session.sql(f"INSERT INTO {name} VALUES (1, 'one'), (2, 'two')")
    return sorted([row.id, row.name] for row in session.table(name).collect())


def use_spread(spark: SparkResource, marker: str) -> dict[str, Any]:
    items = [(number, marker) for number in range(8)]
    spread = spark.spread()
    outcomes = list(spread.run(double, items, weight=lambda _: 1, in_driver=False))
    return {
        "slots": spread.slots,
        "doubled": sorted(outcome.value for outcome in outcomes if outcome.value is not None),
        "errors": [outcome.error for outcome in outcomes if outcome.failed],
        "session_class": type(spark.session).__module__,
        "command_lines": " ".join(map(command_line, psutil.Process().children(recursive=True))),
    }


def main() -> None:
    wanted = sys.argv[1:]
    marker = os.path.join(os.environ["COMPACTION_STATE_DIR"], "killed") if "kill-executor" in wanted else ""  # noqa: PTH118
    result: dict[str, Any] = {}

    @dg.op
    def use_spark(spark: SparkResource) -> None:
        if marker and "connect" in type(spark.session).__module__:
            raise AssertionError("this would kill the embedded lake's Spark, not an executor of the cluster")
        if "table" in wanted:
            result["rows"] = use_table(spark.session)
        result.update(use_spread(spark, marker))

    @dg.job(resource_defs={"spark": SparkResource()})
    def job() -> None:
        use_spark()

    with dg.DagsterInstance.ephemeral() as instance:
        job.execute_in_process(instance=instance)
    from pyspark.sql import SparkSession

    result["stopped"] = SparkSession.getActiveSession() is None
    if marker:
        with open(marker) as file:  # noqa: PTH123
            result["killed"] = int(file.read())
    print(json.dumps(result))  # noqa: T201


if __name__ == "__main__":
    main()
