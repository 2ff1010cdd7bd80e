"""What a person sees of a compacted directory: runs, metadata, checks, schedule, sensor, metrics."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from compaction_platform.compact.component import CompactedDirectory
from compaction_platform.compact.dagster import sensors
from compaction_platform.compact.rewrite import reencode
from compaction_platform.errors import VerificationFailed
from compaction_platform.lake.dagster.resources import LakeResource, SparkResource
from compaction_platform.lake.parquet.stitch.errors import StitchFailed
from compaction_platform.settings import Settings
from compaction_platform_tests.compact.yard import Yard, local_yard, rows
from compaction_platform_tests.metrics_receiver import Receiver

pytestmark = pytest.mark.integration  # Dagster takes seconds to load

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
LAYOUT = "dt={date}/hour={hour}"
DAY = f"{datetime.now(UTC) - timedelta(days=20):%Y-%m-%d}"


class Deployment:
    """A declared directory with its definitions and a Dagster instance."""

    def __init__(self, yard: Yard, instance: dg.DagsterInstance, **changes: Any) -> None:
        attributes = {"name": "clicks", "uri": yard.uri, "layout": LAYOUT, "first_day": DAY, **changes}
        self.yard = yard
        self.component = CompactedDirectory(**attributes)
        platform = dg.Definitions(
            resources={"lake": LakeResource(), "spark": SparkResource()},
            jobs=[dg.define_asset_job("checks", selection=dg.AssetSelection.all_asset_checks())],
            executor=dg.in_process_executor,
        )
        self.defs = dg.Definitions.merge(self.component.definitions(), platform)
        self.repository = self.defs.get_repository_def()
        self.instance = instance
        self.cursor: str | None = None

    def run(self, first: str | None = None, last: str | None = None, **config: Any) -> dg.ExecuteInProcessResult:
        tags = {}
        if last is not None:
            tags = {
                "dagster/asset_partition_range_start": str(first),
                "dagster/asset_partition_range_end": last,
            }
        return self.defs.resolve_job_def("compact_clicks").execute_in_process(
            run_config={**QUIET, **({"ops": {"rewrite_clicks": {"config": config}}} if config else {})},
            instance=self.instance,
            partition_key=first if last is None else None,
            tags=tags,
            raise_on_error=False,
        )

    def answer(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        return self.defs.resolve_job_def("compact_clicks").execute_in_process(
            run_config=QUIET,
            instance=self.instance,
            partition_key=request.partition_key,
            tags=dict(request.tags),
            raise_on_error=False,
        )

    def checks(self) -> dg.ExecuteInProcessResult:
        return self.defs.resolve_job_def("checks").execute_in_process(
            run_config=QUIET, instance=self.instance, raise_on_error=False
        )

    def late(self) -> tuple[list[dg.RunRequest], str]:
        """What the sensor asks for and says, tick by tick, until it has looked at everything."""
        requests: list[dg.RunRequest] = []
        said: list[str] = []
        for _ in range(10):
            result = self.tick()
            requests += result.run_requests
            said.append(result.skip_reason.skip_message if result.skip_reason else "")
            if json.loads(result.cursor)["begins_at"] == "":
                return requests, "\n".join(said)
        raise AssertionError("the sensor never comes to an end")

    def tick(self) -> Any:
        sensor = self.repository.get_sensor_def("late_clicks")
        with dg.build_sensor_context(
            self.instance, self.cursor, repository_def=self.repository, resources={"lake": LakeResource()}
        ) as context:
            result: Any = sensor(context)
        self.cursor = result.cursor
        return result

    def scheduled(self) -> Any:
        schedule = self.repository.get_schedule_def("compact_clicks_schedule")
        with dg.build_schedule_context(
            self.instance, repository_def=self.repository, resources={"lake": LakeResource()}
        ) as context:
            result: Any = schedule(context)
        return result


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Callable[..., Deployment]]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield lambda **changes: Deployment(
            local_yard(tmp_path / "clicks", Settings(_env_file=None)), changes.pop("instance", instance), **changes
        )


@pytest.fixture(scope="module")
def lasting_instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    """Schedules want an instance that can be found again."""
    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("dagster"))) as instance:
        yield instance


def put(yard: Yard, hour: int, files: int = 3, stem: str = "part", day: str = DAY) -> None:
    for number in range(files):
        yard.put(f"dt={day}/hour={hour:02d}/{stem}-{number}.parquet", rows(hour * 1000 + number * 50))


def metadata(result: dg.ExecuteInProcessResult, partition: str | None = None) -> dict[str, Any]:
    (found,) = [
        event.materialization.metadata
        for event in result.get_asset_materialization_events()
        if partition is None or event.partition == partition
    ]
    return {name: getattr(value, "records", getattr(value, "value", value)) for name, value in found.items()}


def checks(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {each.check_name: each.passed for each in result.get_asset_check_evaluations()}


ALL_WELL = {"few_small_files": True, "no_superseded_inputs_left": True, "rows_unchanged": True}


def test_an_hour_is_compacted_and_the_run_tells_what_it_did(deploy: Callable[..., Deployment]) -> None:
    here = deploy()
    put(here.yard, 5)
    put(here.yard, 6)
    before = here.yard.content()
    result = here.run(f"{DAY}-05:00")
    assert result.success
    assert here.yard.content() == before
    assert len(here.yard.files()) == 4
    told = metadata(result)
    assert {name: told[name] for name in ("files_before", "files_after", "files_compacted", "partitions_skipped")} == {
        "files_before": 3,
        "files_after": 1,
        "files_compacted": 3,
        "partitions_skipped": 0,
    }
    assert told["bytes_before"] > told["bytes_after"] > 0
    assert told["duration"] > 0
    assert told["mb_per_second"] >= 0
    assert "| under 1 MB | 3 | 1 | ████████████ | ████ |" in told["file_sizes"]
    (output,) = told["outputs"]
    assert (output.data["inputs"], output.data["rows"], output.data["engine"]) == (3, 150, "re-encode")
    assert output.data["reason"].startswith("not stitched: row groups have 50 rows")
    assert checks(result) == ALL_WELL


def test_a_range_is_one_run_and_hours_without_work_say_why(deploy: Callable[..., Deployment]) -> None:
    here = deploy()
    put(here.yard, 5)
    put(here.yard, 7, files=1)
    put(here.yard, 8)
    result = here.run(f"{DAY}-05:00", f"{DAY}-08:00")
    assert result.success
    told = metadata(result, f"{DAY}-05:00")
    assert (told["files_before"], told["files_after"], told["partitions_skipped"]) == (7, 3, 2)
    assert [record.data for record in told["skipped"]] == [
        {"partition": f"{DAY}-06:00", "why": "no files"},
        {"partition": f"{DAY}-07:00", "why": "1 too few small files to make a larger one"},
    ]
    assert told["partition_files_compacted"] == 3
    assert metadata(result, f"{DAY}-06:00")["skipped"] == "no files"
    assert checks(result) == ALL_WELL


def test_a_dry_run_changes_nothing_and_shows_the_plan(deploy: Callable[..., Deployment]) -> None:
    here = deploy()
    put(here.yard, 5)
    files = here.yard.files()
    result = here.run(f"{DAY}-05:00", dry_run=True)
    assert result.success
    assert here.yard.files() == files
    assert result.get_asset_materialization_events() == []
    (observed,) = result.get_asset_observation_events()
    shown = observed.asset_observation_data.asset_observation.metadata
    assert (shown["files_to_compact"].value, shown["files_after"].value) == (3, 1)


def test_an_hour_that_is_not_over_is_refused(deploy: Callable[..., Deployment]) -> None:
    here = deploy(grace="1000d")
    put(here.yard, 5)
    result = here.run(f"{DAY}-05:00")
    assert not result.success
    (failure,) = result.get_step_failure_events()
    assert f"{DAY}-05:00: not over yet" in str(failure.step_failure_data.error.cause.message)
    assert len(here.yard.files()) == 3


def test_an_output_that_differs_blocks_and_changes_nothing(
    deploy: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = deploy()
    put(here.yard, 5)
    real = reencode.ParquetOutput.write
    monkeypatch.setattr(
        reencode.ParquetOutput, "write", lambda output, groups: real(output, (rows.slice(1) for rows in groups))
    )
    result = here.run(f"{DAY}-05:00")
    assert not result.success
    assert checks(result) == {**ALL_WELL, "rows_unchanged": False, "few_small_files": False}
    assert len(here.yard.files()) == 3


def test_a_failed_proof_is_known_by_its_type_and_not_by_its_name(
    deploy: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    class ColumnsDiffer(VerificationFailed):
        pass

    def fail(*_: object) -> None:
        raise ColumnsDiffer("other columns")

    here = deploy()
    put(here.yard, 5)
    monkeypatch.setattr(reencode, "require", fail)
    result = here.run(f"{DAY}-05:00")
    assert not result.success
    assert checks(result) == {**ALL_WELL, "rows_unchanged": False, "few_small_files": False}


def test_a_defect_of_stitching_is_a_warning_and_the_files_are_encoded_anew(
    deploy: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StitchFailed("what was written was not what was read")

    here = deploy()
    put(here.yard, 5)
    monkeypatch.setattr(reencode.stitch, "write", fail)
    result = here.run(f"{DAY}-05:00")
    assert result.success and len(here.yard.files()) == 1
    evaluation = {each.check_name: each for each in result.get_asset_check_evaluations()}["rows_unchanged"]
    assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert evaluation.metadata["stitch_failures"].value == 1


def test_checks_alone_read_the_latest_outputs_again(deploy: Callable[..., Deployment]) -> None:
    yesterday = datetime.now(UTC) - timedelta(hours=12)
    day, hour = f"{yesterday:%Y-%m-%d}", yesterday.hour
    here = deploy()
    put(here.yard, hour, day=day)
    assert here.run(f"{day}-{hour:02d}:00").success
    result = here.checks()
    assert result.success
    assert checks(result) == ALL_WELL
    evaluation = {each.check_name: each for each in result.get_asset_check_evaluations()}["rows_unchanged"]
    assert (evaluation.metadata["outputs"].value, evaluation.metadata["rows"].value) == (1, 150)
    (output,) = here.yard.outputs()
    damaged = bytearray(here.yard.store.read(output))
    damaged[len(damaged) // 4] ^= 1
    here.yard.store.write(output, bytes(damaged))
    put(here.yard, hour, files=2, stem="late", day=day)
    result = here.checks()
    assert not result.success
    assert checks(result) == {**ALL_WELL, "rows_unchanged": False, "few_small_files": False}


def test_the_schedule_asks_for_the_latest_hours_that_need_it(
    deploy: Callable[..., Deployment], lasting_instance: dg.DagsterInstance
) -> None:
    here = deploy(instance=lasting_instance)
    assert isinstance(here.scheduled(), dg.SkipReason)
    now = datetime.now(UTC)
    for ago in (3, 4, 6):
        moment = now - timedelta(hours=ago)
        put(here.yard, moment.hour, day=f"{moment:%Y-%m-%d}")
    put(here.yard, now.hour, day=f"{now:%Y-%m-%d}")  # still open
    requests = here.scheduled()
    assert isinstance(requests, list)
    keys = [f"{now - timedelta(hours=ago):%Y-%m-%d-%H}:00" for ago in (6, 4, 3)]
    assert [request.partition_key for request in requests] == [keys[0], None]
    assert requests[1].tags["dagster/asset_partition_range_start"] == keys[1]
    assert requests[1].tags["dagster/asset_partition_range_end"] == keys[2]
    assert all(here.answer(request).success for request in requests)
    assert isinstance(here.scheduled(), dg.SkipReason)
    assert len(here.yard.files()) == 6  # three outputs, and the hour that is open


def test_the_sensor_finds_an_old_hour_that_got_a_late_file(deploy: Callable[..., Deployment]) -> None:
    here = deploy()
    put(here.yard, 5)
    assert here.run(f"{DAY}-05:00").success
    here.yard.grow_older()
    assert here.late()[0] == []
    put(here.yard, 5, files=1, stem="late")
    assert here.late()[0] == []  # one file makes no new one
    put(here.yard, 5, files=2, stem="late")
    ((request,), _) = here.late()
    assert request.partition_key == f"{DAY}-05:00"
    assert here.answer(request).success
    assert len(here.yard.files()) == 1
    assert here.late()[0] == []


def test_the_sensor_finishes_what_a_dead_run_has_left(deploy: Callable[..., Deployment]) -> None:
    here = deploy()
    put(here.yard, 5)
    first = Path(here.yard.uri) / here.yard.files()[0]
    kept = Path(here.yard.uri) / "_kept"
    kept.hardlink_to(first)
    assert here.run(f"{DAY}-05:00").success
    first.hardlink_to(kept)  # the very version that was compacted: as if it had not been removed
    here.yard.grow_older()
    ((request,), _) = here.late()
    assert here.answer(request).success
    assert here.yard.files() == here.yard.outputs()


def test_the_sensor_looks_again_when_a_note_is_deleted(deploy: Callable[..., Deployment]) -> None:
    here = deploy()
    put(here.yard, 5, files=1)
    here.yard.put(f"dt={DAY}/hour=05/broken-1.parquet", b"PAR1 broken")
    here.yard.put(f"dt={DAY}/hour=05/broken-2.parquet", b"PAR1 broken")
    ((request,), _) = here.late()
    assert here.answer(request).success
    assert len(here.yard.notes()) == 2
    assert here.late()[0] == []
    for stored in list(here.yard.store.list("_compaction/set_aside")):
        here.yard.store.delete([stored.key])
    assert len(here.late()[0]) == 1


def test_a_backlog_is_asked_for_in_ranges_that_a_database_can_keep(deploy: Callable[..., Deployment]) -> None:
    here = deploy()
    for hour in range(200):
        moment = datetime.fromisoformat(DAY) + timedelta(hours=hour)
        put(here.yard, moment.hour, files=2, day=f"{moment:%Y-%m-%d}")
    requests, _ = here.late()
    assert len(requests) == 2
    assert max(len(value) for request in requests for value in request.tags.values()) < 2500


def test_the_sensor_looks_at_all_old_hours_in_turn(
    deploy: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensors, "PARTITIONS_PER_LOOK", 4)
    here = deploy()
    put(here.yard, 5)  # the sixth hour
    assert here.tick().run_requests == []
    (request,) = here.tick().run_requests
    assert request.partition_key == f"{DAY}-05:00"


def test_an_hour_that_fails_is_not_asked_for_for_ever(deploy: Callable[..., Deployment]) -> None:
    here = deploy(sort_by=["absent"])
    put(here.yard, 5)
    for _ in range(3):
        ((request,), _) = here.late()
        assert not here.answer(request).success
    requests, said = here.late()
    assert requests == []
    assert f"1 hours (the first: {DAY}-05:00) were not settled by 3 runs" in said


def test_a_directory_without_partitions_and_days(
    deploy: Callable[..., Deployment], lasting_instance: dg.DagsterInstance
) -> None:
    here = deploy(layout=None, grace="0s", instance=lasting_instance)
    put(here.yard, 5)
    put(here.yard, 6)
    (request,) = here.scheduled()
    assert request.partition_key is None
    assert here.answer(request).success
    assert len(here.yard.files()) == 2
    assert here.component.definitions().sensors == []
    daily = deploy(layout="dt={date}")
    daily.yard.grow_older()
    put(daily.yard, 5, files=2, stem="late")
    assert metadata(daily.run(DAY))["files_compacted"] == 3


def test_disabled_means_by_hand_only(deploy: Callable[..., Deployment]) -> None:
    here = deploy(enabled=False)
    defs = here.component.definitions()
    assert (list(defs.schedules or ()), list(defs.sensors or ())) == ([], [])
    put(here.yard, 5)
    assert here.run(f"{DAY}-05:00").success


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"layout": "hour={hour}"}, "does not name the day"),
        ({"target_file_size_mb": 512}, "max_file_size_mb: 256 is less than the target"),
        ({"originals": "keep"}, "keep needs a target_uri"),
        ({"target_uri": "clicks/large", "uri": "clicks"}, "must not lie inside one another"),
        ({"compression": "snappy", "compression_level": 3}, "snappy has no levels"),
        ({"schedule": "hourly"}, "not a cron"),
        ({"min_files": 1}, "greater than or equal to 2"),
        ({"name": "Clicks!"}, "Clicks!"),
        ({"grace": "soon"}, "not a duration"),
        ({"first_day": "yesterday"}, "not a day"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        CompactedDirectory(**{"name": "clicks", "uri": "clicks", "layout": LAYOUT, **changes})


# ---------------------------------------------------------------- metrics


def test_metrics_are_sent_where_otel_variables_say(
    deploy: Callable[..., Deployment], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.address)
    here = deploy()
    put(here.yard, 5)
    assert here.run(f"{DAY}-05:00", f"{DAY}-06:00").success
    (request,) = receiver.received
    (resource,) = request.resource_metrics
    found = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    assert {name: metric.sum.data_points[0].as_int for name, metric in found.items() if metric.HasField("sum")} == {
        "compaction.runs": 1,
        "compaction.files_compacted": 3,
        "compaction.partitions_skipped": 1,
    }
    assert found["compaction.duration"].histogram.data_points[0].sum > 0
    assert found["compaction.runs"].sum.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    labels = {each.key: each.value.string_value for each in found["compaction.runs"].sum.data_points[0].attributes}
    assert labels == {"dataset": "clicks", "outcome": "done"}


def test_no_metrics_without_variables_and_a_dead_receiver_fails_no_run(
    deploy: Callable[..., Deployment], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = deploy()
    put(here.yard, 5)
    assert here.run(f"{DAY}-05:00").success
    assert receiver.received == []
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    put(here.yard, 6)
    assert here.run(f"{DAY}-06:00").success
