"""The columns of a Parquet file as its footer describes them: what they are made of, and how their values compare."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from compaction_platform.lake.parquet.thrift_compact import (
    I32,
    LIST,
    STRUCT,
    ListOf,
    Struct,
    ThriftInvalid,
    parse_value,
    serialize,
)

BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY = range(8)
REQUIRED, OPTIONAL, REPEATED = range(3)

# Numbers of fields of SchemaElement.
TYPE, TYPE_LENGTH, REPETITION, NAME, CHILDREN, CONVERTED, LOGICAL = 1, 2, 3, 4, 5, 6, 10

_DECIMAL, _INTERVAL = 5, 21  # converted types
_UNSIGNED = range(11, 15)
_LOGICAL_DECIMAL, _LOGICAL_INTEGER = 5, 10
_LOGICAL_BYTES = frozenset((1, 4, 12, 13, 14))  # text, enum, JSON, BSON, UUID: compared as bytes
_LOGICAL_SIGNED = frozenset((6, 7, 8))  # dates and times

Key = Callable[[bytes], Any]  # what two values of a column, as statistics write them, are compared by


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column that holds values. Levels are the largest that occur in it."""

    path: tuple[str, ...]
    physical: int
    length: int  # in bytes, where every value has the same by its type; otherwise 0
    definition: int
    repetition: int
    order: Key | None  # None: it has none, or none that this project knows


def elements_of(schema: bytes) -> list[Struct]:
    """A footer's schema, one element for each group and column, depth first."""
    found, _ = parse_value(schema, LIST, 0)
    if not found.items or not all(isinstance(each, Struct) for each in found.items):
        raise ThriftInvalid("there is no schema")
    return list(found.items)


@lru_cache(maxsize=256)
def columns_of(schema: bytes) -> tuple[Leaf, ...]:
    """The columns of a footer's schema that hold values. (Files of one writer have the same.)"""
    return tuple(leaves_of(elements_of(schema)))


def leaves_of(elements: Sequence[Struct]) -> list[Leaf]:
    """The columns that hold values, in the order in which row groups have them."""
    found: list[Leaf] = []
    end = _collect(elements, 0, (), (0, 0), found)
    if end != len(elements):
        raise ThriftInvalid("the schema has more elements than its tree")
    return found


def _collect(
    elements: Sequence[Struct], place: int, path: tuple[str, ...], levels: tuple[int, int], found: list[Leaf]
) -> int:
    if place >= len(elements) or len(path) > 64:
        raise ThriftInvalid("the schema is not a tree")
    element = elements[place]
    definition, repetition = levels
    if place:  # the root has neither a name that counts nor levels
        path = (*path, element.get_value(NAME, b"").decode(errors="surrogateescape"))
        kind = element.get_value(REPETITION, REQUIRED)
        definition, repetition = definition + (kind != REQUIRED), repetition + (kind == REPEATED)
    children = element.get_value(CHILDREN)
    if TYPE in element and not children:
        physical = element.get_value(TYPE)
        if not 0 <= physical <= FIXED_LEN_BYTE_ARRAY:
            raise ThriftInvalid(f"there is no physical type {physical}")
        length = {INT32: 4, FLOAT: 4, INT64: 8, DOUBLE: 8, INT96: 12}.get(physical, 0)
        if physical == FIXED_LEN_BYTE_ARRAY:
            length = element.get_value(TYPE_LENGTH, 0)
        found.append(Leaf(path, physical, length, definition, repetition, _order(element, physical)))
        return place + 1
    place += 1
    for _ in range(children or 0):
        place = _collect(elements, place, path, (definition, repetition), found)
    return place


def _is_flat(elements: Sequence[Struct]) -> list[bool]:
    """For each element, whether it is a column right below the root that does not repeat."""
    found: list[bool] = []
    open_groups: list[int] = []  # children that are still to come, of each group around
    for element in elements:
        found.append(len(open_groups) == 1 and TYPE in element and element.get_value(REPETITION) != REPEATED)
        if open_groups:
            open_groups[-1] -= 1
        if children := element.get_value(CHILDREN):
            open_groups.append(children)
        while open_groups and not open_groups[-1]:
            open_groups.pop()
    return found


def with_nulls(one: list[Struct], other: list[Struct]) -> list[Struct] | None:
    """A schema for both if they differ in nothing but which of their flat columns may be null; None otherwise."""
    if len(one) != len(other):
        return None
    merged: list[Struct] = []
    for ours, theirs, flat in zip(one, other, _is_flat(one), strict=True):
        if ours == theirs:
            merged.append(ours)
            continue
        optional = Struct(ours)
        optional.set_value(REPETITION, I32, OPTIONAL)
        also = Struct(theirs)
        also.set_value(REPETITION, I32, OPTIONAL)
        repeats = REPEATED in (ours.get_value(REPETITION), theirs.get_value(REPETITION))
        if optional != also or not flat or repeats:
            return None
        merged.append(optional)
    return merged


def only(elements: Sequence[Struct], name: str) -> list[Struct]:
    """A schema of one of the columns, with all that is nested in it."""
    place = 1
    for _ in range(elements[0].get_value(CHILDREN, 0)):
        end = _collect(elements, place, (), (0, 0), [])
        if elements[place].get_value(NAME, b"").decode(errors="surrogateescape") == name:
            root = Struct(elements[0])
            root.set_value(CHILDREN, I32, 1)
            return [root, *elements[place:end]]
        place = end
    raise ThriftInvalid(f"there is no column {name}")


def schema_bytes(elements: Sequence[Struct]) -> bytes:
    """Elements as a footer has them."""
    return serialize(Struct({1: (LIST, ListOf(STRUCT, list(elements)))}))[1:-1]


# ---------------------------------------------------------------- order


def _order(element: Struct, physical: int) -> Key | None:
    logical: Struct | None = element.get_value(LOGICAL)
    kind = next(iter(logical), None) if logical else None
    if logical and not all(isinstance(value, Struct) for _, value in logical.values()):
        raise ThriftInvalid("a logical type is not described by a structure")
    converted = element.get_value(CONVERTED)
    if physical == BOOLEAN:
        return bytes if kind is None else None
    if physical in (INT32, INT64):
        return _integers(physical, kind, logical, converted)
    if physical in (FLOAT, DOUBLE):
        return _unpacking("<f" if physical == FLOAT else "<d") if kind is None else None
    if physical == INT96:
        return None
    if kind == _LOGICAL_DECIMAL or (kind is None and converted == _DECIMAL):
        return _big_endian
    if converted == _INTERVAL:
        return None
    return bytes if kind is None or kind in _LOGICAL_BYTES else None


def _integers(physical: int, kind: int | None, logical: Struct | None, converted: int | None) -> Key | None:
    unsigned = converted in _UNSIGNED
    if kind == _LOGICAL_INTEGER and logical:
        unsigned = not logical.get_value(kind).get_value(2, True)
    elif kind is not None and kind not in _LOGICAL_SIGNED and kind != _LOGICAL_DECIMAL:
        return None
    letter = "i" if physical == INT32 else "q"
    return _unpacking(f"<{letter.upper() if unsigned else letter}")


@cache
def _unpacking(how: str) -> Key:
    unpack = struct.Struct(how).unpack
    return lambda value: unpack(value)[0]


def _big_endian(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)
