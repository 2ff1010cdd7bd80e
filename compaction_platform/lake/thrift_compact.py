"""Thrift's compact protocol, which Parquet footers are written in, as plain values: read, change a field, write.

Nothing is known about Parquet here. Fields this project has never heard of survive, in their place.
"""

import struct
from dataclasses import dataclass
from typing import Any

from compaction_platform.lake.errors import CompactionError

TRUE, FALSE, I8, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
DEEPEST = 64  # structures inside structures; a footer has about ten


class ThriftInvalid(CompactionError):
    """These bytes are not what they should be."""


@dataclass
class Field:
    kind: int
    value: Any


class Struct(dict[int, Field]):
    """Fields by their number."""

    def get_value(self, number: int, default: Any = None) -> Any:
        field = self.get(number)
        return default if field is None else field.value

    def set_value(self, number: int, kind: int, value: Any) -> None:
        self[number] = Field(kind, value)


@dataclass
class ListOf:
    kind: int
    items: list[Any]


@dataclass
class MapOf:
    key_kind: int
    value_kind: int
    items: list[tuple[Any, Any]]


def parse(data: bytes | memoryview, start: int = 0) -> tuple[Struct, int]:
    """The structure that begins there, and where it ends."""
    reader = _Reader(memoryview(data).cast("B"), start)
    try:
        return reader.struct(0), reader.place
    except (IndexError, struct.error) as cut_off:
        raise ThriftInvalid("the structure is cut off") from cut_off


def serialize(value: Struct) -> bytes:
    out = bytearray()
    _write_struct(out, value)
    return bytes(out)


class _Reader:
    def __init__(self, data: memoryview, place: int) -> None:
        self.data, self.place = data, place

    def byte(self) -> int:
        value = self.data[self.place]
        self.place += 1
        return value

    def varint(self) -> int:
        result = shift = 0
        while True:
            byte = self.data[self.place]
            self.place += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
            shift += 7
            if shift > 63:
                raise ThriftInvalid("a number is too long")

    def zigzag(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def take(self, length: int) -> bytes:
        if length > len(self.data) - self.place:
            raise ThriftInvalid("the structure is cut off")
        value = bytes(self.data[self.place : self.place + length])
        self.place += length
        return value

    def struct(self, depth: int) -> Struct:
        if depth > DEEPEST:
            raise ThriftInvalid("structures are nested too deeply")
        found = Struct()
        number = 0
        while head := self.byte():
            kind, step = head & 0x0F, head >> 4
            number = number + step if step else self.zigzag()
            if kind in (TRUE, FALSE):
                found[number] = Field(TRUE, kind == TRUE)
            else:
                found[number] = Field(kind, self.value(kind, depth))
        return found

    def value(self, kind: int, depth: int) -> Any:
        if kind in (I16, I32, I64):
            return self.zigzag()
        if kind == BINARY:
            return self.take(self.varint())
        if kind == STRUCT:
            return self.struct(depth + 1)
        if kind in (LIST, SET):
            return self.list_of(depth)
        if kind == MAP:
            return self.map_of(depth)
        if kind == DOUBLE:
            return struct.unpack("<d", self.take(8))[0]
        if kind == I8:
            return self.byte()
        if kind in (TRUE, FALSE):  # inside a list each takes a byte of its own
            return self.byte() == TRUE
        raise ThriftInvalid(f"there is no type {kind}")

    def list_of(self, depth: int) -> ListOf:
        head = self.byte()
        size, kind = head >> 4, head & 0x0F
        size = self.varint() if size == 15 else size
        if size > len(self.data) - self.place:  # every item takes a byte at least
            raise ThriftInvalid("a list claims more items than there are bytes")
        return ListOf(kind, [self.value(kind, depth) for _ in range(size)])

    def map_of(self, depth: int) -> MapOf:
        size = self.varint()
        if size > len(self.data) - self.place:
            raise ThriftInvalid("a map claims more items than there are bytes")
        head = self.byte() if size else 0
        key, value = head >> 4, head & 0x0F
        return MapOf(key, value, [(self.value(key, depth), self.value(value, depth)) for _ in range(size)])


def _varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _zigzag(out: bytearray, value: int) -> None:
    _varint(out, (value << 1) ^ (value >> 63))


def _write_struct(out: bytearray, value: Struct) -> None:
    last = 0
    for number, field in sorted(value.items()):
        kind = (TRUE if field.value else FALSE) if field.kind == TRUE else field.kind
        if 0 < number - last < 16:
            out.append((number - last) << 4 | kind)
        else:
            out.append(kind)
            _zigzag(out, number)
        last = number
        if field.kind != TRUE:
            _write(out, field.kind, field.value)
    out.append(0)


def _write(out: bytearray, kind: int, value: Any) -> None:
    if kind in (I16, I32, I64):
        _zigzag(out, value)
    elif kind == BINARY:
        _varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _write_struct(out, value)
    elif kind in (LIST, SET):
        out.append(min(len(value.items), 15) << 4 | value.kind)
        if len(value.items) >= 15:
            _varint(out, len(value.items))
        for item in value.items:
            _write(out, value.kind, item)
    elif kind == MAP:
        _varint(out, len(value.items))
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
