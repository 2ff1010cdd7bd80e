"""Rows that a caller asks for: filters are values, never SQL. Pages of one query are of one snapshot."""

import base64
import binascii
import hashlib
import json
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.compute
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
    NotNull,
    Reference,
    StartsWith,
)
from pyiceberg.expressions.literals import Literal as IcebergLiteral
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from compaction_platform.lake.iceberg.table_scan import NotReadable, TaskReader, deleted_positions
from compaction_platform.serve.http.errors import InvalidCursor, InvalidFilter, InvalidRequest, QueryTimeout
from compaction_platform.serve.http.models import Filter, Query
from compaction_platform.serve.tables.json_values import SPECIAL, DoesNotFit, as_json, as_python
from compaction_platform.serve.tables.tenant_tables import reachable

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table

COMPARISONS: dict[str, Any] = {
    "=": EqualTo,
    "!=": NotEqualTo,
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
}
EXACT = Context(prec=80)
MOST_ANSWER_BYTES = 64 << 20  # before it is JSON
FILES_AT_ONCE = 16  # whose rows are held together
READ_AT_ONCE = 4
MOST_VALUES = 1000  # of in and not_in
MOST_SORTED = 100_000  # rows that come before the end of a page of a sorted query


@dataclass(frozen=True)
class Cursor:
    """Where the next page begins: the files before this portion of them are over, and so many rows of its own."""

    query: str  # digest: a cursor is for the query that it came from
    snapshot: int
    portion: int = 0
    row: int = 0

    def text(self) -> str:
        said = json.dumps([self.query, self.snapshot, self.portion, self.row])
        return base64.urlsafe_b64encode(said.encode()).decode()

    @classmethod
    def parsed(cls, text: str, query: str) -> "Cursor":
        try:
            said = json.loads(base64.b64decode(text.encode(), altchars=b"-_", validate=True))
            cursor = cls(*said)
            numbers = (cursor.snapshot, cursor.portion, cursor.row)
            if any(type(number) is not int or not 0 <= number < 2**63 for number in numbers):
                raise ValueError
        except (ValueError, TypeError, binascii.Error, UnicodeError, RecursionError):
            raise InvalidCursor("this is not a cursor; send the one of the answer before, as it was.") from None
        if cursor.query != query:
            raise InvalidCursor("this cursor is for another query; send the same query with it.")
        return cursor


@dataclass(frozen=True)
class ResultPage:
    records: list[dict[str, Any]]
    snapshot: int | None
    cursor: str | None = None


@dataclass(frozen=True)
class Queries:
    most_rows: int
    seconds: float

    def page(self, table: "Table", query: Query) -> ResultPage:
        if query.limit > self.most_rows:
            raise InvalidRequest(f"limit: at most {self.most_rows:,} rows in one answer; more come with the cursor.")
        digest = _digest(query)
        cursor = Cursor.parsed(query.cursor, digest) if query.cursor else None
        snapshot = cursor.snapshot if cursor else self._snapshot(table, query)
        if snapshot is None:
            return ResultPage([], None)
        if table.snapshot_by_id(snapshot) is None:
            raise InvalidRequest("this snapshot is not there (any more).")
        schema = table.schema()
        scan = _Scan(table, snapshot, _expression(query.filters, schema), time.monotonic() + self.seconds)
        columns = _columns(query, schema)
        begin = cursor or Cursor(digest, snapshot)
        if query.order_by:
            return self._sorted(scan, query, columns, begin)
        return self._in_turn(scan, query, columns, begin)

    def _snapshot(self, table: "Table", query: Query) -> int | None:
        if query.snapshot is not None:
            return query.snapshot
        current = table.current_snapshot()
        return current.snapshot_id if current else None

    def _in_turn(self, scan: "_Scan", query: Query, columns: list[str], begin: Cursor) -> ResultPage:
        found: list[pyarrow.Table] = []
        room = query.limit
        for number, rows in scan.files(columns, begin.portion):
            skipped = begin.row if number == begin.portion else 0
            some = rows.slice(skipped)
            if some.num_rows > room:
                found.append(some.slice(0, room))
                _require_bearable(found)
                following = Cursor(begin.query, begin.snapshot, number, skipped + room)
                return ResultPage(as_json(pyarrow.concat_tables(found)), begin.snapshot, following.text())
            found.append(some)
            room -= some.num_rows
            _require_bearable(found)
        return ResultPage(as_json(pyarrow.concat_tables(found)) if found else [], begin.snapshot)

    def _sorted(self, scan: "_Scan", query: Query, columns: list[str], begin: Cursor) -> ResultPage:
        """The first rows of the order, kept while file after file is read."""
        wanted = begin.row + query.limit
        if wanted > MOST_SORTED:
            raise InvalidRequest(f"a sorted query gives its first {MOST_SORTED:,} rows; add a filter for more.")
        keys = [(each.field, "descending" if each.descending else "ascending", "at_end") for each in query.order_by]
        needed = list(dict.fromkeys([*columns, *(each.field for each in query.order_by)]))
        best: pyarrow.Table | None = None
        for _, rows in scan.files(needed, 0):
            both = rows if best is None else pyarrow.concat_tables([best, rows])
            order = pyarrow.compute.sort_indices(both, sort_keys=keys)
            best = both.take(order.slice(0, wanted + 1))
        if best is None:
            return ResultPage([], begin.snapshot)
        more = Cursor(begin.query, begin.snapshot, 0, wanted).text() if best.num_rows > wanted else None
        return ResultPage(as_json(best.slice(begin.row, query.limit).select(columns)), begin.snapshot, more)


@dataclass(frozen=True)
class _Scan:
    table: "Table"
    snapshot: int
    expression: BooleanExpression
    until: float

    def files(self, columns: list[str], first: int) -> Iterator[tuple[int, pyarrow.Table]]:
        """Rows that match, some files at a time, in an order that does not change."""
        types = schema_to_pyarrow(self.table.schema().select(*columns), include_field_ids=False)
        row_filter = None if isinstance(self.expression, AlwaysTrue) else self.expression
        reader = TaskReader(self.table, pyarrow.schema([types.field(name) for name in columns]), row_filter)
        tasks = self._tasks()
        for number in range(first, -(-len(tasks) // FILES_AT_ONCE)):
            some = tasks[number * FILES_AT_ONCE : (number + 1) * FILES_AT_ONCE]
            if time.monotonic() > self.until:
                raise QueryTimeout("the query took too long; add a filter, ask for fewer rows, or compact the table.")
            with reachable(), _readable(), ThreadPoolExecutor(READ_AT_ONCE) as pool:
                deleted = deleted_positions(self.table, some)
                files = [task.file for task in some]
                rows = list(pool.map(reader.read, files, (deleted.get(file.file_path) for file in files)))
            yield number, pyarrow.concat_tables(rows)

    def _tasks(self) -> "list[FileScanTask]":
        with reachable(), _readable():
            try:
                found = list(self.table.scan(row_filter=self.expression, snapshot_id=self.snapshot).plan_files())
            except (OverflowError, TypeError, ValueError) as error:
                if "equality deletes" in str(error):
                    raise
                # PyIceberg cannot say what the filter means for the partitions; then all of them are read.
                found = list(self.table.scan(snapshot_id=self.snapshot).plan_files())
        return sorted(found, key=lambda task: task.file.file_path)


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except NotReadable as cannot:
        raise InvalidRequest(f"a file of this table cannot be read exactly here: {cannot}") from None
    except ValueError as error:
        if "equality deletes" not in str(error):
            raise
        raise InvalidRequest(
            "another writer has deleted rows of this table by their values, which cannot be read here. COMPACT it with "
            "force; that applies them."
        ) from None


def _require_bearable(found: list[pyarrow.Table]) -> None:
    if sum(each.nbytes for each in found) > MOST_ANSWER_BYTES:
        raise InvalidRequest(
            f"the answer would have more than {MOST_ANSWER_BYTES >> 20} MB; ask for fewer rows or columns."
        )


def _digest(query: Query) -> str:
    """Of all that a query says but where its page begins."""
    said = query.model_dump_json(exclude={"cursor"})
    return hashlib.sha256(said.encode()).hexdigest()[:32]


def _columns(query: Query, schema: "Schema") -> list[str]:
    known = [field.name for field in schema.fields]
    wanted = query.columns or known
    for name in (*wanted, *(each.field for each in query.order_by)):
        if name not in known:
            raise InvalidRequest(f"the table has no field {name[:100]}.", {"fields": known})
    if len(set(wanted)) != len(wanted):
        raise InvalidRequest("columns: one is named twice.")
    for each in query.order_by:
        kind = schema.find_field(each.field).field_type
        if not isinstance(kind, PrimitiveType):
            raise InvalidRequest(f"order_by: {each.field} is {kind}, which has no order.")
    return list(wanted)


def _expression(filters: list[Filter], schema: "Schema") -> BooleanExpression:
    known = {field.name: field for field in schema.fields}
    parts = []
    for number, each in enumerate(filters):
        if each.field not in known:
            raise InvalidFilter(f"filter {number}: the table has no field {each.field[:100]}.", {"fields": list(known)})
        try:
            parts.append(_condition(each, known[each.field]))
        except DoesNotFit as reason:
            raise InvalidFilter(f"filter {number}, field {each.field}: {reason}.") from None
    return reduce(And, parts) if parts else AlwaysTrue()


def _condition(wanted: Filter, field: NestedField) -> BooleanExpression:
    kind, reference = field.field_type, Reference(field.name)
    if wanted.op in ("is_null", "not_null"):
        if wanted.value is not None:
            raise DoesNotFit(f"{wanted.op} takes no value")
        return _made(IsNull if wanted.op == "is_null" else NotNull, reference)
    if not isinstance(kind, PrimitiveType):
        raise DoesNotFit(f"it is {kind}; only is_null and not_null can be asked of it")
    if wanted.op in ("in", "not_in"):
        if not isinstance(wanted.value, list) or not 1 <= len(wanted.value) <= MOST_VALUES:
            raise DoesNotFit(f"{wanted.op} takes a list of 1 to {MOST_VALUES} values")
        values = {_literal(each, kind) for each in wanted.value}
        return (
            _made(In, reference, values) if wanted.op == "in" else _not_null(_made(NotIn, reference, values), reference)
        )
    if wanted.op == "starts_with":
        if not isinstance(kind, StringType):
            raise DoesNotFit("starts_with is for text")
        return _made(StartsWith, reference, _literal(wanted.value, kind))
    made = _made(COMPARISONS[wanted.op], reference, _literal(wanted.value, kind))
    return _not_null(made, reference) if wanted.op == "!=" else made


def _not_null(expression: BooleanExpression, reference: Reference) -> BooleanExpression:
    """A null is neither equal to a value nor different from it."""
    return And(_made(NotNull, reference), expression)


def _made(kind: Any, *parts: Any) -> BooleanExpression:
    """(PyIceberg's own types are too narrow for how its expressions are made.)"""
    expression: BooleanExpression = kind(*parts)
    return expression


def _literal(value: Any, kind: IcebergType) -> IcebergLiteral[Any]:
    if value is None:
        raise DoesNotFit("null is asked for by is_null and not_null")
    is_special = value in SPECIAL if isinstance(value, str) else isinstance(value, float) and math.isnan(value)
    if isinstance(kind, FloatType | DoubleType) and is_special:
        raise DoesNotFit("NaN and the infinities cannot be compared with here")
    made = as_python(value, kind)
    if isinstance(kind, TimestampType | TimestamptzType | DateType):
        return literal(made.isoformat()).to(kind)
    if isinstance(kind, DecimalType):
        return literal(made.quantize(Decimal(1).scaleb(-kind.scale), context=EXACT)).to(kind)
    return literal(made).to(kind)
