"""What a person sees of a maintained table: runs, metadata, checks, the sensor, the way back."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from compaction_platform.lake.dagster.resources import LakeResource, SparkResource
from compaction_platform.maintain.component import MaintainedTable, care_definitions, switched_on
from compaction_platform.maintain.config import MaintenanceRequest
from compaction_platform.maintain.dagster.checks import check_specs
from compaction_platform_tests.maintain.scene import Scene, rows_of

pytestmark = pytest.mark.integration

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
FIGURES = [
    "files_before",
    "files_after",
    "files_compacted",
    "files_removed",
    "bytes_before",
    "bytes_after",
    "bytes_saved",
    "snapshots_expired",
    "compaction_time_ms",
    "small_files_remaining",
]


class Deployment:
    """A declared table with its definitions and a Dagster instance."""

    def __init__(self, scene: Scene, instance: dg.DagsterInstance, **changes: Any) -> None:
        self.scene, self.instance = scene, instance
        self.component = MaintainedTable(table=scene.name, name="orders", **changes)
        platform = dg.Definitions(
            resources={"lake": LakeResource(), "spark": SparkResource()},
            jobs=[dg.define_asset_job("checks", selection=dg.AssetSelection.all_asset_checks())],
            executor=dg.in_process_executor,
        )
        self.defs = dg.Definitions.merge(self.component.definitions(), platform)
        self.repository = self.defs.get_repository_def()
        self.cursor: str | None = None

    def job(self, name: str, **config: Any) -> dg.ExecuteInProcessResult:
        ops = {"ops": {"maintain_table_orders": {"config": config}}} if config else {}
        return self.defs.resolve_job_def(name).execute_in_process(
            run_config={**QUIET, **ops}, instance=self.instance, raise_on_error=False
        )

    def run(self, **config: Any) -> dg.ExecuteInProcessResult:
        return self.job("maintain_orders", **config)

    def tick(self) -> Any:
        sensor = self.repository.get_sensor_def("health_orders")
        with dg.build_sensor_context(
            self.instance, self.cursor, repository_def=self.repository, resources={"lake": LakeResource()}
        ) as context:
            result: Any = sensor(context)
        self.cursor = result.cursor
        return result


@pytest.fixture
def deploy(scene: Scene, lake_environment: dict[str, str]) -> Iterator[Callable[..., Deployment]]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield lambda **changes: Deployment(scene, instance, **changes)


def materialization(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = result.get_asset_materialization_events()
    return {name: value.value for name, value in event.materialization.metadata.items()}


def checks(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {each.check_name: each for each in result.get_asset_check_evaluations()}


def test_a_run_shows_the_figures_the_plan_and_the_checks(deploy: Callable[..., Deployment]) -> None:
    deployment = deploy()
    deployment.scene.small_files(5)
    result = deployment.run()
    assert result.success
    metadata = materialization(result)
    assert [name for name in metadata if name in FIGURES] == FIGURES
    assert (metadata["files_before"], metadata["files_after"], metadata["files_compacted"]) == (5, 1, 5)
    assert metadata["health"] > metadata["health_before"]
    assert "under 1 MB" in metadata["file_sizes"]
    (group,) = metadata["plan"].records
    assert group.data["partition"] == "country=de" and group.data["expected_files"] == 1
    (proof,) = metadata["compacted"].records
    assert (proof.data["rows"], proof.data["deleted_rows_left_out"]) == (50, 0) and len(proof.data["fingerprint"]) == 32
    found = checks(result)
    assert set(found) == {spec.name for spec in check_specs(dg.AssetKey("any"))}
    assert all(each.passed for each in found.values()), found
    assert found["rows_unchanged_by_compaction"].metadata["rows"].value == 50
    deployment.scene.assert_nothing_lost()


def test_a_run_that_has_nothing_to_do_says_why(deploy: Callable[..., Deployment]) -> None:
    deployment = deploy()
    deployment.scene.small_files(2)
    metadata = materialization(deployment.run())
    assert metadata["files_compacted"] == 0
    assert "min_files_to_compact" in metadata["skipped"]
    assert metadata["left_alone"].records[0].data["files"] == 2


def test_a_dry_run_shows_and_changes_nothing(deploy: Callable[..., Deployment]) -> None:
    deployment = deploy()
    deployment.scene.small_files(4)
    before = deployment.scene.table.metadata
    result = deployment.run(dry_run=True)
    assert result.success and not result.get_asset_materialization_events()
    (observation,) = result.get_asset_observation_events()
    metadata = observation.asset_observation_data.asset_observation.metadata
    assert metadata["files_to_compact"].value == 4
    assert metadata["plan"].value.records[0].data["files"] == 4
    assert deployment.scene.table.metadata == before


def test_a_request_that_cannot_be_meant_fails_with_the_reason(deploy: Callable[..., Deployment]) -> None:
    deployment = deploy()
    deployment.scene.small_files(3)
    for config, words in (
        ({"snapshot_retention_hours": 0}, "running readers"),
        ({"partition_filter": "nation = 'de'"}, "The table's columns"),
    ):
        result = deployment.run(**config)
        assert not result.success
        error = next(event for event in result.all_events if event.is_step_failure).step_failure_data.error
        assert error is not None and error.cause is not None and words in error.cause.message
    assert deployment.scene.files() == 3


def test_checks_alone_look_again(deploy: Callable[..., Deployment]) -> None:
    deployment = deploy()
    deployment.scene.small_files(4)
    found = checks(deployment.job("checks"))
    assert not found["compaction_recommended"].passed
    assert found["compaction_recommended"].severity == dg.AssetCheckSeverity.WARN
    assert found["compaction_recommended"].metadata["small_files_count"].value == 4
    deployment.run()
    result = deployment.job("checks")
    assert result.success
    assert all(each.passed for each in checks(result).values())
    assert checks(result)["rows_unchanged_by_compaction"].metadata["rows"].value == 40


def test_missing_files_fail_the_retention_check(deploy: Callable[..., Deployment]) -> None:
    from compaction_platform.lake.iceberg.data_file_reader import DataFileReader, key_of

    deployment = deploy()
    scene = deployment.scene
    scene.small_files(3)
    old = next(iter(scene.look().files.data))
    deployment.run()
    DataFileReader(scene.table.metadata, scene.settings).store(old).delete([key_of(old)])
    found = checks(deployment.job("checks"))["retention_kept"]
    assert not found.passed
    assert old in str(found.metadata["problems"].value)


# ---------------------------------------------------------------- the sensor


def test_the_sensor_looks_every_nth_commit_and_only_recommends(deploy: Callable[..., Deployment]) -> None:
    deployment = deploy(compaction={"opportunistic_check_interval": 3})
    deployment.scene.small_commits(2)
    first = deployment.tick()
    assert [event.passed for event in first.asset_events if isinstance(event, dg.AssetCheckEvaluation)] == [True]
    deployment.scene.small_commits(2, first=100)
    quiet = deployment.tick()
    assert quiet.asset_events == [] and "2 commits since" in quiet.skip_reason.skip_message
    deployment.scene.small_commits(1, first=200)
    third = deployment.tick()
    (check,) = [event for event in third.asset_events if isinstance(event, dg.AssetCheckEvaluation)]
    assert (check.check_name, check.passed) == ("compaction_recommended", False)
    assert check.metadata["small_files_count"].value == 5
    (seen,) = [event for event in third.asset_events if isinstance(event, dg.AssetObservation)]
    assert seen.metadata["health"].value < 100
    assert seen.metadata["partitions"].value.records[0].data["small_files"] == 5
    assert third.run_requests == []


def test_the_sensor_asks_for_a_run_where_that_is_declared(deploy: Callable[..., Deployment]) -> None:
    deployment = deploy(automatic=True)
    deployment.scene.small_commits(5)
    (request,) = deployment.tick().run_requests
    (same,) = deployment.tick().run_requests
    assert same.run_key == request.run_key, "Dagster runs it once"
    result = deployment.defs.resolve_job_def("maintain_orders").execute_in_process(
        run_config=QUIET, instance=deployment.instance, tags=dict(request.tags)
    )
    assert result.success
    assert deployment.scene.files() == 1
    assert "health 100" in deployment.tick().skip_reason.skip_message
    assert "0 commits" in deployment.tick().skip_reason.skip_message, "its own commit is no news"


def test_a_backlog_is_worked_off_run_by_run(deploy: Callable[..., Deployment]) -> None:
    """Nobody writes any more; what is beyond max_files is not forgotten."""
    deployment = deploy(automatic=True, compaction={"max_files_per_compaction": 4})
    deployment.scene.small_files(9)
    runs = 0
    while requests := deployment.tick().run_requests:
        runs += 1
        assert runs < 10
        deployment.defs.resolve_job_def("maintain_orders").execute_in_process(
            run_config=QUIET, instance=deployment.instance, tags=dict(requests[0].tags)
        )
    assert runs >= 2
    assert deployment.scene.files() <= 2
    deployment.scene.assert_nothing_lost()


def runs_asked_for(deployment: Deployment) -> list[dg.RunRequest]:
    result = deployment.tick()
    return list(result.run_requests or [])


def test_what_a_run_would_not_do_is_not_asked_for(deploy: Callable[..., Deployment]) -> None:
    disabled = deploy(automatic=True, compaction={"enabled": False})
    disabled.scene.small_files(6)
    assert [runs_asked_for(disabled) for _ in range(2)] == [[], []]
    writers_are_busy = deploy(automatic=True, compaction={"leave_to_writers_for": "1h"})
    tick = writers_are_busy.tick()
    assert tick.run_requests == [] and "left to their writers" in tick.skip_reason.skip_message
    again = writers_are_busy.tick()
    assert "left to their writers" in again.skip_reason.skip_message, "it looks again, though nobody commits"
    assert again.asset_events == [], "and does not tell the same twice"


def test_a_run_that_got_nowhere_is_not_asked_for_at_every_commit(deploy: Callable[..., Deployment]) -> None:
    deployment = deploy(automatic=True)
    deployment.scene.small_commits(5)
    assert len(runs_asked_for(deployment)) == 1
    deployment.scene.write(rows_of([7000]))
    assert runs_asked_for(deployment) == []
    deployment.scene.small_commits(4, first=8000)
    assert len(runs_asked_for(deployment)) == 1


def test_outside_of_the_window_nothing_is_asked_for_or_done(deploy: Callable[..., Deployment]) -> None:
    now = datetime.now(UTC)
    window = f"{now + timedelta(hours=2):%H:%M}-{now + timedelta(hours=3):%H:%M}"
    deployment = deploy(automatic=True, window=window)
    deployment.scene.small_files(5)
    for _ in range(2):
        tick = deployment.tick()
        assert tick.run_requests == [] and f"the window ({window} UTC)" in tick.skip_reason.skip_message
    assert "outside of the window" in materialization(deployment.run())["skipped"]
    assert deployment.scene.files() == 5
    assert materialization(deployment.run(force=True))["files_after"] == 1


def test_a_table_that_is_not_there_yet_is_waited_for(deploy: Callable[..., Deployment]) -> None:
    deployment = deploy()
    deployment.scene.sql(f"DROP TABLE {deployment.scene.full_name}")
    assert "does not exist" in str(deployment.tick().skip_reason)


# ---------------------------------------------------------------- undo


def test_the_undo_job_takes_the_last_compaction_back(deploy: Callable[..., Deployment]) -> None:
    deployment = deploy()
    deployment.scene.small_files(4)
    deployment.run()
    result = deployment.job("undo_compaction_orders")
    assert result.success
    assert deployment.scene.files() == 4
    deployment.scene.assert_nothing_lost()
    assert not deployment.job("undo_compaction_orders").success


# ---------------------------------------------------------------- declared elsewhere


def test_a_merged_table_switches_it_on(project: Path) -> None:
    tree = dg.ComponentTree.for_project(project / "compaction_platform")
    ((table, care),) = switched_on(tree)
    assert table == "silver.events" and care.automatic
    (asset,) = care_definitions(table, care).assets or ()
    assert isinstance(asset, dg.AssetsDefinition)
    assert asset.keys == {dg.AssetKey(["maintenance", "events"])}
    assert asset.asset_deps[dg.AssetKey(["maintenance", "events"])] == {dg.AssetKey(["silver", "events"])}


def test_a_run_config_is_a_request() -> None:
    from compaction_platform.maintain.dagster.assets import MaintainConfig

    assert MaintainConfig(max_files=7, force=True).request() == MaintenanceRequest(max_files=7, force=True)
