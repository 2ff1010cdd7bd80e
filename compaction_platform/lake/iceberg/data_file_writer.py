"""Arrow rows become data files of an Iceberg table: written, read back and compared before anything refers to them.

`DataFiles` travels into Spark tasks. A file that was written and is then not committed is nobody's: `discard` it.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy
import pyarrow
import pyarrow.parquet
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table.locations import LocationProvider, load_location_provider
from pyiceberg.typedef import Record

from compaction_platform.errors import CompactionError
from compaction_platform.lake.parquet.second_reader import ReadersDisagree, SecondReaderRefused, verify_sample
from compaction_platform.lake.parquet.writer import repetitive_columns
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.lake.verification.extent import Extent
from compaction_platform.lake.verification.fingerprint import ordered_fingerprint

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from compaction_platform.settings import Settings

CODEC_PROPERTY = "write.parquet.compression-codec"
FAST_ZSTD = 1
LONGEST_PARTITION = 500  # characters of a path


class DataFileDiffers(CompactionError):
    """What the store gave back is not what was written."""


class NotWritable(CompactionError):
    """These rows cannot be written from here; Spark can."""


class NotPartitioned(CompactionError):
    """PyIceberg cannot tell the partitions of these rows."""


@dataclass(frozen=True)
class DataFileWriter:
    """Where and how data files of one table are written."""

    metadata: "TableMetadata"
    store: ObjectStore
    second_reader: Extent = "none"  # how much of what is written another Parquet decoder reads, too

    @classmethod
    def of(cls, table: "Table", settings: "Settings") -> "DataFileWriter":
        place = load_location_provider(table.location(), table.properties).data_path
        # (PyIceberg's own file system leaves empty "directory" objects behind when it deletes.)
        return cls(table.metadata, ObjectStore.at(place.replace("s3a://", "s3://"), settings))

    def write(self, rows: pyarrow.Table) -> list[DataFile]:
        """A verified file for each partition these rows belong to."""
        schema = schema_to_pyarrow(self.metadata.schema(), include_field_ids=True)
        there = set(rows.column_names)
        columns = [
            rows[column.name] if column.name in there else pyarrow.nulls(rows.num_rows, column.type)
            for column in schema  # one may have been added since
        ]
        fitting = pyarrow.Table.from_arrays(columns, names=schema.names).cast(schema)
        files: list[DataFile] = []
        try:
            for key, part in self._partitions(fitting):
                files.append(self._write_one(part, key))
        except OverflowError as beyond:  # PyIceberg describes partitions and files in Python's own dates
            self.discard(files)
            raise NotWritable(f"there are moments that Python's calendar does not have: {beyond}") from beyond
        except NotPartitioned as cannot:
            self.discard(files)
            raise NotWritable(str(cannot)) from cannot
        except BaseException:
            self.discard(files)
            raise
        return files

    def discard(self, files: Iterable[DataFile]) -> None:
        """Remove files that no snapshot refers to."""
        self.store.delete(self._key(file.file_path) for file in files)

    def _key(self, path: str) -> str:
        """The file's name inside the table's place for data."""
        return path.removeprefix(f"{self._locations.data_path}/")

    @property
    def _locations(self) -> LocationProvider:
        return load_location_provider(self.metadata.location, self.metadata.properties)

    def _write_one(self, rows: pyarrow.Table, key: PartitionKey | None) -> DataFile:
        path = self._locations.new_data_location(f"{uuid.uuid4()}.parquet", key if _is_usable(key) else None)
        encoded = self._encoded(rows)
        footer = pyarrow.parquet.read_metadata(pyarrow.BufferReader(encoded))
        partition = key.partition if key is not None else Record()
        described = data_file(path, len(encoded), footer, self.metadata, self.metadata.default_spec_id, partition)
        try:
            self.store.write(self._key(path), encoded)
            if ordered_fingerprint(self._read_back(path)).columns != ordered_fingerprint(rows).columns:
                raise DataFileDiffers(f"{path} was written and reads back as something else. It was removed again.")
            self._require_agreement(path, encoded)
        except BaseException:
            self.store.delete([self._key(path)])
            raise
        return described

    def _require_agreement(self, path: str, encoded: bytes) -> None:
        try:
            verify_sample(encoded, path, self.second_reader)
        except (SecondReaderRefused, ReadersDisagree) as reason:
            raise DataFileDiffers(
                f"{path} was written and is not read alike: {reason}. It was removed again."
            ) from reason

    def _encoded(self, rows: pyarrow.Table) -> bytes:
        codec = self.metadata.properties.get(CODEC_PROPERTY, "zstd")
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(
            rows,
            sink,
            compression="none" if codec == "uncompressed" else codec,
            compression_level=FAST_ZSTD if codec == "zstd" else None,
            use_dictionary=repetitive_columns(rows),
            write_page_checksum=True,
            write_page_index=True,
            store_decimal_as_integer=True,  # as the Iceberg specification wants it
        )
        encoded: bytes = sink.getvalue().to_pybytes()
        return encoded

    def _read_back(self, path: str) -> pyarrow.Table:
        content = pyarrow.py_buffer(self.store.read(self._key(path)))
        return pyarrow.parquet.read_table(pyarrow.BufferReader(content), page_checksum_verification=True)

    def _partitions(self, rows: pyarrow.Table) -> Iterator[tuple[PartitionKey | None, pyarrow.Table]]:
        """The rows of each partition, in their order."""
        spec, schema = self.metadata.spec(), self.metadata.schema()
        if spec.is_unpartitioned():
            yield None, rows
            return
        values = []
        for field in spec.fields:
            kind = schema.find_field(field.source_id).field_type
            column = rows[schema.find_column_name(field.source_id)].combine_chunks()
            try:
                values.append(field.transform.pyarrow_transform(kind)(column))
            except (ValueError, NotImplementedError) as cannot:
                raise NotPartitioned(f"partitioning by {field.name}: {cannot}") from cannot
        codes = numpy.zeros(rows.num_rows, numpy.int64)
        for value in values:
            encoded = value.dictionary_encode("encode")
            codes = codes * (len(encoded.dictionary) + 1) + encoded.indices.to_numpy()
            codes = numpy.unique(codes, return_inverse=True)[1]  # small again, however many fields there are
        distinct, first = numpy.unique(codes, return_index=True)
        if len(distinct) > 1:
            order = numpy.argsort(codes, kind="stable")
            rows = rows.take(pyarrow.array(order))
            starts = numpy.searchsorted(codes[order], distinct)
        else:
            starts = numpy.zeros(1, numpy.int64)
        for start, end, place in zip(starts, [*starts[1:], rows.num_rows], first, strict=True):
            chosen = [
                PartitionFieldValue(field, value[int(place)].as_py())
                for field, value in zip(spec.fields, values, strict=True)
            ]
            key = PartitionKey(chosen, spec, schema)
            try:
                key.to_path()
            except ValueError as cannot:  # such as two transforms of one column
                raise NotPartitioned(str(cannot)) from cannot
            yield key, rows.slice(start, end - start)


def _is_usable(key: PartitionKey | None) -> bool:
    """Whether the partition can be part of a file's path. It need not be: the table's metadata say what it is."""
    if key is None:
        return False
    parts = key.to_path().split("/")
    return sum(map(len, parts)) <= LONGEST_PARTITION and not any(part.endswith("=") for part in parts)


def data_file(
    path: str,
    size: int,
    footer: pyarrow.parquet.FileMetaData,
    table: "TableMetadata",
    spec_id: int,
    partition: Record,
) -> DataFile:
    """A Parquet file as a table's metadata describes it, with the statistics the table wants."""
    schema = table.schema()
    statistics = data_file_statistics_from_parquet_metadata(
        footer, compute_statistics_plan(schema, table.properties), parquet_path_to_id_mapping(schema)
    )
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=size,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
    file.spec_id = spec_id
    for field_id in _without_bounds(footer, parquet_path_to_id_mapping(schema)):
        for bounds in (file.lower_bounds, file.upper_bounds):
            (bounds or {}).pop(field_id, None)
    return file


def _without_bounds(footer: pyarrow.parquet.FileMetaData, ids: Mapping[str, int]) -> set[int]:
    """Columns for which some row group says nothing about its values, as it does when they are long. PyIceberg passes
    over such row groups, and readers would pass over the rows."""
    found: set[int] = set()
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            told = column.statistics
            if told is not None and told.has_min_max:
                continue
            is_all_null = told is not None and told.has_null_count and told.null_count == column.num_values
            if not is_all_null and column.path_in_schema in ids:
                found.add(ids[column.path_in_schema])
    return found
