"""`MergedTable` as users write it in YAML. Checks what can be checked without touching anything."""

import re
from typing import Annotated, Literal

import dagster as dg
import pyarrow
from pydantic import AfterValidator, Field, model_validator

from compaction_platform.errors import CompactionError
from compaction_platform.lake.dagster.component_base import (
    ComponentBase,
    Cron,
    Duration,
    Name,
    SecondReader,
    as_timedelta,
)
from compaction_platform.lake.dagster.maintenance_config import MaintenanceConfig
from compaction_platform.lake.dagster.provisioning import IcebergTable, Namespace, Prerequisite, TableColumn
from compaction_platform.lake.iceberg.types import arrow_schema
from compaction_platform.merge.config import FILE_COLUMN, ROW_COLUMN, MergeRules, PartitionField
from compaction_platform.merge.dagster.assets import cleaned_asset, merge_assets, merge_job
from compaction_platform.merge.dagster.checks import EventTime
from compaction_platform.merge.dagster.schedules import merge_schedule
from compaction_platform.merge.dagster.sensors import merge_sensor
from compaction_platform.merge.glue_table import GlueParquetTable
from compaction_platform.merge.plan.staged_hours import hour_of, start_of

TABLE_PROPERTIES = (
    ("format-version", "2"),
    ("write.merge.mode", "merge-on-read"),
    ("write.update.mode", "merge-on-read"),
    ("write.delete.mode", "merge-on-read"),
    # One delete file for each partition of a merge, not one for each data file it finds there.
    ("write.delete.granularity", "partition"),
    ("write.parquet.compression-codec", "zstd"),
)


def _hour(text: str) -> str:
    try:
        if hour_of(start_of(text)) != text:
            raise ValueError
    except ValueError:
        raise ValueError(f"{text!r} is not an hour; example: 2026-01-01-00:00") from None
    return text


def _transform(text: str) -> str:
    partition_field(text)
    return text


def partition_field(text: str) -> PartitionField:
    """`day(event_time)`, `bucket(16, user_id)`, `country`."""
    match = re.fullmatch(r"\s*(?:(\w+)\s*\(\s*(?:(\d+)\s*,\s*)?(\w+)\s*\)|(\w+))\s*", text)
    if not match:
        raise ValueError(f"{text!r} is not a partition; examples: day(event_time), bucket(16, user_id), country")
    transform, number, column, alone = match.groups()
    if alone:
        return PartitionField(alone, "identity")
    known = {"hour", "day", "month", "year", "identity"} if number is None else {"bucket", "truncate"}
    if transform not in known:
        raise ValueError(f"{text!r}: {transform} is not a transform; there are {', '.join(sorted(known))}")
    return PartitionField(column, f"{transform}[{number}]" if number else transform)


Hour = Annotated[str, AfterValidator(_hour)]
Transform = Annotated[str, AfterValidator(_transform)]


class StagingSource(dg.Model, dg.Resolvable):
    """Where producers put files."""

    uri: Annotated[
        str, Field(description="s3://bucket/prefix, a path, or a prefix below COMPACTION_LAKE_URI such as staging.")
    ]
    glob: Annotated[
        str,
        Field(description="Which files below it; ** crosses directories. Names beginning with _ or . never count."),
    ] = "**/*.parquet"
    first_hour: Annotated[
        Hour, Field(description="The first hour of arrival (UTC); what arrived earlier is left alone.")
    ] = "2024-01-01-00:00"


class DeclaredColumn(dg.Model, dg.Resolvable):
    name: Annotated[Name, Field(description="Lower-case letters, digits, underscores.")]
    type: Annotated[
        str,
        Field(description="An Iceberg type: string, int, long, double, decimal(38, 0), date, timestamptz, list<…>, …"),
    ]
    doc: Annotated[str, Field(description="What the column means; kept in the table and shown in Dagster.")] = ""
    role: Annotated[
        Literal["key", "version", "event_time", "enrichment", "attribute"],
        Field(
            description="key: identifies the event. version: tells which row is newer. event_time: when it happened "
            "(freshness looks at it). enrichment: filled in later, never overwritten by NULL. The lists key, order_by "
            "and keep_when_null are taken from the roles where they are not given."
        ),
    ] = "attribute"


class MergeTarget(dg.Model, dg.Resolvable):
    """The Iceberg table."""

    namespace: Annotated[Name, Field(description="Iceberg namespace.")] = "silver"
    name: Annotated[Name, Field(description="Name of the table, and of its assets.")]
    columns: Annotated[list[DeclaredColumn], Field(description="The table's columns, in order.", min_length=1)]
    partition_by: Annotated[
        list[Transform],
        Field(
            description="Iceberg partition transforms: day(event_time), bucket(16, user_id), country.",
            default_factory=list,
        ),
    ]


class Freshness(dg.Model, dg.Resolvable):
    """How old the newest event may be."""

    warn_after: Annotated[Duration | None, Field(description="Warn when the newest event is older, e.g. 2h.")] = None
    fail_after: Annotated[Duration | None, Field(description="Fail when the newest event is older, e.g. 1d.")] = None


class MergedTable(ComponentBase):
    """Staging Parquet files become one Iceberg table, one row for each key, the newest."""

    source: Annotated[StagingSource, Field(description="Where producers put files.")]
    table: Annotated[MergeTarget, Field(description="The Iceberg table.")]
    key: Annotated[
        list[str], Field(description="Columns that identify a row; default: those of role key.", default_factory=list)
    ]
    order_by: Annotated[
        list[str],
        Field(
            description="Which of two rows of a key is newer: the first of these columns that differs decides. "
            "Default: those of role version. Ties go to the later file name, then the later row.",
            default_factory=list,
        ),
    ]
    keep_when_null: Annotated[
        list[str],
        Field(
            description="Columns that a NULL never overwrites; default: those of role enrichment.", default_factory=list
        ),
    ]
    second_reader: SecondReader = "sample"
    on_new_column: Annotated[
        Literal["add", "ignore", "reject"],
        Field(
            description="A file has a column the table lacks. add: the table gets it. ignore: it is left out, and "
            "listed. reject: the file is quarantined."
        ),
    ] = "add"
    cleanup: Annotated[
        Literal["lifecycle", "archive", "delete"],
        Field(
            description="What becomes of merged files. lifecycle: nothing, the bucket's own rules see to it. "
            "archive: they move to archive/<table>. delete: they are deleted."
        ),
    ] = "lifecycle"
    partition_may_change: Annotated[
        bool,
        Field(
            description="An event may come again with another partition value. Costs a look at the whole table for "
            "each merge; leave it off where, as usual, the partition column is part of the event's identity."
        ),
    ] = False
    arrival_grace: Annotated[
        Duration, Field(description="How long after an hour's end to wait for files that show up late.")
    ] = "10m"
    schedule: Annotated[
        Cron | None, Field(description="A cron such as `0 6 * * *`, instead of the sensor. Times are UTC.")
    ] = None
    freshness: Annotated[Freshness | None, Field(description="How old the newest event may be.")] = None
    maintenance: Annotated[
        MaintenanceConfig | None,
        Field(description="Keep the table healthy, as a MaintainedTable does; {} for the defaults."),
    ] = None

    @model_validator(mode="after")
    def _columns_exist(self) -> "MergedTable":
        names = [column.name for column in self.table.columns]
        if doubled := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"table.columns: {', '.join(sorted(doubled))} is declared twice")
        for field, role in (("key", "key"), ("order_by", "version"), ("keep_when_null", "enrichment")):
            by_role = [column.name for column in self.table.columns if column.role == role]
            given = getattr(self, field)
            if given and by_role and set(given) != set(by_role):
                raise ValueError(f"{field}: {given} is given, but the columns of role {role} are {by_role}")
            for name in given:
                if name not in names:
                    raise ValueError(f"{field}: {name} is not a column of the table; there are {', '.join(names)}")
        if not self._listed("key", "key"):
            raise ValueError("table.columns: none has role key, and no key is given")
        for text in self.table.partition_by:
            if partition_field(text).column not in names:
                raise ValueError(
                    f"table.partition_by: {text} names no column of the table; there are {', '.join(names)}"
                )
        if wrong := set(self._listed("keep_when_null", "enrichment")) & {
            *self._listed("key", "key"),
            *self._listed("order_by", "version"),
        }:
            raise ValueError(f"keep_when_null: {', '.join(sorted(wrong))} is also in key or order_by")
        unsteady = {*self._listed("order_by", "version"), *self._listed("keep_when_null", "enrichment")}
        for text in self.table.partition_by:
            if partition_field(text).column in unsteady and not self.partition_may_change:
                raise ValueError(
                    f"table.partition_by: {text} changes when an event comes again; choose a column that does not, "
                    "or say partition_may_change: true"
                )
        if self.freshness and not self._event_time_column():
            raise ValueError(
                "freshness: the data's own time must be known: give role: event_time to a column of type timestamptz"
            )
        self._types_can_be_used()
        return self

    def _types_can_be_used(self) -> None:
        try:
            kinds = arrow_schema(self._iceberg_table().schema())
        except CompactionError as error:
            raise ValueError(f"table.columns: {error}") from None
        for name in (*self._listed("key", "key"), *self._listed("order_by", "version")):
            kind = kinds.field(name).type
            if pyarrow.types.is_floating(kind) or pyarrow.types.is_nested(kind):
                raise ValueError(
                    f"table.columns: {name} is {self._type_of(name)}; a key or an order needs a type with one order"
                )
        for field in self.rules().partition_by:
            if field.time_unit and not pyarrow.types.is_temporal(kinds.field(field.column).type):
                raise ValueError(
                    f"table.partition_by: {field.transform} needs a date or a timestamp, {field.column} is none"
                )

    def _listed(self, field: str, role: str) -> tuple[str, ...]:
        return tuple(getattr(self, field) or (column.name for column in self.table.columns if column.role == role))

    def _event_time_column(self) -> str | None:
        times = [column.name for column in self.table.columns if column.role == "event_time"]
        return next((name for name in times if self._type_of(name) in ("timestamptz", "timestamp")), None)

    def _type_of(self, name: str) -> str:
        return next(column.type for column in self.table.columns if column.name == name)

    def _event_time(self) -> EventTime | None:
        column = self._event_time_column()
        if column is None or self.freshness is None:
            return None
        warn, fail = self.freshness.warn_after, self.freshness.fail_after
        return EventTime(column, as_timedelta(warn) if warn else None, as_timedelta(fail) if fail else None)

    def rules(self) -> MergeRules:
        return MergeRules(
            namespace=self.table.namespace,
            table=self.table.name,
            source=self.source.uri,
            glob=self.source.glob,
            key=self._listed("key", "key"),
            order_by=self._listed("order_by", "version"),
            keep_when_null=self._listed("keep_when_null", "enrichment"),
            partition_by=tuple(partition_field(text) for text in self.table.partition_by),
            on_new_column=self.on_new_column,
            cleanup=self.cleanup,
            partition_may_change=self.partition_may_change,
            arrival_grace=as_timedelta(self.arrival_grace),
            first_hour=self.source.first_hour,
            second_reader=self.second_reader,
        )

    def columns(self) -> tuple[TableColumn, ...]:
        declared = tuple(TableColumn(column.name, column.type, column.doc) for column in self.table.columns)
        origin = (
            TableColumn(FILE_COLUMN, "string", "The staged file this row came from."),
            TableColumn(ROW_COLUMN, "long", "The row's position in that file."),
        )
        return (*declared, *origin)

    def _iceberg_table(self) -> IcebergTable:
        return IcebergTable(
            namespace=self.table.namespace,
            name=self.table.name,
            columns=self.columns(),
            partitioned_by=tuple((field.column, field.transform) for field in self.rules().partition_by),
            properties=TABLE_PROPERTIES,
        )

    def maintained(self) -> tuple[str, MaintenanceConfig] | None:
        return None if self.maintenance is None else (f"{self.table.namespace}.{self.table.name}", self.maintenance)

    def needs(self) -> list[Prerequisite]:
        staging = GlueParquetTable(
            database="bronze",
            name=f"staging_{self.table.name}",
            columns=self.columns()[:-2],
            location=self.source.uri,
        )
        return [Namespace(self.table.namespace), self._iceberg_table(), staging]

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return self.definitions()

    def definitions(self) -> dg.Definitions:
        rules = self.rules()
        job = merge_job(rules)
        assets = [merge_assets(rules, self.columns(), self._event_time())]
        if rules.cleanup != "lifecycle":
            assets.append(cleaned_asset(rules))
        automation: dict[str, list[dg.SensorDefinition] | list[dg.ScheduleDefinition]] = (
            {"schedules": [merge_schedule(rules, job, self.schedule)]}
            if self.schedule
            else {"sensors": [merge_sensor(rules, job)]}
        )
        return dg.Definitions(assets=assets, jobs=[job], **automation)  # type: ignore[arg-type]
