"""Stream rows through Arrow into one well-made file: large row groups, zstd, checksums, page indexes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import RawIOBase
from typing import IO

import numpy
import pyarrow
import pyarrow.parquet

PAGE_BYTES = 1 << 20
SAMPLE_ROWS = 10_000
REPEATED = 0.5  # a column with fewer distinct values than this share of its rows gets a dictionary


@dataclass(frozen=True)
class WriterOptions:
    """How output is written."""

    compression: str = "zstd"
    level: int | None = 1
    row_group_bytes: int = 64 << 20  # of decoded rows
    sort_by: tuple[str, ...] = ()
    decimals_as_integers: bool = True  # where they fit; otherwise all of them are bytes


class ParquetOutput:
    """One Parquet file, written a row group at a time."""

    def __init__(
        self, schema: pyarrow.Schema, encoding: WriterOptions, sink: IO[bytes] | RawIOBase, *, int96: bool = False
    ) -> None:
        self._schema, self._encoding, self._sink, self._int96 = schema, encoding, sink, int96
        self._writer: pyarrow.parquet.ParquetWriter | None = None

    def __enter__(self) -> "ParquetOutput":
        return self

    def __exit__(self, *problem: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, row_groups: Iterable[pyarrow.Table]) -> None:
        """Each table as one row group; the first tells which columns repeat themselves."""
        for rows in row_groups:
            self._opened(rows).write_table(rows, row_group_size=max(1, rows.num_rows))

    def describe(self, metadata: dict[bytes, bytes]) -> None:
        self._opened(self._schema.empty_table()).add_key_value_metadata(metadata)

    def _opened(self, first: pyarrow.Table) -> pyarrow.parquet.ParquetWriter:
        if self._writer is None:
            self._writer = pyarrow.parquet.ParquetWriter(
                self._sink,
                self._schema,
                compression=self._encoding.compression,
                compression_level=self._encoding.level,
                use_dictionary=repetitive_columns(first),
                data_page_size=PAGE_BYTES,
                write_page_checksum=True,
                write_page_index=True,
                store_decimal_as_integer=self._encoding.decimals_as_integers,
                use_deprecated_int96_timestamps=self._int96,
                coerce_timestamps=None,
            )
        return self._writer


def row_groups(
    batches: Iterable[pyarrow.RecordBatch], schema: pyarrow.Schema, row_group_bytes: int
) -> Iterator[pyarrow.Table]:
    """Rows in their order, so many at a time that they make a good row group."""
    waiting: list[pyarrow.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            size += batch.nbytes
        if size >= row_group_bytes:
            yield _in_one_piece(waiting, schema)
            waiting, size = [], 0
    if waiting:
        yield _in_one_piece(waiting, schema)


def _in_one_piece(batches: list[pyarrow.RecordBatch], schema: pyarrow.Schema) -> pyarrow.Table:
    """Many small batches cost more than their copy: in the digest, in the sample, in the writer."""
    return pyarrow.Table.from_batches(batches, schema).combine_chunks()


def repetitive_columns(rows: pyarrow.Table) -> list[str]:
    """Columns for which a dictionary is worth its while, judged by some of the rows."""
    step = max(1, rows.num_rows // SAMPLE_ROWS)
    sample = rows.take(pyarrow.array(numpy.arange(0, rows.num_rows, step))) if step > 1 else rows
    found = []
    for field in rows.schema:
        if pyarrow.types.is_nested(field.type) or pyarrow.types.is_boolean(field.type):
            continue
        if isinstance(field.type, pyarrow.BaseExtensionType):  # UUIDs and the like: Arrow cannot count them
            continue
        if len(sample[field.name].unique()) <= sample.num_rows * REPEATED:
            found.append(field.name)
    return found
