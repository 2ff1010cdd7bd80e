"""Files that something else lists by name are not touched, whatever the catalog says of the table."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from compaction_platform.cli import app
from compaction_platform.compact.glue.commit.catalog import TableUnsuitable
from compaction_platform.compact.plan.own_lists import FilesListedElsewhere
from compaction_platform_tests.compact.glue.scene import RULES, Scene, clicks

pytestmark = pytest.mark.integration

LISTS = {
    "_delta_log/00000000000000000000.json": "a Delta Lake table",
    ".hoodie/hoodie.properties": "an Apache Hudi table",
    "_spark_metadata/0": "a Spark streaming query",
    "metadata/v1.metadata.json": "an Apache Iceberg table",
    "snapshot/LATEST": "an Apache Paimon table",
    "_manifest.json": "a cold range",
    "other/_compaction.json": "a version of a Glue partition",
}
HUDI = "org.apache.hudi.hadoop.HoodieParquetInputFormat"


@pytest.mark.parametrize("publish", ["swap_location", "in_place"])
@pytest.mark.parametrize(("name", "kind"), LISTS.items())
def test_a_partition_that_has_a_list(scene: Scene, name: str, kind: str, publish: Any) -> None:
    home, other = scene.partition("2023", "05"), scene.partition("2023", "06")
    for place in (home, other):
        scene.fill(place)
    scene.put(home, name, b"{}")
    before = scene.names(home, hidden=True)
    assert kind in str([each.plan.problem for each in scene.plan(publish=publish)])
    report = scene.compact(publish=publish)
    assert list(report.problems) == ["year=2023/month=05"] and kind in report.problems["year=2023/month=05"]
    assert [each.outcome for each in report.results] == ["left alone", "compacted"]
    assert scene.names(home, hidden=True) == before and scene.place("2023", "05") == home


@pytest.mark.parametrize("where", ["at the old location of a swap", "between the table and the partition", "elsewhere"])
def test_a_list_around_a_partition(scene: Scene, where: str) -> None:
    home = scene.partition("2023", "05", location=f"{scene.location}-outside/a/b/" if where == "elsewhere" else "")
    scene.fill(home)
    above = home.rpartition("/")[0]
    if where == "at the old location of a swap":
        scene.compact()
        above = home
    log = "_delta_log/00000000000000000000.json"
    scene.put(above, log, b"{}")
    scene.put(home, "by-delta.parquet", clicks(900))
    before = scene.place("2023", "05")
    report = scene.compact()
    assert "a Delta Lake table" in report.problems["year=2023/month=05"] and above in str(report.problems)
    assert scene.place("2023", "05") == before and report.results[0].late == 0


@pytest.mark.parametrize("place", ["", "/..", "-compacted"])
def test_a_list_at_the_table_above_it_or_where_versions_go(
    scene: Scene, place: str, lake_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPACTION_GLUE_ENDPOINT", scene.server.url)
    home = scene.partition("2023", "05")
    scene.fill(home)
    where = scene.location.rpartition("/")[0] if place == "/.." else f"{scene.location}{place}"
    scene.put(where, "_delta_log/00000000000000000000.json", b"{}")
    for act in (scene.plan, scene.compact):
        with pytest.raises(FilesListedElsewhere, match="a Delta Lake table"):
            act(RULES)
    for verb in ("plan", "compact"):
        refused = CliRunner().invoke(app, [verb, f"glue://{scene.database}/clicks"])
        assert refused.exit_code != 0 and "Delta Lake" in f"{refused.output}{refused.exception}"
    assert scene.place("2023", "05") == home and len(scene.names(home)) == 6


def with_serde(library: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda storage: {**storage, "SerdeInfo": {"SerializationLibrary": library}}


@pytest.mark.parametrize(
    ("parameters", "storage", "name"),
    [
        ({"table_type": "ICEBERG", "metadata_location": "s3://x/metadata/v1.metadata.json"}, {}, "Iceberg"),
        ({"metadata_location": "s3://x/metadata/v1.metadata.json"}, {}, "Iceberg"),
        ({"table_type": "EXTERNAL", "spark.sql.sources.provider": "iceberg"}, {}, "Iceberg"),
        ({"storage_handler": "org.apache.iceberg.mr.hive.HiveIcebergStorageHandler"}, {}, "Iceberg"),
        ({"table_type": "managed", "spark.sql.sources.provider": "DELTA"}, {}, "Delta Lake"),
        ({"classification": "delta"}, {}, "Delta Lake"),
        ({"delta.lastCommitTimestamp": "1"}, {}, "Delta Lake"),
        ({"spark.sql.sources.provider": "org.apache.hudi"}, {}, "Hudi"),
        ({"hoodie.table.name": "clicks"}, {}, "Hudi"),
        ({}, {"InputFormat": HUDI}, "Hudi"),
        ({}, {"InputFormat": "com.uber.hoodie.hadoop.HoodieInputFormat"}, "Hudi"),
        ({"spark.sql.sources.provider": "paimon"}, {}, "Paimon"),
        ({}, {"SerdeInfo": {"SerializationLibrary": "x", "Parameters": {"provider": "delta"}}}, "Delta Lake"),
    ],
)
def test_tables_of_other_formats_are_refused_by_name(
    scene: Scene,
    lake_environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    parameters: dict[str, str],
    storage: dict[str, Any],
    name: str,
) -> None:
    monkeypatch.setenv("COMPACTION_GLUE_ENDPOINT", scene.server.url)
    described = {**scene.storage(scene.location), **storage}
    scene.create_table("other", Parameters={"EXTERNAL": "TRUE", **parameters}, StorageDescriptor=described)
    scene.table = "other"
    for publish in ("swap_location", "in_place"):
        with pytest.raises(TableUnsuitable, match=f"is a table of {name}"):
            scene.plan(publish=publish)
    for arguments in (["plan"], ["compact", "--dry-run"], ["compact"]):
        refused = CliRunner().invoke(app, [arguments[0], f"glue://{scene.database}/other", *arguments[1:]])
        assert refused.exit_code != 0 and f"is a table of {name}" in f"{refused.output}{refused.exception}"


def test_a_partition_of_another_format_is_left_alone(scene: Scene) -> None:
    scene.fill(scene.partition("2023", "05"))
    home = scene.place("2023", "05")
    scene.update("2023", "05", StorageDescriptor={**scene.storage(home), "InputFormat": HUDI})
    assert "Hoodie" in json.dumps(scene.compact().problems) and scene.place("2023", "05") == home
