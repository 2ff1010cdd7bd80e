"""One 64-bit hash for each value of an Arrow array, all values at a time, for fingerprints in any order."""

import numpy
import pyarrow
import xxhash

from compaction_platform.lake.verification.canonical_form import (
    Array,
    binary_parts,
    canonical,
    fixed_width_values,
    is_binary_like,
    is_list,
    lengths_of,
    struct_fields,
    validity,
)

_ODD = numpy.uint64(0x9E3779B97F4A7C15)
_MIX_1 = numpy.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = numpy.uint64(0x94D049BB133111EB)
_NULL = numpy.uint64(0xA0761D6478BD642F)
LONG_VALUE = 256  # bytes; longer values are hashed one by one, shorter ones eight bytes of all at a time


def mix(words: Array) -> Array:
    """Spread each bit of each word over the whole word (the finaliser of splitmix64)."""
    words = words + _ODD
    words = (words ^ (words >> numpy.uint64(30))) * _MIX_1
    words = (words ^ (words >> numpy.uint64(27))) * _MIX_2
    mixed: Array = words ^ (words >> numpy.uint64(31))
    return mixed


def seed(text: str) -> numpy.uint64:
    return numpy.uint64(xxhash.xxh3_64_intdigest(text.encode()))


def _hash_words(matrix: Array) -> Array:
    """One hash for each row of a matrix of 64-bit words."""
    hashes = numpy.full(matrix.shape[0], numpy.uint64(matrix.shape[1]))
    for column in range(matrix.shape[1]):
        hashes = mix(hashes ^ matrix[:, column])
    return hashes


def _hash_fixed_width(array: pyarrow.Array) -> Array:
    values = fixed_width_values(array).view(numpy.uint8)
    if len(array) == 0:
        return numpy.empty(0, numpy.uint64)
    width = values.size // len(array)
    padded = numpy.zeros((len(array), -(-width // 8) * 8), numpy.uint8)
    padded[:, :width] = values.reshape(len(array), width)
    return _hash_words(padded.view("<u8"))


def _hash_binary(array: pyarrow.Array) -> Array:
    lengths, values = binary_parts(array)
    starts = numpy.cumsum(lengths) - lengths
    padded = numpy.zeros(values.size + 8, numpy.uint8)
    padded[:-8] = values
    at_any_byte: Array = numpy.ndarray((padded.size - 7,), "<u8", padded, strides=(1,))
    hashes = mix(lengths.astype(numpy.uint64))
    for long in numpy.flatnonzero(lengths > LONG_VALUE):
        value = values[starts[long] : starts[long] + lengths[long]]
        hashes[long] = xxhash.xxh3_64_intdigest(value.data)
    active = numpy.flatnonzero((lengths > 0) & (lengths <= LONG_VALUE))
    word = 0
    while active.size:
        words = at_any_byte[starts[active] + word]
        left = lengths[active] - word
        beyond = numpy.where(left < 8, (8 - left) * 8, 0).astype(numpy.uint64)
        words = (words << beyond) >> beyond  # bytes of the next value do not count
        hashes[active] = mix(hashes[active] ^ words)
        word += 8
        active = active[left > 8]
    return hashes


def _hash_lists(array: pyarrow.Array) -> Array:
    lengths = lengths_of(array)
    starts = numpy.cumsum(lengths) - lengths
    places = numpy.arange(lengths.sum()) - numpy.repeat(starts, lengths)
    # The place of an item counts, so the same items in another order give another sum.
    items = mix(value_hashes(array.flatten()) ^ mix(places.astype(numpy.uint64)))
    sums = numpy.zeros(len(array), numpy.uint64)
    filled = lengths > 0
    if items.size:
        sums[filled] = numpy.add.reduceat(items, starts[filled])
    return mix(sums ^ mix(lengths.astype(numpy.uint64)))


def value_hashes(array: pyarrow.Array) -> Array:
    """One 64-bit hash for each value."""
    array = canonical(array)
    hashes = numpy.full(len(array), _NULL)
    if pyarrow.types.is_null(array.type):
        return hashes
    valid = validity(array).view(numpy.bool_)
    if array.null_count:
        array = array.drop_null()
    kind = array.type
    if pyarrow.types.is_struct(kind):
        inner = numpy.full(len(array), seed("struct"))
        for place, piece in enumerate(struct_fields(array)):
            inner = mix(inner ^ mix(value_hashes(piece) + numpy.uint64(place)))
    elif is_list(kind):
        inner = _hash_lists(array)
    elif is_binary_like(kind):
        inner = _hash_binary(array)
    else:
        inner = _hash_fixed_width(array)
    hashes[valid] = inner
    return hashes


def exact_sum(hashes: Array) -> int:
    """The exact sum: the high and low halves apart cannot overflow."""
    low = int((hashes & numpy.uint64(0xFFFFFFFF)).sum(dtype=numpy.uint64))
    high = int((hashes >> numpy.uint64(32)).sum(dtype=numpy.uint64))
    return (high << 32) + low
