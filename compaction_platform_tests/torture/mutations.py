"""Damage to one Parquet file, by a seed: what disks, networks and strange writers do."""

import math
import random
import struct
from collections.abc import Callable

import pyarrow
import pyarrow.parquet

FOOTER_END = 8  # length and magic
MAGIC = b"PAR1"
LONG_NUMBERS = (b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\x80\x80\x80\x80\x08", b"\xf0\xff\xff\xff\x7f")
ODD_BYTES = (0, 1, 0x15, 0x19, 0x1C, 0x7F, 0x80, 0xFF)

Damage = Callable[[random.Random, bytes], bytes]


def damaged(generator: random.Random, data: bytes) -> tuple[str, bytes]:
    """Return the kind of damage and the damaged bytes, which may happen to be the same."""
    (kind,) = generator.choices(list(KINDS), [weight for _, weight in KINDS.values()])
    return kind, KINDS[kind][0](generator, data)


def _footer_start(data: bytes) -> int:
    return len(data) - FOOTER_END - int.from_bytes(data[-8:-4], "little")


def _flipped(generator: random.Random, data: bytes, start: int, end: int, times: int) -> bytes:
    found = bytearray(data)
    for _ in range(times):
        at = min(generator.randrange(start, max(end, start + 1)), len(data) - 1)
        way = generator.randrange(4)
        found[at] = found[at] ^ (1 << generator.randrange(8)) if way < 2 else generator.choice(ODD_BYTES)
    return bytes(found)


def _footer(generator: random.Random, data: bytes) -> bytes:
    return _flipped(generator, data, _footer_start(data), len(data) - FOOTER_END, generator.choice([1, 1, 1, 2, 4]))


def _data(generator: random.Random, data: bytes) -> bytes:
    return _flipped(generator, data, 4, _footer_start(data), generator.choice([1, 1, 3, 10]))


def _chunks(data: bytes) -> list[tuple[int, int]]:
    """Start and end of each column chunk that holds anything."""
    metadata = pyarrow.parquet.read_metadata(pyarrow.BufferReader(data))
    found = []
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            offsets = [column.data_page_offset, *([column.dictionary_page_offset] * column.has_dictionary_page)]
            start = min((offset for offset in offsets if offset), default=0)
            if start and column.total_compressed_size:
                found.append((start, start + column.total_compressed_size))
    return found or [(0, _footer_start(data))]


def _page_header(generator: random.Random, data: bytes) -> bytes:
    start, end = generator.choice(_chunks(data))
    return _flipped(generator, data, start, min(start + 30, end), 1)


def _levels(generator: random.Random, data: bytes) -> bytes:
    start, end = generator.choice(_chunks(data))
    return _flipped(generator, data, min(start + 15, end - 1), min(start + 60, end), generator.choice([1, 2]))


def _swapped_pages(generator: random.Random, data: bytes) -> bytes:
    """Two columns' bytes in each other's place: as much of them as both have."""
    (one, one_end), (other, other_end) = sorted(generator.choices(_chunks(data), k=2))
    size = min(one_end - one, other_end - other, other - one)
    found = bytearray(data)
    found[one : one + size], found[other : other + size] = data[other : other + size], data[one : one + size]
    return bytes(found)


def _swapped_bytes(generator: random.Random, data: bytes) -> bytes:
    end = len(data) - 16
    one, other = sorted(generator.randrange(4, end) for _ in range(2))
    size = min(8, other - one)
    return (
        data[:one] + data[other : other + size] + data[one + size : other] + data[one : one + size]
        + data[other + size :]
    )  # fmt: skip


def _truncated(generator: random.Random, data: bytes) -> bytes:
    footer = _footer_start(data)
    way = generator.randrange(4)
    if way == 0:
        return data[: generator.randrange(len(data))]
    if way == 1:
        return data[:footer] + data[generator.randrange(footer, len(data) - FOOTER_END) :]
    at = generator.randrange(min(4, footer - 1), footer)
    if way == 2:  # a hole
        return data[:at] + data[at + generator.randrange(1, 500) :]
    return data[:at] + bytes(min(512, footer - at)) + data[at + min(512, footer - at) :]  # a sector of zeros


def _long_number(generator: random.Random, data: bytes) -> bytes:
    """A number in the footer becomes a very large one."""
    footer = _footer_start(data)
    at = end = generator.randrange(footer, len(data) - FOOTER_END)
    while end < len(data) - FOOTER_END - 1 and data[end] & 0x80:
        end += 1
    changed = data[footer:at] + generator.choice(LONG_NUMBERS) + data[end + 1 : -FOOTER_END]
    return data[:footer] + changed + len(changed).to_bytes(4, "little") + MAGIC


def _footer_length(generator: random.Random, data: bytes) -> bytes:
    length = int.from_bytes(data[-8:-4], "little")
    other = generator.choice([generator.getrandbits(32), max(0, length + generator.randrange(-50, 50)), 0, 2**31 - 1])
    return data[:-8] + other.to_bytes(4, "little") + MAGIC


def _noise(generator: random.Random, data: bytes) -> bytes:
    at = generator.randrange(4, max(5, _footer_start(data) - 200))
    return data[:at] + generator.randbytes(200) + data[at + 200 :]


def _not_utf8(generator: random.Random, data: bytes) -> bytes:
    """One letter of a text becomes a byte that no text has, where texts lie open."""
    places = [at for at in range(4, _footer_start(data)) if data[at : at + 2].isalnum()]
    if not places:
        return _data(generator, data)
    at = generator.choice(places)
    return data[:at] + b"\xff" + data[at + 1 :]


def _foreign(generator: random.Random, data: bytes) -> bytes:
    return generator.choice([b"", MAGIC, MAGIC * 2, b'{"a": 1}\n' * 40, b"PARE" + data[4:-4] + b"PARE", bytes(900)])


def _lying_statistics(generator: random.Random, data: bytes) -> bytes:
    """A bound in the footer becomes another of the same length: still a sound file, and no longer the truth."""
    bounds = _bounds(data)
    if not bounds:
        return _footer(generator, data)
    old = generator.choice(bounds)
    footer = _footer_start(data)
    places = [at for at in range(footer, len(data) - 8) if data.startswith(old, at)]
    new = _other_bound(generator, old)
    found = bytearray(data)
    for at in places if generator.random() < 0.5 else places[:1]:
        found[at : at + len(old)] = new
    return bytes(found)


def _bounds(data: bytes) -> list[bytes]:
    """The bounds that a footer states, as they are stored."""
    metadata = pyarrow.parquet.read_metadata(pyarrow.BufferReader(data))
    found = []
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            if column.statistics is not None and column.statistics.has_min_max:
                stored = (_stored(value, column.physical_type) for value in _extremes(column.statistics))
                found += [each for each in stored if each is not None and len(each) >= 4]
    return found


def _extremes(statistics: pyarrow.parquet.Statistics) -> tuple[object, object]:
    try:
        return statistics.min_raw, statistics.max_raw
    except UnicodeDecodeError:
        return None, None


def _stored(value: object, physical_type: str) -> bytes | None:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float) and not math.isnan(value):
        return struct.pack("<f" if physical_type == "FLOAT" else "<d", value)
    if isinstance(value, int) and not isinstance(value, bool):
        size = 4 if physical_type == "INT32" else 8
        return (value % (1 << 8 * size)).to_bytes(size, "little")
    return None


def _other_bound(generator: random.Random, old: bytes) -> bytes:
    new = bytearray(old)
    new[generator.randrange(len(new))] ^= 1 << generator.randrange(7)
    return bytes(new)


# By name: what is done, and how often.
KINDS: dict[str, tuple[Damage, int]] = {
    "footer": (_footer, 26),
    "page header": (_page_header, 16),
    "levels": (_levels, 10),
    "data": (_data, 10),
    "lying statistics": (_lying_statistics, 10),
    "long number": (_long_number, 8),
    "truncated": (_truncated, 6),
    "not UTF-8": (_not_utf8, 5),
    "swapped pages": (_swapped_pages, 4),
    "swapped bytes": (_swapped_bytes, 2),
    "footer length": (_footer_length, 2),
    "noise": (_noise, 2),
    "foreign": (_foreign, 1),
}
