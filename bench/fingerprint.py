"""How fast fingerprints are on one core, next to copying the same bytes and hashing them bare.

Goal: in order at least 2 GB/s on plain columns.
"""

import numpy
import pyarrow
import xxhash
from _report import best_seconds, show

from compaction_platform.lake.verification.fingerprint import ordered_fingerprint, unordered_fingerprint

ROWS = 4_000_000
BATCH = 64 * 1024


def columns() -> dict[str, pyarrow.Array]:
    numbers = numpy.random.default_rng(1)
    integers = numbers.integers(0, 1 << 60, ROWS)
    return {
        "int64": pyarrow.array(integers),
        "double": pyarrow.array(numbers.random(ROWS)),
        "timestamp": pyarrow.array(integers >> 10).cast(pyarrow.timestamp("us", "UTC")),
        "decimal(38,0)": pyarrow.array(integers).cast(pyarrow.decimal128(38, 0)),
        "string, 36 bytes": pyarrow.array([f"{number:036x}" for number in integers]),
        "int64, 10 % null": pyarrow.array(integers, mask=numbers.random(ROWS) < 0.1),
        "string, 10 % null": pyarrow.array(
            [None if number % 10 == 0 else f"user-{number % 10_000}" for number in range(ROWS)]
        ),
        "dictionary of strings": pyarrow.array([f"city-{number % 300}" for number in range(ROWS)]).dictionary_encode(),
    }


def main() -> None:
    rows = []
    for name, array in columns().items():
        table = pyarrow.table({"c": array})
        batches = table.to_batches(max_chunksize=BATCH)
        flat = numpy.frombuffer(bytearray(table.nbytes), numpy.uint8)
        copied = best_seconds(flat.copy)
        bare = best_seconds(lambda flat=flat: xxhash.xxh3_128(flat).digest())
        ordered = best_seconds(lambda batches=batches: ordered_fingerprint(batches))
        unordered = best_seconds(lambda batches=batches: unordered_fingerprint(batches), repeats=2)
        speed = table.nbytes / 1e9
        rows.append(
            [
                name,
                f"{speed / copied:.1f}",
                f"{speed / bare:.1f}",
                f"{speed / ordered:.1f}",
                f"{ordered / bare:.1f}",
                f"{ROWS / unordered / 1e6:.1f}",
            ]
        )
    headings = ["column", "copy GB/s", "bare xxh3 GB/s", "in order GB/s", "in order / bare", "any order M rows/s"]
    show("Fingerprints, one core", headings, rows)


if __name__ == "__main__":
    main()
