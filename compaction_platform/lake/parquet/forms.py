"""Structures of Thrift that look alike, read at once.

A run reads the headers of tens of thousands of pages, and what is said about as many columns. Those of one writer have
the same fields in the same order, and differ in their values, not in their form. A form that comes often becomes a
regular expression; whatever fits it is that form with other values, because Thrift's values say where they end. What
does not fit is read field by field.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from compaction_platform.lake.parquet.thrift_compact import (
    BINARY,
    DEEPEST,
    FALSE,
    I16,
    I64,
    LIST,
    STRUCT,
    TRUE,
    ThriftInvalid,
    parse_list_head,
    parse_value,
    parse_varint,
    parse_zigzag,
    varint,
)

Path = tuple[int, ...]  # numbers of fields, from the outside to the inside
Values = dict[str, Any]
Same = Mapping[Path, Callable[[list[Any]], Any]]

OFTEN = 3  # times: a pattern is worth its making if about fifty structures fit it
MOST_EXACT, MOST_LOOSE = 2, 16  # forms with bytes of the same length, and of any
MOST_SEEN = 64
# "+": whatever comes behind, what was taken is not given back.
_NUMBER = rb"[\x80-\xff]*+."  # one that is too long is refused when it is turned into a number
_PASSED_BY = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
_short = {varint(value): (value >> 1) ^ -(value & 1) for value in range(1 << 14)}.get  # of one byte or two


class FormReader:
    """Reads structures. `names`: what the values of which fields are called; nothing else is given. `same`: lists of
    which other items make another form, and what becomes of the items."""

    def __init__(self, names: Mapping[Path, str], same: Same | None = None) -> None:
        self._names, self._same = names, same or {}
        self._exact: tuple[_Form, ...] = ()
        self._loose: tuple[_Form, ...] = ()
        self._forms: tuple[_Form, ...] = ()
        self._seen: dict[_Tokens, int] = {}

    def read(self, data: Any, place: int, end: int) -> tuple[Values, int]:
        """The values that have a name, in the structure that begins there and goes to that end at most; and where it
        ends. Raises ThriftInvalid. `data` is bytes, or a view of them."""
        for form in self._forms:
            found = form.read(data, place, end)
            if found is not None:
                return found
        look = _Look(data if end == len(data) else data[:end], self._names, self._same)
        try:
            behind = look.at_struct(place, (), 0)
        except IndexError as cut_off:
            raise ThriftInvalid("the structure is cut off") from cut_off
        if look.has_a_form:
            self._learn(look)
        return look.values, behind

    def _learn(self, look: "_Look") -> None:
        """Bytes are often as long as they were before, and then one pattern does for all of it."""
        seen = self._seen
        if len(seen) > MOST_SEEN:
            self._seen = seen = {}
        exact = tuple(look.tokens)
        loose = tuple([each if isinstance(each, bytes) else each.of_any_length() for each in exact])
        for tokens in {exact, loose}:
            seen[tokens] = seen.get(tokens, 0) + 1
        if seen[exact] == OFTEN:
            self._exact = (_form_of(exact, look.constants), *self._exact[: MOST_EXACT - 1])
        elif seen[loose] > OFTEN:
            self._loose = (_form_of(loose, look.constants), *self._loose[: MOST_LOOSE - 1])
        self._forms = self._exact + self._loose  # in one step: others may be reading


class _Value(NamedTuple):
    """A part of a form that is not always the same: a number, or so many bytes behind their length."""

    name: str | None
    length: int | None = None  # None: a number
    is_item: bool = False  # of the list of that name

    def of_any_length(self) -> "_Value":
        return self if self.length is None else _Value(self.name, _ANY_LENGTH)


_ANY_LENGTH = -1
_Tokens = tuple[bytes | _Value, ...]
_Groups = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _Segment:
    """What fits a pattern, and bytes of any length that may come behind it."""

    match: Callable[[Any, int, int], re.Match[bytes] | None]
    numbers: Callable[[_Groups], _Groups]  # those of the groups that are numbers
    number_names: tuple[str, ...]
    lists: tuple[tuple[str, int, int], ...]  # name and places of numbers that are the items of a list
    texts: Callable[[_Groups], _Groups]  # those that are bytes
    text_names: tuple[str, ...]
    has_bytes_behind: bool
    name_behind: str | None


@dataclass(frozen=True, slots=True)
class _Form:
    segments: tuple[_Segment, ...]
    constants: Values  # what every structure of this form says

    def read(self, data: Any, place: int, end: int) -> tuple[Values, int] | None:
        """None if it is of another form."""
        values = self.constants.copy()
        for segment in self.segments:
            fits = segment.match(data, place, end)
            if fits is None:
                return None
            groups = fits.groups()
            place = fits.end()
            found = [_long(each) if (value := _short(each)) is None else value for each in segment.numbers(groups)]
            values.update(zip(segment.number_names, found, strict=False))
            for name, first, last in segment.lists:
                values[name] = found[first:last]
            if segment.text_names:
                values.update(zip(segment.text_names, segment.texts(groups), strict=False))
            if segment.has_bytes_behind:
                if place >= end:
                    return None
                length, place = parse_varint(data, place)
                behind = place + length
                if behind > end:
                    return None
                if segment.name_behind is not None:
                    values[segment.name_behind] = bytes(data[place:behind])
                place = behind
        return values, place


def _long(digits: bytes) -> int:
    """A number of three bytes or more; most have three."""
    if len(digits) > 3:
        return parse_zigzag(digits, 0)[0]
    value = digits[0] & 0x7F | (digits[1] & 0x7F) << 7 | digits[2] << 14
    return (value >> 1) ^ -(value & 1)


def _form_of(tokens: _Tokens, constants: Values) -> _Form:
    segments = []
    begun: list[bytes | _Value] = []
    for token in tokens:
        if not isinstance(token, bytes) and token.length == _ANY_LENGTH:
            segments.append(_segment_of(begun, token))
            begun = []
        else:
            begun.append(token)
    return _Form((*segments, _segment_of(begun, None)), constants)


def _segment_of(tokens: Sequence[bytes | _Value], behind: _Value | None) -> _Segment:
    named = [token for token in tokens if not isinstance(token, bytes) and token.name is not None]
    numbers = [place for place, token in enumerate(named) if token.length is None]
    texts = [place for place, token in enumerate(named) if token.length is not None]
    names = [named[place].name or "" for place in numbers]
    items = {named[place].name or "" for place in numbers if named[place].is_item}
    return _Segment(
        re.compile(b"".join(map(_pattern, tokens)), re.DOTALL).match,
        _taker(numbers),
        tuple(names),
        tuple((name, names.index(name), names.index(name) + names.count(name)) for name in sorted(items)),
        _taker(texts),
        tuple(named[place].name or "" for place in texts),
        behind is not None,
        behind.name if behind else None,
    )


def _pattern(token: bytes | _Value) -> bytes:
    if isinstance(token, bytes):
        return re.escape(token)
    if token.length is None:
        return _PASSED_BY if token.name is None else b"(" + _NUMBER + b")"
    value = b".{%d}" % token.length
    return re.escape(varint(token.length)) + (value if token.name is None else b"(" + value + b")")


def _taker(places: list[int]) -> Callable[[_Groups], _Groups]:
    if not places:
        return lambda _: ()
    return itemgetter(*places, places[0])  # the last once more: it gives no tuple of one


class _Look:
    """A structure that is read field by field, and its form. Raises IndexError where bytes end."""

    def __init__(self, data: Any, names: Mapping[Path, str], same: Same) -> None:
        self.data, self.names, self.same = data, names, same
        self.values: Values = {}
        self.constants: Values = {}
        self.tokens: list[bytes | _Value] = []
        self.has_a_form = True

    def at_struct(self, place: int, path: Path, depth: int) -> int:
        """Returns where it ends."""
        if depth > DEEPEST:
            raise ThriftInvalid("structures are nested too deeply")
        number = 0
        while kind := (head := self.data[place]) & 15:
            start = place
            place += 1
            if head > 15:
                number += head >> 4
            else:
                number, place = parse_zigzag(self.data, place)
            self._is_fixed(start, place)
            inside = (*path, number)
            name = self.names.get(inside)
            if name in self.values:
                self.has_a_form = False  # it is said again
            if kind <= FALSE:
                self._put_constant(name, kind == TRUE)
            elif kind == STRUCT:
                self._put_constant(name, True)
                place = self.at_struct(place, inside, depth + 1)
            elif kind == LIST:
                place = self._at_list(place, inside, name, depth)
            else:
                value, place = self._at_value(kind, place, name)
                if name is not None:
                    self.values[name] = value
        self._is_fixed(place, place + 1)
        return place + 1

    def _at_list(self, place: int, path: Path, name: str | None, depth: int) -> int:
        if path in self.same:
            found, end = parse_value(self.data, LIST, place)
            self._is_fixed(place, end)
            self._put_constant(name, self.same[path](found.items))
            return end
        start = place
        size, kind, place = parse_list_head(self.data, place)
        self._is_fixed(start, place)
        items = []
        for _ in range(size):
            if kind == STRUCT:
                place = self.at_struct(place, (*path, _IN_A_LIST), depth + 1)
            else:
                item, place = self._at_value(kind, place, name, is_item=True)
                items.append(item)
        if name is not None:
            self.values[name] = items
            if not items:
                self.constants[name] = []
        return place

    def _at_value(self, kind: int, place: int, name: str | None, *, is_item: bool = False) -> tuple[Any, int]:
        value, end = parse_value(self.data, kind, place)
        is_number = I16 <= kind <= I64
        if is_number or (kind == BINARY and not is_item):
            self.tokens.append(_Value(name, None if is_number else len(value), is_item))
        else:
            self.has_a_form = False
        return value, end

    def _is_fixed(self, start: int, end: int) -> None:
        self.tokens.append(bytes(self.data[start:end]))

    def _put_constant(self, name: str | None, value: Any) -> None:
        if name is not None:
            self.values[name] = self.constants[name] = value


_IN_A_LIST = -1
