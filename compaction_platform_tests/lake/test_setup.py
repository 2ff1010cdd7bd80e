from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest

from compaction_platform.lake.dagster.provisioning import (
    DatabaseSchema,
    IcebergTable,
    LakeBucket,
    Namespace,
    Prerequisite,
    PrerequisiteUnmet,
    TableColumn,
)
from compaction_platform.lake.dagster.setup import ensure_prerequisites
from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.lake.storage.identifiers import NameInvalid
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.settings import Settings, SettingsInvalid

pytestmark = pytest.mark.integration

EVENTS = IcebergTable(
    "set_up",
    "events",
    (
        TableColumn("event_id", "string", doc="who it is", required=True),
        TableColumn("amount", "decimal(38, 0)"),
        TableColumn("at", "timestamptz"),
    ),
    partitioned_by=(("at", "day"), ("event_id", "bucket[4]")),
    properties=(("write.target-file-size-bytes", "134217728"),),
)


def test_needs_are_met_once_and_then_left_alone(settings: Settings) -> None:
    elsewhere = settings.model_copy(update={"lake_uri": "s3://made-by-setup/deep"})
    needs: list[Prerequisite] = [LakeBucket(), Namespace("set_up"), EVENTS, DatabaseSchema("set_up")]
    said: list[str] = []
    first = ensure_prerequisites(needs, elsewhere, said.append)
    assert [outcome for _, outcome in first] == ["created"] * 4
    assert said == [f"{need.description}: created" for need in needs]
    assert [outcome for _, outcome in ensure_prerequisites(needs, elsewhere, said.append)] == ["was there"] * 4
    ObjectStore.at("s3://made-by-setup/deep", settings).write("a", b"")
    assert settings.hot_postgres_url is not None
    with psycopg.connect(settings.hot_postgres_url.get_secret_value()) as connection:
        found = connection.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'set_up'").fetchone()
    assert found == (1,)


def test_a_table_is_made_as_declared_and_spark_reads_it(settings: Settings, spark: Any) -> None:
    EVENTS.ensure(settings)
    table = open_catalog(settings).load_table(("set_up", "events"))
    assert [(field.name, str(field.field_type), field.required) for field in table.schema().fields] == [
        ("event_id", "string", True),
        ("amount", "decimal(38, 0)", False),
        ("at", "timestamptz", False),
    ]
    assert table.schema().find_field("event_id").doc == "who it is"
    assert [(field.name, str(field.transform)) for field in table.spec().fields] == [
        ("at_day", "day"),
        ("event_id_bucket", "bucket[4]"),
    ]
    assert table.properties["write.target-file-size-bytes"] == "134217728"
    spark.sql("INSERT INTO lake.set_up.events VALUES ('a', 32000000000000000000, timestamp '2026-01-01 00:00:00')")
    assert spark.table("lake.set_up.events").count() == 1


def test_one_need_that_cannot_be_met_does_not_keep_the_others(settings: Settings) -> None:
    bad = IcebergTable("set_up", "bad", (TableColumn("a", "strng"),))
    good = Namespace("after_the_bad_one")
    with pytest.raises(PrerequisiteUnmet, match=r"(?s)run it again.*column a: 'strng' is not a type"):
        ensure_prerequisites([bad, good], settings, lambda sentence: None)
    assert open_catalog(settings).namespace_exists("after_the_bad_one")


@pytest.mark.parametrize("name", ["x; DROP SCHEMA public", 'a"b', "../a", "Ä"])
def test_hostile_names_are_refused(settings: Settings, name: str) -> None:
    for need in (DatabaseSchema(name), Namespace(name), IcebergTable(name, "t", (TableColumn("a", "long"),))):
        with pytest.raises(NameInvalid, match="not a usable name"):
            need.ensure(settings)


def test_a_missing_setting_is_named(settings: Settings) -> None:
    nothing = settings.model_copy(update={"hot_postgres_url": None})
    with pytest.raises(SettingsInvalid, match="COMPACTION_HOT_POSTGRES_URL"):
        DatabaseSchema("a").ensure(nothing)


def test_the_setup_job_creates_what_the_project_declares(
    settings: Settings, lake_environment: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    from compaction_platform.definitions import defs

    catalog = open_catalog(settings)
    if catalog.namespace_exists("bronze"):  # made by another test; nothing is in it
        catalog.drop_namespace("bronze")
    job = defs().get_job_def("setup")
    with dg.DagsterInstance.ephemeral() as instance:
        for expected in ("created", "was there"):
            result = job.execute_in_process(instance=instance)
            assert result.success
            events = result.get_step_success_events()
            assert len(events) == 1
            outputs = [event for event in result.all_events if event.is_successful_output]
            metadata = outputs[0].event_specific_data.metadata  # type: ignore[union-attr]
            records = {record.data["what"]: record.data["outcome"] for record in metadata["needs"].records}
            assert records["namespace bronze"] == expected
            assert set(records) >= {"the lake's bucket", "namespace cold", "database schema compaction"}
    shown = "".join(capfd.readouterr())
    assert "namespace bronze: created" in shown
    for secret in (settings.s3_secret_access_key, settings.hot_postgres_url, settings.spark_remote):
        assert secret is not None
        assert secret.get_secret_value() not in shown


def test_a_local_directory_can_be_the_lake(settings: Settings, tmp_path: Path) -> None:
    local = settings.model_copy(update={"lake_uri": str(tmp_path / "lake")})
    assert LakeBucket().ensure(local) is True
    assert LakeBucket().ensure(local) is False
    assert (tmp_path / "lake").is_dir()
