"""A Glue table over files on S3 for a test, and what its readers see: by plain boto3 and DuckDB."""

import io
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import boto3
import duckdb
import pyarrow
import pyarrow.parquet

from compaction_platform.compact.glue.config import GlueTableConfig, PartitionSurvey
from compaction_platform.compact.glue.job import EVERYTHING, GlueRun
from compaction_platform.compact.glue.plan.inventory import Selection
from compaction_platform.compact.glue.plan.partition_plan import PartitionRules
from compaction_platform.compact.glue.report import GlueReport
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.settings import Settings
from compaction_platform_tests.compact.glue.catalog_server import CatalogServer

PARQUET = "org.apache.hadoop.hive.ql.io.parquet"
COLUMNS = [
    {"Name": "id", "Type": "bigint", "Comment": "Which click."},
    {"Name": "word", "Type": "string", "Comment": ""},
]
KEYS = (("year", "string"), ("month", "string"))
RULES = PartitionRules(grace=timedelta(hours=1))
GRACE_OVER = replace(RULES, grace=timedelta(), delete_originals=True)


def clicks(first: int, count: int = 20, **more: Any) -> pyarrow.Table:
    numbers = range(first, first + count)
    return pyarrow.table(
        {"id": pyarrow.array(numbers, pyarrow.int64()), "word": [f"w{number % 7}" for number in numbers], **more}
    )


def as_parquet(rows: pyarrow.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(rows, sink, **options)
    return sink.getvalue()


class Scene:
    """Database and table of its own; partitions by year and month."""

    number = 0

    def __init__(self, settings: Settings, server: CatalogServer, keys: Sequence[tuple[str, str]] = KEYS) -> None:
        Scene.number += 1
        self.settings, self.server = settings, server
        self.database, self.table = f"db{Scene.number}", "clicks"
        self.prefix = f"glue/{self.database}/clicks"
        self.location = f"s3://lake/{self.prefix}"
        self.keys = list(keys)
        self.said: list[str] = []
        options = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}
        self.glue = boto3.client("glue", endpoint_url=server.url, **options)
        secret = settings.s3_secret_access_key
        key = settings.s3_access_key_id
        assert secret and key
        self.s3 = boto3.client(
            "s3",
            endpoint_url=settings.s3_endpoint,
            region_name="us-east-1",
            aws_access_key_id=key.get_secret_value(),
            aws_secret_access_key=secret.get_secret_value(),
        )
        self.glue.create_database(DatabaseInput={"Name": self.database})
        self.create_table()

    def create_table(self, name: str = "clicks", **changes: Any) -> None:
        described: dict[str, Any] = {
            "Name": name,
            "TableType": "EXTERNAL_TABLE",
            "Parameters": {"EXTERNAL": "TRUE", "classification": "parquet"},
            "PartitionKeys": [{"Name": key, "Type": kind} for key, kind in self.keys],
            "StorageDescriptor": self.storage(f"{self.location}/"),
        }
        self.glue.create_table(DatabaseName=self.database, TableInput={**described, **changes})

    def storage(self, location: str | None) -> dict[str, Any]:
        return {
            "Columns": COLUMNS,
            **({} if location is None else {"Location": location}),
            "InputFormat": f"{PARQUET}.MapredParquetInputFormat",
            "OutputFormat": f"{PARQUET}.MapredParquetOutputFormat",
            "SerdeInfo": {
                "Name": "theirs",
                "SerializationLibrary": f"{PARQUET}.serde.ParquetHiveSerDe",
                "Parameters": {"serialization.format": "1"},
            },
            "Parameters": {"theirs": "kept"},
            "SortColumns": [],
            "StoredAsSubDirectories": False,
        }

    def partition(self, *values: str, location: str | None = "", **parameters: str) -> str:
        """A partition in the catalog; where its files go."""
        if location == "":
            path = "/".join(f"{key}={value}" for (key, _), value in zip(self.keys, values, strict=True))
            location = f"{self.location}/{path}/"
        self.glue.create_partition(
            DatabaseName=self.database,
            TableName=self.table,
            PartitionInput={
                "Values": list(values),
                "StorageDescriptor": self.storage(location),
                "Parameters": {"made_by": "the writer", **parameters},
            },
        )
        return (location or "").rstrip("/")

    def described(self, *values: str) -> dict[str, Any]:
        found: dict[str, Any] = self.glue.get_partition(
            DatabaseName=self.database, TableName=self.table, PartitionValues=list(values)
        )["Partition"]
        return found

    def update(self, *values: str, **changes: Any) -> None:
        before = self.described(*values)
        told = {name: before[name] for name in ("Values", "StorageDescriptor", "Parameters")}
        self.glue.update_partition(
            DatabaseName=self.database,
            TableName=self.table,
            PartitionValueList=list(values),
            PartitionInput={**told, **changes},
        )

    def put(self, place: str, name: str, content: pyarrow.Table | bytes, **options: Any) -> None:
        data = as_parquet(content, **options) if isinstance(content, pyarrow.Table) else content
        bucket, _, prefix = place.removeprefix("s3://").partition("/")
        self.s3.put_object(Bucket=bucket, Key=f"{prefix}/{name}", Body=data)

    def fill(self, place: str, files: int = 6, first: int = 0) -> None:
        for number in range(files):
            self.put(place, f"part-{number:03}.parquet", clicks(first + number * 20))

    # ------------------------------------------------------------ what readers see

    def names(self, place: str, *, hidden: bool = False) -> list[str]:
        bucket, _, prefix = place.removeprefix("s3://").partition("/")
        found = []
        for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/"):
            found += [each["Key"].removeprefix(f"{prefix}/") for each in page.get("Contents", ())]
        return sorted(name for name in found if hidden or not name.startswith(("_", ".")))

    def place(self, *values: str) -> str:
        return str(self.described(*values)["StorageDescriptor"]["Location"]).rstrip("/")

    def content(self, place: str, name: str) -> bytes:
        bucket, _, prefix = place.removeprefix("s3://").partition("/")
        return bytes(self.s3.get_object(Bucket=bucket, Key=f"{prefix}/{name}")["Body"].read())

    def ids(self, *values: str) -> list[int]:
        """Every id of a partition, through the catalog, read by DuckDB; sorted."""
        place = self.place(*values)
        found: list[int] = []
        for name in self.names(place):
            rows = pyarrow.parquet.read_table(io.BytesIO(self.content(place, name)))
            found += [row[0] for row in duckdb.sql("SELECT id FROM rows").fetchall()]
            del rows
        return sorted(found)

    # ------------------------------------------------------------ what we do

    def run(self, rules: PartitionRules = RULES, **changes: Any) -> GlueRun:
        kept = GlueTableConfig(self.database, self.table, rules=rules, **changes)
        return GlueRun(kept, self.settings, lambda: ParallelMap(None, 2), self.said.append)

    def compact(self, rules: PartitionRules = RULES, selection: Selection = EVERYTHING, **changes: Any) -> GlueReport:
        return self.run(rules, **changes).run(selection)

    def plan(self, rules: PartitionRules = RULES, **changes: Any) -> tuple[PartitionSurvey, ...]:
        return self.run(rules, **changes).plan()
