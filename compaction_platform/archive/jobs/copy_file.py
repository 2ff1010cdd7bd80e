"""One file of a range, in a Spark task: read from the database's snapshot, written, read back from the store, compared.

The rows of one file are in memory, never those of the range.
"""

import hashlib
import io
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.chain.cuts import FileCut
from compaction_platform.archive.cold.manifest import Digest, ManifestFile
from compaction_platform.archive.cold.paths import RangePaths, file_name
from compaction_platform.archive.config import ArchivedTable
from compaction_platform.archive.hot.columns import HotColumn, converted
from compaction_platform.archive.hot.snapshot import ROW_HASH, ROW_UNFIT, SEE_ALL_ROWS, select_rows
from compaction_platform.errors import CompactionError
from compaction_platform.lake.parquet.second_reader import ReadersDisagree, SecondReaderRefused, verify_sample
from compaction_platform.lake.parquet.writer import ParquetOutput, WriterOptions
from compaction_platform.lake.storage.object_store import ObjectExists, ObjectStore
from compaction_platform.lake.verification.extent import Extent
from compaction_platform.lake.verification.fingerprint import Fingerprint, OrderedFingerprint

SHOWN = 5


class RowsUnfit(CompactionError):
    """The rows contradict each other, or their blocks."""


class CopyDiffers(CompactionError):
    """What the store gave back is not what the database gave."""


@dataclass(frozen=True)
class CopyItem:
    """One file to make. `block_hashes`: numbers and hashes of its blocks, where rows name the block they belong to."""

    dataset: ArchivedTable
    columns: tuple[HotColumn, ...]
    blocks: BlockRange  # the whole range
    cut: FileCut
    block_hashes: tuple[Any, pyarrow.Array] | None = None


@dataclass(frozen=True)
class CopyTask:
    """What all files of one attempt have in common."""

    url: str = field(repr=False)
    snapshot: str
    chain_id: int
    store: ObjectStore
    attempt: str
    encoding: WriterOptions = field(default_factory=WriterOptions)
    second_reader: Extent = "sample"

    def __call__(self, item: CopyItem) -> ManifestFile:
        rows, digest = read_rows(self.url, self.snapshot, self.chain_id, item)
        rows = in_key_order(item.dataset, rows)
        _require_blocks(item, rows)
        return self._written(item, rows, digest)

    def _written(self, item: CopyItem, rows: pyarrow.Table, digest: Digest) -> ManifestFile:
        expected = _fingerprint(rows)
        encoded = _encoded(rows, self.encoding)
        sha256 = hashlib.sha256(encoded).hexdigest()
        name = file_name(item.cut.number, self.attempt)
        key = RangePaths(str(self.chain_id), item.dataset.name, item.blocks).staged(self.attempt, name)
        with suppress(ObjectExists):  # Spark repeats tasks; what is there is compared like what was written now
            self.store.create(key, encoded)
        self._require_readable(key, sha256, expected)
        return ManifestFile(
            name=name,
            size=len(encoded),
            sha256=sha256,
            rows=rows.num_rows,
            start_block=item.cut.blocks.start,
            end_block=item.cut.blocks.end,
            fingerprint=expected.digest,
            source=digest,
        )

    def _require_readable(self, key: str, sha256: str, expected: Fingerprint) -> None:
        """Read the file back from the store, decode every value and compare it with the rows of the database."""
        content = self.store.read(key)
        if hashlib.sha256(content).hexdigest() != sha256 or fingerprint_of_file(content) != expected:
            raise CopyDiffers(f"{self.store.uri}/{key} reads back as something else than was written; not committed.")
        try:
            verify_sample(content, key, self.second_reader)
        except (SecondReaderRefused, ReadersDisagree) as reason:
            raise CopyDiffers(f"{self.store.uri}/{key} is not read alike: {reason}; not committed.") from reason


def read_rows(url: str, snapshot: str, chain_id: int, item: CopyItem) -> tuple[pyarrow.Table, Digest]:
    """The rows of the cut as of a snapshot, as they are stored; and PostgreSQL's digest of them."""
    import adbc_driver_postgresql.dbapi

    with (
        adbc_driver_postgresql.dbapi.connect(url, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SET client_encoding = 'UTF8'")  # what the driver takes all text for
        cursor.execute(SEE_ALL_ROWS)
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        cursor.execute(select_rows(item.dataset, item.columns, chain_id, item.cut.blocks))
        found = cursor.fetch_arrow_table()
        cursor.execute("COMMIT")
    digest = Digest(rows=found.num_rows, sum=str(_signed_sum(found.column(ROW_HASH))))
    if found.num_rows != item.cut.rows:
        raise CopyDiffers(
            f"{item.dataset.name}: {found.num_rows:,} rows in blocks {item.cut.blocks.key} (end not included), but "
            f"{item.cut.rows:,} were counted in the same snapshot."
        )
    if ROW_UNFIT in found.column_names and pyarrow.compute.any(found[ROW_UNFIT]).as_py():
        raise RowsUnfit(
            f"{item.dataset.name} has arrays of more than one dimension, or that do not begin at 1; Parquet has none."
        )
    return converted(found, item.columns), digest


def _signed_sum(hashes: pyarrow.ChunkedArray) -> int:
    total = 0
    for chunk in hashes.chunks:
        values = chunk.to_numpy()
        total += (int((values >> 32).sum(dtype=numpy.int64)) << 32) + int((values & 0xFFFFFFFF).sum(dtype=numpy.int64))
    return total


def in_key_order(dataset: ArchivedTable, rows: pyarrow.Table) -> pyarrow.Table:
    """Sorted by the key; no key is there twice or null."""
    for name in dataset.key:
        if rows[name].null_count:
            raise RowsUnfit(f"{dataset.name}: {rows[name].null_count:,} rows have no {name}, a part of their key.")
    if not _is_sorted(rows, dataset.key):
        rows = rows.take(_sorted_places(rows, dataset.key))
    keys = rows.select(dataset.key)
    same = _same_as_next(keys)
    if same.any():
        places = numpy.flatnonzero(same)[:SHOWN]
        shown = "; ".join(
            ", ".join(f"{name} {value}" for name, value in keys.slice(int(place), 1).to_pylist()[0].items())
            for place in places
        )
        raise RowsUnfit(f"{dataset.name}: {int(same.sum()):,} rows are there more than once: {shown}.")
    return rows


def _is_sorted(rows: pyarrow.Table, key: tuple[str, ...]) -> bool:
    """Whether rows are in order already, as they are where the table is only appended to. Integers only."""
    if not all(pyarrow.types.is_integer(rows[name].type) for name in key):
        return False
    undecided = numpy.ones(max(0, rows.num_rows - 1), bool)
    for name in key:
        values = rows[name].to_numpy()
        if (values[1:][undecided] < values[:-1][undecided]).any():
            return False
        undecided &= values[1:] == values[:-1]
    return True


def _sorted_places(rows: pyarrow.Table, key: tuple[str, ...]) -> pyarrow.Array:
    if all(pyarrow.types.is_integer(rows[name].type) for name in key):  # quick where long runs are in order
        return pyarrow.array(numpy.lexsort([rows[name].to_numpy() for name in reversed(key)]))
    return pyarrow.compute.sort_indices(rows, [(name, "ascending") for name in key])


def _same_as_next(keys: pyarrow.Table) -> Any:
    count = max(0, keys.num_rows - 1)
    same = numpy.ones(count, bool)
    for column in keys.columns if count else ():
        values = column.combine_chunks()
        same &= pyarrow.compute.equal(values.slice(0, count), values.slice(1)).to_numpy(zero_copy_only=False)
    return same


def _require_blocks(item: CopyItem, rows: pyarrow.Table) -> None:
    """Every row belongs to a block of the range, by number and where it tells by hash; and indexes have no holes."""
    dataset = item.dataset
    numbers = rows[dataset.block].to_numpy()
    if dataset.dense:
        _require_dense(dataset, numbers, rows[dataset.key[-1]].to_numpy())
    if item.block_hashes is None or dataset.hash is None or not len(numbers):
        return
    block_numbers, block_hashes = item.block_hashes
    expected = block_hashes.take(pyarrow.array(numpy.searchsorted(block_numbers, numbers)))
    told = rows[dataset.hash].combine_chunks()
    if expected.type != told.type:
        raise RowsUnfit(f"{dataset.name}.{dataset.hash} is {told.type}, but the blocks' own hash is {expected.type}.")
    fits = pyarrow.compute.fill_null(pyarrow.compute.equal(told, expected), False)
    wrong = numpy.flatnonzero(~fits.to_numpy(zero_copy_only=False))
    if len(wrong):
        shown = ", ".join(str(number) for number in dict.fromkeys(numbers[wrong].tolist()))[:200]
        raise RowsUnfit(
            f"{dataset.name}: {len(wrong):,} rows belong to another block of the same number, by their {dataset.hash} "
            f"(blocks {shown}). Were they left behind by a reorganisation?"
        )


def _require_dense(dataset: ArchivedTable, numbers: Any, indexes: Any) -> None:
    begins = numpy.ones(len(numbers), bool)
    begins[1:] = numbers[1:] != numbers[:-1]
    expected = numpy.arange(len(numbers)) - numpy.maximum.accumulate(numpy.where(begins, numpy.arange(len(numbers)), 0))
    wrong = numpy.flatnonzero(indexes != expected)
    if len(wrong):
        first = int(wrong[0])
        raise RowsUnfit(
            f"{dataset.name}: in block {int(numbers[first])}, {dataset.key[-1]} {int(indexes[first])} stands where "
            f"{int(expected[first])} should: a row is missing, or the numbers do not begin at 0."
        )


def _encoded(rows: pyarrow.Table, encoding: WriterOptions) -> memoryview:
    sink = io.BytesIO()
    per_group = max(1, rows.num_rows * encoding.row_group_bytes // max(1, rows.nbytes))
    with ParquetOutput(rows.schema, encoding, sink) as output:
        output.write(rows.slice(start, per_group) for start in range(0, max(1, rows.num_rows), per_group))
    return sink.getbuffer()


def _fingerprint(rows: pyarrow.Table) -> Fingerprint:
    digest = OrderedFingerprint(rows.schema)
    digest.update(rows)
    return digest.finish()


def fingerprint_of_file(content: Any) -> Fingerprint:
    """Every value decoded, every page's checksum verified."""
    file = pyarrow.parquet.ParquetFile(
        pyarrow.BufferReader(pyarrow.py_buffer(content)), page_checksum_verification=True
    )
    digest = OrderedFingerprint(file.schema_arrow)
    for group in range(file.num_row_groups):
        digest.update(file.read_row_group(group))
    return digest.finish()
