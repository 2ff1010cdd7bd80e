"""INT96, the timestamps of old Parquet files: pyarrow reads some of them as other moments, in silence.

They may be finer than a microsecond, or too far away for 64 bits. Read as microseconds and as nanoseconds, the two
agree (also where nanoseconds wrap around) exactly for those that microseconds can hold.
"""

from collections.abc import Collection
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet

ROWS_PER_BATCH = 1 << 16


def int96_columns(metadata: pyarrow.parquet.FileMetaData) -> list[str]:
    schema = metadata.schema
    columns = [schema.column(number) for number in range(len(schema))]
    return [column.path for column in columns if column.physical_type == "INT96"]


def why_not_exact(data: Any, columns: Collection[str] | None = None) -> str | None:
    """Why the INT96 timestamps of this file, or of these top-level columns, cannot be read as microseconds; None if
    they can."""
    names = int96_columns(_opened(data, "us").metadata)
    if columns is not None:
        names = [name for name in names if name.partition(".")[0] in columns]
    if not names:
        return None
    if nested := [name for name in names if "." in name]:
        return f"{nested[0]} has INT96 timestamps inside another column"
    both = (_opened(data, unit).iter_batches(ROWS_PER_BATCH, columns=names, use_threads=False) for unit in ("us", "ns"))
    for coarse, fine in zip(*both, strict=True):
        for name in names:
            with numpy.errstate(over="ignore"):
                scaled = _integers(coarse.column(name)) * 1000
            if (scaled != _integers(fine.column(name))).any():
                return f"{name} has INT96 timestamps that microseconds cannot hold"
    return None


def _opened(data: Any, unit: str) -> pyarrow.parquet.ParquetFile:
    return pyarrow.parquet.ParquetFile(
        pyarrow.BufferReader(pyarrow.py_buffer(data)),
        page_checksum_verification=True,
        coerce_int96_timestamp_unit=unit,
    )


def _integers(timestamps: pyarrow.Array) -> Any:
    return timestamps.cast(pyarrow.int64()).fill_null(0).to_numpy(zero_copy_only=False)
