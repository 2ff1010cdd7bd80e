"""`ColdRanges` as users write it in YAML. Checks what can be checked without touching anything."""

import re
from typing import Annotated, Literal

import dagster as dg
from pydantic import AfterValidator, Field, model_validator

from compaction_platform.archive.chain.finality import FinalityRule
from compaction_platform.archive.config import ArchivedChain, ArchivedTable
from compaction_platform.archive.dagster.assets import archive_job, cold_assets, hot_assets, purged_asset
from compaction_platform.archive.dagster.checks import chain_checks, retention_check
from compaction_platform.archive.dagster.sensors import final_ranges_sensor
from compaction_platform.archive.ledger.prerequisites import ArchiveTables
from compaction_platform.lake.dagster.component_base import ComponentBase, Duration, Name, SecondReader, as_timedelta
from compaction_platform.lake.dagster.provisioning import Namespace, Prerequisite
from compaction_platform.settings import PREFIX


def _variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{name!r} is not the name of an environment variable; the address itself never stands here")
    if name.startswith(PREFIX):
        raise ValueError(f"{name!r}: names that begin with {PREFIX} are the platform's own settings")
    return name


def _column(name: str) -> str:
    if not 0 < len(name.encode()) < 64 or "\0" in name:
        raise ValueError(f"{name!r} cannot be a column of PostgreSQL")
    return name


Variable = Annotated[str, AfterValidator(_variable)]
ColumnName = Annotated[str, AfterValidator(_column)]


class HotTable(dg.Model, dg.Resolvable):
    """One table that the indexer writes."""

    name: Annotated[Name, Field(description="Name of the dataset: its assets, its directory, its Iceberg table.")]
    table: Annotated[
        str | None, Field(description="schema.table in the hot database; default: public.<name>.", max_length=127)
    ] = None
    key: Annotated[
        list[ColumnName],
        Field(
            description="What identifies a row, the block first: [block_number, log_index]. Files are sorted by it; "
            "a key that is there twice is refused.",
            min_length=1,
        ),
    ]
    chain_column: Annotated[ColumnName, Field(description="The chain's id.")] = "chain_id"
    block_column: Annotated[ColumnName, Field(description="The block's number.")] = "block_number"
    hash_column: Annotated[
        ColumnName | None,
        Field(
            description="In the blocks' table, the block's hash. Elsewhere, the hash of the block that a row belongs "
            "to: rows that a reorganisation left behind are refused by it."
        ),
    ] = None
    parent_hash_column: Annotated[
        ColumnName | None, Field(description="The parent's hash. The table that has it is the one of the blocks.")
    ] = None
    time_column: Annotated[
        ColumnName | None,
        Field(description="The block's time, in the blocks' table: a timestamp, or Unix seconds or milliseconds."),
    ] = None
    counted_by: Annotated[
        ColumnName | None,
        Field(description="A column of the blocks' table that says how many rows of this table a block has."),
    ] = None
    dense_index: Annotated[
        bool, Field(description="The key's last column counts 0, 1, 2 … in each block; a hole is refused.")
    ] = False

    def dataset(self) -> ArchivedTable:
        schema, _, table = (self.table or f"public.{self.name}").partition(".")
        return ArchivedTable(
            name=self.name,
            table=(schema, table) if table else ("public", schema),
            key=tuple(self.key),
            chain=self.chain_column,
            block=self.block_column,
            hash=self.hash_column,
            parent_hash=self.parent_hash_column,
            time=self.time_column,
            counted_by=self.counted_by,
            dense=self.dense_index,
        )


class DeclaredFinality(dg.Model, dg.Resolvable):
    """When a block counts as final."""

    mode: Annotated[
        Literal["depth", "tag", "both"],
        Field(
            description="depth: so many blocks below the head. tag: the block that a node calls final. both: the lower."
        ),
    ] = "depth"
    finality_depth_blocks: Annotated[
        int | None, Field(ge=0, description="For depth and both: how many blocks below the head.")
    ] = None
    node_url_variable: Annotated[
        Variable | None,
        Field(description="The environment variable with the address of a JSON-RPC node; needed for tag and both."),
    ] = None
    max_head_age: Annotated[
        Duration | None, Field(description="An older head (by its own time) is not believed; nothing is archived then.")
    ] = None


class ColdRanges(ComponentBase):
    """Final ranges of a chain move from hot PostgreSQL tables to cold Parquet, and are purged only after proof."""

    chain_id: Annotated[
        int, Field(ge=0, lt=2**63 - 1, description="The chain's id; names its assets: cold/<chain_id>/….")
    ]
    datasets: Annotated[
        list[HotTable], Field(description="The hot tables. They are committed together, range by range.", min_length=1)
    ]
    finality: Annotated[DeclaredFinality, Field(description="When a block counts as final.")]
    uri: Annotated[
        str, Field(description="s3://bucket/prefix, a path, or a prefix below COMPACTION_LAKE_URI such as cold.")
    ] = "cold"
    range_size: Annotated[
        int, Field(ge=1, le=10**9, description="Blocks of a range; ranges begin at its multiples.")
    ] = 10_000
    chunk_size: Annotated[
        int, Field(ge=1, le=10**8, description="About how many rows a Parquet file has; cut between blocks.")
    ] = 500_000
    delete_after_compact: Annotated[
        bool, Field(description="Delete the hot rows of a range after it is committed: the asset purged/<chain_id>.")
    ] = False
    gaps: Annotated[
        Literal["refuse", "allow"],
        Field(description="allow: the chain skips numbers; then only the parent hashes show what is missing."),
    ] = "refuse"
    retention: Annotated[Duration, Field(description="How long a replaced version is kept.")] = "7d"
    namespace: Annotated[
        Name | None, Field(description="Namespace of the Iceberg tables <namespace>.<dataset>; null: none.")
    ] = "cold"
    hot_url_variable: Annotated[
        Variable | None,
        Field(
            description="The environment variable with the address of the hot database; default: the setting "
            "COMPACTION_HOT_POSTGRES_URL."
        ),
    ] = None
    max_ranges_per_tick: Annotated[
        int, Field(ge=1, le=25, description="How many ranges the sensor asks for at a time.")
    ] = 5
    max_lag: Annotated[
        Duration, Field(description="The check finality_lag warns beyond it, by the chain's own time.")
    ] = "1d"
    second_reader: SecondReader = "sample"
    enabled: Annotated[bool, Field(description="No: no sensor; a person can still materialize.")] = True

    @model_validator(mode="after")
    def _makes_sense(self) -> "ColdRanges":
        blocks = [each for each in self.datasets if each.parent_hash_column is not None]
        if len(blocks) != 1:
            raise ValueError("datasets: exactly one of them, the one with the blocks, needs a parent_hash_column")
        if blocks[0].hash_column is None or blocks[0].time_column is None:
            raise ValueError("datasets: the one with the blocks needs hash_column and time_column")
        if blocks[0].counted_by is not None or blocks[0].dense_index:
            raise ValueError("datasets: counted_by and dense_index are for the others than the blocks")
        names = [each.name for each in self.datasets]
        if len(set(names)) != len(names):
            raise ValueError("datasets: two have the same name")
        for each in self.datasets:
            if each.key[0] != each.block_column:
                raise ValueError(f"datasets: the key of {each.name} must begin with its block, {each.block_column}")
            if each is not blocks[0] and each.key == [each.block_column]:
                raise ValueError(
                    f"datasets: the key of {each.name} needs more than the block: what tells its rows apart?"
                )
            if each is blocks[0] and len(each.key) > 1:
                raise ValueError("datasets: the key of the blocks is their number alone")
        rule = self.finality
        if rule.mode != "tag" and rule.finality_depth_blocks is None:
            raise ValueError(f"finality.finality_depth_blocks: mode {rule.mode} needs it")
        if rule.mode != "depth" and rule.node_url_variable is None:
            raise ValueError(f"finality.node_url_variable: mode {rule.mode} needs it")
        return self

    def archive(self) -> ArchivedChain:
        rule = self.finality
        datasets = sorted((each.dataset() for each in self.datasets), key=lambda each: not each.is_blocks)
        return ArchivedChain(
            chain_id=self.chain_id,
            uri=self.uri,
            datasets=tuple(datasets),
            finality=FinalityRule(
                rule.mode,
                rule.finality_depth_blocks or 0,
                None if rule.max_head_age is None else as_timedelta(rule.max_head_age),
            ),
            range_size=self.range_size,
            chunk_rows=self.chunk_size,
            gaps_allowed=self.gaps == "allow",
            purge=self.delete_after_compact,
            retention=as_timedelta(self.retention),
            namespace=self.namespace,
            ranges_per_tick=self.max_ranges_per_tick,
            max_lag=as_timedelta(self.max_lag),
            hot_variable=self.hot_url_variable,
            node_variable=rule.node_url_variable,
            second_reader=self.second_reader,
        )

    def needs(self) -> list[Prerequisite]:
        tables: list[Prerequisite] = [ArchiveTables(self.hot_url_variable)]
        return [*tables, *([Namespace(self.namespace)] if self.namespace else [])]

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return self.definitions()

    def definitions(self) -> dg.Definitions:
        archive = self.archive()
        job = archive_job(archive)
        purged = [purged_asset(archive)] if archive.purge else []
        return dg.Definitions(
            assets=[*hot_assets(archive), cold_assets(archive), *purged],
            asset_checks=[chain_checks(archive), retention_check(archive)],
            jobs=[job],
            sensors=[final_ranges_sensor(archive, job)] if self.enabled else [],
        )
