"""The Glue Data Catalog: tables and partitions as it tells them, and the one change we make, a partition's location."""

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar

from compaction_platform.compact.glue.names import partition_name
from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage.aws_clients import aws_client
from compaction_platform.settings import Settings, SettingsInvalid

PARQUET_INPUT = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat"
PARQUET_SERDE = "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe"
OTHER_KINDS = {
    "iceberg": "Iceberg",
    "delta": "Delta Lake",
    "hudi": "Hudi",
    "hoodie": "Hudi",
    "paimon": "Paimon",
}
TELLING_KIND = ("table_type", "spark.sql.sources.provider", "provider", "classification", "storage_handler")
KIND_BY_PREFIX = {"metadata_location": "Iceberg", "delta.": "Delta Lake", "hoodie.": "Hudi"}
# What a partition tells that an update takes back; times of access are not part of what it is.
DESCRIBING = ("Values", "StorageDescriptor", "Parameters")
TAKEN_BACK = (*DESCRIBING, "LastAccessTime", "LastAnalyzedTime")
# Partitions of 50,000 are read in pages, and a page that is refused for being too fast is asked for again.
PATIENCE = {"mode": "adaptive", "max_attempts": 10}
NO_PATIENCE = {"mode": "standard", "total_max_attempts": 1}

Answer = TypeVar("Answer")


class TableUnsuitable(CompactionError):
    """This table is not one that can be compacted like this. Nothing was done."""


class CatalogRefused(CompactionError):
    """Glue answered with an error."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class PartitionMissing(CompactionError):
    """The catalog has no such partition (any more)."""


@dataclass(frozen=True)
class GluePartition:
    """One partition, as the catalog describes it."""

    name: str
    values: tuple[str, ...]
    location: str | None
    described: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False, compare=False)

    @property
    def storage(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.described.get("StorageDescriptor") or {}
        return found

    @cached_property
    def fingerprint(self) -> str:
        """Of all that an update would overwrite."""
        content = {name: self.described.get(name) for name in DESCRIBING}
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    def moved(self, location: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        """What to tell the catalog so that only the location and these parameters change."""
        described = {name: copy.deepcopy(self.described[name]) for name in TAKEN_BACK if name in self.described}
        described["StorageDescriptor"]["Location"] = location
        described["Parameters"] = {**(described.get("Parameters") or {}), **parameters}
        return described


@dataclass(frozen=True)
class GlueTable:
    database: str
    name: str
    keys: Mapping[str, str]  # the partition keys and their types, in order
    location: str
    described: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False, compare=False)

    @property
    def called(self) -> str:
        return f"{self.database}.{self.name}"

    def partition(self, described: Mapping[str, Any]) -> GluePartition:
        values = tuple(described["Values"])
        location = (described.get("StorageDescriptor") or {}).get("Location") or None
        return GluePartition(partition_name(list(self.keys), values), values, location, described)


@dataclass(frozen=True)
class GlueCatalog:
    client: Any = field(repr=False)
    once: Any = field(repr=False)  # the same, without patience: for a change that must not happen later

    @classmethod
    def at(cls, settings: Settings) -> "GlueCatalog":
        endpoint = settings.glue_endpoint or (settings.catalog_uri if settings.catalog_kind == "glue" else None)
        if endpoint is None and settings.s3_endpoint is not None:
            raise SettingsInvalid(
                f"{settings.variable('s3_endpoint')} is not AWS's, so {settings.variable('glue_endpoint')} must say "
                "where Glue is: keys of one are not to be sent to the other."
            )
        return cls(
            aws_client("glue", settings, endpoint, PATIENCE),
            aws_client("glue", settings, endpoint, NO_PATIENCE),
        )

    def table(self, database: str, name: str) -> GlueTable:
        """The table, if it is one that can be compacted."""
        answer = _asked(
            lambda: self.client.get_table(DatabaseName=database, Name=name)["Table"],
            f"table {database}.{name}",
            missing=TableUnsuitable(f"there is no table {database}.{name} in the catalog. Nothing was done."),
        )
        storage = answer.get("StorageDescriptor") or {}
        keys = {key["Name"]: key.get("Type", "string") for key in answer.get("PartitionKeys") or []}
        table = GlueTable(database, name, keys, storage.get("Location") or "", answer)
        if why := _why_unsuitable(answer):
            raise TableUnsuitable(f"table {table.called} {why}. Nothing was done.")
        return table

    def partitions(self, table: GlueTable, expression: str | None = None) -> Iterator[GluePartition]:
        """All partitions, page by page, without their columns."""
        request: dict[str, Any] = {"DatabaseName": table.database, "TableName": table.name, "ExcludeColumnSchema": True}
        if expression:
            request["Expression"] = expression
        for page in _pages(self.client.get_partitions, table.called, request):
            yield from (table.partition(each) for each in page.get("Partitions") or ())

    def partition(self, table: GlueTable, values: Sequence[str]) -> GluePartition:
        named = partition_name(list(table.keys), values)
        return table.partition(
            _asked(
                lambda: self.client.get_partition(
                    DatabaseName=table.database, TableName=table.name, PartitionValues=list(values)
                )["Partition"],
                f"{table.called}, {named}",
                missing=PartitionMissing(f"{table.called} has no partition {named} in the catalog."),
            )
        )

    def update(self, table: GlueTable, values: Sequence[str], described: Mapping[str, Any]) -> None:
        _asked(
            lambda: self.once.update_partition(
                DatabaseName=table.database,
                TableName=table.name,
                PartitionValueList=list(values),
                PartitionInput=described,
            ),
            f"{table.called}, {partition_name(list(table.keys), values)}",
            missing=PartitionMissing("the partition was dropped meanwhile"),
        )

    def other_places(self, table: GlueTable) -> dict[str, str]:
        """By name: where the other tables of the database are."""
        found: dict[str, str] = {}
        for page in _pages(self.client.get_tables, table.database, {"DatabaseName": table.database}):
            for each in page.get("TableList") or ():
                location = (each.get("StorageDescriptor") or {}).get("Location")
                if location and each["Name"] != table.name:
                    found[each["Name"]] = location
        return found


def _pages(ask: Callable[..., Mapping[str, Any]], what: str, request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    token: str | None = None
    while True:
        page = _asked(partial(ask, **request, **({"NextToken": token} if token else {})), what)
        yield page
        token = page.get("NextToken")
        if not token:
            return


def _asked(ask: Callable[[], Answer], what: str, missing: CompactionError | None = None) -> Answer:
    """Turn AWS's errors into ours."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return ask()
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code == "EntityNotFoundException" and missing is not None:
            raise missing from None
        message = error.response["Error"].get("Message") or str(error)
        raise CatalogRefused(f"{what}: Glue refused {error.operation_name}: {code}: {message}", code) from None
    except BotoCoreError as error:
        raise CatalogRefused(f"{what}: Glue does not answer: {error}") from None


def _why_unsuitable(described: Mapping[str, Any]) -> str | None:
    storage = described.get("StorageDescriptor") or {}
    parameters = {name.lower(): str(value) for name, value in (described.get("Parameters") or {}).items()}
    if described.get("TargetTable"):
        return "is a link to a table elsewhere; name that one"
    if described.get("TableType") == "VIRTUAL_VIEW":
        return "is a view"
    if name := _table_format(storage, parameters):
        return f"is a table of {name}, which keeps its own list of files" + (
            "; declare a MaintainedTable" if name == "Iceberg" else ""
        )
    if why := why_not_parquet(storage):
        return f"is not of Parquet files: {why}"
    if not described.get("PartitionKeys"):
        return "is not partitioned; CompactedDirectory, or `compaction compact <its location>`, is for such files"
    if parameters.get("projection.enabled", "").lower() == "true":
        return "has partition projection: Athena reads computed locations, not those in the catalog"
    if storage.get("BucketColumns") or (storage.get("NumberOfBuckets") or 0) > 0:
        return "is bucketed: its readers expect one file for each bucket"
    if not storage.get("Location"):
        return "has no location"
    return None


def _table_format(storage: Mapping[str, Any], parameters: Mapping[str, str]) -> str | None:
    """Which table format keeps a list of its own: engines and crawlers say so in different places."""
    serde = storage.get("SerdeInfo") or {}
    also_told = {**parameters, **{name.lower(): str(value) for name, value in (serde.get("Parameters") or {}).items()}}
    told = [also_told.get(name, "") for name in TELLING_KIND]
    told += [storage.get("InputFormat") or "", storage.get("OutputFormat") or ""]
    told += [serde.get("SerializationLibrary") or ""]
    for word, name in OTHER_KINDS.items():
        if any(word in each.lower() for each in told):
            return name
    return next(
        (name for prefix, name in KIND_BY_PREFIX.items() if any(each.startswith(prefix) for each in parameters)), None
    )


def why_not_parquet(storage: Mapping[str, Any]) -> str | None:
    found = storage.get("InputFormat") or ""
    serde = (storage.get("SerdeInfo") or {}).get("SerializationLibrary") or ""
    if found != PARQUET_INPUT:
        return f"its input format is {found or 'not told'}"
    if serde and serde != PARQUET_SERDE:
        return f"its SerDe is {serde}"
    return None
