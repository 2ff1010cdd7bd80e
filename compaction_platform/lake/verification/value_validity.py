"""Find values that their column cannot hold: text that is no UTF-8, times beyond a day, decimals out of precision.

Arrow does not look when it reads. Other readers refuse the whole column, and with it every good row of the file.
"""

from collections.abc import Sequence

import pyarrow
import pyarrow.compute

types = pyarrow.types

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6}
MOST_MICROSECONDS = (1 << 63) - 1


def invalid_values(rows: pyarrow.RecordBatch | pyarrow.Table) -> str | None:
    """What is wrong with the first column, at any depth, that has such a value; None if all can hold theirs."""
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if not _is_limited(field.type):
            continue
        for chunk in column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]:
            if problem := _problem(chunk):
                return f"column {field.name} has {problem}; other readers refuse it"
    return None


def _is_limited(kind: pyarrow.DataType) -> bool:
    """Whether there are bytes that are no value of this type."""
    return _is_limited_leaf(kind) or any(_is_limited(each) for each in _inner_types(kind))


def _is_limited_leaf(kind: pyarrow.DataType) -> bool:
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_decimal(kind)
        or types.is_time(kind)
        or (types.is_timestamp(kind) and kind.unit in ("s", "ms"))
    )


def _inner_types(kind: pyarrow.DataType) -> Sequence[pyarrow.DataType]:
    if isinstance(kind, pyarrow.BaseExtensionType):
        return [kind.storage_type]
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return [kind.value_type]
    return [kind.field(number).type for number in range(kind.num_fields)] if types.is_nested(kind) else []


def _problem(array: pyarrow.Array) -> str | None:
    if types.is_timestamp(array.type):
        return _beyond_microseconds(array)
    if _is_limited_leaf(array.type):
        try:
            array.validate(full=True)
        except pyarrow.ArrowInvalid as invalid:
            if types.is_decimal(array.type) or types.is_time(array.type):
                return f"a value that is no {array.type} ({str(invalid).splitlines()[0][:100]})"
            return "text that is not valid UTF-8"
        return None
    return next(filter(None, map(_problem, (each for each in _inner_arrays(array) if _is_limited(each.type)))), None)


def _beyond_microseconds(array: pyarrow.Array) -> str | None:
    """Every engine counts microseconds, whatever unit a file has."""
    found = pyarrow.compute.min_max(array.cast(pyarrow.int64()))
    most = MOST_MICROSECONDS * PER_SECOND[array.type.unit] // PER_SECOND["us"]
    low, high = found["min"].as_py(), found["max"].as_py()
    if low is not None and (low < -most or high > most):
        return "a moment that microseconds of 64 bits cannot hold"
    return None


def _inner_arrays(array: pyarrow.Array) -> Sequence[pyarrow.Array]:
    kind = array.type
    if isinstance(kind, pyarrow.BaseExtensionType):
        return [array.storage]
    if types.is_dictionary(kind):
        return [array.dictionary]
    if types.is_run_end_encoded(kind):
        return [array.values]
    if types.is_struct(kind):
        return [array.field(number) for number in range(kind.num_fields)]
    if types.is_map(kind):
        return [array.keys, array.items]
    return [array.flatten()]
