"""Tables in the AWS Glue Data Catalog that are plain Parquet files under an address."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from compaction_platform.lake.dagster.provisioning import IcebergTable, PrerequisiteUnmet, TableColumn
from compaction_platform.lake.iceberg.types import arrow_schema, spark_type
from compaction_platform.lake.storage.aws_clients import aws_client
from compaction_platform.settings import Settings

PARQUET = "org.apache.hadoop.hive.ql.io.parquet"
_HIVE_NAMES = {"timestamp_ntz": "timestamp"}


@dataclass(frozen=True)
class GlueParquetTable:
    """An external table over Parquet files, so that Athena and others can read them where they are.

    Needed only where the deployment's catalog is Glue.
    """

    database: str
    name: str
    columns: tuple[TableColumn, ...]
    location: str  # an address, or a prefix below COMPACTION_LAKE_URI

    @property
    def description(self) -> str:
        return f"Glue table {self.database}.{self.name}"

    def ensure(self, settings: Settings) -> bool | None:
        if settings.catalog_kind != "glue":
            return None
        from botocore.exceptions import ClientError

        client = aws_client("glue", settings, settings.catalog_uri)
        try:
            client.get_table(DatabaseName=self.database, Name=self.name)
            return False
        except ClientError as error:
            if error.response["Error"]["Code"] != "EntityNotFoundException":
                raise PrerequisiteUnmet(f"{self.description}: {error}") from error
        with suppress(client.exceptions.AlreadyExistsException):
            client.create_database(DatabaseInput={"Name": self.database})
        client.create_table(DatabaseName=self.database, TableInput=self._input(settings))
        return True

    def _input(self, settings: Settings) -> dict[str, Any]:
        schema = arrow_schema(IcebergTable(self.database, self.name, self.columns).schema())
        kinds = {column.name: _hive_type(spark_type(column.type)) for column in schema}
        docs = {column.name: column.doc for column in self.columns}
        return {
            "Name": self.name,
            "TableType": "EXTERNAL_TABLE",
            "Parameters": {"EXTERNAL": "TRUE", "classification": "parquet"},
            "StorageDescriptor": {
                "Columns": [{"Name": name, "Type": kind, "Comment": docs[name][:255]} for name, kind in kinds.items()],
                "Location": f"{settings.place(self.location)}/",
                "InputFormat": f"{PARQUET}.MapredParquetInputFormat",
                "OutputFormat": f"{PARQUET}.MapredParquetOutputFormat",
                "SerdeInfo": {"SerializationLibrary": f"{PARQUET}.serde.ParquetHiveSerDe"},
            },
        }


def _hive_type(spark: str) -> str:
    for ours, hive in _HIVE_NAMES.items():
        spark = spark.replace(ours, hive)
    return spark.replace("`", "")
