"""Fields that are read by their names are those that the whole parser finds, of the same bytes."""

import random
from typing import Any

import pytest

from compaction_platform.lake.parquet.thrift_compact import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    ListOf,
    Struct,
    StructReader,
    ThriftInvalid,
    Values,
    parse,
    serialize,
)

pytestmark = pytest.mark.unit

NAMES = {
    (1,): "number",
    (2,): "text",
    (3, 1): "deep",
    (3, 2): "deep_text",
    (3, 3): "truth",
    (4,): "counts",
    (5,): "same",
    (6,): "rare",
    (7,): "is_there",
}
LISTS = {(5,): tuple}
BEFORE, BEHIND = b"before", b"behind"


def structure(chance: random.Random) -> Struct:
    """Few forms, many values."""

    def number() -> int:
        size = chance.choice([3, 6, 12, 20, 40, 63])
        return chance.randrange(-(1 << size - 1), 1 << size - 1)

    def text(longest: int) -> bytes:
        return chance.randbytes(chance.randrange(longest))

    made = Struct(
        {
            1: (I64, number()),
            2: (BINARY, text(4) if chance.random() < 0.9 else text(600)),
            3: (STRUCT, Struct({1: (I32, number()), 2: (BINARY, text(3)), 3: (TRUE, chance.random() < 0.5)})),
            4: (LIST, ListOf(I64, [number() for _ in range(chance.choice([0, 17]) if chance.random() < 0.02 else 2)])),
            5: (LIST, ListOf(BINARY, [b"a", chance.choice([b"b", b"c"])])),
            90: (I32, number()),
            91: (BINARY, text(200)),
            92: (LIST, ListOf(STRUCT, [Struct({1: (I32, number()), 2: (BINARY, text(3))})])),
        }
    )
    if chance.random() < 0.02:
        made[6] = (I32, number())
    if chance.random() < 0.02:
        made[7] = (STRUCT, Struct())
    return made


def by_another_parser(data: bytes, place: int) -> tuple[Values, int]:
    found, end = parse(data, place)
    deep = found.get_value(3)
    values = {
        "number": found.get_value(1),
        "text": found.get_value(2),
        "deep": deep.get_value(1),
        "deep_text": deep.get_value(2),
        "truth": deep.get_value(3),
        "counts": found.get_value(4).items,
        "same": tuple(found.get_value(5).items),
    }
    if 6 in found:
        values["rare"] = found.get_value(6)
    if 7 in found:
        values["is_there"] = True
    return values, end


def outcome(reader: StructReader, data: bytes) -> Any:
    try:
        return reader.read(data, len(BEFORE), len(data) - len(BEHIND))
    except ThriftInvalid:
        return None


def placed(structure: bytes) -> bytes:
    return BEFORE + structure + BEHIND


def test_values_are_those_that_the_whole_parser_finds() -> None:
    chance = random.Random(5)
    reader = StructReader(NAMES, LISTS)
    for _ in range(500):
        data = placed(serialize(structure(chance)))
        assert outcome(reader, data) == by_another_parser(data, len(BEFORE))
        assert outcome(reader, memoryview(data)) == by_another_parser(data, len(BEFORE))


def test_damaged_bytes_give_values_or_are_refused_by_name() -> None:
    chance = random.Random(6)
    reader = StructReader(NAMES, LISTS)
    refused = 0
    for _ in range(1000):
        damaged = bytearray(serialize(structure(chance)))
        for _ in range(chance.choice([1, 1, 2, 3])):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        data = placed(bytes(damaged[: chance.choice([len(damaged)] * 3 + [chance.randrange(len(damaged))])]))
        refused += outcome(reader, data) is None
    assert 0 < refused < 1000


def test_of_a_field_that_is_said_twice_the_last_value_counts() -> None:
    """As for other readers."""
    again = serialize(Struct({1: (I64, 5)}))[:-1] + b"\x06\x02\x0e\x00"  # field 1, told by its number, is 7
    assert StructReader({(1,): "number"}).read(again, 0, len(again)) == ({"number": 7}, len(again))


def test_a_structure_that_goes_beyond_its_end_is_refused() -> None:
    whole = serialize(Struct({1: (BINARY, b"0123456789"), 2: (I64, 1 << 40)}))
    for end in range(len(whole)):
        with pytest.raises(ThriftInvalid):
            StructReader({(1,): "text", (2,): "number"}).read(whole, 0, end)


@pytest.mark.parametrize("name", ["number", None], ids=["named", "passed by"])
def test_a_number_that_is_too_long_is_refused(name: str | None) -> None:
    reader = StructReader({(1,): "number"} if name else {(2,): "other"})
    for length, is_right in ((9, True), (10, False)):
        data = b"\x16" + b"\xff" * length + b"\x01\x00"
        if is_right:
            assert reader.read(data, 0, len(data))[1] == len(data)
        else:
            with pytest.raises(ThriftInvalid):
                reader.read(data, 0, len(data))
