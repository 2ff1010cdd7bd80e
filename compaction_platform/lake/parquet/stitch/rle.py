"""Small numbers as Parquet packs them: definition and repetition levels, and indices into a dictionary."""

from functools import cache
from typing import Any

import numpy

from compaction_platform.lake.parquet.thrift_compact import parse_varint, varint

Array = numpy.ndarray[Any, Any]
_WORTH_A_RUN = 64  # this often the same, and it is said once
_WIDEST_PATTERN = 17  # bits
_LOOKED_AT = 1000  # runs


@cache
def constant(level: int, count: int) -> bytes:
    """The same level so many times. Levels are small: each takes one byte."""
    return varint(count << 1) + bytes([level])


def packed_levels(levels: Array, largest: int) -> bytes:
    """Levels in as few bytes as is cheap: long runs are said once, the rest is packed."""
    width = largest.bit_length()
    edges = numpy.flatnonzero(levels[1:] != levels[:-1]) + 1
    starts = numpy.concatenate(([0], edges))
    lengths = numpy.diff(numpy.concatenate((starts, [len(levels)])))
    out = bytearray()
    done = 0
    for number in numpy.flatnonzero(lengths >= _WORTH_A_RUN):
        start, length = int(starts[number]), int(lengths[number])
        begins = start + (done - start) % 8  # what is packed before it comes in eights
        length -= begins - start
        if begins > done:
            out += _packed(levels[done:begins], width)
        out += varint(length << 1) + bytes([int(levels[start])])
        done = begins + length
    if done < len(levels):
        out += _packed(levels[done:], width)
    return bytes(out)


def runs_end_with(stream: Any, count: int, width: int) -> bool:
    """Whether these runs have as many numbers as that; of packed ones, the last eight may be filled up. Only so many
    runs are looked at that it costs next to nothing."""
    place = done = 0
    for _ in range(_LOOKED_AT):
        if place >= len(stream):
            return done >= count and place == len(stream)
        try:
            head, place = parse_varint(stream, place)
        except IndexError:
            return False
        if done >= count:
            return False
        if head & 1:
            done += (head >> 1) * 8
            place += (head >> 1) * width
            if done >= count + 8:
                return False
        else:
            done += head >> 1
            place += -(-width // 8)
            if done > count:
                return False
    return True


def counts_up(stream: Any, count: int) -> bool:
    """Whether these indices are 0, 1, 2, … so many of them. False also where it is not seen at once: if they are not
    packed, but told as runs."""
    data = bytes(stream)
    width = data[0]
    if not 0 < width <= _WIDEST_PATTERN or count > 1 << width:  # behind the last number the pattern is filled up
        return False
    pattern = _upwards(width)
    place, done = 1, 0
    while done < count:
        head, place = parse_varint(data, place) if place < len(data) else (0, place)
        if not head & 1 or place + (head >> 1) * width > len(data):
            return False
        here = min(count - done, (head >> 1) * 8)
        begins, whole, bits = done * width // 8, here * width // 8, here * width % 8
        if data[place : place + whole] != pattern[begins : begins + whole]:
            return False
        if bits and (data[place + whole] ^ pattern[begins + whole]) & ((1 << bits) - 1):
            return False
        place += (head >> 1) * width
        done += here
    return True


@cache
def _upwards(width: int) -> bytes:
    """All numbers of so many bits, packed."""
    return _bits(numpy.arange(1 << width), width)


def packed_indices(indices: Array, entries: int, *, in_bytes: bool) -> bytes:
    """Indices into a dictionary as a page has them, the byte with their width first. In whole bytes they are quick to
    write and compress well; where nothing compresses well afterwards, they take no more bits than they need."""
    bits = max(1, (entries - 1).bit_length())
    if entries == 1:
        return bytes([bits]) + varint(len(indices) << 1) + b"\0"
    if not in_bytes:
        return bytes([bits]) + _packed(indices, bits)
    width = -(-bits // 8)
    return bytes([width * 8]) + _header(len(indices)) + _padded(_low_bytes(indices, width), len(indices), width)


def _header(count: int) -> bytes:
    return varint(-(-count // 8) << 1 | 1)


def _low_bytes(numbers: Array, width: int) -> bytes:
    if width == 3:
        return numpy.ascontiguousarray(numbers.astype("<u4").view("u1").reshape(-1, 4)[:, :3]).tobytes()
    return numbers.astype(f"<u{width}").tobytes()


def _padded(data: bytes, count: int, width: int) -> bytes:
    return data + bytes(-count % 8 * width)


def _packed(numbers: Array, width: int) -> bytes:
    """One run of numbers of that many bits each, the last eight filled up with zeros."""
    return _header(len(numbers)) + _bits(numbers, width).ljust(-(-len(numbers) // 8) * width, b"\0")


def _bits(numbers: Array, width: int) -> bytes:
    if width == 1:
        return numpy.packbits(numbers.astype("u1"), bitorder="little").tobytes()
    whole = "<u1" if width <= 8 else "<u4"
    cells = numpy.ascontiguousarray(numbers.astype(whole)).view("u1").reshape(len(numbers), -1)
    bits = numpy.unpackbits(cells, axis=1, bitorder="little")[:, :width]
    return numpy.packbits(bits.reshape(-1), bitorder="little").tobytes()
