"""The canonical form of values and rows: the same for every reader, whatever language it is written in.

docs/torture.md describes it. Needs pyarrow and numpy only: it also runs in the environment of the extra readers.
"""

import hashlib
import itertools
from collections.abc import Sequence

import numpy
import pyarrow
import pyarrow.compute

NULL = "~"
ZEROS = {"s": "000000000", "ms": "000000", "us": "000", "ns": ""}
MODULUS = 1 << 128

Array = pyarrow.Array | pyarrow.ChunkedArray


def cells(array: Array) -> list[str]:
    """Return the canonical text of each value. Raises ValueError for a type that has none."""
    if isinstance(array, pyarrow.ChunkedArray):
        return [cell for chunk in array.chunks for cell in cells(chunk)]
    if pyarrow.types.is_dictionary(array.type):
        return cells(array.dictionary_decode())
    if isinstance(array.type, pyarrow.BaseExtensionType):
        return cells(array.storage)
    if pyarrow.types.is_null(array.type):
        return [NULL] * len(array)
    texts = _texts(array)
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        texts = [text if there else NULL for text, there in zip(texts, valid, strict=True)]
    return texts


def _texts(array: pyarrow.Array) -> list[str]:
    types, kind = pyarrow.types, array.type
    if types.is_boolean(kind):
        return ["t" if value else "f" for value in array.to_pylist()]
    if types.is_integer(kind):
        return [str(value) for value in array.to_pylist()]
    if types.is_floating(kind):
        return _floats(array)
    if types.is_decimal(kind):
        return _decimals(array)
    if types.is_date(kind):
        days = _ticks(array) // (86_400_000 if types.is_date64(kind) else 1)
        return [f"D{day}" for day in days.tolist()]
    if types.is_temporal(kind) and not types.is_interval(kind):
        if types.is_duration(kind):
            return [str(tick) for tick in _ticks(array).tolist()]
        letter = "T" if types.is_timestamp(kind) else "H"
        return [f"{letter}{tick}{ZEROS[kind.unit] if tick else ''}" for tick in _ticks(array).tolist()]
    if types.is_nested(kind):
        return _nested(array)
    if types.is_fixed_size_binary(kind):
        return _hex(array)
    return _hex(array.cast(pyarrow.large_binary()))


def _hex(array: pyarrow.Array) -> list[str]:
    return [NULL if value is None else f"x{value.hex()}" for value in array.to_pylist()]


def _floats(array: pyarrow.Array) -> list[str]:
    if pyarrow.types.is_float16(array.type):
        array = array.cast(pyarrow.float32())
    values = array.fill_null(0.0).to_numpy(zero_copy_only=False).astype(numpy.float64)
    bits = values.view(numpy.uint64).tolist()
    return ["dnan" if is_nan else f"d{word:016x}" for word, is_nan in zip(bits, numpy.isnan(values), strict=True)]


def _decimals(array: pyarrow.Array) -> list[str]:
    width = array.type.bit_width // 8
    data = memoryview(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]
    unscaled = (int.from_bytes(data[at : at + width], "little", signed=True) for at in range(0, len(data), width))
    return [f"m{value}/{array.type.scale}" for value in unscaled]


def _ticks(array: pyarrow.Array) -> numpy.ndarray:
    wide = pyarrow.int64() if array.type.bit_width == 64 else pyarrow.int32()
    ticks: numpy.ndarray = array.view(wide).fill_null(0).to_numpy(zero_copy_only=False)
    return ticks


def _nested(array: pyarrow.Array) -> list[str]:
    types, kind = pyarrow.types, array.type
    if types.is_struct(kind):
        columns = [cells(array.field(number)) for number in range(kind.num_fields)]
        return [f"({''.join(f'{cell},' for cell in row)})" for row in zip(*columns, strict=True)]
    if types.is_map(kind):
        offsets = array.offsets.to_pylist()
        keys, items = cells(array.keys), cells(array.items)
        pairs = [f"{key}:{item}," for key, item in zip(keys, items, strict=True)]
        spans = itertools.pairwise(offsets)
        return [f"{{{''.join(pairs[start:end])}}}" for start, end in spans]
    lengths = [length or 0 for length in pyarrow.compute.list_value_length(array).to_pylist()]
    values = cells(array.flatten())
    ends = numpy.cumsum([0, *lengths]).tolist()
    return [f"[{''.join(f'{cell},' for cell in values[a:b])}]" for a, b in itertools.pairwise(ends)]


def digests(column: Sequence[str], cuts: Sequence[int] | None) -> list[str]:
    """Return one digest for each cut (a number of rows); without cuts, one for all rows."""
    found, start = [], 0
    for cut in [len(column)] if cuts is None else cuts:
        text = "".join(f"{cell}\n" for cell in column[start : start + cut])
        found.append(hashlib.sha256(text.encode()).hexdigest()[:32])
        start += cut
    return found


def sum_of_rows(columns: Sequence[Sequence[str]]) -> str:
    """Return a digest of rows in any order. Those of several files add up to that of all their rows."""
    rows = ("".join(f"{cell}\n" for cell in row) for row in zip(*columns, strict=True))
    return in_hex(sum(int.from_bytes(hashlib.sha256(row.encode()).digest()[:16], "big") for row in rows))


def added(sums: Sequence[str]) -> str:
    return in_hex(sum(int(each, 16) for each in sums))


def in_hex(total: int) -> str:
    return f"{total % MODULUS:032x}"
