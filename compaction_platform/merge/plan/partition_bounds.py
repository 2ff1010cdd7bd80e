"""Which partitions a batch is about, as a condition on the table that opens no others.

The same condition is said twice: to Spark with literal limits in the statement, and to PyIceberg as an expression.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    Or,
)

from compaction_platform.lake.iceberg.types import spark_type
from compaction_platform.lake.storage.identifiers import quoted
from compaction_platform.merge.config import MergeRules, PartitionField
from compaction_platform.merge.plan.staged_hours import Span, spans

MOST_SPANS = 48
MOST_VALUES = 200
DAY_MICROSECONDS = 86_400_000_000


def _holds(predicate: Callable[..., BooleanExpression], column: str, *value: Any) -> BooleanExpression:
    """PyIceberg's predicates take a column and a value, which their types do not say."""
    return predicate(column, *value)


@dataclass(frozen=True)
class ColumnBounds:
    """Moments, or single values, and whether NULL is among them."""

    column: str
    kind: pyarrow.DataType
    spans: tuple[Span, ...] = ()
    values: tuple[tuple[str, Any], ...] = ()  # by the name they have in a statement
    has_null: bool = False

    def on(self, alias: str) -> str:
        column = f"{alias}.{quoted(self.column)}"
        parts = [
            f"({column} >= {self._moment(each.start)} AND {column} < {self._moment(each.end)})" for each in self.spans
        ]
        parts += [f"{column} IN ({', '.join(f':{name}' for name, _ in self.values)})"] if self.values else []
        parts += [f"{column} IS NULL"] if self.has_null else []
        return f"({' OR '.join(parts) or 'false'})"

    def as_filter(self) -> BooleanExpression:
        found: BooleanExpression = AlwaysFalse()
        for each in self.spans:
            start, end = (self._in_units(moment) for moment in (each.start, each.end))
            found = Or(found, And(_holds(GreaterThanOrEqual, self.column, start), _holds(LessThan, self.column, end)))
        if self.values:
            found = Or(found, _holds(In, self.column, {value for _, value in self.values}))
        return Or(found, _holds(IsNull, self.column)) if self.has_null else found

    def _in_units(self, moment: int) -> int:
        """A moment as Iceberg counts it."""
        return moment // DAY_MICROSECONDS if pyarrow.types.is_date(self.kind) else moment

    def _moment(self, microseconds: int) -> str:
        moment, kind = f"timestamp_micros({microseconds})", spark_type(self.kind)
        return moment if kind == "timestamp" else f"CAST({moment} AS {kind})"


@dataclass(frozen=True)
class Bounds:
    """A condition on the table's partition columns that holds for every row the batch can match."""

    columns: tuple[ColumnBounds, ...] = ()

    def on(self, alias: str) -> str:
        return " AND ".join(column.on(alias) for column in self.columns) or "true"

    @property
    def values(self) -> dict[str, Any]:
        """What the names in the condition stand for."""
        return dict(value for column in self.columns for value in column.values)

    def as_filter(self) -> BooleanExpression:
        found: BooleanExpression = AlwaysTrue()
        for column in self.columns:
            found = And(found, column.as_filter())
        return found


def bounding(rules: MergeRules) -> list[PartitionField]:
    """Partition fields whose source values can be limited by literals."""
    return [field for field in rules.partition_by if field.time_unit or field.transform == "identity"]


def bounds_of(rules: MergeRules, columns: pyarrow.Schema, partitions: Sequence[Sequence[Any]]) -> Bounds:
    """The condition that holds for exactly these partitions (`sql.partitions_of`), or a few more."""
    found: list[ColumnBounds] = []
    place = 0
    for field in bounding(rules):
        kind = columns.field(field.column).type
        if field.time_unit:
            moments = {(row[place], row[place + 1]) for row in partitions}
            covered = spans([Span(*span) for span in moments if span[0] is not None], MOST_SPANS)
            found.append(ColumnBounds(field.column, kind, tuple(covered), has_null=(None, None) in moments))
            place += 2
        else:
            single = {row[place] for row in partitions}
            place += 1
            if len(single) <= MOST_VALUES and not pyarrow.types.is_timestamp(kind):
                named = {f"v{place}_{number}": value for number, value in enumerate(single - {None})}
                found.append(ColumnBounds(field.column, kind, values=tuple(named.items()), has_null=None in single))
    return Bounds(tuple(found))
