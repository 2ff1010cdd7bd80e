"""Deletes applied to the rows of a data file: which of them are left."""

from collections.abc import Iterable
from typing import Any

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet
from pyiceberg.manifest import DataFile

from compaction_platform.errors import CompactionError
from compaction_platform.lake.iceberg.data_file_reader import DataFileReader
from compaction_platform.lake.verification.canonical_form import Array
from compaction_platform.lake.verification.row_hash import value_hashes


class DeleteUnsupported(CompactionError):
    """An equality delete that cannot be applied here. Its data files are left as they are."""


def positions_in(delete: DataFile, reader: DataFileReader) -> dict[str, Array]:
    """The positions that a position delete file holds, for each data file."""
    content = pyarrow.BufferReader(reader.fetch(delete.file_path))
    file = pyarrow.parquet.ParquetFile(content, page_checksum_verification=True, read_dictionary=["file_path"])
    found: dict[str, list[Array]] = {}
    rows = 0
    for batch in file.iter_batches(columns=["file_path", "pos"]):
        rows += batch.num_rows
        paths = batch.column("file_path").cast(pyarrow.string()).dictionary_encode()
        numbers, positions = paths.indices.to_numpy(), batch.column("pos").to_numpy()
        for number, path in enumerate(paths.dictionary.to_pylist()):
            found.setdefault(path, []).append(positions[numbers == number])
    if rows != delete.record_count:
        raise CompactionError(f"{delete.file_path} has {rows} rows, the table's metadata says {delete.record_count}.")
    return {path: numpy.concatenate(parts) for path, parts in found.items()}


def is_left(rows: pyarrow.Table, first: int, positions: Iterable[Array]) -> Array:
    """Which of these rows, of which `first` is the position of the first, no position delete is about."""
    left = numpy.ones(rows.num_rows, dtype=bool)
    for some in positions:
        here = some[(some >= first) & (some < first + rows.num_rows)]
        left[here - first] = False
    return left


class EqualityDelete:
    """Rows whose columns equal one of these are deleted. Null equals null."""

    def __init__(self, delete: DataFile, reader: DataFileReader) -> None:
        ids = sorted(delete.equality_ids or ())
        schema = reader.metadata.schema()
        known = {field.field_id: field.name for field in schema.fields}
        self.columns = [known[each] for each in ids if each in known]
        if not ids or len(self.columns) != len(ids):
            raise DeleteUnsupported(f"{delete.file_path} deletes by a column that the table does not have any more.")
        types = [reader.schema.field(name).type for name in self.columns]
        if any(pyarrow.types.is_nested(kind) or pyarrow.types.is_floating(kind) for kind in types):
            raise DeleteUnsupported(f"{delete.file_path} deletes by a column of a type that has no plain equality.")
        content = reader.columns(delete, ids).select(self.columns)
        self._wanted = pyarrow.schema([reader.schema.field(name) for name in self.columns])
        keys = content.cast(self._wanted)
        self._hashes = _hashes(keys)
        self._keys = set(_plain(keys))

    def is_left(self, rows: pyarrow.Table) -> Array:
        keys = rows.select(self.columns)
        left = numpy.ones(rows.num_rows, dtype=bool)
        maybe = numpy.flatnonzero(numpy.isin(_hashes(keys), self._hashes))
        for place, key in zip(maybe, _plain(keys.take(pyarrow.array(maybe))), strict=True):
            left[place] = key not in self._keys
        return left


def _hashes(keys: pyarrow.Table) -> Array:
    """Equal for equal keys; the few others that have the same are told apart by their values."""
    total = numpy.zeros(keys.num_rows, numpy.uint64)
    with numpy.errstate(over="ignore"):
        for column in keys.columns:
            parts = [value_hashes(chunk) for chunk in column.chunks]
            total = total * numpy.uint64(31) + (numpy.concatenate(parts) if parts else total)
    return total


def _plain(keys: pyarrow.Table) -> list[tuple[Any, ...]]:
    columns = [_comparable(column).to_pylist() for column in keys.columns]
    return list(zip(*columns, strict=True)) if columns else []


def _comparable(column: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Moments as numbers: Python's calendar does not have all of them."""
    if isinstance(column.type, pyarrow.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    if pyarrow.types.is_date32(column.type) or pyarrow.types.is_time32(column.type):
        return column.cast(pyarrow.int32())
    return column.cast(pyarrow.int64()) if pyarrow.types.is_temporal(column.type) else column
