"""Merge in the demo: files are staged as if over the last hours, the sensor finds them, and the table is compared
with what plain Python says it must hold."""

import hashlib
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.parquet

from compaction_platform.lake.dagster.demo_step import DemoContext, DemoFailed, DemoStep
from compaction_platform.lake.dagster.setup import ensure_prerequisites

if TYPE_CHECKING:
    from compaction_platform.merge.component import MergedTable

HOURS = 6
FILES_PER_HOUR = 50
ROWS_PER_FILE = 200
TABLE = "demo_events"
SENSOR = f"staged_{TABLE}"


def events(hour: int, file: int) -> list[dict[str, Any]]:
    """A file's rows: new events, and every tenth a newer version of one of the hour before."""
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=HOURS + 2)
    rows = []
    for row in range(ROWS_PER_FILE):
        of_hour = max(0, hour - 1) if row % 10 == 0 else hour
        number = (of_hour * FILES_PER_HOUR + file) * ROWS_PER_FILE + row
        happened = start + timedelta(hours=of_hour, seconds=number % 3600)
        rows.append(
            {
                "event_id": hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest(),
                "event_time": happened,
                "updated_at": happened + timedelta(hours=hour - of_hour),
                "event_type": ("view", "click", "buy")[number % 3],
                "user_id": number % 997,
            }
        )
    return rows


def _stage(context: DemoContext, name: str, rows: list[dict[str, Any]] | bytes, hour: int) -> None:
    path = context.scratch / "staging" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(rows, bytes):
        path.write_bytes(rows)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, write_page_checksum=True)
        _expect(context.notes.setdefault("events", {}), rows)
    start = datetime.now(UTC).replace(minute=5, second=0, microsecond=0) - timedelta(hours=HOURS + 2)
    arrived = (start + timedelta(hours=hour)).timestamp()
    os.utime(path, (arrived, arrived))


def _expect(table: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """The rule of the merge in one line: the newest row of each event."""
    for row in rows:
        if row["event_id"] not in table or table[row["event_id"]]["updated_at"] < row["updated_at"]:
            table[row["event_id"]] = row


def stage_files(context: DemoContext) -> str:
    for hour in range(HOURS):
        for file in range(FILES_PER_HOUR):
            _stage(context, f"hour-{hour}/batch_{file:03d}.parquet", events(hour, file), hour)
        context.progress((hour + 1) / HOURS)
    files = HOURS * FILES_PER_HOUR
    return f"{files} files in {HOURS} hours, {files * ROWS_PER_FILE:,} rows, {len(context.notes['events']):,} events"


def merge_what_the_sensor_finds(context: DemoContext) -> str:
    figures = _let_the_sensor_work(context)
    _compare(context)
    return (
        f"{figures['runs']} run: {figures['rows_inserted']:,} rows inserted, {figures['rows_updated']:,} updated, "
        "audited, published; equal to plain Python"
    )


def late_and_corrupt(context: DemoContext) -> str:
    late = [{**row, "updated_at": row["updated_at"] + timedelta(days=1)} for row in events(0, 0)]
    _stage(context, "hour-0/late.parquet", late, 0)
    good = (context.scratch / "staging" / "hour-1" / "batch_000.parquet").read_bytes()
    _stage(context, "hour-1/broken.parquet", good[:-500], 1)
    figures = _let_the_sensor_work(context)
    _compare(context)
    again = _let_the_sensor_work(context)
    if again["runs"]:
        raise DemoFailed("the sensor asked for a run though nothing was new")
    return (
        f"{figures['rows_updated']:,} rows updated by the late file, {figures['bad_files']} file quarantined, "
        "the rest unharmed; nothing more to do"
    )


STEPS = [
    DemoStep("Stage many small files, as producers do", stage_files),
    DemoStep("Merge: the sensor finds them, one run merges them", merge_what_the_sensor_finds),
    DemoStep("Merge again: one late file, one corrupt file", late_and_corrupt),
]


# ---------------------------------------------------------------- in Dagster


def _let_the_sensor_work(context: DemoContext) -> dict[str, int]:
    """One tick of the sensor, and every run it asks for."""
    import dagster as dg

    from compaction_platform.lake.dagster.resources import LakeResource, SparkResource

    component = _declared(context)
    platform = dg.Definitions(
        resources={"lake": LakeResource(), "spark": SparkResource()}, executor=dg.in_process_executor
    )
    definitions = dg.Definitions.merge(component.definitions(), platform)
    figures = {"runs": 0, "rows_inserted": 0, "rows_updated": 0, "bad_files": 0}
    with dg.DagsterInstance.ephemeral() as instance:
        repository = definitions.get_repository_def()
        with dg.build_sensor_context(instance, resources={"lake": LakeResource()}, repository_def=repository) as tick:
            result: Any = repository.get_sensor_def(SENSOR)(tick)
        for request in result.run_requests:
            run = definitions.resolve_job_def(f"merge_{TABLE}").execute_in_process(
                run_config={"loggers": {"console": {"config": {"log_level": "ERROR"}}}},
                instance=instance,
                tags=dict(request.tags),
                partition_key=request.partition_key,
            )
            _add(figures, run)
    return figures


def _add(figures: dict[str, int], run: Any) -> None:
    figures["runs"] += 1
    seen = set()
    for event in run.get_asset_materialization_events():
        layer = event.asset_key.path[0]
        metadata = event.step_materialization_data.materialization.metadata
        if layer == "bronze":
            figures["bad_files"] += metadata["bad_files"].value
        elif layer not in seen:  # the figures of the one merge are repeated for every hour of it
            seen.add(layer)
            figures["rows_inserted"] += metadata["rows_inserted"].value
            figures["rows_updated"] += metadata["rows_updated"].value


def _declared(context: DemoContext) -> "MergedTable":
    """The events table of defs/, under another name and with the demo's own staging directory."""
    import yaml

    from compaction_platform.merge.component import MergedTable

    file = Path(__file__).parents[1] / "defs" / "events" / "defs.yaml"
    attributes = yaml.safe_load(file.read_text())["attributes"]
    attributes["source"]["uri"] = str(context.scratch / "staging")
    attributes["table"]["name"] = TABLE
    component = MergedTable(**attributes)
    ensure_prerequisites(component.needs(), context.settings, lambda text: None)
    return component


def _compare(context: DemoContext) -> None:
    from compaction_platform.lake.iceberg.catalog import open_catalog

    columns = ("event_id", "event_time", "updated_at", "event_type", "user_id")
    table = open_catalog(context.settings).load_table(("silver", TABLE))
    found = {row["event_id"]: row for row in table.scan(selected_fields=columns).to_arrow().to_pylist()}
    if found != context.notes["events"]:
        raise DemoFailed("the table is not what plain Python says it must be")
