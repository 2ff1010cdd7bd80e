"""One form for every value: what counts as equal, whatever the Arrow type it is held in.

Types and arrays of the same meaning have one canonical form; see `fingerprint` for what that meaning is. The
functions that take arrays apart give plain numpy arrays, with nothing in them of what lies under nulls.
"""

from functools import lru_cache
from typing import Any, cast

import numpy
import numpy.typing
import pyarrow
import pyarrow.compute

from compaction_platform.errors import CompactionError

# numpy arrays: the shapes and element types are said where they matter
Array = numpy.typing.NDArray[Any]


class TypeHasNoFingerprint(CompactionError):
    """A column's type has no defined meaning here, so equality cannot be proven."""


@lru_cache(maxsize=1024)
def canonical_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    """The one type that stands for all types of the same meaning."""
    types = pyarrow.types
    if isinstance(kind, pyarrow.BaseExtensionType):
        return canonical_type(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return canonical_type(kind.value_type)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pyarrow.large_string()
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return pyarrow.large_binary()
    if types.is_decimal(kind):
        wide = kind.precision > 38
        return (pyarrow.decimal256 if wide else pyarrow.decimal128)(kind.precision, kind.scale)
    if types.is_timestamp(kind):
        return pyarrow.timestamp(kind.unit, "UTC" if kind.tz else None)
    if types.is_map(kind):
        return pyarrow.map_(canonical_type(kind.key_type), canonical_type(kind.item_type))
    if is_list(kind):
        return pyarrow.large_list(canonical_type(kind.value_type))
    if types.is_struct(kind):
        return pyarrow.struct([(field.name, canonical_type(field.type)) for field in kind])
    if types.is_null(kind) or types.is_boolean(kind) or is_fixed_width(kind):
        return kind
    raise TypeHasNoFingerprint(f"type {kind} has no fingerprint; the data cannot be verified and was not touched.")


def is_list(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def is_fixed_width(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    return bool(types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind))


def is_binary_like(kind: pyarrow.DataType) -> bool:
    return bool(pyarrow.types.is_large_string(kind) or pyarrow.types.is_large_binary(kind))


@lru_cache(maxsize=1024)
def type_name(kind: pyarrow.DataType) -> str:
    """The canonical type as text, without what a file format may change (field nullability, list item names)."""
    if pyarrow.types.is_map(kind):
        return f"map<{type_name(kind.key_type)},{type_name(kind.item_type)}>"
    if is_list(kind):
        return f"list<{type_name(kind.value_type)}>"
    if pyarrow.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name!r}:{type_name(field.type)}' for field in kind)}>"
    return str(kind)


def canonical(array: pyarrow.Array) -> pyarrow.Array:
    """The same values, in canonical types all the way down. Free for types that are canonical already.

    Maps become lists of entries. Lists stay what they are while their items are canonical.
    """
    kind = array.type
    types = pyarrow.types
    if isinstance(kind, pyarrow.BaseExtensionType):
        return canonical(array.storage)
    if types.is_dictionary(kind):
        return canonical(array.dictionary).take(array.indices)
    if types.is_run_end_encoded(kind):
        places = numpy.arange(array.offset, array.offset + len(array))
        runs = numpy.searchsorted(array.run_ends.to_numpy(), places, side="right")
        return canonical(array.values).take(pyarrow.array(runs))
    if types.is_struct(kind):
        return _canonical_struct(array)
    if types.is_map(kind):
        return _map_as_list(array)
    if is_list(kind):
        if kind.value_type == canonical_type(kind.value_type):
            return array
        return _list_of(lengths_of(array), canonical(array.flatten()), array)
    wanted = canonical_type(kind)
    return array if kind == wanted else array.cast(wanted)


def _canonical_struct(array: pyarrow.Array) -> pyarrow.Array:
    if all(field.type == canonical_type(field.type) for field in array.type):
        return array
    pieces = [canonical(array.field(place)) for place in range(array.type.num_fields)]
    names = [field.name for field in array.type]
    return pyarrow.StructArray.from_arrays(pieces, names, mask=array.is_null())


def _map_as_list(array: pyarrow.Array) -> pyarrow.Array:
    """A list of entries for each map, without what is under nulls."""
    offsets = array.offsets.to_numpy().astype(numpy.int64)
    lengths = numpy.diff(offsets) * validity(array)
    # keys and items are those of the whole buffer, of which this array may be a slice
    wanted = numpy.repeat(offsets[:-1] - (numpy.cumsum(lengths) - lengths), lengths) + numpy.arange(lengths.sum())
    entries = [canonical(pieces).take(pyarrow.array(wanted)) for pieces in (array.keys, array.items)]
    return _list_of(lengths, pyarrow.StructArray.from_arrays(entries, ["key", "value"]), array)


def _list_of(lengths: Array, items: pyarrow.Array, like: pyarrow.Array) -> pyarrow.Array:
    offsets = pyarrow.array(numpy.concatenate([[0], numpy.cumsum(lengths)]), pyarrow.int64())
    return pyarrow.LargeListArray.from_arrays(offsets, items, mask=like.is_null())


def lengths_of(array: pyarrow.Array) -> Array:
    """How many items each list has, 0 for nulls."""
    lengths = pyarrow.compute.list_value_length(array).fill_null(0)
    return cast(Array, lengths.cast(pyarrow.int64()).to_numpy())


def validity(array: pyarrow.Array) -> Array:
    """One byte for each value: 1, or 0 for null. Read from the bitmap: three times faster than asking Arrow."""
    if not array.null_count:
        return _ones(len(array))
    first_byte, first_bit = divmod(array.offset, 8)
    bitmap = numpy.frombuffer(array.buffers()[0], numpy.uint8, offset=first_byte)
    return numpy.unpackbits(bitmap, bitorder="little", count=first_bit + len(array))[first_bit:]


@lru_cache(maxsize=4)
def _ones(count: int) -> Array:
    return numpy.ones(count, numpy.uint8)


def fixed_width_values(array: pyarrow.Array) -> Array:
    """The values, zero in the place of nulls, NaNs made one."""
    kind = array.type
    if pyarrow.types.is_boolean(kind):
        return cast(Array, array.cast(pyarrow.uint8()).fill_null(0).to_numpy())
    width = kind.byte_width
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0 or width == 0:
        return numpy.zeros(len(array) * width, numpy.uint8)
    if width not in (1, 2, 4, 8):
        bytes_ = numpy.frombuffer(buffer, numpy.uint8, len(array) * width, array.offset * width)
        return bytes_ if not array.null_count else bytes_.reshape(-1, width) * validity(array)[:, None]
    values: Array = numpy.frombuffer(buffer, f"<u{width}", len(array), array.offset * width)
    if array.null_count:
        values = values * validity(array)
    if pyarrow.types.is_floating(kind):
        numbers = values.view(f"<f{width}")
        nan = numpy.isnan(numbers)
        if nan.any():
            return numpy.where(nan, numbers.dtype.type(numpy.nan), numbers)
    return values


def binary_parts(array: pyarrow.Array) -> tuple[Array, Array]:
    """Lengths (0 for nulls) of a large_string or large_binary array, and the bytes of its values in sequence."""
    _, offsets_buffer, values_buffer = array.buffers()
    if offsets_buffer is None or len(array) == 0:
        return numpy.zeros(len(array), numpy.int64), numpy.empty(0, numpy.uint8)
    offsets = numpy.frombuffer(offsets_buffer, "<i8", len(array) + 1, array.offset * 8)
    lengths = numpy.diff(offsets)
    if array.null_count and (lengths * (1 - validity(array))).any():
        return binary_parts(array.fill_null(""))  # there are bytes under nulls
    values = numpy.empty(0, numpy.uint8) if values_buffer is None else numpy.frombuffer(values_buffer, numpy.uint8)
    return lengths, values[offsets[0] : offsets[-1]]


def struct_fields(array: pyarrow.Array) -> list[pyarrow.Array]:
    return [array.field(place) for place in range(array.type.num_fields)]
