"""What a person sees: sensor, runs, metadata, checks, cleanup. Real Dagster runs on the test lake."""

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow
import pytest
import yaml
from pyiceberg.table.update import SetSnapshotRefUpdate

from compaction_platform.lake.dagster.resources import LakeResource, SparkResource
from compaction_platform.lake.dagster.setup import ensure_prerequisites
from compaction_platform.lake.iceberg.branches import commit
from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.merge.cleanup_staging import clean_up
from compaction_platform.merge.component import MergedTable
from compaction_platform.settings import Settings
from compaction_platform_tests.merge.scene import SCHEMA, event, parquet

pytestmark = pytest.mark.integration

QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
HOUR = datetime(2026, 11, 1, 5, tzinfo=UTC)


class Deployment:
    """A declared table with its definitions, a Dagster instance and a staging directory."""

    def __init__(self, project: Path, settings: Settings, staging: Path, name: str, **changes: Any) -> None:
        text = (project / "compaction_platform" / "defs" / "events" / "defs.yaml").read_text()
        attributes = yaml.safe_load(text)["attributes"] | changes
        attributes["source"]["uri"] = str(staging)
        attributes["table"]["name"] = name
        self.settings, self.staging, self.name = settings, staging, name
        self.component = MergedTable(**attributes)
        ensure_prerequisites(self.component.needs(), settings, lambda text: None)
        platform = dg.Definitions(
            resources={"lake": LakeResource(), "spark": SparkResource()},
            jobs=[dg.define_asset_job("checks", selection=dg.AssetSelection.all_asset_checks())],
            executor=dg.in_process_executor,
        )
        self.defs = dg.Definitions.merge(self.component.definitions(), platform)
        self.instance = dg.DagsterInstance.ephemeral()
        self.cursor: str | None = None

    def stage(self, name: str, rows: Any, hours: int = 0) -> Path:
        path = self.staging / name
        path.write_bytes(rows if isinstance(rows, bytes) else parquet(as_table(rows)))
        arrived = (HOUR + timedelta(hours=hours, minutes=5)).timestamp()
        os.utime(path, (arrived, arrived))
        return path

    def tick(self) -> Any:
        repository = self.defs.get_repository_def()
        sensor = repository.get_sensor_def(f"staged_{self.name}")
        with dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, resources={"lake": LakeResource()}, repository_def=repository
        ) as context:
            result: Any = sensor(context)
        self.cursor = result.cursor
        return result

    def run(self, request: Any, **config: Any) -> dg.ExecuteInProcessResult:
        op = {"ops": {f"take_in_and_merge_{self.name}": {"config": config}}} if config else {}
        return self.defs.resolve_job_def(f"merge_{self.name}").execute_in_process(
            run_config={**QUIET, **op},
            instance=self.instance,
            tags=dict(request.tags),
            partition_key=request.partition_key,
            raise_on_error=False,
        )

    def run_all(self) -> list[dg.ExecuteInProcessResult]:
        return [self.run(request) for request in self.tick().run_requests]

    def checks(self) -> dg.ExecuteInProcessResult:
        return self.defs.resolve_job_def("checks").execute_in_process(
            run_config=QUIET, instance=self.instance, raise_on_error=False
        )

    def rows(self) -> dict[str, Any]:
        table = open_catalog(self.settings).load_table(("silver", self.name))
        return {row["event_id"]: row for row in table.scan().to_arrow().to_pylist()}


@pytest.fixture
def deploy(
    project: Path, settings: Settings, lake_environment: dict[str, str], tmp_path: Path
) -> Iterator[Callable[..., Deployment]]:
    made: list[Deployment] = []

    def make(**changes: Any) -> Deployment:
        staging = tmp_path / f"staging{len(made)}"
        staging.mkdir()
        made.append(Deployment(project, settings, staging, f"events_{time.monotonic_ns()}", **changes))
        return made[-1]

    yield make
    for each in made:
        each.instance.dispose()


def values(metadata: Any) -> dict[str, Any]:
    return {name: getattr(value, "records", getattr(value, "value", value)) for name, value in metadata.items()}


def outcome(results: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {each.check_name: each.passed for each in results.get_asset_check_evaluations()}


def as_table(rows: list[dict[str, Any]]) -> pyarrow.Table:
    return pyarrow.Table.from_pylist(rows, SCHEMA).drop_columns(["amount"])


def test_the_sensor_finds_hours_and_their_runs_merge_them(deploy: Callable[..., Deployment]) -> None:
    here = deploy()
    assert here.tick().skip_reason.skip_message == "nothing new is staged"
    here.stage("a.parquet", [event("a"), event("b")])
    here.stage("b.parquet", [event("b", 2), {**event("x"), "event_id": None}], 1)
    here.stage("bad.parquet", b"bad", 1)
    result = here.tick()
    (request,) = result.run_requests
    assert request.tags["dagster/asset_partition_range_start"] == "2026-11-01-05:00"
    assert request.tags["dagster/asset_partition_range_end"] == "2026-11-01-06:00"
    run = here.run(request)
    assert run.success
    assert sorted(here.rows()) == ["a", "b"]
    materialized = {
        (event.asset_key.to_user_string(), event.partition): values(
            event.step_materialization_data.materialization.metadata
        )
        for event in run.get_asset_materialization_events()
    }
    bronze = materialized[f"bronze/{here.name}", "2026-11-01-06:00"]
    assert (bronze["files"], bronze["rows"], bronze["bad_files"], bronze["rows_rejected"]) == (2, 2, 1, 1)
    assert len(bronze["digest"]) == 32
    silver = materialized[f"silver/{here.name}", "2026-11-01-05:00"]
    figures = ("files", "rows_read", "rows_inserted", "rows_updated", "rows_unchanged", "rows_rejected")
    assert tuple(silver[name] for name in figures) == (2, 4, 2, 0, 0, 1)
    assert silver["rows_per_second"] > 0
    assert silver["dagster/column_schema"].columns[0].description == "Identity of the event."
    fates = {record.data["file"]: record.data["fate"] for record in silver["file_fates"]}
    assert fates == {"a.parquet": "sound", "b.parquet": "sound", "bad.parquet": "quarantined"}
    snapshot = open_catalog(here.settings).load_table(("silver", here.name)).metadata.current_snapshot_id
    key = dg.AssetKey(["silver", here.name])
    record = here.instance.get_latest_data_version_record(key)
    assert record is not None
    assert record.asset_materialization.tags["dagster/data_version"] == str(snapshot)
    assert outcome(run) == {
        "every_staged_row_is_in_silver": True,
        "key_is_unique": True,
        "schema_as_declared": True,
        "nothing_quarantined": False,
        "what_was_set_aside_is_kept": True,
        "event_time_is_fresh": False,
    }
    assert here.tick().skip_reason.skip_message == "nothing new is staged"


def test_before_set_up_the_sensor_says_what_to_do(deploy: Callable[..., Deployment]) -> None:
    here = deploy()
    open_catalog(here.settings).drop_table(("silver", here.name))
    assert "Run the job `setup` once" in here.tick().skip_reason.skip_message


def test_a_late_file_is_asked_for_and_one_that_is_gone_is_not(deploy: Callable[..., Deployment]) -> None:
    here = deploy()
    here.stage("a.parquet", [event("a")])
    here.stage("b.parquet", [event("b")])
    assert [run.success for run in here.run_all()] == [True]
    (here.staging / "b.parquet").unlink()  # the bucket's own rules
    assert not here.tick().run_requests
    here.cursor = None
    assert not here.tick().run_requests, "nor without the cursor"
    here.stage("late.parquet", [event("late")])
    (request,) = here.tick().run_requests
    assert request.partition_key == "2026-11-01-05:00"
    assert here.run(request).success
    assert sorted(here.rows()) == ["a", "b", "late"]
    assert not here.tick().run_requests


def test_hours_that_are_open_or_too_old_are_left_alone(deploy: Callable[..., Deployment]) -> None:
    here = deploy()
    path = here.stage("now.parquet", [event("a")])
    os.utime(path)
    here.stage("old.parquet", [event("a")], -24 * 400)
    result = here.tick()
    assert not result.run_requests
    assert "1 hours are not over yet" in result.skip_reason.skip_message
    assert "files of 1 hours before first_hour are left alone" in result.skip_reason.skip_message


def test_a_run_that_fails_is_asked_for_again_a_few_times(
    deploy: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = deploy()
    here.stage("a.parquet", [event("a")])

    def fail(*arguments: Any) -> None:
        raise OSError("no store today")

    keys = []
    with monkeypatch.context() as broken:
        broken.setattr("compaction_platform.merge.job.staged_batches", fail)
        for _ in range(3):
            (request,) = here.tick().run_requests
            keys.append(request.run_key)
            assert not here.run(request).success
    assert len(set(keys)) == 3, "a key that was used would be passed over in silence"
    result = here.tick()
    assert not result.run_requests
    assert "were not settled by 3 runs; look at those, then materialize by hand" in result.skip_reason.skip_message


def test_an_hour_that_fails_does_not_hold_up_the_others(
    deploy: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = deploy()
    for hour in range(3):
        here.stage(f"{hour}.parquet", [event(str(hour))], hour)
    from compaction_platform.merge import job as run_module

    real = run_module.staged_batches

    def fail_at_one(rules: Any, places: Any, settings: Any, hours: Any) -> Any:
        if "2026-11-01-06:00" in hours:
            raise OSError("this hour is cursed")
        return real(rules, places, settings, hours)

    monkeypatch.setattr(run_module, "staged_batches", fail_at_one)
    assert [run.success for run in here.run_all()] == [False], "all three in one run"
    assert [run.success for run in here.run_all()] == [True, False, True], "then each by itself"
    assert sorted(here.rows()) == ["0", "2"]
    assert [run.success for run in here.run_all()] == [False]
    assert here.run_all() == []
    here.stage("3.parquet", [event("3")], 3)
    assert [run.success for run in here.run_all()] == [True]


def test_a_table_made_anew_gets_its_hours_again(deploy: Callable[..., Deployment]) -> None:
    here = deploy(cleanup="delete")
    here.stage("a.parquet", [event("a")])
    here.run_all()
    assert here.rows()
    path = here.stage("a.parquet", [event("a")])
    open_catalog(here.settings).drop_table(("silver", here.name))
    ensure_prerequisites(here.component.needs(), here.settings, lambda text: None)
    clean_up(here.component.rules(), here.settings, ["2026-11-01-05:00"], print)
    assert path.exists(), "a receipt for the table that was dropped proves nothing"
    here.run_all()
    assert here.rows()
    assert not path.exists()


def test_hours_in_a_run_that_is_not_over_are_not_asked_for_twice(deploy: Callable[..., Deployment]) -> None:
    here = deploy()
    here.stage("a.parquet", [event("a")])
    (request,) = here.tick().run_requests
    here.instance.create_run_for_job(
        here.defs.resolve_job_def(f"merge_{here.name}"),
        tags={**request.tags, "dagster/partition": request.partition_key},
        status=dg.DagsterRunStatus.STARTED,
    )
    result = here.tick()
    assert not result.run_requests
    assert "1 hours are in a run that is not over" in result.skip_reason.skip_message


def test_a_tick_lists_a_hundred_thousand_files(deploy: Callable[..., Deployment]) -> None:
    here = deploy()
    arrived = HOUR.timestamp()
    for hour in range(100):
        place = here.staging / f"{hour:03d}"
        place.mkdir()
        for number in range(1000):
            path = place / f"{number:04d}.parquet"
            path.touch()
            os.utime(path, (arrived + hour * 3600, arrived + hour * 3600))
    (request,) = here.tick().run_requests
    assert request.tags["dagster/asset_partition_range_end"] == "2026-11-05-08:00"


def test_a_dry_run_in_dagster_materializes_nothing(deploy: Callable[..., Deployment]) -> None:
    here = deploy(cleanup="delete")
    here.stage("a.parquet", [event("a")])
    (request,) = here.tick().run_requests
    run = here.run(request, dry_run=True)
    assert run.success
    assert not run.get_asset_materialization_events()
    (observed,) = run.get_asset_observation_events()
    assert values(observed.asset_observation_data.asset_observation.metadata)["rows_inserted"] == 1
    assert here.rows() == {}
    assert (here.staging / "a.parquet").exists()
    assert here.run_all()[0].success, "the sensor still asks for the hour"


# ---------------------------------------------------------------- checks


def test_checks_alone_look_at_the_table_again(deploy: Callable[..., Deployment], spark: Any) -> None:
    here = deploy(freshness=None)
    here.stage("a.parquet", [event("a"), event("b"), event("c")])
    here.run_all()
    checked = here.checks()
    assert checked.success
    assert set(outcome(checked).values()) == {True}
    table = f"lake.silver.{here.name}"
    spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE event_id = 'a'").collect()
    spark.sql(f"UPDATE {table} SET user_id = 5 WHERE event_id = 'b'").collect()
    spark.sql(f"DELETE FROM {table} WHERE event_id = 'c'").collect()
    spark.sql(f"ALTER TABLE {table} DROP COLUMN event_type").collect()
    checked = here.checks()
    assert not checked.success, "exit code non-zero in CI"
    assert outcome(checked) == {
        "every_staged_row_is_in_silver": False,
        "key_is_unique": False,
        "schema_as_declared": False,
        "nothing_quarantined": True,
        "what_was_set_aside_is_kept": True,
    }
    told = {each.check_name: values(each.metadata) for each in checked.get_asset_check_evaluations()}
    assert [row["event_id"] for row in told["key_is_unique"]["keys"]] == ["a"]
    assert {row["event_id"] for row in told["every_staged_row_is_in_silver"]["keys"]} == {"b", "c"}


def test_checks_alone_find_rows_that_are_nowhere(deploy: Callable[..., Deployment]) -> None:
    """Planted by hand; no run has anything to report."""
    here = deploy(cleanup="delete", freshness=None)
    here.stage("a.parquet", [event("a"), {**event("x"), "event_id": None}])
    here.stage("bad.parquet", b"bad")
    here.run_all()
    table = open_catalog(here.settings).load_table(("silver", here.name))
    before = table.metadata.current_snapshot_id
    here.stage("b.parquet", [event("b")], 1)
    here.run_all()
    assert set(outcome(here.checks()).values()) == {True, False}, (
        "something is in quarantine, and all is where it should be"
    )
    assert [name for name, passed in outcome(here.checks()).items() if not passed] == ["nothing_quarantined"]
    roll_back(table.refresh(), before)
    checked = here.checks()
    assert not checked.success and not outcome(checked)["every_staged_row_is_in_silver"]
    quarantine = ObjectStore.at(f"{here.settings.lake_uri}/quarantine/{here.name}", here.settings)
    content = {stored.key: bytes(quarantine.read(stored.key)) for stored in quarantine.list()}
    for name, data in content.items():
        quarantine.delete([name])
        assert outcome(here.checks())["what_was_set_aside_is_kept"] is name.endswith(".reason.json")
        quarantine.write(name, data)
    told = {each.check_name: values(each.metadata) for each in checked.get_asset_check_evaluations()}
    assert told["every_staged_row_is_in_silver"]["list"] == ["b.parquet"]
    here.stage("b.parquet", [event("b")], 2)  # delivered again
    here.run_all()
    assert outcome(here.checks())["every_staged_row_is_in_silver"] and "b" in here.rows()


def roll_back(table: Any, snapshot: int | None) -> None:
    commit(table, (), (SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot or 0),))


def test_a_partition_that_changed_is_found_by_the_uniqueness_check(deploy: Callable[..., Deployment]) -> None:
    here = deploy(freshness=None)
    here.stage("a.parquet", [event("moves"), event("stays")])
    here.run_all()
    here.stage("b.parquet", [event("moves", 2, day=5)], 1)
    here.run_all()
    checked = here.checks()
    assert not outcome(checked)["key_is_unique"]
    told = {each.check_name: values(each.metadata) for each in checked.get_asset_check_evaluations()}
    assert [(row["event_id"], row["copies"]) for row in told["key_is_unique"]["keys"]] == [("moves", "2")]


def test_freshness_looks_at_the_data(deploy: Callable[..., Deployment]) -> None:
    here = deploy()
    recent = {**event("recent"), "event_time": datetime.now(UTC) - timedelta(hours=30)}
    here.stage("a.parquet", [recent])
    (run,) = here.run_all()
    (check,) = [each for each in run.get_asset_check_evaluations() if each.check_name == "event_time_is_fresh"]
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert 29 * 3600 < values(check.metadata)["age_seconds"] < 31 * 3600
    here.stage("b.parquet", [{**event("fresh"), "event_time": datetime.now(UTC)}], 1)
    (run,) = here.run_all()
    assert outcome(run)["event_time_is_fresh"]


# ---------------------------------------------------------------- cleanup


def test_merged_files_are_deleted_and_nothing_else(deploy: Callable[..., Deployment]) -> None:
    here = deploy(cleanup="delete")
    here.stage("a.parquet", [event("a")])
    here.stage("bad.parquet", b"bad")
    (here.staging / "_SUCCESS").touch()
    here.stage("other.csv", b"a,b")
    here.stage("later.parquet", [event("later")], 1)
    one_hour = dg.RunRequest(partition_key="2026-11-01-05:00")
    assert here.run(one_hour).success
    assert sorted(path.name for path in here.staging.iterdir()) == ["_SUCCESS", "later.parquet", "other.csv"]
    kept = [
        stored.key
        for stored in ObjectStore.at(f"{here.settings.lake_uri}/quarantine/{here.name}", here.settings).list()
    ]
    assert len(kept) == 2, "the bad file is in quarantine, with its reason"


def test_a_file_replaced_after_the_merge_is_not_deleted(
    deploy: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = deploy(cleanup="delete")
    here.stage("a.parquet", [event("a")])
    here.stage("b.parquet", [event("b")])
    from compaction_platform.merge.dagster import assets

    real = assets.clean_up

    def replaced_first(*arguments: Any) -> Any:
        here.stage("a.parquet", [event("a", 9)], 1)
        return real(*arguments)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(assets, "clean_up", replaced_first)
        (run,) = here.run_all()
    assert run.success
    assert [path.name for path in here.staging.iterdir()] == ["a.parquet"]
    (run,) = here.run_all()
    assert here.rows()["a"]["updated_at"] == event("a", 9)["updated_at"]
    assert list(here.staging.iterdir()) == []


def test_archived_files_move_byte_for_byte(deploy: Callable[..., Deployment]) -> None:
    here = deploy(cleanup="archive")
    data = here.stage("a.parquet", [event("a")]).read_bytes()
    here.run_all()
    assert list(here.staging.iterdir()) == []
    archive = ObjectStore.at(f"{here.settings.lake_uri}/archive/{here.name}", here.settings)
    (stored,) = archive.list()
    assert bytes(archive.read(stored.key)) == data


def test_nothing_is_cleaned_up_after_a_failed_audit(
    deploy: Callable[..., Deployment], spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compaction_platform.merge.publish.merger import Merger

    here = deploy(cleanup="delete")
    here.stage("a.parquet", [event("a"), event("b")])
    real = Merger._audited

    def damaged(self: Merger, attempt: Any, branch: str, *others: Any) -> Any:
        self.session.sql(f"DELETE FROM {self._in_branch(branch)} WHERE event_id = 'b'").collect()
        return real(self, attempt, branch, *others)

    monkeypatch.setattr(Merger, "_audited", damaged)
    (run,) = here.run_all()
    assert not run.success
    assert not outcome(run)["every_staged_row_is_in_silver"]
    assert here.rows() == {}
    assert (here.staging / "a.parquet").exists()
    assert not [e for e in run.get_asset_materialization_events() if "cleaned" in e.asset_key.path]


def test_a_schedule_instead_of_the_sensor(deploy: Callable[..., Deployment], tmp_path: Path) -> None:
    here = deploy(schedule="0 6 * * *")
    here.stage("a.parquet", [event("a")])
    repository = here.defs.get_repository_def()
    assert not repository.sensor_defs
    schedule = repository.get_schedule_def(f"merge_{here.name}_schedule")
    assert schedule.cron_schedule == "0 6 * * *"
    with (
        dg.DagsterInstance.local_temp(str(tmp_path)) as instance,
        dg.build_schedule_context(
            instance=instance, resources={"lake": LakeResource()}, repository_def=repository
        ) as context,
    ):
        requests: Any = schedule(context)
    assert [request.partition_key for request in requests] == ["2026-11-01-05:00"]
