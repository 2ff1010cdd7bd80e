"""Compact in the demo: a writer leaves small files in hourly directories, a run over all hours makes one of each."""

import io
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.parquet

from compaction_platform.lake.dagster.demo_step import DemoContext, DemoFailed, DemoStep
from compaction_platform.lake.dagster.run_requests import RANGE_END_TAG, RANGE_START_TAG
from compaction_platform.lake.storage.sizes import MB

if TYPE_CHECKING:
    from compaction_platform.compact.config import CompactedDataset

HOURS = 3
FILES_PER_HOUR = 100
ROWS_PER_FILE = 500
UPLOADS_AT_ONCE = 16
NAME = "demo_clicks"


def clicks(hour: int, file: int) -> pyarrow.Table:
    first = (hour * FILES_PER_HOUR + file) * ROWS_PER_FILE
    numbers = range(first, first + ROWS_PER_FILE)
    return pyarrow.table(
        {
            "click": pyarrow.array(numbers, pyarrow.int64()),
            "page": [f"/page/{number * 7919 % 211}" for number in numbers],
            "seconds": [number * 31 % 1000 / 10 for number in numbers],
        }
    )


def write_files(context: DemoContext) -> str:
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=HOURS + 2)
    context.notes["hours"] = [f"{start + timedelta(hours=hour):%Y-%m-%d-%H:%M}" for hour in range(HOURS)]
    with ThreadPoolExecutor(UPLOADS_AT_ONCE) as pool:
        for hour, directory in enumerate(_directories(context)):
            list(pool.map(partial(_put, context, directory, hour), range(FILES_PER_HOUR)))
            context.progress((hour + 1) / HOURS)
    files = HOURS * FILES_PER_HOUR
    return f"{files} files in {HOURS} hourly directories, {files * ROWS_PER_FILE:,} rows"


def compact_hours(context: DemoContext) -> str:
    told = _run(context)
    _compare(context)
    again = _run(context)
    if again["files_compacted"]:
        raise DemoFailed("what was compacted was compacted again")
    return (
        f"{told['files_before']} files → {told['files_after']}, {told['bytes_before'] / MB:.1f} → "
        f"{told['bytes_after'] / MB:.1f} MB, the same rows in the same order; a second run does nothing"
    )


STEPS = [
    DemoStep("Write small files into hourly directories", write_files),
    DemoStep("Compact: one run over all hours", compact_hours),
]


def _directories(context: DemoContext) -> list[str]:
    dataset: CompactedDataset = _component().dataset()
    return dataset.prefixes(context.notes["hours"])


def _component() -> Any:
    """The clicks dataset of defs/, under another name."""
    import yaml

    from compaction_platform.compact.component import CompactedDirectory

    file = Path(__file__).parents[1] / "defs" / "clicks" / "defs.yaml"
    attributes = yaml.safe_load(file.read_text())["attributes"]
    day = f"{datetime.now(UTC) - timedelta(days=2):%Y-%m-%d}"
    return CompactedDirectory(**attributes | {"name": NAME, "uri": f"warehouse/{NAME}", "first_day": day})


def _put(context: DemoContext, directory: str, hour: int, file: int) -> None:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(clicks(hour, file), sink, compression="zstd", write_page_checksum=True)
    context.objects(f"warehouse/{NAME}").write(f"{directory}/part-{file:05d}.parquet", sink.getvalue())


def _run(context: DemoContext) -> dict[str, int]:
    import dagster as dg

    from compaction_platform.lake.dagster.resources import LakeResource, SparkResource

    platform = dg.Definitions(
        resources={"lake": LakeResource(), "spark": SparkResource()}, executor=dg.in_process_executor
    )
    definitions = dg.Definitions.merge(_component().definitions(), platform)
    hours = context.notes["hours"]
    with dg.DagsterInstance.ephemeral() as instance:
        run = definitions.resolve_job_def(f"compact_{NAME}").execute_in_process(
            run_config={"loggers": {"console": {"config": {"log_level": "ERROR"}}}},
            instance=instance,
            tags={RANGE_START_TAG: hours[0], RANGE_END_TAG: hours[-1]},
        )
    metadata = run.get_asset_materialization_events()[0].step_materialization_data.materialization.metadata
    names = ("files_before", "files_after", "bytes_before", "bytes_after", "files_compacted")
    return {name: int(str(metadata[name].value)) for name in names}


def _compare(context: DemoContext) -> None:
    """Every hour, read file by file in the order of names, is what was written."""
    store = context.objects(f"warehouse/{NAME}")
    for hour, directory in enumerate(_directories(context)):
        keys = sorted(stored.key for stored in store.list(directory))
        tables = [pyarrow.parquet.read_table(pyarrow.BufferReader(bytes(store.read(key)))) for key in keys]
        expected = pyarrow.concat_tables(clicks(hour, file) for file in range(FILES_PER_HOUR))
        if len(keys) != 1 or pyarrow.concat_tables(tables).to_pylist() != expected.to_pylist():
            raise DemoFailed(f"{directory} does not hold what was written there")
