"""What a reader answers with the help of statistics (min, max, counts with a predicate) against a full scan."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow
import pyarrow.compute

from compaction_platform_tests.torture import canonical

OPERATORS = {"=": pyarrow.compute.equal, ">=": pyarrow.compute.greater_equal, "<": pyarrow.compute.less}
MOST_COLUMNS = 6


class PushDown(Protocol):
    def extremes(self, path: str, column: str) -> pyarrow.Table:
        """One row: the least and the greatest value."""

    def count(self, path: str, column: str, operator: str, value: pyarrow.Scalar) -> int: ...


@dataclass(frozen=True)
class BySql:
    """`ask` runs a query in which {file} stands for the file and ? for a value."""

    ask: Callable[[str, str, list[Any]], pyarrow.Table]

    def extremes(self, path: str, column: str) -> pyarrow.Table:
        return self.ask(path, f'SELECT min("{column}") AS low, max("{column}") AS high FROM {{file}}', [])

    def count(self, path: str, column: str, operator: str, value: pyarrow.Scalar) -> int:
        query = f'SELECT count(*) AS n FROM {{file}} WHERE "{column}" {operator} ?'
        return int(self.ask(path, query, [value.as_py()])["n"][0].as_py())


class ByPolars:
    def extremes(self, path: str, column: str) -> pyarrow.Table:
        import polars

        values = polars.col(column)
        lazy = polars.scan_parquet(path, hive_partitioning=False)
        return lazy.select(values.min().alias("low"), values.max().alias("high")).collect().to_arrow()

    def count(self, path: str, column: str, operator: str, value: pyarrow.Scalar) -> int:
        import polars

        lazy = polars.scan_parquet(path, hive_partitioning=False)
        literal = polars.lit(value.as_py(), dtype=lazy.collect_schema()[column])
        values = polars.col(column)
        condition = {"=": values == literal, ">=": values >= literal, "<": values < literal}[operator]
        return int(lazy.filter(condition).select(polars.len()).collect().item())


def compared(path: str, table: pyarrow.Table, push_down: PushDown | None) -> dict[str, Any]:
    """Return how many questions were asked, and by column what was answered wrongly."""
    asked, wrong = 0, {}
    for name in _suitable(table) if push_down is not None else ():
        for question, expected, answered in _questions(path, name, table[name], push_down):
            asked += 1
            if expected != answered:
                wrong.setdefault(name, f"{question} is {answered}, by a full scan {expected}")
    return {"asked": asked, "wrong": wrong}


def _suitable(table: pyarrow.Table) -> list[str]:
    types = pyarrow.types
    return [
        column.name
        for column in table.schema
        if types.is_integer(column.type)
        or types.is_date32(column.type)
        or (types.is_timestamp(column.type) and column.type.unit == "us" and column.type.tz is None)
        or types.is_string(column.type)
        or types.is_large_string(column.type)
        or (
            types.is_float64(column.type)
            and not pyarrow.compute.any(pyarrow.compute.is_nan(table[column.name])).as_py()
        )
    ][:MOST_COLUMNS]


def _questions(
    path: str, name: str, values: pyarrow.ChunkedArray, push_down: PushDown
) -> Iterator[tuple[str, object, object]]:
    extremes = push_down.extremes(path, name)
    if not pyarrow.types.is_floating(values.type):  # -0.0 and 0.0 are equal, and either may be the answer
        scanned = pyarrow.compute.min_max(values)
        for word, answered in (("min", extremes["low"]), ("max", extremes["high"])):
            expected = pyarrow.array([scanned[word].as_py()], values.type)
            yield word, canonical.cells(expected), canonical.cells(answered)
    there = values.drop_null()
    if len(there):
        value = there[len(there) // 2]
        for operator, compare in OPERATORS.items():
            expected = pyarrow.compute.sum(compare(values, value)).as_py() or 0
            with contextlib.suppress(OverflowError):  # DataFusion takes no integer over 63 bits
                yield f"count where {operator} {value}", expected, push_down.count(path, name, operator, value)
