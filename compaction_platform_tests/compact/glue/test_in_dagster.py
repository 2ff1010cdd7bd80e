"""What a person sees of a Glue table: partitions, runs, metadata, checks, schedule; the job elsewhere; the command."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from pydantic import ValidationError
from typer.testing import CliRunner

from compaction_platform.cli import app
from compaction_platform.compact.glue.component import CompactedGlueTable
from compaction_platform.compact.glue.dagster.assets import partitions_told
from compaction_platform.compact.glue.dagster.checks import results_alone
from compaction_platform.compact.plan.lineage import content_digest
from compaction_platform.compact.rewrite import second_reader as second_look
from compaction_platform.embedded_lake.embedded import EmbeddedLake
from compaction_platform.lake.dagster.resources import LakeResource, SparkResource
from compaction_platform_tests.compact.glue.scene import GRACE_OVER, Scene, clicks

pytestmark = pytest.mark.integration

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


class Deployment:
    """A declared table with its definitions and a Dagster instance."""

    def __init__(self, scene: Scene, instance: dg.DagsterInstance, **changes: Any) -> None:
        attributes = {"database_name": scene.database, "table_name": "clicks", "quiet_for": "0s", **changes}
        self.scene, self.instance = scene, instance
        self.component = CompactedGlueTable(**attributes)
        platform = dg.Definitions(
            resources={"lake": LakeResource(), "spark": SparkResource()},
            jobs=[dg.define_asset_job("checks", selection=dg.AssetSelection.all_asset_checks())],
            executor=dg.in_process_executor,
        )
        self.defs = dg.Definitions.merge(self.component.definitions(), platform)
        self.called = f"{scene.database}_clicks"
        self.key = dg.AssetKey(["warehouse", scene.database, "clicks"])

    def run(self, partition: str | None = None, tags: dict[str, str] | None = None, **config: Any) -> Any:
        return self.defs.resolve_job_def(f"compact_{self.called}").execute_in_process(
            run_config={**QUIET, "ops": {f"rewrite_{self.called}": {"config": config}}},
            instance=self.instance,
            partition_key=partition,
            tags=tags or {},
            raise_on_error=False,
        )

    def checks(self) -> dict[str, dg.AssetCheckEvaluation]:
        result = self.defs.resolve_job_def("checks").execute_in_process(
            run_config=QUIET, instance=self.instance, raise_on_error=False
        )
        return {each.check_name: each for each in result.get_asset_check_evaluations()}

    def find_partitions(self) -> dg.SensorResult:
        sensor = self.defs.get_repository_def().get_sensor_def(f"partitions_{self.called}")
        context = dg.build_sensor_context(instance=self.instance, repository_def=self.defs.get_repository_def())
        found = sensor(context, lake=LakeResource())
        assert isinstance(found, dg.SensorResult)
        for request in found.dynamic_partitions_requests or ():
            if isinstance(request, dg.AddDynamicPartitionsRequest):
                self.instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
            else:
                for key in request.partition_keys:
                    self.instance.delete_dynamic_partition(request.partitions_def_name, key)
        return found

    def partitions(self) -> set[str]:
        return set(self.instance.get_dynamic_partitions(f"glue.{self.scene.database}.clicks"))

    def materialized(self) -> set[str]:
        return set(self.instance.get_materialized_partitions(self.key))


@pytest.fixture
def deploy(
    scene: Scene, lake_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Deployment]]:
    monkeypatch.setenv("COMPACTION_GLUE_ENDPOINT", scene.server.url)
    with dg.DagsterInstance.ephemeral() as instance:
        yield lambda **changes: Deployment(scene, instance, **changes)


def metadata_of(result: Any) -> dict[str, dict[str, Any]]:
    """By partition, as materialized."""
    return {
        event.partition: {name: value.value for name, value in event.materialization.metadata.items()}
        for event in result.all_events
        if event.is_step_materialization
    }


def test_the_sensor_finds_partitions_and_forgets_those_that_are_gone(deploy: Callable[..., Deployment]) -> None:
    deployment = deploy(partition_predicate="year='2023'")
    for month in ("05", "06", "a/b, [c]..."):
        deployment.scene.partition("2023", month)
    deployment.scene.partition("2022", "01")
    assert "3 partitions, 3 new" in str(deployment.find_partitions().skip_reason)
    odd = "year=2023/month=a%2Fb%2C %5Bc%5D%2E%2E."
    assert deployment.partitions() == {"year=2023/month=05", "year=2023/month=06", odd}
    assert not deployment.find_partitions().dynamic_partitions_requests
    deployment.scene.glue.delete_partition(
        DatabaseName=deployment.scene.database, TableName="clicks", PartitionValues=["2023", "06"]
    )
    deployment.find_partitions()
    assert deployment.partitions() == {"year=2023/month=05", odd}


def test_a_run_of_one_partition_shows_its_figures(deploy: Callable[..., Deployment]) -> None:
    deployment = deploy()
    home = deployment.scene.partition("2023", "05")
    deployment.scene.fill(home)
    deployment.scene.fill(deployment.scene.partition("2023", "06"))
    deployment.find_partitions()
    result = deployment.run("year=2023/month=05")
    assert result.success
    told = metadata_of(result)
    assert set(told) == {"year=2023/month=05"}
    figures = told["year=2023/month=05"]
    assert (figures["files_before"], figures["files_after"], figures["rows"]) == (6, 1, 120)
    assert figures["location_before"] == home and figures["location"] == deployment.scene.place("2023", "05")
    (output,) = figures["outputs"].records
    assert (output.data["inputs"], output.data["how"]) == (6, "re-encode")
    checks = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert checks == {"few_small_files": True, "partitions_are_whole": True, "rows_unchanged": True}
    assert deployment.scene.place("2023", "06").endswith("month=06")
    again = deployment.run("year=2023/month=05")
    assert again.success and "compact already" in metadata_of(again)["year=2023/month=05"]["left_alone"]


@pytest.mark.parametrize("publish", ["swap_location", "in_place"])
@pytest.mark.parametrize(("extent", "looked_at"), [(None, 2), ("all", 7), ("none", 0)])
def test_the_second_reader_looks_at_as_much_as_is_declared(
    deploy: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch, publish: str, extent: Any, looked_at: int
) -> None:
    """Six files become one: some of its rows and of one input, all of them all, or none."""
    changes = {"publish": publish, "delete_original_files": True, **({"second_reader": extent} if extent else {})}
    deployment = deploy(**changes)
    deployment.scene.fill(deployment.scene.partition("2023", "05"))
    seen: list[int] = []
    real = second_look.require_agreement

    def counted(*arguments: Any) -> None:
        seen.append(arguments[-1].count)
        real(*arguments)

    monkeypatch.setattr(second_look, "require_agreement", counted)
    assert deployment.run().success
    assert len([count for count in seen if count]) == looked_at


def test_a_run_takes_a_range_a_list_a_predicate_or_what_is_declared(deploy: Callable[..., Deployment]) -> None:
    deployment = deploy(partition_predicate="year='2023'")
    names = [f"year=2023/month=0{month}" for month in range(1, 7)]
    for month in range(1, 7):
        deployment.scene.fill(deployment.scene.partition("2023", f"0{month}"), files=2)
    deployment.scene.fill(deployment.scene.partition("2022", "01"), files=2)
    deployment.find_partitions()
    range_tags = {
        "dagster/asset_partition_range_start": names[0],
        "dagster/asset_partition_range_end": names[1],
    }
    assert set(metadata_of(deployment.run(tags=range_tags))) == set(names[:2])
    assert set(metadata_of(deployment.run(partitions=names[2:4]))) == set(names[2:4])
    assert set(metadata_of(deployment.run(partition_predicate="month='05'"))) == {names[4]}
    assert set(metadata_of(deployment.run())) == {names[5]}  # of the others, nothing is to be done
    assert metadata_of(deployment.run()) == {}
    assert deployment.materialized() == set(names)


def test_a_dry_run_is_an_observation(deploy: Callable[..., Deployment]) -> None:
    deployment = deploy()
    home = deployment.scene.partition("2023", "05")
    deployment.scene.fill(home)
    result = deployment.run(dry_run=True)
    assert result.success and metadata_of(result) == {}
    (seen,) = [
        event.asset_observation_data.asset_observation for event in result.all_events if event.is_asset_observation
    ]
    (planned,) = seen.metadata["plan"].value.records
    assert (planned.data["files_to_join"], planned.data["would_become"]) == (6, 1)
    assert deployment.scene.place("2023", "05") == home
    assert deployment.scene.names(f"{deployment.scene.location}-compacted/year=2023", hidden=True) == []


def test_a_run_that_cannot_finish_a_partition_keeps_the_others(deploy: Callable[..., Deployment]) -> None:
    deployment = deploy()
    for month in ("05", "06"):
        deployment.scene.fill(deployment.scene.partition("2023", month))

    def refuse(operation: str, request: dict[str, Any]) -> tuple[int, str] | None:
        refused = operation == "UpdatePartition" and request["PartitionValueList"] == ["2023", "05"]
        return (400, "AccessDeniedException") if refused else None

    deployment.scene.server.before = refuse
    result = deployment.run()
    assert not result.success
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert "1 partitions are as they were; 1 others are done" in str(failure.step_failure_data.error)
    assert set(metadata_of(result)) == {"year=2023/month=06"}
    checks = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert checks == {"few_small_files": False, "partitions_are_whole": True, "rows_unchanged": True}


def test_the_checks_alone_find_what_is_wrong(deploy: Callable[..., Deployment]) -> None:
    deployment = deploy(delete_original_files=True, grace="0s")
    scene = deployment.scene
    home = scene.partition("2023", "05")
    scene.fill(home)
    small = scene.partition("2023", "06")
    scene.fill(small)
    found = deployment.checks()
    assert not found["few_small_files"].passed and found["few_small_files"].severity is dg.AssetCheckSeverity.WARN
    assert found["few_small_files"].metadata["small_files"].value == 12
    deployment.run()
    found = deployment.checks()
    assert all(each.passed for each in found.values()), found
    assert found["rows_unchanged"].metadata["rows"].value == 240
    scene.put(home, "late.parquet", clicks(900))
    late = deployment.checks()["partitions_are_whole"]
    assert not late.passed and "year=2023/month=05" in str(late.metadata["files"].value)
    deployment.run()
    assert deployment.checks()["partitions_are_whole"].passed
    place = scene.place("2023", "06")
    (name,) = scene.names(place)
    data = scene.content(place, name)
    scene.put(place, name, data[:60] + bytes([data[60] ^ 255]) + data[61:])
    broken = deployment.checks()
    assert not broken["partitions_are_whole"].passed


def test_the_checks_alone_compare_what_the_catalog_leads_to_with_what_was_published(
    deploy: Callable[..., Deployment],
) -> None:
    deployment = deploy()
    scene = deployment.scene
    home, other = scene.partition("2023", "05"), scene.partition("2023", "06")
    scene.fill(home)
    scene.put(home, "alone.parquet", clicks(700, alone=[1] * 20))  # nothing goes with it: it is copied
    scene.fill(other, first=300)
    assert deployment.run().success
    place = scene.place("2023", "05")
    published = {name: scene.content(place, name) for name in scene.names(place)}
    joined, copied = sorted(published, key=lambda name: ".copied-" in name)
    manifest = json.loads(scene.content(place, "_compaction.json"))

    sound = deployment.checks()

    def fails(*changed: tuple[str, bytes | None], told: Any = manifest) -> set[str]:
        """Which checks fail with these files (None: gone) and this manifest; afterwards all is as it was."""
        for name, content in (*changed, ("_compaction.json", json.dumps(told).encode())):
            if content is None:
                scene.s3.delete_object(Bucket="lake", Key=f"{place.removeprefix('s3://lake/')}/{name}")
            else:
                scene.put(place, name, content)
        found = {check.check_name for check in results_alone(scene.run(), sound) if not check.passed}
        for name, _ in changed:
            scene.s3.delete_object(Bucket="lake", Key=f"{place.removeprefix('s3://lake/')}/{name}")
        for name, content in {**published, "_compaction.json": json.dumps(manifest).encode()}.items():
            scene.put(place, name, content)
        return found

    def telling(name: str, data: bytes, **also: str) -> Any:
        """The manifest, if the store told of this content what it tells of the published one."""
        size, etag = len(data), f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
        outputs = [
            {**each, "size": size, "etag": etag, **also} if each["name"] == name else each
            for each in manifest["outputs"]
        ]
        return {**manifest, "outputs": outputs}

    assert all(each.passed for each in sound.values()), sound
    assert sound["rows_unchanged"].metadata["compared_with_originals"].value == 2
    for name in (joined, copied):
        assert fails((name, None)) == {"partitions_are_whole", "rows_unchanged"}
        damaged = published[name][:60] + bytes([published[name][60] ^ 255]) + published[name][61:]
        assert fails((name, damaged)) == {"partitions_are_whole", "rows_unchanged"}
        assert fails((name, damaged), told=telling(name, damaged)) == {"rows_unchanged"}, "whatever the store tells"
    assert fails((f"x-{joined}", published[joined])) == {"partitions_are_whole"}
    assert fails(("theirs.parquet", published[copied])) == set(), "what writers put there is theirs"
    elsewhere = scene.place("2023", "06")
    wrong = scene.content(elsewhere, scene.names(elsewhere)[0])
    told = telling(joined, wrong, content=content_digest(wrong))
    assert fails((joined, wrong), told=told) == {"rows_unchanged"}, "sound in itself, and not the rows of its originals"
    scene.s3.delete_object(Bucket="lake", Key=f"{home.removeprefix('s3://lake/')}/part-000.parquet")
    assert fails((joined, wrong), told=told) == set(), "nobody can tell any more"
    last = deployment.checks()["rows_unchanged"]
    assert last.passed and last.metadata["compared_with_originals"].value == 1


@pytest.mark.parametrize("how", ["set back", "dropped"])
def test_what_the_catalog_does_not_lead_to_is_named_everywhere(deploy: Callable[..., Deployment], how: str) -> None:
    deployment = deploy()
    scene = deployment.scene
    home = scene.partition("2023", "05")
    scene.fill(home)
    assert deployment.run().success and deployment.checks()["partitions_are_whole"].passed
    version = scene.place("2023", "05")
    if how == "set back":
        scene.update("2023", "05", StorageDescriptor=scene.storage(home))
    else:
        drop = {"DatabaseName": scene.database, "TableName": "clicks", "PartitionValues": ["2023", "05"]}
        scene.glue.delete_partition(**drop)
    table = f"glue://{scene.database}/clicks"
    alone = deployment.checks()["partitions_are_whole"]
    assert not alone.passed and version in str(alone.metadata["files"].value)
    run = deployment.run()
    after = next(each for each in run.get_asset_check_evaluations() if each.check_name == "partitions_are_whole")
    assert not after.passed and version in str(after.metadata["files"].value)
    for arguments in (["plan", table], ["compact", table], ["compact", table, "--dry-run"]):
        told = CliRunner().invoke(app, [*arguments, "--json"])
        (partition,) = json.loads(told.output)["partitions"]
        assert told.exit_code == 1 and version in partition["problem"] and f"to {version}." in partition["problem"]
        shown = CliRunner().invoke(app, arguments)
        assert shown.exit_code == 1
        assert version.rpartition("/")[2] in "".join(shown.output.replace("│", "").split())


def test_damage_in_a_compacted_file_is_found(deploy: Callable[..., Deployment]) -> None:
    """In place, no manifest tells a file's etag: its rows are read."""
    deployment = deploy(publish="in_place", delete_original_files=True)
    scene = deployment.scene
    home = scene.partition("2023", "05")
    scene.fill(home)
    assert deployment.run().success
    assert deployment.checks()["rows_unchanged"].passed
    (name,) = scene.names(home)
    data = scene.content(home, name)
    scene.put(home, name, data[:60] + bytes([data[60] ^ 255]) + data[61:])
    assert not deployment.checks()["rows_unchanged"].passed


def test_the_schedule_asks_for_one_run_at_a_time(deploy: Callable[..., Deployment]) -> None:
    deployment = deploy()
    schedule = deployment.defs.get_repository_def().get_schedule_def(f"compact_{deployment.called}_schedule")
    context = dg.build_schedule_context(instance=deployment.instance)
    request = schedule(context)
    assert isinstance(request, dg.RunRequest) and request.partition_key is None
    deployment.scene.fill(deployment.scene.partition("2023", "05"))
    job = deployment.defs.resolve_job_def(f"compact_{deployment.called}")
    run = deployment.instance.create_run_for_job(job, run_config=request.run_config, tags=dict(job.tags))
    assert isinstance(schedule(context), dg.SkipReason)
    deployment.instance.report_run_canceled(run)
    assert isinstance(schedule(context), dg.RunRequest)
    assert set(metadata_of(deployment.run(**request.run_config["ops"][f"rewrite_{deployment.called}"]["config"]))) == {
        "year=2023/month=05"
    }


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"publish": "in_place"}, "delete_original_files: in_place needs true"),
        ({"publish": "in_place", "delete_original_files": True, "target_s3_path": "s3://x/y"}, "target_s3_path"),
        ({"target_file_size_mb": 64}, "128 or 256"),
        ({"partition_predicate": "upper(year)='X'"}, "is a function"),
        ({"target_s3_path": "/data"}, "not on S3"),
        ({"database_name": "db; DROP"}, "not a name in Glue"),
        ({"grace": "soon"}, "not a duration"),
        ({"second_reader": "some"}, "'sample', 'all' or 'none'"),
        ({"delete_originals": True}, "Extra inputs are not permitted"),
    ],
)
def test_a_declaration_that_cannot_be_meant(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        CompactedGlueTable(**{"database_name": "db", "table_name": "t", **changes})


def test_the_declaration_of_the_documentation_is_one(project: Path) -> None:
    text = (project / "docs" / "glue.md").read_text()
    declared = yaml.safe_load(text.split("```yaml")[1].split("```")[0])
    assert declared["type"] == "compaction_platform.CompactedGlueTable"
    kept = CompactedGlueTable(**declared["attributes"]).kept()
    assert (kept.database, kept.name, kept.rules.delete_originals) == ("analytics", "clicks", True)


# ---------------------------------------------------------------- elsewhere, and by command


@pytest.mark.filterwarnings("ignore:.*AssetExecutionContext.run_id.*:DeprecationWarning")  # Pipes itself asks for it
@pytest.mark.parametrize("through", ["files", "s3"])
def test_the_same_run_as_a_job_elsewhere(scene: Scene, lake_environment: dict[str, str], through: str) -> None:
    """What Pipes carries: the request there, and back the log, the figures and every partition. On AWS, through S3."""
    from dagster_aws.pipes import PipesS3ContextInjector, PipesS3MessageReader

    pipes = dg.PipesSubprocessClient()
    if through == "s3":
        pipes = dg.PipesSubprocessClient(
            context_injector=PipesS3ContextInjector(client=scene.s3, bucket="lake"),
            message_reader=PipesS3MessageReader(client=scene.s3, bucket="lake", interval=0.2),
        )
    scene.fill(scene.partition("2023", "05"))
    scene.fill(scene.partition("2022", "01"))
    request = {
        "database_name": scene.database,
        "table_name": "clicks",
        "partition_predicate": "year='2023'",
        "quiet_for": "0s",
    }
    kept = CompactedGlueTable(**request).kept()
    environment = {**lake_environment, "COMPACTION_GLUE_ENDPOINT": scene.server.url}
    told: list[Any] = []

    @dg.asset
    def clicks_elsewhere(context: dg.AssetExecutionContext, pipes: dg.PipesSubprocessClient) -> Any:
        completed = pipes.run(
            command=[sys.executable, "-m", "compaction_platform.compact.glue.remote_job"],
            context=context,
            extras=request,
            env=environment,
        )
        told.extend(partitions_told(kept, completed.get_custom_messages()))
        return completed.get_materialize_result()

    def materialize() -> Any:
        return dg.materialize([clicks_elsewhere], resources={"pipes": pipes}, raise_on_error=False, run_config=QUIET)

    result = materialize()
    assert result.success, [str(each.event_specific_data.error) for each in result.all_events if each.is_step_failure]
    (event,) = result.get_asset_materialization_events()
    assert event.materialization.metadata["partitions_compacted"].value == 1
    assert event.materialization.metadata["partitions_with_problems"].value == 0
    assert [(each.partition, each.asset_key) for each in told] == [
        ("year=2023/month=05", dg.AssetKey(["warehouse", scene.database, "clicks"]))
    ]
    assert told[0].metadata["files_after"].value == 1
    assert scene.ids("2023", "05") == list(range(120))
    if through == "files":
        request["table_name"] = "nowhere"
        assert not materialize().success


def test_the_command_plans_and_compacts_a_table(
    scene: Scene, lake_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPACTION_GLUE_ENDPOINT", scene.server.url)
    home = scene.partition("2023", "05")
    scene.fill(home)
    scene.fill(scene.partition("2022", "01"))
    table = f"glue://{scene.database}/clicks"

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, list(arguments))

    dry = run("compact", table, "--where", "year='2023'", "--dry-run")
    assert dry.exit_code == 0 and "1 of 1 partitions have something to do" in dry.output
    planned = json.loads(run("plan", table, "--json").output)
    assert {each["partition"]: each["files_to_join"] for each in planned["partitions"]} == {
        "year=2022/month=01": 6,
        "year=2023/month=05": 6,
    }
    assert scene.place("2023", "05") == home
    done = run("compact", table, "--where", "year='2023'")
    assert done.exit_code == 0 and "6 → 1" in done.output, done.output
    assert scene.ids("2023", "05") == list(range(120))
    assert scene.place("2022", "01").endswith("month=01")
    again = json.loads(run("compact", table, "--where", "year='2023'", "--json").output)
    assert [each["outcome"] for each in again["partitions"]] == ["left alone"]
    assert len(scene.names(home)) == 6
    for wrong, why in {
        ("compact", table, "--where", "country='de'"): "country is not a partition key",
        ("compact", table, "--where", "year='1999'"): "no such partition",
        ("compact", "glue://clicks"): "glue://database/table",
        ("compact", str(Path("/tmp")), "--where", "year='1'"): "--where is for tables",  # noqa: S108 (never touched)
    }.items():
        refused = run(*wrong)
        assert refused.exit_code != 0 and why in f"{refused.output}{refused.exception}"


def test_partitions_are_rewritten_in_spark_tasks(scene: Scene, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from compaction_platform.lake.spark.parallel_map import ParallelMap

    monkeypatch.setattr("compaction_platform.compact.glue.job.SMALL_WORK_BYTES", -1)
    monkeypatch.setattr("compaction_platform.lake.spark.parallel_map.SMALL_WORK_BYTES", -1)
    for month in range(1, 5):
        scene.fill(scene.partition("2023", f"0{month}"), first=month * 1000)
    used: list[ParallelMap] = []

    def spread() -> ParallelMap:
        used.append(ParallelMap(spark, 2))
        return used[-1]

    report = replace(scene.run(GRACE_OVER), spread=spread).run()
    assert used and [each.outcome for each in report.results] == ["compacted"] * 4
    for month in range(1, 5):
        assert scene.ids("2023", f"0{month}") == list(range(month * 1000, month * 1000 + 120))


def test_only_a_catalog_on_this_machine_may_stand_beside_the_embedded_lake(lake: EmbeddedLake) -> None:
    name = "COMPACTION_GLUE_ENDPOINT"
    for address, kept in (("http://127.0.0.1:5000", True), ("https://glue.example.com", False), ("", False)):
        elsewhere = {name: address, "COMPACTION_LAKE_URI": "s3://production", "AWS_ACCESS_KEY_ID": "theirs"}
        environment = lake.isolated_environment(elsewhere)
        assert (name in environment) == kept and "AWS_ACCESS_KEY_ID" not in environment
        assert environment["COMPACTION_LAKE_URI"] == "s3://lake"
