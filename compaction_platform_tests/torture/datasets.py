"""Tables for the writers: every type that Parquet has a common name for, with nulls at every level."""

import random
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow

Make = Callable[[random.Random, int], dict[str, pyarrow.Array]]
FILES = 3
EDGES = [float("nan"), 0.0, -0.0, float("inf"), float("-inf"), 5e-324]
WORDS = ["", "a", "ä", "日本語", "\U0001f600", "null", "  ", "word", "x" * 300]


def table(dataset: str, number: int) -> pyarrow.Table:
    """The rows of one file. `id` is unique in the whole dataset, and is in no order."""
    generator = random.Random(f"{dataset} {number}")
    columns, count = DATASETS[dataset]
    rows = 0 if dataset == "empty" and number != 1 else count
    ids = list(range(number * count, number * count + rows))
    generator.shuffle(ids)
    return pyarrow.table({"id": pyarrow.array(ids, pyarrow.int64()), **columns(generator, rows)})


def _some(generator: random.Random, values: list[Any], share: float = 0.15) -> list[Any]:
    return [None if generator.random() < share else value for value in values]


def plain(generator: random.Random, rows: int) -> dict[str, pyarrow.Array]:
    """What every writer can write."""
    pick = generator.choice

    def column(values: list[Any], kind: pyarrow.DataType) -> pyarrow.Array:
        return pyarrow.array(_some(generator, values), kind)

    return {
        "small": column([generator.randint(-5, 5) for _ in range(rows)], pyarrow.int32()),
        "wide": column([generator.randint(-(2**63), 2**63 - 1) for _ in range(rows)], pyarrow.int64()),
        "ratio": column([pick(EDGES) if row % 9 == 0 else generator.gauss(0, 1e5) for row in range(rows)], _F64),
        "flag": column([row % 3 == 0 for row in range(rows)], pyarrow.bool_()),
        "word": column([pick(WORDS) for _ in range(rows)], pyarrow.string()),
        "text": column([f"{generator.getrandbits(64):x}" for _ in range(rows)], pyarrow.string()),
        "bytes": column([generator.randbytes(pick([0, 1, 7])) for _ in range(rows)], pyarrow.binary()),
        "day": column([generator.randint(-30_000, 60_000) for _ in range(rows)], pyarrow.date32()),
        "at": column([generator.randint(-(2**50), 2**50) for _ in range(rows)], pyarrow.timestamp("us")),
        "nothing": pyarrow.nulls(rows, pyarrow.int32()),
    }


_F64 = pyarrow.float64()


def numbers(generator: random.Random, rows: int) -> dict[str, pyarrow.Array]:
    found: dict[str, pyarrow.Array] = {}
    for bits in (8, 16, 32, 64):
        for letter, low, high in (("i", -(1 << bits - 1), (1 << bits - 1) - 1), ("u", 0, (1 << bits) - 1)):
            values = [generator.choice([low, high, 0, 1, generator.randint(low, high)]) for _ in range(rows)]
            kind = getattr(pyarrow, f"{'u' * (letter == 'u')}int{bits}")()
            found[f"{letter}{bits}"] = pyarrow.array(_some(generator, values), kind)
    floats = [generator.choice(EDGES) if generator.random() < 0.3 else generator.gauss(0, 9) for _ in range(rows)]
    found["f32"] = pyarrow.array(_some(generator, floats), pyarrow.float32())
    found["f64"] = pyarrow.array(_some(generator, floats), pyarrow.float64())
    for digits, scale in ((5, 2), (18, 4), (38, 10)):
        values = [_decimal(generator, digits, scale) for _ in range(rows)]
        found[f"d{digits}"] = pyarrow.array(_some(generator, values), pyarrow.decimal128(digits, scale))
    return found


def _decimal(generator: random.Random, digits: int, scale: int) -> Decimal:
    unscaled = str(generator.randint(0, 10 ** generator.randint(1, digits) - 1))
    return Decimal((generator.randint(0, 1), tuple(map(int, unscaled)), -scale))


def times(generator: random.Random, rows: int) -> dict[str, pyarrow.Array]:
    moments = [generator.randint(-(10**9), 4 * 10**9) for _ in range(rows)]
    found = {"d": pyarrow.array(_some(generator, [generator.randint(-719_162, 2_932_896) for _ in range(rows)]), _DATE)}
    for unit, factor in (("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        ticks = [moment * factor + generator.randrange(factor) for moment in moments]
        found[f"ts_{unit}"] = pyarrow.array(_some(generator, ticks), pyarrow.timestamp(unit))
        found[f"tz_{unit}"] = pyarrow.array(_some(generator, ticks), pyarrow.timestamp(unit, "UTC"))
    return found


_DATE = pyarrow.date32()


def clock(generator: random.Random, rows: int) -> dict[str, pyarrow.Array]:
    """Times of day, which Spark refuses, and halves, which few writers know."""
    ticks = [generator.randrange(86_400_000_000) for _ in range(rows)]
    return {
        "t_ms": pyarrow.array(_some(generator, [tick // 1000 for tick in ticks]), pyarrow.time32("ms")),
        "t_us": pyarrow.array(_some(generator, ticks), pyarrow.time64("us")),
        "t_ns": pyarrow.array(_some(generator, [tick * 1000 + 1 for tick in ticks]), pyarrow.time64("ns")),
        "half": pyarrow.array(_some(generator, [generator.choice([*EDGES, 1.5]) for _ in ticks]), pyarrow.float16()),
    }


def texts(generator: random.Random, rows: int) -> dict[str, pyarrow.Array]:
    pick = generator.choice
    return {
        "few": pyarrow.array(_some(generator, [pick(WORDS) for _ in range(rows)])),
        "same": pyarrow.array(["one"] * rows),
        "unique": pyarrow.array([uuid.UUID(int=generator.getrandbits(128)).hex for _ in range(rows)]),
        "shared": pyarrow.array(sorted(f"prefix-{generator.randint(0, 9999):06}" for _ in range(rows))),
        "large": pyarrow.array(_some(generator, [pick(WORDS) * 3 for _ in range(rows)]), pyarrow.large_string()),
        "fixed": pyarrow.array(_some(generator, [generator.randbytes(16) for _ in range(rows)]), pyarrow.binary(16)),
    }


def nested(generator: random.Random, rows: int) -> dict[str, pyarrow.Array]:
    def maybe(make: Callable[[], Any]) -> Any:
        return None if generator.random() < 0.2 else make()

    def several(make: Callable[[], Any], most: int = 4) -> Any:
        return maybe(lambda: [make() for _ in range(generator.randint(0, most))])

    def integer() -> Any:
        return maybe(lambda: generator.randint(-9, 9))

    def word() -> Any:
        return maybe(lambda: generator.choice(WORDS))

    def pair() -> Any:
        return maybe(lambda: {"a": integer(), "b": word()})

    def mapping(value: Callable[[], Any]) -> Any:
        return maybe(lambda: [(f"k{key}", value()) for key in range(generator.randint(0, 3))])

    inner = pyarrow.struct([("a", pyarrow.int32()), ("b", pyarrow.string())])
    shapes: dict[str, tuple[Callable[[], Any], pyarrow.DataType]] = {
        "li": (lambda: several(integer), pyarrow.list_(pyarrow.int32())),
        "ls": (lambda: several(word), pyarrow.list_(pyarrow.string())),
        "ll": (lambda: several(lambda: several(integer)), pyarrow.list_(pyarrow.list_(pyarrow.int64()))),
        "st": (pair, inner),
        "ss": (lambda: maybe(lambda: {"i": pair(), "l": several(integer)}), _deep(inner)),
        "lst": (lambda: several(pair), pyarrow.list_(inner)),
        "mp": (lambda: mapping(integer), pyarrow.map_(pyarrow.string(), pyarrow.int64())),
        "mst": (lambda: mapping(pair), pyarrow.map_(pyarrow.string(), inner)),
    }
    return {name: pyarrow.array([make() for _ in range(rows)], kind) for name, (make, kind) in shapes.items()}


def _deep(inner: pyarrow.DataType) -> pyarrow.DataType:
    return pyarrow.struct([("i", inner), ("l", pyarrow.list_(pyarrow.int32()))])


def required(generator: random.Random, rows: int) -> dict[str, pyarrow.Array]:
    return {name: column for name, column in texts(generator, rows).items() if not column.null_count}


def large(generator: random.Random, rows: int) -> dict[str, pyarrow.Array]:
    """Row groups that are large enough to be copied as they are, in files that are small."""
    return {"page": pyarrow.array([generator.randbytes(8) * 1024 for _ in range(rows)], pyarrow.binary())}


# By name: columns beside `id`, and how many rows a file has. Pages of fewer than 512 rows are not stitched.
DATASETS: dict[str, tuple[Make, int]] = {
    "plain": (plain, 560),
    "numbers": (numbers, 540),
    "times": (times, 540),
    "clock": (clock, 200),
    "texts": (texts, 560),
    "nested": (nested, 520),
    "empty": (plain, 560),
    "required": (required, 560),
    "large": (large, 1100),
}
