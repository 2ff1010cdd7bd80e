"""Proof that the rows written are the rows read.

Two kinds. `InOrder` streams Arrow batches through a hash per column and gives the same digest however the
rows are cut into batches, row groups or files. `AnyOrder` counts rows and adds up row hashes, for results
whose order is free; a row that is there twice adds twice, so duplicates do not cancel.

What counts as equal, in both kinds:
- null is different from every value, and a null struct, list or map from an empty one or one of nulls;
- every NaN is the same value; -0.0 and 0.0 are different values;
- decimals by precision, scale and value; timestamps by unit, value and whether they are instants (any zone)
  or local times; strings and binary by their bytes;
- how a value is held does not matter: dictionary or run-end encoding, large and view types, list or
  fixed-size list, decimal width, extension types (their storage counts).
Column names and types are part of the digest, the order of columns is not.

These are hashes against accidents (xxh3 and a 64-bit mix), not against an adversary.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy
import numpy.typing
import pyarrow
import pyarrow.compute
import xxhash

from compaction_platform.lake.errors import CompactionError

# numpy arrays: the shapes and element types are said where they matter
Array = numpy.typing.NDArray[Any]


class TypeHasNoFingerprint(CompactionError):
    """A column's type has no defined meaning here, so equality cannot be proven."""


@dataclass(frozen=True)
class Fingerprint:
    """Rows and one digest for each column (in order) or for whole rows (in any order)."""

    rows: int
    columns: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """The fingerprint as one short text."""
        whole = xxhash.xxh3_128()
        for part in (str(self.rows), *(text for column in self.columns for text in column)):
            whole.update(part.encode() + b"\0")
        return whole.hexdigest()

    def differences(self, other: "Fingerprint") -> list[str]:
        """What is not equal, in words."""
        found = [] if self.rows == other.rows else [f"{self.rows} rows against {other.rows}"]
        mine, theirs = dict(self.columns), dict(other.columns)
        found += [f"column {name} is only on one side" for name in sorted(mine.keys() ^ theirs.keys())]
        found += [
            f"column {name} differs" for name in sorted(mine.keys() & theirs.keys()) if mine[name] != theirs[name]
        ]
        return found


# ---------------------------------------------------------------- meaning: one form for every value


def canonical_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    """The one type that stands for all types of the same meaning."""
    types = pyarrow.types
    if isinstance(kind, pyarrow.BaseExtensionType):
        return canonical_type(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return canonical_type(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pyarrow.large_string()
    if types.is_string(kind):
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
    if _is_list(kind):
        return pyarrow.large_list(canonical_type(kind.value_type))
    if types.is_struct(kind):
        return pyarrow.struct([(field.name, canonical_type(field.type)) for field in kind])
    if types.is_null(kind) or types.is_boolean(kind) or _is_fixed_width(kind):
        return kind
    raise TypeHasNoFingerprint(f"type {kind} has no fingerprint; the data cannot be verified and was not touched.")


def _is_list(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _is_fixed_width(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    return bool(types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind))


def _is_binary_like(kind: pyarrow.DataType) -> bool:
    return bool(pyarrow.types.is_large_string(kind) or pyarrow.types.is_large_binary(kind))


def type_name(kind: pyarrow.DataType) -> str:
    """The canonical type as text, without what a file format may change (field nullability, list item names)."""
    if pyarrow.types.is_map(kind):
        return f"map<{type_name(kind.key_type)},{type_name(kind.item_type)}>"
    if _is_list(kind):
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
    if _is_list(kind):
        if kind.value_type == canonical_type(kind.value_type):
            return array
        return _list_of(_lengths(array), canonical(array.flatten()), array)
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
    lengths = numpy.diff(offsets) * _validity(array)
    # keys and items are those of the whole buffer, of which this array may be a slice
    wanted = numpy.repeat(offsets[:-1] - (numpy.cumsum(lengths) - lengths), lengths) + numpy.arange(lengths.sum())
    entries = [canonical(pieces).take(pyarrow.array(wanted)) for pieces in (array.keys, array.items)]
    return _list_of(lengths, pyarrow.StructArray.from_arrays(entries, ["key", "value"]), array)


def _list_of(lengths: Array, items: pyarrow.Array, like: pyarrow.Array) -> pyarrow.Array:
    offsets = pyarrow.array(numpy.concatenate([[0], numpy.cumsum(lengths)]), pyarrow.int64())
    return pyarrow.LargeListArray.from_arrays(offsets, items, mask=like.is_null())


def _lengths(array: pyarrow.Array) -> Array:
    """How many items each list has, 0 for nulls."""
    lengths = pyarrow.compute.list_value_length(array).fill_null(0)
    return cast(Array, lengths.cast(pyarrow.int64()).to_numpy())


def _validity(array: pyarrow.Array) -> Array:
    """One byte for each value: 1, or 0 for null. Read from the bitmap: three times faster than asking Arrow."""
    if not array.null_count:
        return _ones(len(array))
    first_byte, first_bit = divmod(array.offset, 8)
    bitmap = numpy.frombuffer(array.buffers()[0], numpy.uint8, offset=first_byte)
    return numpy.unpackbits(bitmap, bitorder="little", count=first_bit + len(array))[first_bit:]


@lru_cache(maxsize=4)
def _ones(count: int) -> Array:
    return numpy.ones(count, numpy.uint8)


def _fixed_width_values(array: pyarrow.Array) -> Array:
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
        return bytes_ if not array.null_count else bytes_.reshape(-1, width) * _validity(array)[:, None]
    values: Array = numpy.frombuffer(buffer, f"<u{width}", len(array), array.offset * width)
    if array.null_count:
        values = values * _validity(array)
    if pyarrow.types.is_floating(kind):
        numbers = values.view(f"<f{width}")
        nan = numpy.isnan(numbers)
        if nan.any():
            return numpy.where(nan, numbers.dtype.type(numpy.nan), numbers)
    return values


def _binary_parts(array: pyarrow.Array) -> tuple[Array, Array]:
    """Lengths (0 for nulls) of a large_string or large_binary array, and the bytes of its values in sequence."""
    _, offsets_buffer, values_buffer = array.buffers()
    if offsets_buffer is None or len(array) == 0:
        return numpy.zeros(len(array), numpy.int64), numpy.empty(0, numpy.uint8)
    offsets = numpy.frombuffer(offsets_buffer, "<i8", len(array) + 1, array.offset * 8)
    lengths = numpy.diff(offsets)
    if array.null_count and (lengths * (1 - _validity(array))).any():
        return _binary_parts(array.fill_null(""))  # there are bytes under nulls
    values = numpy.empty(0, numpy.uint8) if values_buffer is None else numpy.frombuffer(values_buffer, numpy.uint8)
    return lengths, values[offsets[0] : offsets[-1]]


def _struct_fields(array: pyarrow.Array) -> list[pyarrow.Array]:
    return [array.field(place) for place in range(array.type.num_fields)]


# ---------------------------------------------------------------- in order


class _Node:
    """The digest of one column, or of one piece of a nested column."""

    def __init__(self, kind: pyarrow.DataType) -> None:
        self.kind = kind
        self.count = 0
        self.validity = xxhash.xxh3_128()
        self.values = xxhash.xxh3_128()
        self.lengths = xxhash.xxh3_128()
        self.pieces = [_Node(piece) for piece in _piece_types(kind)]

    def update(self, array: pyarrow.Array) -> None:
        array = canonical(array)
        self.count += len(array)
        if pyarrow.types.is_null(self.kind):
            return
        # Bytes, not bits: bitmaps of two cuts of the same rows do not line up.
        self.validity.update(_validity(array).data)
        if pyarrow.types.is_struct(self.kind):
            pieces = _struct_fields(array.drop_null() if array.null_count else array)
        elif self.pieces:
            self.lengths.update(_lengths(array).data)
            pieces = [array.flatten()]
        elif _is_binary_like(self.kind):
            lengths, values = _binary_parts(array)
            self.lengths.update(lengths.data)
            self.values.update(values.data)
            return
        else:
            self.values.update(numpy.ascontiguousarray(_fixed_width_values(array)).view(numpy.uint8).data)
            return
        for node, piece in zip(self.pieces, pieces, strict=True):
            node.update(piece)

    def finish(self, into: "xxhash.xxh3_128") -> None:
        into.update(self.count.to_bytes(8, "little"))
        for part in (self.validity, self.lengths, self.values):
            into.update(part.digest())
        for piece in self.pieces:
            piece.finish(into)


def _piece_types(kind: pyarrow.DataType) -> list[pyarrow.DataType]:
    """What a nested type is made of."""
    if pyarrow.types.is_struct(kind):
        return [field.type for field in kind]
    if pyarrow.types.is_map(kind):
        return [pyarrow.struct([("key", kind.key_type), ("value", kind.item_type)])]
    return [kind.value_type] if _is_list(kind) else []


class InOrder:
    """Streaming fingerprint of rows in their order."""

    def __init__(self, schema: pyarrow.Schema) -> None:
        if len(set(schema.names)) != len(schema.names):
            raise TypeHasNoFingerprint("two columns have the same name; the data cannot be verified column by column.")
        self._columns = {field.name: _Node(canonical_type(field.type)) for field in schema}
        self._rows = 0

    def update(self, batch: pyarrow.RecordBatch | pyarrow.Table) -> None:
        _require_columns(batch, self._columns)
        self._rows += batch.num_rows
        for name, node in self._columns.items():
            column = batch.column(name)
            if canonical_type(column.type) != node.kind and type_name(canonical_type(column.type)) != type_name(
                node.kind
            ):
                raise ValueError(f"column {name} is {column.type}, not {node.kind}")
            for array in column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]:
                with _refusing_what_arrow_cannot(name, column.type):
                    node.update(array)

    def finish(self) -> Fingerprint:
        columns = []
        for name, node in sorted(self._columns.items()):
            digest = xxhash.xxh3_128(type_name(node.kind).encode())
            node.finish(digest)
            columns.append((name, digest.hexdigest()))
        return Fingerprint(self._rows, tuple(columns))


def in_order(
    batches: Iterable[pyarrow.RecordBatch] | pyarrow.Table, schema: pyarrow.Schema | None = None
) -> Fingerprint:
    """The in-order fingerprint of these batches; `schema` where there may be none."""
    return _whole(InOrder, batches, schema)


# ---------------------------------------------------------------- in any order

_ODD = numpy.uint64(0x9E3779B97F4A7C15)
_MIX_1 = numpy.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = numpy.uint64(0x94D049BB133111EB)
_NULL = numpy.uint64(0xA0761D6478BD642F)
LONG_VALUE = 256  # bytes; longer values are hashed one by one, shorter ones eight bytes of all at a time
_SECOND_LANE = numpy.uint64(0xE7037ED1A0B428DB)


def _mix(words: Array) -> Array:
    """Spread each bit of each word over the whole word (the finaliser of splitmix64)."""
    words = words + _ODD
    words = (words ^ (words >> numpy.uint64(30))) * _MIX_1
    words = (words ^ (words >> numpy.uint64(27))) * _MIX_2
    mixed: Array = words ^ (words >> numpy.uint64(31))
    return mixed


def _seed(text: str) -> numpy.uint64:
    return numpy.uint64(xxhash.xxh3_64_intdigest(text.encode()))


def _hash_words(matrix: Array) -> Array:
    """One hash for each row of a matrix of 64-bit words."""
    hashes = numpy.full(matrix.shape[0], numpy.uint64(matrix.shape[1]))
    for column in range(matrix.shape[1]):
        hashes = _mix(hashes ^ matrix[:, column])
    return hashes


def _hash_fixed_width(array: pyarrow.Array) -> Array:
    values = _fixed_width_values(array).view(numpy.uint8)
    if len(array) == 0:
        return numpy.empty(0, numpy.uint64)
    width = values.size // len(array)
    padded = numpy.zeros((len(array), -(-width // 8) * 8), numpy.uint8)
    padded[:, :width] = values.reshape(len(array), width)
    return _hash_words(padded.view("<u8"))


def _hash_binary(array: pyarrow.Array) -> Array:
    lengths, values = _binary_parts(array)
    starts = numpy.cumsum(lengths) - lengths
    padded = numpy.zeros(values.size + 8, numpy.uint8)
    padded[:-8] = values
    at_any_byte: Array = numpy.ndarray((padded.size - 7,), "<u8", padded, strides=(1,))
    hashes = _mix(lengths.astype(numpy.uint64))
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
        hashes[active] = _mix(hashes[active] ^ words)
        word += 8
        active = active[left > 8]
    return hashes


def _hash_lists(array: pyarrow.Array) -> Array:
    lengths = _lengths(array)
    starts = numpy.cumsum(lengths) - lengths
    places = numpy.arange(lengths.sum()) - numpy.repeat(starts, lengths)
    # The place of an item counts, so the same items in another order give another sum.
    items = _mix(_hash(array.flatten()) ^ _mix(places.astype(numpy.uint64)))
    sums = numpy.zeros(len(array), numpy.uint64)
    filled = lengths > 0
    if items.size:
        sums[filled] = numpy.add.reduceat(items, starts[filled])
    return _mix(sums ^ _mix(lengths.astype(numpy.uint64)))


def _hash(array: pyarrow.Array) -> Array:
    """One 64-bit hash for each value."""
    array = canonical(array)
    hashes = numpy.full(len(array), _NULL)
    if pyarrow.types.is_null(array.type):
        return hashes
    valid = _validity(array).view(numpy.bool_)
    if array.null_count:
        array = array.drop_null()
    kind = array.type
    if pyarrow.types.is_struct(kind):
        inner = numpy.full(len(array), _seed("struct"))
        for place, piece in enumerate(_struct_fields(array)):
            inner = _mix(inner ^ _mix(_hash(piece) + numpy.uint64(place)))
    elif _is_list(kind):
        inner = _hash_lists(array)
    elif _is_binary_like(kind):
        inner = _hash_binary(array)
    else:
        inner = _hash_fixed_width(array)
    hashes[valid] = inner
    return hashes


class AnyOrder:
    """Streaming fingerprint of rows whose order is free. Fingerprints of parts add up: see `combined`."""

    def __init__(self, schema: pyarrow.Schema) -> None:
        self._names = sorted(schema.names)
        self._types = {field.name: type_name(canonical_type(field.type)) for field in schema}
        if len(self._types) != len(schema.names):
            raise TypeHasNoFingerprint("two columns have the same name; the data cannot be verified.")
        self._rows = 0
        self._sums = [0, 0]

    def update(self, batch: pyarrow.RecordBatch | pyarrow.Table) -> None:
        _require_columns(batch, self._types)
        for part in batch.to_batches() if isinstance(batch, pyarrow.Table) else [batch]:
            self._rows += part.num_rows
            hashes = self._row_hashes(part)
            self._sums[0] += _sum(hashes)
            self._sums[1] += _sum(_mix(hashes ^ _SECOND_LANE))

    def _row_hashes(self, batch: pyarrow.RecordBatch) -> Array:
        hashes = numpy.zeros(batch.num_rows, numpy.uint64)
        with numpy.errstate(over="ignore"):  # wrapping around is what is wanted
            for name in self._names:
                column = batch.column(name)
                if type_name(canonical_type(column.type)) != self._types[name]:
                    raise ValueError(f"column {name} is {column.type}, not {self._types[name]}")
                # A column's hash depends on its name, so values swapped between two columns show.
                with _refusing_what_arrow_cannot(name, column.type):
                    hashes = hashes + _mix(_hash(column) ^ _seed(f"{name}:{self._types[name]}"))
            return _mix(hashes)

    def finish(self) -> Fingerprint:
        modulus = 1 << 128
        text = f"{self._sums[0] % modulus:032x}{self._sums[1] % modulus:032x}"
        schema = xxhash.xxh3_128_hexdigest(repr(sorted(self._types.items())).encode())
        return Fingerprint(self._rows, (("*schema", schema), ("*rows", text)))


def any_order(
    batches: Iterable[pyarrow.RecordBatch] | pyarrow.Table, schema: pyarrow.Schema | None = None
) -> Fingerprint:
    """The order-free fingerprint of these batches; `schema` where there may be none."""
    return _whole(AnyOrder, batches, schema)


def combined(parts: Iterable[Fingerprint]) -> Fingerprint:
    """The any-order fingerprint of all rows, from those of parts that were hashed apart."""
    parts = list(parts)
    schemas = {dict(part.columns).get("*schema") for part in parts}
    if len(schemas) != 1 or None in schemas:
        raise ValueError("only any-order fingerprints of one schema can be combined")
    sums = [0, 0]
    for part in parts:
        text = dict(part.columns)["*rows"]
        sums = [sums[0] + int(text[:32], 16), sums[1] + int(text[32:], 16)]
    modulus = 1 << 128
    text = f"{sums[0] % modulus:032x}{sums[1] % modulus:032x}"
    return Fingerprint(sum(part.rows for part in parts), (("*schema", str(schemas.pop())), ("*rows", text)))


def _require_columns(batch: pyarrow.RecordBatch | pyarrow.Table, wanted: Iterable[str]) -> None:
    if sorted(batch.schema.names) != sorted(wanted):
        raise ValueError(f"columns {batch.schema.names} do not fit {list(wanted)}")


@contextmanager
def _refusing_what_arrow_cannot(name: str, kind: pyarrow.DataType) -> Iterator[None]:
    try:
        yield
    except pyarrow.ArrowNotImplementedError as error:
        raise TypeHasNoFingerprint(
            f"column {name} of type {kind} has no fingerprint ({error}); "
            "the data cannot be verified and was not touched."
        ) from error


def _sum(hashes: Array) -> int:
    """The exact sum: the high and low halves apart cannot overflow."""
    low = int((hashes & numpy.uint64(0xFFFFFFFF)).sum(dtype=numpy.uint64))
    high = int((hashes >> numpy.uint64(32)).sum(dtype=numpy.uint64))
    return (high << 32) + low


def _whole(
    kind: type[InOrder] | type[AnyOrder],
    batches: Iterable[pyarrow.RecordBatch] | pyarrow.Table,
    schema: pyarrow.Schema | None,
) -> Fingerprint:
    if isinstance(batches, pyarrow.Table):
        schema, batches = batches.schema, batches.to_batches()
    stream: Iterator[pyarrow.RecordBatch] = iter(batches)
    digest = kind(schema) if schema is not None else None
    for batch in stream:
        digest = digest or kind(batch.schema)
        digest.update(batch)
    if digest is None:
        raise ValueError("no batch and no schema: there is nothing to take a fingerprint of")
    return digest.finish()
