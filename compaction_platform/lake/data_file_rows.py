"""The rows of one data file of an Iceberg table, in the table's columns as they are now.

Files that have these columns just so are decoded directly, page checksums and all. For others (a column was added,
renamed or widened since) PyIceberg knows the rules.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.parquet
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.table import FileScanTask

from compaction_platform.lake.canonical import canonical_type
from compaction_platform.lake.catalog import store_properties
from compaction_platform.lake.errors import CompactionError
from compaction_platform.lake.objects import Objects

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

    from compaction_platform.lake.settings import Settings


FIELD_ID = b"PARQUET:field_id"


class DataFileDamaged(CompactionError):
    """A data file of the table cannot be read as the table describes it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} {reason}. It is left as it is.")
        self.path = path


@dataclass(frozen=True)
class DataFileRows:
    """A reader that travels into Spark tasks."""

    metadata: "TableMetadata"
    settings: "Settings"

    @cached_property
    def schema(self) -> pyarrow.Schema:
        """The table's columns with their identities, as files are written."""
        return schema_to_pyarrow(self.metadata.schema(), include_field_ids=True)

    def fetch(self, path: str) -> pyarrow.Buffer:
        return pyarrow.py_buffer(self.store(path).read(key_of(path)))

    def store(self, path: str) -> Objects:
        """Where this file lies."""
        bucket = bucket_of(path)
        if bucket not in self._stores:
            self._stores[bucket] = Objects.at(f"s3://{bucket}", self.settings)
        return self._stores[bucket]

    @cached_property
    def _stores(self) -> dict[str, Objects]:
        return {}

    def row_groups(self, file: "DataFile", content: pyarrow.Buffer) -> Iterator[pyarrow.Table]:
        """All rows, in their order, checked against the number the table's metadata gives."""
        rows = 0
        try:
            opened = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content), page_checksum_verification=True)
            if has_columns_of(opened, self.metadata.schema(), self.schema):
                for number in range(opened.metadata.num_row_groups):
                    group = opened.read_row_group(number, columns=self.schema.names, use_threads=False)
                    rows += group.num_rows
                    yield group.select(self.schema.names).cast(self.schema)
            else:
                for _ in opened.iter_batches(use_threads=False):  # for the checksums: PyIceberg does not look
                    pass
                projected = self._projected(file, self.metadata.schema()).cast(self.schema)
                rows += projected.num_rows
                yield projected
        except (pyarrow.ArrowException, OSError) as error:
            raise DataFileDamaged(file.file_path, f"cannot be read: {str(error).splitlines()[0]}") from error
        if rows != file.record_count:
            raise DataFileDamaged(file.file_path, f"has {rows} rows, the table's metadata says {file.record_count}")

    def columns(self, file: "DataFile", field_ids: list[int]) -> pyarrow.Table:
        """Some columns of a file that may have no others, such as an equality delete."""
        schema = self.metadata.schema()
        names = [str(schema.find_column_name(each)) for each in field_ids]
        return self._projected(file, schema.select(*names))

    def _projected(self, file: "DataFile", schema: "Schema") -> pyarrow.Table:
        io = load_file_io(dict(store_properties(self.settings)), self.metadata.location)
        return ArrowScan(self.metadata, io, schema, AlwaysTrue()).to_table([FileScanTask(file)])


def has_columns_of(file: pyarrow.parquet.ParquetFile, schema: "Schema", types: pyarrow.Schema) -> bool:
    """Whether a file has the columns of the table, under these names, with these identities and types."""
    physical = {column.name: column for column in file.schema_arrow}
    for field, wanted in zip(schema.fields, types, strict=True):
        found = physical.get(wanted.name)
        if found is None or canonical_type(found.type) != canonical_type(wanted.type):
            return False
        if (found.metadata or {}).get(FIELD_ID) != str(field.field_id).encode():
            return False
        if pyarrow.types.is_nested(wanted.type):
            return False  # what is inside has identities of its own
    return True


def bucket_of(path: str) -> str:
    return _after_scheme(path).partition("/")[0]


def key_of(path: str) -> str:
    return _after_scheme(path).partition("/")[2]


def _after_scheme(path: str) -> str:
    scheme, _, rest = path.partition("://")
    if scheme not in ("s3", "s3a", "s3n"):
        raise CompactionError(f"{path}: only files on S3 can be reached here.")
    return rest
