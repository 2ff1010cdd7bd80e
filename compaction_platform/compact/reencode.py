"""Stream rows through Arrow into one well-made file: large row groups, zstd, checksums, page indexes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO

import pyarrow
import pyarrow.parquet

from compaction_platform.lake.data_files import repetitive_columns

PAGE_BYTES = 1 << 20


@dataclass(frozen=True)
class Encoding:
    """How output is written."""

    compression: str = "zstd"
    level: int | None = 1
    row_group_bytes: int = 64 << 20  # of decoded rows


def write(
    batches: Iterable[pyarrow.RecordBatch],
    schema: pyarrow.Schema,
    encoding: Encoding,
    metadata: dict[bytes, bytes],
    sink: IO[bytes],
    *,
    int96: bool = False,
) -> None:
    """All rows, in their order. One row group is held in memory at a time."""
    writer: pyarrow.parquet.ParquetWriter | None = None
    try:
        for rows in _row_groups(batches, schema, encoding.row_group_bytes):
            if writer is None:
                writer = _writer(rows, schema, encoding, sink, int96=int96)
            writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        if writer is None:
            writer = _writer(schema.empty_table(), schema, encoding, sink, int96=int96)
        writer.add_key_value_metadata(metadata)
    finally:
        if writer is not None:
            writer.close()


def _writer(
    first: pyarrow.Table, schema: pyarrow.Schema, encoding: Encoding, sink: IO[bytes], *, int96: bool
) -> pyarrow.parquet.ParquetWriter:
    return pyarrow.parquet.ParquetWriter(
        sink,
        schema,
        compression=encoding.compression,
        compression_level=encoding.level,
        use_dictionary=repetitive_columns(first),
        data_page_size=PAGE_BYTES,
        write_page_checksum=True,
        write_page_index=True,
        store_decimal_as_integer=True,
        use_deprecated_int96_timestamps=int96,
        coerce_timestamps=None,
    )


def _row_groups(
    batches: Iterable[pyarrow.RecordBatch], schema: pyarrow.Schema, row_group_bytes: int
) -> Iterator[pyarrow.Table]:
    waiting: list[pyarrow.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            size += batch.nbytes
        if size >= row_group_bytes:
            yield pyarrow.Table.from_batches(waiting, schema)
            waiting, size = [], 0
    if waiting:
        yield pyarrow.Table.from_batches(waiting, schema)
