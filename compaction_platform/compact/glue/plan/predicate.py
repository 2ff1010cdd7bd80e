"""A filter on partitions as a person writes it: parsed, checked against the table's partition keys, and said anew.

Pure. What goes to Glue is never the text that came in, but what was understood of it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from compaction_platform.errors import CompactionError

TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<number>-?\d+(?:\.\d+)?(?![\w.]))
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<quoted>"[^"]+"|`[^`]+`)
      | (?P<sign><=|>=|<>|!=|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE,
)
COMPARISONS = ("=", "<>", "!=", "<", "<=", ">", ">=")
KEYWORDS = {"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS", "NULL"}
NUMBERS = ("tinyint", "smallint", "int", "integer", "bigint", "long", "decimal")
TEXTS = ("string", "char", "varchar", "date", "timestamp")
EXAMPLE = "Example: year='2023' AND month IN ('05', '06')."
DEEPEST = 50
LONGEST = 2048  # what Glue takes


class PredicateInvalid(CompactionError):
    """The partition predicate cannot be meant like this. Nothing was done."""


@dataclass(frozen=True)
class _Token:
    kind: str
    value: str
    at: int


def checked_predicate(text: str, keys: Mapping[str, str]) -> str:
    """The same filter in Glue's words. `keys` are the partition keys and their types."""
    said = _Parser(text, keys).filter()
    if len(said) > LONGEST:
        raise PredicateInvalid(f"the predicate is longer than the {LONGEST} characters that Glue takes. {EXAMPLE}")
    return said


def checked_grammar(text: str) -> str:
    """This very text, if it is a filter on whatever partition keys: for when the table is not known yet."""
    _Parser(text, None).filter()
    return text


class _Parser:
    def __init__(self, text: str, keys: Mapping[str, str] | None) -> None:
        self.text = text
        self.keys = None if keys is None else {name.lower(): (name, kind.lower()) for name, kind in keys.items()}
        self.tokens = self._tokens()
        self.next = 0
        self.depth = 0

    def filter(self) -> str:
        if not self.tokens:
            raise self._wrong("it is empty")
        said = self._any_of()
        if self.next < len(self.tokens):
            raise self._unexpected("AND, OR or the end")
        return said

    # ------------------------------------------------------------ grammar

    def _any_of(self) -> str:
        parts = [self._all_of()]
        while self._take("OR"):
            parts.append(self._all_of())
        return parts[0] if len(parts) == 1 else f"({' OR '.join(parts)})"

    def _all_of(self) -> str:
        parts = [self._negated()]
        while self._take("AND"):
            parts.append(self._negated())
        return parts[0] if len(parts) == 1 else f"({' AND '.join(parts)})"

    def _negated(self) -> str:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self._wrong("it is nested too deeply")
        try:
            if self._take("NOT"):
                return f"(NOT {self._negated()})"
            if self._take("("):
                inner = self._any_of()
                self._expect(")")
                return inner
            return self._condition()
        finally:
            self.depth -= 1

    def _condition(self) -> str:
        column, kind = self._column()
        if self._take("IS"):
            negation = "NOT " if self._take("NOT") else ""
            self._expect("NULL")
            return f"({column} IS {negation}NULL)"
        negation = "NOT " if self._take("NOT") else ""
        if self._take("IN"):
            self._expect("(")
            values = [self._value(column, kind)]
            while self._take(","):
                values.append(self._value(column, kind))
            self._expect(")")
            return f"({column} {negation}IN ({', '.join(values)}))"
        if self._take("BETWEEN"):
            low = self._value(column, kind)
            self._expect("AND")
            return f"({column} {negation}BETWEEN {low} AND {self._value(column, kind)})"
        if self._take("LIKE"):
            if kind in NUMBERS:
                raise self._wrong(f"LIKE is for text, and {column} is {kind}")
            return f"({column} {negation}LIKE {self._value(column, kind)})"
        sign = self._current()
        if negation or sign is None or sign.value not in COMPARISONS:
            raise self._unexpected("a comparison, IN, BETWEEN, LIKE or IS NULL")
        self.next += 1
        return f"({column} {'<>' if sign.value == '!=' else sign.value} {self._value(column, kind)})"

    def _column(self) -> tuple[str, str]:
        token = self._current()
        if token is None or token.kind not in ("word", "quoted") or token.value.upper() in KEYWORDS:
            raise self._unexpected("a partition key")
        self.next += 1
        name = token.value.strip('"`')
        if (after := self._current()) is not None and after.value == "(":
            raise self._wrong(f"{name}(…) is a function; only partition keys and values may stand here")
        if self.keys is None:
            return name, ""
        if name.lower() not in self.keys:
            there = ", ".join(known for known, _ in self.keys.values())
            raise self._wrong(f"{name} is not a partition key; there are {there}")
        found, kind = self.keys[name.lower()]
        plain = kind.split("(")[0]
        if plain not in (*NUMBERS, *TEXTS):
            raise self._wrong(f"{found} is {kind}, and Glue cannot filter by that")
        return found, plain

    def _value(self, column: str, kind: str) -> str:
        token = self._current()
        if token is None or token.kind not in ("text", "number"):
            raise self._unexpected("a value: text in single quotes, or a number")
        self.next += 1
        if kind in TEXTS and token.kind == "number":
            raise self._wrong(f"{column} is {kind}: write '{token.value}' in quotes, with the zeros it has")
        if kind in NUMBERS and token.kind == "text":
            return self._number(column, kind, token.value[1:-1])
        return token.value

    def _number(self, column: str, kind: str, text: str) -> str:
        """A number in quotes, for a key that is one."""
        try:
            number = Decimal(text)
        except InvalidOperation:
            raise self._wrong(f"{column} is {kind}, and '{text}' is no number") from None
        if not number.is_finite():
            raise self._wrong(f"{column} is {kind}, and '{text}' is no number")
        return format(number, "f")

    # ------------------------------------------------------------ tokens

    def _tokens(self) -> Sequence[_Token]:
        found: list[_Token] = []
        at = 0
        while self.text[at:].strip():
            match = TOKEN.match(self.text, at)
            if match is None:
                rest = self.text[at:].strip()
                raise self._wrong(f"{rest[:20]!r} cannot be part of a filter")
            kind = str(match.lastgroup)
            found.append(_Token(kind, match[kind], match.start(kind)))
            at = match.end()
        return found

    def _current(self) -> _Token | None:
        return self.tokens[self.next] if self.next < len(self.tokens) else None

    def _take(self, word: str) -> bool:
        token = self._current()
        if token is not None and token.kind in ("word", "sign") and token.value.upper() == word:
            self.next += 1
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise self._unexpected(word)

    def _unexpected(self, wanted: str) -> PredicateInvalid:
        token = self._current()
        found = f"{token.value!r} at character {token.at + 1}" if token else "the end"
        return self._wrong(f"{wanted} is wanted, not {found}")

    def _wrong(self, what: str) -> PredicateInvalid:
        return PredicateInvalid(f"partition predicate {self.text!r}: {what}. {EXAMPLE} Nothing was done.")
