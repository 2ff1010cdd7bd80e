"""How many files of which size there are, and how that looks before and after."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

MB = 1 << 20
LARGEST_MB = 2048  # of a file that we make: it goes to the store in one conditional request, of which 5 GB is the limit
LONGEST_BAR = 12
SIZE_CLASSES_MB = (1, 8, 32, 128, 256)


@dataclass(frozen=True)
class FileSizes:
    """How many files of which size there are."""

    files: int = 0
    bytes: int = 0
    in_class: tuple[int, ...] = (0,) * (len(SIZE_CLASSES_MB) + 1)

    @classmethod
    def of(cls, sizes: Iterable[int]) -> "FileSizes":
        in_class = [0] * (len(SIZE_CLASSES_MB) + 1)
        files = total = 0
        for size in sizes:
            in_class[bisect_right(SIZE_CLASSES_MB, size / MB)] += 1
            files, total = files + 1, total + size
        return cls(files, total, tuple(in_class))

    def plus(self, other: "FileSizes") -> "FileSizes":
        in_class = tuple(one + two for one, two in zip(self.in_class, other.in_class, strict=True))
        return FileSizes(self.files + other.files, self.bytes + other.bytes, in_class)


def histogram(before: FileSizes, after: FileSizes) -> str:
    """File sizes before and after, as a Markdown table."""
    edges = [*(f"under {edge} MB" for edge in SIZE_CLASSES_MB), f"{SIZE_CLASSES_MB[-1]} MB and more"]
    most = max(*before.in_class, *after.in_class, 1)
    lines = ["| size | before | after | before | after |", "|---|---:|---:|---|---|"]
    for edge, one, two in zip(edges, before.in_class, after.in_class, strict=True):
        lines.append(f"| {edge} | {one:,} | {two:,} | {_bar(one, most)} | {_bar(two, most)} |")
    return "\n".join(lines)


def _bar(count: int, most: int) -> str:
    return "█" * -(-count * LONGEST_BAR // most)
