"""Thrift's compact protocol, which Parquet's footers and page headers are written in, as plain values.

Nothing is known about Parquet here. Fields this project has never heard of survive, in their place. Of what there is
much of, only the fields that are needed are read (StructReader).
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from compaction_platform.errors import CompactionError

TRUE, FALSE, I8, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
DEEPEST = 64  # structures inside structures; a footer has about ten
LONGEST_NUMBER = 63  # bits, of the last piece of one

Field = tuple[int, Any]  # kind and value
Reader = Callable[[bytes, int], tuple[Any, int]]  # of a value that begins there; and where it ends
NO_READERS: Mapping[int, Reader] = {}


class ThriftInvalid(CompactionError):
    """These bytes are not what they should be."""


class Struct(dict[int, Field]):
    """Fields by their number."""

    def get_value(self, number: int, default: Any = None) -> Any:
        field = self.get(number)
        return default if field is None else field[1]

    def set_value(self, number: int, kind: int, value: Any) -> None:
        self[number] = (kind, value)


@dataclass(slots=True)
class ListOf:
    kind: int
    items: list[Any]


@dataclass(slots=True)
class MapOf:
    key_kind: int
    value_kind: int
    items: list[tuple[Any, Any]]


def parse(data: bytes | memoryview, start: int = 0, readers: Mapping[int, Reader] = NO_READERS) -> tuple[Struct, int]:
    """The structure that begins there, and where it ends. Fields for which there is a reader, by `slot`, are what that
    makes of them. Bytes are read faster than a view of them."""
    try:
        return _struct(data if isinstance(data, bytes) else memoryview(data).cast("B"), start, 0, readers)
    except (IndexError, struct.error) as cut_off:
        raise ThriftInvalid("the structure is cut off") from cut_off


def parse_value(data: bytes | memoryview, kind: int, start: int) -> tuple[Any, int]:
    """One value of that kind, and where it ends."""
    try:
        return _value(data, start, kind, 0)
    except (IndexError, struct.error) as cut_off:
        raise ThriftInvalid("the structure is cut off") from cut_off


Path = tuple[int, ...]  # numbers of fields, from the outside to the inside
Values = dict[str, Any]


class StructReader:
    """Reads the fields that have a name, however deep they lie, and passes by the others.

    `names`: what the values of which fields are called. A structure that has a name is True if it is there. `lists`:
    what the items of which lists become.
    """

    def __init__(
        self, names: Mapping[Path, str], lists: Mapping[Path, Callable[[list[Any]], Any]] | None = None
    ) -> None:
        self._fields = _tree(names, lists or {}, ())

    def read(self, data: Any, place: int, end: int) -> tuple[Values, int]:
        """The values of the structure that begins there and goes to `end` at most; and where it ends. `data` is bytes,
        or a view of them. Raises ThriftInvalid."""
        values: Values = {}
        try:
            behind = _named_values(data if end == len(data) else data[:end], place, self._fields, 0, values)
        except IndexError as cut_off:
            raise ThriftInvalid("the structure is cut off") from cut_off
        return values, behind


# By the number of a field: its name, what a list becomes, and the fields of a structure.
_Fields = dict[int, tuple[str | None, Callable[[list[Any]], Any], "_Fields"]]
_PASSED_BY: tuple[None, Callable[[list[Any]], Any], _Fields] = (None, list, {})


def _tree(names: Mapping[Path, str], lists: Mapping[Path, Callable[[list[Any]], Any]], path: Path) -> _Fields:
    depth = len(path)
    numbers = {each[depth] for each in names if each[:depth] == path and len(each) > depth}
    return {
        number: (names.get(inside), lists.get(inside, list), _tree(names, lists, inside))
        for number in numbers
        for inside in [(*path, number)]
    }


def _named_values(data: Any, place: int, fields: _Fields, depth: int, values: Values) -> int:
    if depth > DEEPEST:
        raise ThriftInvalid("structures are nested too deeply")
    number = 0
    while kind := (head := data[place]) & 15:
        place += 1
        if head > 15:
            number += head >> 4
        else:
            number, place = parse_zigzag(data, place)
        name, made_of, inside = fields.get(number, _PASSED_BY)
        value: Any
        if I16 <= kind <= I64:
            byte = data[place]
            if byte < 0x80:  # most numbers are small
                value, place = (byte >> 1) ^ -(byte & 1), place + 1
            else:
                value, place = parse_zigzag(data, place)
        elif kind == STRUCT:
            place = _named_values(data, place, inside, depth + 1, values)
            value = True
        elif kind <= FALSE:
            value = kind == TRUE
        else:
            value, place = parse_value(data, kind, place)
            if kind == LIST:
                value = made_of(value.items)
        if name is not None:
            values[name] = value  # said twice, the last counts, as for other readers
    return place + 1


def slot(number: int, kind: int) -> int:
    """What a reader for that field is found by, if it is of that kind."""
    return number << 4 | kind


def parse_varint(data: Any, place: int) -> tuple[int, int]:
    """A number without sign, and where it ends."""
    result = shift = 0
    while True:
        byte = data[place]
        place += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, place
        shift += 7
        if shift > LONGEST_NUMBER:
            raise ThriftInvalid("a number is too long")


def parse_zigzag(data: Any, place: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value, place = parse_varint(data, place)
    return (value >> 1) ^ -(value & 1), place


def parse_list_head(data: Any, place: int) -> tuple[int, int, int]:
    """How many items a list has, of which kind, and where the first begins."""
    size, kind = data[place] >> 4, data[place] & 0x0F
    place += 1
    if size == 15:
        size, place = parse_varint(data, place)
    if size > len(data) - place:  # every item takes a byte at least
        raise ThriftInvalid("a list claims more items than there are bytes")
    return size, kind, place


def serialize(value: Struct, last: int = 0) -> bytes:
    """All of a structure; or what comes behind the field of that number."""
    out = bytearray()
    _write_struct(out, value, last)
    return bytes(out)


def varint(value: int) -> bytes:
    """A number that is not negative, seven bits a byte; fourteen at a time they are looked up."""
    if 0 <= value < _TWO_BYTES:
        return _LAST[value]
    if value < 0:
        raise ValueError("a negative number has no such form")
    out = b""
    while value >= _TWO_BYTES:
        out += _MORE[value & (_TWO_BYTES - 1)]
        value >>= 14
    return out + _LAST[value]


def list_head(count: int, kind: int) -> bytes:
    """What comes before so many items of that kind."""
    return bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + varint(count)


def zigzag(value: int) -> bytes:
    return varint((value << 1) ^ (value >> 63))


# ---------------------------------------------------------------- reading


def _struct(data: Any, place: int, depth: int, readers: Mapping[int, Reader] = NO_READERS) -> tuple[Struct, int]:
    if depth > DEEPEST:
        raise ThriftInvalid("structures are nested too deeply")
    found = Struct()
    number = 0
    while kind := (head := data[place]) & 15:
        place += 1
        if head > 15:
            number += head >> 4
        else:
            number, place = parse_zigzag(data, place)
        if I16 <= kind <= I64:
            value = data[place]
            place += 1
            if value > 0x7F:
                value, place = parse_varint(data, place - 1)
            found[number] = (kind, (value >> 1) ^ -(value & 1))
        elif kind == BINARY:
            length = data[place]
            place += 1
            if length > 0x7F:
                length, place = parse_varint(data, place - 1)
            if length > len(data) - place:
                raise ThriftInvalid("the structure is cut off")
            found[number] = (BINARY, bytes(data[place : place + length]))
            place += length
        elif kind <= FALSE:
            found[number] = (TRUE, kind == TRUE)
        elif reader := readers.get(slot(number, kind)):
            value, place = reader(data, place)
            found[number] = (kind, value)
        else:
            value, place = _value(data, place, kind, depth)
            found[number] = (kind, value)
    return found, place + 1


def _value(data: Any, place: int, kind: int, depth: int) -> tuple[Any, int]:
    if I16 <= kind <= I64:
        return parse_zigzag(data, place)
    if kind == STRUCT:
        return _struct(data, place, depth + 1)
    if kind in (LIST, SET):
        return _list(data, place, depth)
    if kind == BINARY:
        length, place = parse_varint(data, place)
        return _take(data, place, length), place + length
    if kind == MAP:
        return _map(data, place, depth)
    if kind == DOUBLE:
        return struct.unpack("<d", _take(data, place, 8))[0], place + 8
    if kind == I8:
        return data[place], place + 1
    if kind in (TRUE, FALSE):  # inside a list each takes a byte of its own
        return data[place] == TRUE, place + 1
    raise ThriftInvalid(f"there is no type {kind}")


def _list(data: Any, place: int, depth: int) -> tuple[ListOf, int]:
    if depth > DEEPEST:
        raise ThriftInvalid("structures are nested too deeply")
    size, kind, place = parse_list_head(data, place)
    items = []
    for _ in range(size):
        item, place = _value(data, place, kind, depth + 1)
        items.append(item)
    return ListOf(kind, items), place


def _map(data: Any, place: int, depth: int) -> tuple[MapOf, int]:
    if depth > DEEPEST:
        raise ThriftInvalid("structures are nested too deeply")
    size, place = parse_varint(data, place)
    if size > len(data) - place:
        raise ThriftInvalid("a map claims more items than there are bytes")
    key = value = 0
    if size:
        key, value, place = data[place] >> 4, data[place] & 0x0F, place + 1
    items = []
    for _ in range(size):
        name, place = _value(data, place, key, depth + 1)
        item, place = _value(data, place, value, depth + 1)
        items.append((name, item))
    return MapOf(key, value, items), place


def _take(data: Any, place: int, length: int) -> bytes:
    if length > len(data) - place:
        raise ThriftInvalid("the structure is cut off")
    return bytes(data[place : place + length])


# ---------------------------------------------------------------- writing


def _write_struct(out: bytearray, value: Struct, last: int = 0) -> None:
    for number, (kind, content) in sorted(value.items()):
        told = (TRUE if content else FALSE) if kind == TRUE else kind
        if 0 < number - last < 16:
            out.append((number - last) << 4 | told)
        else:
            out.append(told)
            out += zigzag(number)
        last = number
        if kind != TRUE:
            _write(out, kind, content)
    out.append(0)


def _write(out: bytearray, kind: int, value: Any) -> None:
    if I16 <= kind <= I64:
        out += zigzag(value)
    elif kind == BINARY:
        out += varint(len(value))
        out += value
    elif kind == STRUCT:
        _write_struct(out, value)
    elif kind in (LIST, SET):
        out += list_head(len(value.items), value.kind)
        for item in value.items:
            _write(out, value.kind, item)
    elif kind == MAP:
        out += varint(len(value.items))
        if value.items:
            out.append(value.key_kind << 4 | value.value_kind)
        for key, item in value.items:
            _write(out, value.key_kind, key)
            _write(out, value.value_kind, item)
    elif kind == DOUBLE:
        out += struct.pack("<d", value)
    elif kind == I8:
        out.append(value)
    else:
        out.append(TRUE if value else FALSE)


_TWO_BYTES = 1 << 14
_MORE = [bytes([value & 0x7F | 0x80, value >> 7 | 0x80]) for value in range(_TWO_BYTES)]
_LAST = [bytes([value] if value < 0x80 else [value & 0x7F | 0x80, value >> 7]) for value in range(_TWO_BYTES)]
