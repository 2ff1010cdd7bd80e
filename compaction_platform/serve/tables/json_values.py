"""JSON values and the table's own: exactly what was meant, or a reason. Nothing is rounded, cut or guessed."""

import base64
import binascii
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from compaction_platform.lake.iceberg.types import arrow_type
from compaction_platform.serve.http.errors import InvalidRecords

MOST_SHOWN = 20
DECIMAL = re.compile(r"[+-]?(\d{1,100}(\.\d{0,100})?|\.\d{1,100})([eE][+-]?\d{1,3})?")
SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?")
DAY = re.compile(r"\d{4}-\d\d-\d\d")
LARGEST_FLOAT = 3.4028234663852886e38


class DoesNotFit(ValueError):
    """A value is not one of the column's type."""


def as_arrow(records: Sequence[Mapping[str, Any]], schema: Schema) -> pyarrow.Table:
    """The records in the table's columns. If any is wrong, all that are wrong are told, and nothing is made."""
    known = {field.name: field for field in schema.fields}
    problems = _Problems()
    columns: dict[str, list[Any]] = {name: [] for name in known}
    for index, record in enumerate(records):
        for name in record.keys() - known.keys():
            problems.add(index, name, "the table has no such field")
        for name, field in known.items():
            try:
                columns[name].append(_required(record.get(name), field.field_type, field.required))
            except DoesNotFit as reason:
                problems.add(index, name, str(reason))
    problems.refuse_if_any()
    arrays = {name: pyarrow.array(columns[name], arrow_type(field.field_type)) for name, field in known.items()}
    return pyarrow.table(arrays)


class _Problems:
    """All are counted, some are told."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[dict[str, Any]] = []

    def add(self, index: int, name: str, reason: str) -> None:
        self.count += 1
        if len(self.first) < MOST_SHOWN:
            self.first.append({"index": index, "field": name[:200], "reason": reason})

    def refuse_if_any(self) -> None:
        if self.first:
            one = self.first[0]
            raise InvalidRecords(
                f"{self.count} values cannot be written; nothing was. The first: record {one['index']}, field "
                f"{one['field']}: {one['reason']}",
                {"problems": self.first, "count": self.count},
            )


def _required(value: Any, kind: IcebergType, required: bool) -> Any:
    if value is None:
        if required:
            raise DoesNotFit("it is required")
        return None
    return as_python(value, kind)


def as_python(value: Any, kind: IcebergType) -> Any:
    """A JSON value as the Python value that the column holds."""
    if isinstance(kind, ListType):
        return _list(value, kind)
    if isinstance(kind, MapType):
        return _map(value, kind)
    if isinstance(kind, StructType):
        return _struct(value, kind)
    for types, convert in _SCALARS:
        if isinstance(kind, types):
            return convert(value, kind)
    raise DoesNotFit(f"values of type {kind} cannot be written here")


def _list(value: Any, kind: ListType) -> list[Any]:
    if not isinstance(value, list):
        raise DoesNotFit("a list is wanted")
    return [_required(each, kind.element_type, kind.element_required) for each in value]


def _map(value: Any, kind: MapType) -> list[tuple[Any, Any]]:
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list) or any(not isinstance(each, list | tuple) or len(each) != 2 for each in pairs):
        raise DoesNotFit("an object, or a list of pairs, is wanted")
    made = [
        (_required(key, kind.key_type, True), _required(item, kind.value_type, kind.value_required))
        for key, item in pairs
    ]
    if len({repr(key) for key, _ in made}) != len(made):
        raise DoesNotFit("a key is there twice")
    return made


def _struct(value: Any, kind: StructType) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DoesNotFit("an object is wanted")
    if unknown := value.keys() - {field.name for field in kind.fields}:
        raise DoesNotFit(f"it has no field {min(unknown)[:200]}")
    return {field.name: _required(value.get(field.name), field.field_type, field.required) for field in kind.fields}


def _boolean(value: Any, kind: IcebergType) -> bool:
    if not isinstance(value, bool):
        raise DoesNotFit("true or false is wanted")
    return value


def _integer(value: Any, kind: IcebergType) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise DoesNotFit("an integer is wanted")
    bits = 31 if isinstance(kind, IntegerType) else 63
    if not -(2**bits) <= value < 2**bits:
        raise DoesNotFit(f"{value} does not fit into {bits + 1} bits" if abs(value) < 10**30 else "it is too large")
    return value


def _float(value: Any, kind: IcebergType) -> float:
    if isinstance(value, str) and value in SPECIAL:
        return SPECIAL[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DoesNotFit('a number is wanted, or "NaN", "Infinity", "-Infinity"')
    try:
        number = float(value)
    except OverflowError:
        raise DoesNotFit("it is too large") from None
    if not math.isfinite(number):
        raise DoesNotFit("it is too large")
    if isinstance(value, int) and int(number) != value:
        raise DoesNotFit(f"{value} cannot be kept exactly as a floating-point number; write it with a decimal point")
    if isinstance(kind, FloatType) and abs(number) > LARGEST_FLOAT:
        raise DoesNotFit("it is too large for 32 bits")
    return number


def _decimal(value: Any, kind: IcebergType) -> Decimal:
    assert isinstance(kind, DecimalType)  # noqa: S101 (for the type checker)
    if isinstance(value, bool) or not isinstance(value, int | str) or not DECIMAL.fullmatch(str(value)):
        raise DoesNotFit('a decimal is wanted as text, such as "12.50", or an integer')
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise DoesNotFit('a decimal is wanted as text, such as "12.50"') from None
    if number and number.adjusted() + 1 > kind.precision - kind.scale:
        raise DoesNotFit(f"it has more than {kind.precision - kind.scale} digits before the point")
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)  # noqa: S101 (it is finite)
    while len(digits) > 1 and digits[-1] == 0 and exponent < 0:
        digits, exponent = digits[:-1], exponent + 1
    if number and -exponent > kind.scale:
        raise DoesNotFit(f"it has more than {kind.scale} digits after the point")
    return Decimal((sign, digits, exponent)) if number else Decimal(0)


def _text(value: Any, kind: IcebergType) -> str:
    if not isinstance(value, str):
        raise DoesNotFit("text is wanted")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DoesNotFit("it has half of a character (a lone surrogate)") from None
    return value


def _binary(value: Any, kind: IcebergType) -> bytes:
    try:
        return base64.b64decode(_text(value, kind), validate=True)
    except (binascii.Error, ValueError):
        raise DoesNotFit("base64 is wanted") from None


def _date(value: Any, kind: IcebergType) -> date:
    try:
        if not isinstance(value, str) or not DAY.fullmatch(value):
            raise ValueError
        return date.fromisoformat(value)
    except ValueError:
        raise DoesNotFit("a day such as 2026-05-01 is wanted") from None


def _moment(value: Any, kind: IcebergType) -> datetime:
    zoned = isinstance(kind, TimestamptzType)
    example = "2026-05-01T10:00:00+02:00" if zoned else "2026-05-01T10:00:00, without a zone,"
    try:
        if not isinstance(value, str) or not MOMENT.fullmatch(value):
            raise ValueError
        moment = datetime.fromisoformat(value)
        if (moment.tzinfo is not None) != zoned:
            raise ValueError
        return moment.astimezone(UTC) if zoned else moment
    except (ValueError, OverflowError):
        raise DoesNotFit(f"a time such as {example} is wanted, to the microsecond") from None


_SCALARS: list[tuple[Any, Any]] = [
    (BooleanType, _boolean),
    ((IntegerType, LongType), _integer),
    ((FloatType, DoubleType), _float),
    (DecimalType, _decimal),
    (StringType, _text),
    (BinaryType, _binary),
    (DateType, _date),
    ((TimestampType, TimestamptzType), _moment),
]


# ---------------------------------------------------------------- and back


def as_json(rows: pyarrow.Table) -> list[dict[str, Any]]:
    """Records in the forms in which they are written."""
    columns = {name: [_said(value) for value in rows[name].to_pylist()] for name in rows.column_names}
    return [{name: values[number] for name, values in columns.items()} for number in range(rows.num_rows)]


def _said(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {name: _said(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [_said(each) for each in value]
    if isinstance(value, list):
        return [_said(each) for each in value]
    return value
