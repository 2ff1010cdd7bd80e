"""What declared tables need to exist before they can work, and how each kind of need is met.

A declaration lists its needs; the set-up job meets them all. Meeting a need twice changes nothing.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from compaction_platform.errors import CompactionError
from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.lake.storage.aws_clients import aws_client
from compaction_platform.lake.storage.identifiers import checked_identifier
from compaction_platform.lake.storage.object_store import local_directory
from compaction_platform.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table


class PrerequisiteUnmet(CompactionError):
    """Something a declaration needs could not be created."""


class Prerequisite(Protocol):
    @property
    def description(self) -> str:
        """The thing, as a person would name it."""

    def ensure(self, settings: Settings) -> bool | None:
        """Create it if it is missing; True if it was. None: this deployment does not need it."""


@runtime_checkable
class HasPrerequisites(Protocol):
    """A declaration (a Dagster component) that needs things."""

    def needs(self) -> list[Prerequisite]: ...


@dataclass(frozen=True)
class LakeBucket:
    """The bucket that COMPACTION_LAKE_URI names, or the directory where it is a path."""

    description: str = "the lake's bucket"

    def ensure(self, settings: Settings) -> bool:
        settings.require("lake_uri", purpose=self.description)
        uri = str(settings.lake_uri)
        if uri.startswith("s3://"):
            return _create_bucket(uri.removeprefix("s3://").split("/")[0], settings)
        directory = local_directory(uri)
        missing = not directory.exists()
        directory.mkdir(parents=True, exist_ok=True)
        return missing


def _create_bucket(name: str, settings: Settings) -> bool:
    from botocore.exceptions import BotoCoreError, ClientError

    client = aws_client("s3", settings, settings.s3_endpoint)
    try:
        client.head_bucket(Bucket=name)
        return False
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
            raise PrerequisiteUnmet(f"bucket {name} cannot be used: {error}") from error
    except BotoCoreError as error:
        raise PrerequisiteUnmet(f"the store does not answer: {error}") from error
    # us-east-1 is the one region that must not be named
    elsewhere = settings.s3_region != "us-east-1"
    place = {"CreateBucketConfiguration": {"LocationConstraint": settings.s3_region}} if elsewhere else {}
    try:
        client.create_bucket(Bucket=name, **place)
    except ClientError as error:
        raise PrerequisiteUnmet(f"bucket {name} could not be created: {error}") from error
    return True


@dataclass(frozen=True)
class Namespace:
    name: str

    @property
    def description(self) -> str:
        return f"namespace {self.name}"

    def ensure(self, settings: Settings) -> bool:
        catalog = open_catalog(settings)
        if catalog.namespace_exists(checked_identifier(self.name)):
            return False
        catalog.create_namespace_if_not_exists(self.name)
        return True


@dataclass(frozen=True)
class TableColumn:
    name: str
    type: str
    doc: str = ""
    required: bool = False


@dataclass(frozen=True)
class IcebergTable:
    """A table with these columns; `partitioned_by` pairs a column with a transform such as day or bucket[16]."""

    namespace: str
    name: str
    columns: tuple[TableColumn, ...]
    partitioned_by: tuple[tuple[str, str], ...] = ()
    properties: tuple[tuple[str, str], ...] = ()

    @property
    def description(self) -> str:
        return f"table {self.namespace}.{self.name}"

    def ensure(self, settings: Settings) -> bool:
        catalog = open_catalog(settings)
        identifier = (checked_identifier(self.namespace), checked_identifier(self.name))
        Namespace(self.namespace).ensure(settings)
        if catalog.table_exists(identifier):
            return self._add_missing_columns(catalog.load_table(identifier))
        schema = self.schema()
        catalog.create_table_if_not_exists(
            identifier, schema, partition_spec=self._partition_spec(schema), properties=dict(self.properties)
        )
        return True

    def _add_missing_columns(self, table: "Table") -> bool:
        """A column that was declared after the table was made."""
        missing = [field for field in self.schema().fields if field.name not in table.schema().column_names]
        if missing:
            with table.update_schema() as update:
                for field in missing:
                    update.add_column(field.name, field.field_type, doc=field.doc)
        return bool(missing)

    def schema(self) -> "Schema":
        from pyiceberg.schema import Schema, assign_fresh_schema_ids
        from pyiceberg.types import NestedField

        from compaction_platform.lake.iceberg.types import TypeUnsupported, parsed_type

        fields = []
        for number, column in enumerate(self.columns, start=1):
            try:
                kind = parsed_type(column.type)
            except TypeUnsupported as error:
                raise PrerequisiteUnmet(f"{self.description}: column {column.name}: {error}") from error
            fields.append(NestedField(number, column.name, kind, required=column.required, doc=column.doc or None))
        return assign_fresh_schema_ids(Schema(*fields))

    def _partition_spec(self, schema: "Schema") -> "PartitionSpec":
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import parse_transform

        fields = []
        for number, (column, transform) in enumerate(self.partitioned_by, start=1000):
            source = schema.find_field(column).field_id
            name = column if transform == "identity" else f"{column}_{transform.split('[')[0]}"
            fields.append(PartitionField(source, number, parse_transform(transform), name))
        return PartitionSpec(*fields)


@dataclass(frozen=True)
class DatabaseSchema:
    """A schema in the hot PostgreSQL database."""

    name: str

    @property
    def description(self) -> str:
        return f"database schema {self.name}"

    def ensure(self, settings: Settings) -> bool:
        import psycopg
        from psycopg import sql

        settings.require("hot_postgres_url", purpose=self.description)
        assert settings.hot_postgres_url is not None  # noqa: S101 (for the type checker; require() has seen to it)
        name = checked_identifier(self.name)
        with psycopg.connect(settings.hot_postgres_url.get_secret_value()) as connection:
            found = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (name,)).fetchone()
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(name)))
        return found is None
