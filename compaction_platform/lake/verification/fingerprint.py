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

import numpy
import pyarrow
import xxhash

from compaction_platform.lake.verification.canonical_form import (
    Array,
    TypeHasNoFingerprint,
    binary_parts,
    canonical,
    canonical_type,
    fixed_width_values,
    is_binary_like,
    is_list,
    lengths_of,
    struct_fields,
    type_name,
    validity,
)
from compaction_platform.lake.verification.row_hash import exact_sum, mix, seed, value_hashes


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


# ---------------------------------------------------------------- in order


class _ColumnHasher:
    """The digest of one column, or of one piece of a nested column."""

    def __init__(self, kind: pyarrow.DataType) -> None:
        self.kind = kind
        self.count = 0
        self.validity = xxhash.xxh3_128()
        self.values = xxhash.xxh3_128()
        self.lengths = xxhash.xxh3_128()
        self.pieces = [_ColumnHasher(piece) for piece in _piece_types(kind)]

    def update(self, array: pyarrow.Array) -> None:
        array = canonical(array)
        self.count += len(array)
        if pyarrow.types.is_null(self.kind):
            return
        # Bytes, not bits: bitmaps of two cuts of the same rows do not line up.
        self.validity.update(validity(array).data)
        if pyarrow.types.is_struct(self.kind):
            pieces = struct_fields(array.drop_null() if array.null_count else array)
        elif self.pieces:
            self.lengths.update(lengths_of(array).data)
            pieces = [array.flatten()]
        elif is_binary_like(self.kind):
            lengths, values = binary_parts(array)
            self.lengths.update(lengths.data)
            self.values.update(values.data)
            return
        else:
            self.values.update(numpy.ascontiguousarray(fixed_width_values(array)).view(numpy.uint8).data)
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
    return [kind.value_type] if is_list(kind) else []


class OrderedFingerprint:
    """Streaming fingerprint of rows in their order."""

    def __init__(self, schema: pyarrow.Schema) -> None:
        _require_names(schema)
        self._columns = {field.name: _ColumnHasher(canonical_type(field.type)) for field in schema}
        self._rows = 0

    def update(self, batch: pyarrow.RecordBatch | pyarrow.Table) -> None:
        _require_columns(batch, self._columns)
        self._rows += batch.num_rows
        for name, node in self._columns.items():
            column = batch.column(name)
            if type_name(canonical_type(column.type)) != type_name(node.kind):
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


class OrderedFingerprintByColumn:
    """As `InOrder`, for rows that are seen one column after the other: as little is held in memory as can be."""

    def __init__(self, schema: pyarrow.Schema) -> None:
        _require_names(schema)
        self._columns = {field.name: OrderedFingerprint(pyarrow.schema([field])) for field in schema}

    def update(self, column: pyarrow.Table) -> None:
        """Some rows of one column."""
        (name,) = column.schema.names
        self._columns[name].update(column)

    def finish(self) -> Fingerprint:
        found = [digest.finish() for digest in self._columns.values()]
        counts = {each.rows for each in found}
        if len(counts) > 1:
            raise ValueError(f"columns have different numbers of rows: {sorted(counts)}")
        return Fingerprint(max(counts, default=0), tuple(sorted(column for each in found for column in each.columns)))


def ordered_fingerprint(
    batches: Iterable[pyarrow.RecordBatch] | pyarrow.Table, schema: pyarrow.Schema | None = None
) -> Fingerprint:
    """The in-order fingerprint of these batches; `schema` where there may be none."""
    return _whole(OrderedFingerprint, batches, schema)


# ---------------------------------------------------------------- in any order

_SCHEMA, _SUMS = "*schema", "*rows"  # the names of an any-order fingerprint's two parts
_SECOND_LANE = numpy.uint64(0xE7037ED1A0B428DB)


class UnorderedFingerprint:
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
            self._sums[0] += exact_sum(hashes)
            self._sums[1] += exact_sum(mix(hashes ^ _SECOND_LANE))

    def _row_hashes(self, batch: pyarrow.RecordBatch) -> Array:
        hashes = numpy.zeros(batch.num_rows, numpy.uint64)
        with numpy.errstate(over="ignore"):  # wrapping around is what is wanted
            for name in self._names:
                column = batch.column(name)
                if type_name(canonical_type(column.type)) != self._types[name]:
                    raise ValueError(f"column {name} is {column.type}, not {self._types[name]}")
                # A column's hash depends on its name, so values swapped between two columns show.
                with _refusing_what_arrow_cannot(name, column.type):
                    hashes = hashes + mix(value_hashes(column) ^ seed(f"{name}:{self._types[name]}"))
            return mix(hashes)

    def finish(self) -> Fingerprint:
        schema = xxhash.xxh3_128_hexdigest(repr(sorted(self._types.items())).encode())
        return _of_sums(self._rows, schema, self._sums)


def unordered_fingerprint(
    batches: Iterable[pyarrow.RecordBatch] | pyarrow.Table, schema: pyarrow.Schema | None = None
) -> Fingerprint:
    """The order-free fingerprint of these batches; `schema` where there may be none."""
    return _whole(UnorderedFingerprint, batches, schema)


def combined(parts: Iterable[Fingerprint]) -> Fingerprint:
    """The any-order fingerprint of all rows, from those of parts that were hashed apart."""
    rows, sums, schemas = 0, [0, 0], set()
    for part in parts:
        content = dict(part.columns)
        schemas.add(content.get(_SCHEMA))
        if _SUMS in content:
            rows += part.rows
            sums = [sums[0] + int(content[_SUMS][:32], 16), sums[1] + int(content[_SUMS][32:], 16)]
    (schema,) = schemas if len(schemas) == 1 else (None,)
    if schema is None:
        raise ValueError("only any-order fingerprints, and those of one schema, can be combined")
    return _of_sums(rows, schema, sums)


def _of_sums(rows: int, schema: str, sums: list[int]) -> Fingerprint:
    modulus = 1 << 128
    return Fingerprint(rows, ((_SCHEMA, schema), (_SUMS, "".join(f"{total % modulus:032x}" for total in sums))))


def _require_names(schema: pyarrow.Schema) -> None:
    if len(set(schema.names)) != len(schema.names):
        raise TypeHasNoFingerprint("two columns have the same name; the data cannot be verified column by column.")


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


def _whole(
    kind: type[OrderedFingerprint] | type[UnorderedFingerprint],
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
