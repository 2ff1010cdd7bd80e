"""What callers send and get. Unknown fields are refused; every field says what it is for."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from compaction_platform.lake.storage.sizes import LARGEST_MB

MOST_FIELDS = 500
MOST_RECORDS = 100_000  # however much is allowed by setting
LONGEST_RETENTION_HOURS = 24 * 366 * 10
Identifier = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$", examples=["orders"])]
FilterOp = Literal["=", "!=", "<", "<=", ">", ">=", "in", "not_in", "is_null", "not_null", "starts_with"]


class RequestModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OnTenant(RequestModel):
    tenant_id: Identifier = Field(description="Whose tables these are; the token must belong to it.", examples=["acme"])
    namespace: Identifier = Field(description="A group of the tenant's tables.", examples=["shop"])


class OnTable(OnTenant):
    table: Identifier = Field(description="The table's name.", examples=["orders"])


class ColumnSpec(RequestModel):
    type: str = Field(max_length=2000, description="long, decimal(10, 2), list<string> …", examples=["long"])
    required: bool = Field(default=False, description="Whether every record must have a value.")
    doc: str = Field(default="", max_length=1000, description="What it means.")


class SchemaSpec(RequestModel):
    fields: dict[str, ColumnSpec] = Field(
        min_length=1,
        max_length=MOST_FIELDS,
        description="Columns by name, in their order.",
        examples=[{"id": {"type": "long", "required": True}, "at": {"type": "timestamptz"}}],
    )


class CreateTable(OnTable):
    operation: Literal["CREATE_TABLE"]
    schema_: SchemaSpec = Field(alias="schema", description="The columns.")
    partition_by: list[str] = Field(
        default_factory=list, max_length=10, description="Columns or transforms.", examples=[["day(at)"]]
    )
    if_not_exists: bool = Field(default=False, description="An existing table with the same columns is no error.")


class Write(OnTable):
    operation: Literal["WRITE"]
    records: list[dict[str, JsonValue]] = Field(
        min_length=1,
        max_length=MOST_RECORDS,
        fail_fast=True,
        description="All of them are written, or none.",
        examples=[[{"id": 1, "at": "2026-05-01T10:00:00Z"}]],
    )
    request_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="The same request again, with the same id, writes nothing and gets the same answer.",
        examples=["order-1"],
    )


class Filter(RequestModel):
    field: str = Field(max_length=200, examples=["price"])
    op: FilterOp = Field(examples=[">="])
    value: JsonValue = Field(default=None, description="A value; a list of them for in and not_in.", examples=["10.00"])


class OrderBy(RequestModel):
    field: str = Field(max_length=200, examples=["at"])
    descending: bool = False


class Query(OnTable):
    operation: Literal["QUERY"]
    columns: list[str] | None = Field(default=None, min_length=1, max_length=MOST_FIELDS, examples=[["id", "at"]])
    filters: list[Filter] = Field(default_factory=list, max_length=50, description="All of them must hold.")
    order_by: list[OrderBy] = Field(default_factory=list, max_length=10, description="Nulls come last.")
    limit: int = Field(default=100, ge=1, description="Rows in one answer; more come with the cursor.")
    snapshot: int | None = Field(default=None, ge=0, lt=2**63, description="An earlier state, by its snapshot id.")
    cursor: str | None = Field(default=None, max_length=2000, description="From the answer before; same query.")


class Compact(OnTable):
    operation: Literal["COMPACT"]
    force: bool = Field(default=False, description="From two small files on.")
    target_file_size_mb: int | None = Field(default=None, ge=1, le=LARGEST_MB)
    max_files: int | None = Field(default=None, ge=2, le=1_000_000, description="Rewrite no more files than this.")
    partition_filter: str | None = Field(default=None, max_length=2000, examples=["at >= '2026-05-01T00:00:00+00:00'"])
    expire_snapshots: bool | None = None
    snapshot_retention_hours: int | None = Field(default=None, ge=0, le=LONGEST_RETENTION_HOURS)


class ListTables(OnTenant):
    operation: Literal["LIST_TABLES"]


class DescribeTable(OnTable):
    operation: Literal["DESCRIBE_TABLE"]


class DropTable(OnTable):
    operation: Literal["DROP_TABLE"]


class RestoreTable(OnTable):
    operation: Literal["RESTORE_TABLE"]


Request = Annotated[
    CreateTable | Write | Query | Compact | ListTables | DescribeTable | DropTable | RestoreTable,
    Field(discriminator="operation"),
]


# ---------------------------------------------------------------- answers


class Answer(BaseModel):
    success: Literal[True] = True


class Created(Answer):
    table: str
    created: bool = Field(description="False: it was there already.")


class Written(Answer):
    records_written: int
    snapshot: int = Field(description="The state of the table in which these records are first seen.")
    repeated: bool = Field(default=False, description="True: this request_id was written before.")
    compaction_recommended: bool = False
    small_files_count: int | None = Field(default=None, description="Null: not looked up with this write.")


class Rows(Answer):
    records: list[dict[str, Any]]
    snapshot: int | None = Field(description="Null: the table has no rows yet.")
    cursor: str | None = Field(default=None, description="For more rows.")


class CompactStats(BaseModel):
    files_before: int
    files_after: int
    files_compacted: int
    files_removed: int
    bytes_before: int
    bytes_after: int
    bytes_saved: int
    snapshots_expired: int
    compaction_time_ms: int
    small_files_remaining: int


class CompactResult(Answer):
    compacted: bool
    reason: str | None = None
    stats: CompactStats


class TableNames(Answer):
    tables: list[str]


class ColumnDescription(BaseModel):
    type: str
    required: bool
    doc: str


class Description(Answer):
    table: str
    fields: dict[str, ColumnDescription]
    partition_by: list[str]
    snapshot: int | None
    records: int = Field(description="As the table's metadata counts them; deleted ones may be included.")
    files: int
    bytes: int


class Dropped(Answer):
    table: str
    restorable_until: str


class Restored(Answer):
    table: str


AnyAnswer = Created | Written | Rows | CompactResult | TableNames | Description | Dropped | Restored


class ErrorBody(BaseModel):
    code: str
    message: str
    details: dict[str, Any] = Field(default_factory=dict)


class ErrorAnswer(BaseModel):
    success: Literal[False] = False
    error: ErrorBody


class Health(BaseModel):
    status: Literal["ok", "unavailable"]
    lake: str
