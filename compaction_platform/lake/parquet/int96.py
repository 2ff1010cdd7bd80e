"""INT96, the timestamps of old Parquet files: pyarrow reads some of them as other moments, in silence.

They may be finer than a microsecond, or too far away for 64 bits. Read as microseconds and as nanoseconds, the two
agree (also where nanoseconds wrap around) exactly for those that microseconds can hold.
"""

from collections.abc import Collection
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet

from compaction_platform.lake.parquet.schema_elements import FIXED_LEN_BYTE_ARRAY, INT96
from compaction_platform.lake.parquet.thrift_compact import I32, parse, serialize

ROWS_PER_BATCH = 1 << 16
UNIX_EPOCH = 2_440_588  # its Julian day
_RAW = numpy.dtype([("nanoseconds", "<i8"), ("day", "<i4")])


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


def int96_moments(data: bytes) -> pyarrow.Table:
    """The top-level INT96 columns of a file as microseconds, computed from their twelve bytes: nanoseconds of a day,
    and its Julian number, which Spark adds up in 64 bits. Arrow decodes the pages, not the timestamps. Raises
    ValueError for a moment that is finer."""
    length = int.from_bytes(data[-8:-4], "little")
    end = len(data) - 8 - length
    footer, _ = parse(data, end)
    for element in footer.get_value(2).items:
        if element.get_value(1) == INT96:
            element.set_value(1, I32, FIXED_LEN_BYTE_ARRAY)
            element.set_value(2, I32, 12)
            for annotation in (6, 10):
                element.pop(annotation, None)
    names = []
    for group in footer.get_value(4).items:
        for column in group.get_value(1).items:
            meta = column.get_value(3)
            meta.pop(12, None)  # statistics of another type
            if meta.get_value(1) == INT96:
                meta.set_value(1, I32, FIXED_LEN_BYTE_ARRAY)
                names += [path[0].decode() for path in [meta.get_value(3).items] if len(path) == 1]
    footer.pop(5, None)  # Arrow's own description has the types of before
    for struct in footer.get_value(2).items:
        fields = sorted(struct.items())
        struct.clear()
        struct.update(fields)
    encoded = serialize(footer)
    as_bytes = b"".join((data[:end], encoded, len(encoded).to_bytes(4, "little"), b"PAR1"))
    file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(as_bytes), page_checksum_verification=True)
    columns = {name: _moments(column) for name in dict.fromkeys(names) for column in file.read(columns=[name]).columns}
    return pyarrow.table(columns)


def _moments(column: pyarrow.ChunkedArray) -> pyarrow.Array:
    array = column.combine_chunks()
    array = array.chunk(0) if isinstance(array, pyarrow.ChunkedArray) else array
    there = array.is_valid().to_numpy(zero_copy_only=False)
    raw = numpy.frombuffer(array.fill_null(b"\0" * 12).buffers()[1], _RAW, len(array), array.offset * 12)
    days, nanoseconds = raw["day"].astype("i8") - UNIX_EPOCH, raw["nanoseconds"]
    if (there & (nanoseconds % 1000 != 0)).any():
        raise ValueError("INT96 timestamps that microseconds cannot hold")
    with numpy.errstate(over="ignore"):
        microseconds = numpy.where(there, days * (86_400 * 10**6) + nanoseconds // 1000, 0)
    return pyarrow.array(microseconds, mask=~there).cast(pyarrow.timestamp("us"))


def _opened(data: Any, unit: str) -> pyarrow.parquet.ParquetFile:
    return pyarrow.parquet.ParquetFile(
        pyarrow.BufferReader(pyarrow.py_buffer(data)),
        page_checksum_verification=True,
        coerce_int96_timestamp_unit=unit,
    )


def _integers(timestamps: pyarrow.Array) -> Any:
    return timestamps.cast(pyarrow.int64()).fill_null(0).to_numpy(zero_copy_only=False)
