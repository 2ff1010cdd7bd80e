"""The Iceberg table `cold.<dataset>`: the files of the archive as they lie there, not copied. A range becomes visible,
or is replaced, in one snapshot."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.parquet
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, TableAlreadyExistsError
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThan, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform, TruncateTransform
from pyiceberg.typedef import Record

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.config import ArchivedChain, ArchivedTable
from compaction_platform.errors import CompactionError
from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.lake.iceberg.data_file_writer import data_file
from compaction_platform.lake.iceberg.replace_files import AddedFile, FileChange, commit_change
from compaction_platform.lake.iceberg.snapshot_files import Manifests
from compaction_platform.lake.iceberg.types import arrow_type, holds, iceberg_type
from compaction_platform.lake.parquet.fetch_footer import fetch_footer
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.lake.storage.retry import attempts
from compaction_platform.persisted_names import COLD_RANGE
from compaction_platform.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.table import Table

ATTEMPTS = 8
NAME_MAPPING = "schema.name-mapping.default"


class ColdTableUnfit(CompactionError):
    """The Iceberg table is kept in a way the range's files do not fit into."""


class ColdTableBusy(CompactionError):
    """Others kept changing the Iceberg table. Run again."""


@dataclass(frozen=True)
class ColdTable:
    """One dataset's table. It holds the ranges of all chains that have this dataset."""

    archive: ArchivedChain
    dataset: ArchivedTable
    settings: Settings
    store: ObjectStore  # the archive's files

    @property
    def identifier(self) -> tuple[str, str]:
        return str(self.archive.namespace), self.dataset.name

    @property
    def name(self) -> str:
        return ".".join(self.identifier)

    def prepare(self, schema: pyarrow.Schema) -> None:
        """The table with all these columns, before anything is committed that it could refuse."""
        catalog = open_catalog(self.settings)
        with suppress(NamespaceAlreadyExistsError):  # by another process, right now
            catalog.create_namespace_if_not_exists(self.identifier[0])
        if not catalog.table_exists(self.identifier):
            with suppress(TableAlreadyExistsError):
                self._create(catalog, schema)
                return
        table = catalog.load_table(self.identifier)
        if not self._has_our_spec(table):
            raise ColdTableUnfit(
                f"{self.name} is not partitioned by {self.dataset.chain} and ranges of {self.archive.range_size:,} "
                "blocks. Nothing was changed. Choose another namespace for this chain, or none."
            )
        self._add_columns(table, schema)

    def _create(self, catalog: Any, schema: pyarrow.Schema) -> None:
        fields = [(field.name, iceberg_type(field.type)) for field in schema]
        made = assign_fresh_schema_ids(Schema(*_nested_fields(fields)))
        catalog.create_table(
            self.identifier,
            made,
            partition_spec=self._spec(made),
            properties={
                NAME_MAPPING: create_mapping_from_schema(made).model_dump_json(),
                "write.parquet.compression-codec": "zstd",
                "gc.enabled": "false",  # the files are the archive's: no table maintenance deletes them
            },
        )

    def _spec(self, schema: Schema) -> PartitionSpec:
        chain, block = schema.find_field(self.dataset.chain), schema.find_field(self.dataset.block)
        width: TruncateTransform[Any] = TruncateTransform(self.archive.range_size)
        return PartitionSpec(
            PartitionField(chain.field_id, 1000, IdentityTransform(), self.dataset.chain),
            PartitionField(block.field_id, 1001, width, f"{self.dataset.block}_range"),
        )

    def _has_our_spec(self, table: "Table") -> bool:
        ours = self._spec(table.schema()).fields
        theirs = table.spec().fields
        return [(one.source_id, str(one.transform)) for one in ours] == [
            (one.source_id, str(one.transform)) for one in theirs
        ]

    def _add_columns(self, table: "Table", schema: pyarrow.Schema) -> None:
        known = {field.name: field.field_type for field in table.schema().fields}
        unfit = [
            f"{field.name} ({known[field.name]} there, {field.type} here)"
            for field in schema
            if field.name in known and not holds(arrow_type(known[field.name]), field.type)
        ]
        if unfit:
            raise ColdTableUnfit(
                f"{self.name} has columns of other types: {', '.join(unfit)}. Nothing was changed. Alter the table, or "
                "choose another namespace."
            )
        missing = [field for field in schema if field.name not in known]
        if missing:
            with table.update_schema() as update:
                for field in missing:
                    update.add_column(field.name, iceberg_type(field.type))

    def replace(self, blocks: BlockRange, keys: Mapping[str, int], still_ours: Callable[[], None]) -> bool:
        """These files (keys in the archive, and sizes) and no others hold the range. False: so it was already."""
        for _ in attempts(ATTEMPTS):
            table = open_catalog(self.settings).load_table(self.identifier)
            there = self._files_of(table, blocks)
            if {file.file_path for file in there} == {self._path(key) for key in keys}:
                return False
            still_ours()
            added = [self._data_file(table, blocks, key, size) for key, size in keys.items()]
            try:
                self._commit(table, blocks, there, added)
            except CommitFailedException:
                continue
            return True
        raise ColdTableBusy(
            f"{self.name} changed during each of {ATTEMPTS} attempts to register blocks {blocks.key} (end not "
            "included). Nothing is lost; run again when the other writer is done."
        )

    def _files_of(self, table: "Table", blocks: BlockRange) -> list[DataFile]:
        if table.metadata.current_snapshot_id is None:
            return []
        within = And(
            EqualTo(Reference(self.dataset.chain), literal(self.archive.chain_id)),  # type: ignore[call-arg]
            GreaterThanOrEqual(Reference(self.dataset.block), literal(blocks.start)),  # type: ignore[call-arg]
            LessThan(Reference(self.dataset.block), literal(blocks.end)),  # type: ignore[call-arg]
        )
        return [task.file for task in table.scan(row_filter=within).plan_files()]

    def _path(self, key: str) -> str:
        return f"{self.store.uri}/{key}"

    def _data_file(self, table: "Table", blocks: BlockRange, key: str, size: int) -> DataFile:
        footer = pyarrow.parquet.read_metadata(pyarrow.BufferReader(fetch_footer(self.store, key, size)))
        partition = Record(self.archive.chain_id, blocks.start)
        return data_file(self._path(key), size, footer, table.metadata, table.metadata.default_spec_id, partition)

    def _commit(
        self, table: "Table", blocks: BlockRange, removed: Sequence[DataFile], added: Sequence[DataFile]
    ) -> None:
        change = FileChange(
            added=[AddedFile(file) for file in added],
            removed=frozenset(file.file_path for file in removed),
            operation=Operation.OVERWRITE if removed else Operation.APPEND,
            properties={COLD_RANGE: f"{self.archive.chain}:{blocks.key}"},
        )
        commit_change(table, change, Manifests(table.io))


def schema_of(store: ObjectStore, key: str, size: int) -> pyarrow.Schema:
    """The columns of a file that lies there."""
    return pyarrow.parquet.read_schema(pyarrow.BufferReader(fetch_footer(store, key, size)))


def _nested_fields(fields: Sequence[tuple[str, Any]]) -> list[Any]:
    from pyiceberg.types import NestedField

    return [NestedField(number, name, kind, required=False) for number, (name, kind) in enumerate(fields, start=1)]
