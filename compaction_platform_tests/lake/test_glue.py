"""Tables in a Glue catalog, against moto's server on loopback."""

from collections.abc import Iterator

import pytest

from compaction_platform.lake.dagster.provisioning import TableColumn
from compaction_platform.lake.storage.aws_clients import aws_client
from compaction_platform.merge.glue_table import GlueParquetTable
from compaction_platform.settings import Settings, settings_from

pytestmark = pytest.mark.integration

STAGING = GlueParquetTable(
    database="bronze",
    name="staging_events",
    columns=(
        TableColumn("event_id", "string", "Identity of the event."),
        TableColumn("at", "timestamp"),
        TableColumn("amount", "decimal(18, 2)"),
        TableColumn("tags", "list<struct<name: string, weight: double>>"),
    ),
    location="staging",
)


@pytest.fixture(scope="module")
def glue() -> Iterator[Settings]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    try:
        yield settings_from(
            {
                "COMPACTION_LAKE_URI": "s3://lake",
                "COMPACTION_CATALOG_KIND": "glue",
                "COMPACTION_CATALOG_URI": f"http://127.0.0.1:{port}",
                "COMPACTION_CATALOG_WAREHOUSE": "s3://lake/warehouse",
                "COMPACTION_S3_ACCESS_KEY_ID": "key",
                "COMPACTION_S3_SECRET_ACCESS_KEY": "secret",
            }
        )
    finally:
        server.stop()


def test_the_staging_area_becomes_an_external_table(glue: Settings) -> None:
    assert STAGING.ensure(glue) is True
    assert STAGING.ensure(glue) is False
    table = aws_client("glue", glue, glue.catalog_uri).get_table(DatabaseName="bronze", Name="staging_events")["Table"]
    assert table["TableType"] == "EXTERNAL_TABLE"
    storage = table["StorageDescriptor"]
    assert storage["Location"] == "s3://lake/staging/"
    assert [(column["Name"], column["Type"]) for column in storage["Columns"]] == [
        ("event_id", "string"),
        ("at", "timestamp"),
        ("amount", "decimal(18,2)"),
        ("tags", "array<struct<name:string,weight:double>>"),
    ]
    assert storage["Columns"][0]["Comment"] == "Identity of the event."
    assert "parquet" in storage["SerdeInfo"]["SerializationLibrary"]


def test_without_a_glue_catalog_nothing_is_needed(settings: Settings) -> None:
    assert STAGING.ensure(settings) is None
