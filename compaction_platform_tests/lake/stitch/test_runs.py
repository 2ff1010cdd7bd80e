"""Indices that count upwards are told from others, however they were cut into runs. The model packs bits one by one."""

import random

import pytest

from compaction_platform.lake.parquet.stitch.rle import counts_up

pytestmark = pytest.mark.unit


def packed(numbers: list[int], width: int) -> bytes:
    """Bit by bit, the lowest first, filled up with zeros to eight numbers."""
    bits = [number >> bit & 1 for number in numbers for bit in range(width)]
    bits += [0] * (-len(numbers) % 8 * width)
    return bytes(sum(bit << place for place, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8))


def stream(numbers: list[int], width: int, eights: int) -> bytes:
    """A page's indices, in runs of so many times eight."""
    runs = [numbers[at : at + eights * 8] for at in range(0, len(numbers), eights * 8)]
    heads = [-(-len(run) // 8) << 1 | 1 for run in runs]
    return bytes([width]) + b"".join(bytes([head]) + packed(run, width) for head, run in zip(heads, runs, strict=True))


@pytest.mark.parametrize("eights", [1, 7, 63])
@pytest.mark.parametrize(("width", "count"), [(1, 2), (3, 5), (4, 16), (7, 100), (8, 250), (13, 5000), (13, 4999)])
def test_what_counts_up_is_seen(width: int, count: int, eights: int) -> None:
    assert counts_up(stream(list(range(count)), width, eights), count)


@pytest.mark.parametrize("seed", range(50))
def test_one_other_number_anywhere_is_seen(seed: int) -> None:
    chance = random.Random(seed)
    width = chance.randint(2, 13)
    count = chance.randint(2, 1 << width)
    numbers = list(range(count))
    place = chance.randrange(count)
    numbers[place] ^= 1 << chance.randrange(width)
    assert not counts_up(stream(numbers, width, chance.choice([1, 5, 63])), count)


def test_what_fills_up_the_last_eight_does_not_count() -> None:
    whole = bytearray(stream(list(range(5)), 3, 1))
    whole[-1] |= 0x80
    assert counts_up(whole, 5)


def test_fewer_or_more_numbers_are_not_taken_for_so_many() -> None:
    some = stream(list(range(40)), 6, 63)
    assert not counts_up(some[:-6], 40)
    assert not counts_up(some, 41)
    assert not counts_up(bytes([6, 8 << 1, 0]), 8), "a run of one number"


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_stream_is_only_what_counts_up_is_taken_for_it(seed: int) -> None:
    """Also with more numbers than their bits can tell apart, and however the last eight are filled up."""
    chance = random.Random(seed)
    for _ in range(300):
        width = chance.randint(1, 5)
        count = chance.randint(1, 40)
        numbers = [
            number % (1 << width) if chance.random() < 0.98 else chance.randrange(1 << width) for number in range(count)
        ]
        if counts_up(stream(numbers, width, chance.choice([1, 2, 63])), count):
            assert numbers == list(range(count))
