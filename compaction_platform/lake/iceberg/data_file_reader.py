"""Read the rows of one data file of an Iceberg table in the table's current columns, page checksums verified."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow
from pyiceberg.io.pyarrow import schema_to_pyarrow

from compaction_platform.errors import CompactionError
from compaction_platform.lake.iceberg.projection import (
    CannotProject,
    Projection,
    has_same_columns,
    opened,
    row_group_tables,
)
from compaction_platform.lake.parquet.int96 import int96_columns, why_not_exact
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.lake.verification.value_validity import invalid_values

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

    from compaction_platform.settings import Settings


class DataFileDamaged(CompactionError):
    """A data file of the table cannot be read as the table describes it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} {reason}. It is left as it is.")
        self.path = path


@dataclass(frozen=True)
class DataFileReader:
    """A reader that travels into Spark tasks."""

    metadata: "TableMetadata"
    settings: "Settings"

    @cached_property
    def schema(self) -> pyarrow.Schema:
        """The table's columns with their identities, as files are written."""
        return schema_to_pyarrow(self.metadata.schema(), include_field_ids=True)

    def fetch(self, path: str) -> pyarrow.Buffer:
        return pyarrow.py_buffer(self.store(path).read(key_of(path)))

    def store(self, path: str) -> ObjectStore:
        """Where this file lies."""
        bucket = bucket_of(path)
        if bucket not in self._stores:
            self._stores[bucket] = ObjectStore.at(f"s3://{bucket}", self.settings)
        return self._stores[bucket]

    @cached_property
    def _stores(self) -> dict[str, ObjectStore]:
        return {}

    def row_groups(self, file: "DataFile", content: pyarrow.Buffer) -> Iterator[pyarrow.Table]:
        """All rows, in their order, checked against the number the table's metadata gives."""
        rows = 0
        for group in self._projected(file, content, self.metadata.schema(), self.schema):
            rows += group.num_rows
            yield group
        if rows != file.record_count:
            raise DataFileDamaged(file.file_path, f"has {rows} rows, the table's metadata says {file.record_count}")

    def has_table_columns(self, content: pyarrow.Buffer) -> bool:
        """Whether a file has just the table's columns, so that its rows are taken as they are. Raises ArrowInvalid or
        OSError for what is no Parquet file."""
        return has_same_columns(opened(pyarrow.BufferReader(content)).schema_arrow, self.schema)

    def columns(self, file: "DataFile", field_ids: list[int]) -> pyarrow.Table:
        """Some columns of a file that may have no others, such as an equality delete."""
        schema = self.metadata.schema()
        wanted = schema.select(*(str(schema.find_column_name(each)) for each in field_ids))
        types = schema_to_pyarrow(wanted, include_field_ids=True)
        groups = list(self._projected(file, self.fetch(file.file_path), wanted, types))
        return pyarrow.concat_tables(groups) if groups else types.empty_table()

    def _projected(
        self, file: "DataFile", content: pyarrow.Buffer, wanted: "Schema", types: pyarrow.Schema
    ) -> Iterator[pyarrow.Table]:
        projection = Projection.of(self.metadata, file, wanted, types)
        try:
            parquet = opened(pyarrow.BufferReader(content))
            if int96_columns(parquet.metadata) and (reason := why_not_exact(content)):
                raise DataFileDamaged(file.file_path, f"cannot be read exactly: {reason}")
            for rows in row_group_tables(parquet, projection):
                if (problem := invalid_values(rows)) is not None:
                    raise DataFileDamaged(file.file_path, f"is damaged: {problem}")
                yield rows
        except CannotProject as unfit:
            raise DataFileDamaged(file.file_path, str(unfit)) from unfit
        except (pyarrow.ArrowException, OSError) as error:
            raise DataFileDamaged(file.file_path, f"cannot be read: {str(error).splitlines()[0]}") from error


def bucket_of(path: str) -> str:
    return _after_scheme(path).partition("/")[0]


def key_of(path: str) -> str:
    return _after_scheme(path).partition("/")[2]


def _after_scheme(path: str) -> str:
    scheme, _, rest = path.partition("://")
    if scheme not in ("s3", "s3a", "s3n"):
        raise CompactionError(f"{path}: only files on S3 can be reached here.")
    return rest
