"""What Spark adds to work: empty items and small files, through Spark and in the driver, on a warm session.

Starts an embedded lake of its own in a temporary directory.
"""

import tempfile
from pathlib import Path
from typing import Any

from _report import best_seconds, show

from compaction_platform.embedded_lake.embedded import EmbeddedLake
from compaction_platform.lake.dagster.demo_step import DemoContext, verified_rows, write_small_files
from compaction_platform.lake.spark.parallel_map import WORTH_A_TASK_BYTES, ParallelMap
from compaction_platform.lake.spark.session import spark_session


def nothing(item: int) -> int:
    return item


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as place,
        EmbeddedLake(Path(place)) as lake,
        spark_session(lake.settings()) as session,
    ):
        spread = ParallelMap(session, lake.settings().spark_slots or 2)
        rows = []

        def measure(name: str, function: Any, items: list[Any], weight: int) -> None:
            def run(in_driver: bool) -> None:
                failed = [o for o in spread.run(function, items, lambda _: weight, in_driver=in_driver) if o.failed]
                if failed:
                    raise SystemExit(str(failed[0].trace))

            run(in_driver=False)  # warms the session
            on_spark = best_seconds(lambda: run(in_driver=False), repeats=3)
            here = best_seconds(lambda: run(in_driver=True), repeats=3)
            rows.append([name, f"{on_spark:.2f}", f"{here:.2f}", f"{on_spark / here:.1f}"])

        measure(f"64 empty items in {spread.slots} tasks", nothing, list(range(64)), 1)
        measure("16 empty items in 16 tasks", nothing, list(range(16)), WORTH_A_TASK_BYTES)
        context = DemoContext(lake.settings(), session, Path(place))
        write_small_files(context)
        store = context.objects("demo/readings")
        files = [(store, stored.key, stored.etag) for stored in store.list()]
        measure("verify 50 small files (1.5 MB)", verified_rows, files[:50], 1)
        measure("verify 300 small files (9 MB)", verified_rows, files, 1)
        show("Spread, warm session, seconds", ["work", "on Spark", "in the driver", "Spark / driver"], rows)


if __name__ == "__main__":
    main()
