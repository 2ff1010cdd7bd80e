"""The rules of a merge in plain Python, written from the documentation and not from the code."""

from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]


@dataclass
class Model:
    """A table as the rules say it must be. Rows also hold `_staged_file` and `_staged_row`."""

    key: tuple[str, ...] = ("event_id",)
    order_by: tuple[str, ...] = ("updated_at",)
    keep_when_null: tuple[str, ...] = ("country",)
    columns: tuple[str, ...] = ("event_id", "event_time", "updated_at", "amount", "country")
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)

    def merge(self, files: dict[str, list[Row]]) -> None:
        batch: dict[tuple[Any, ...], list[Row]] = {}
        for name, rows in files.items():
            for position, row in enumerate(rows):
                whole = {column: row.get(column) for column in self.columns}
                key = tuple(whole[column] for column in self.key)
                if None not in key:
                    batch.setdefault(key, []).append({**whole, "_staged_file": name, "_staged_row": position})
        for key, candidates in batch.items():
            candidates.sort(key=self.order, reverse=True)
            newest = dict(candidates[0])
            for column in self.keep_when_null:
                newest[column] = next((row[column] for row in candidates if row[column] is not None), None)
            self.merge_row(key, newest)

    def merge_row(self, key: tuple[Any, ...], new: Row) -> None:
        old = self.rows.get(key)
        if old is None:
            self.rows[key] = new
        elif self.order(new)[:-1] >= self.order(old)[:-1] and not self.same(old, new):  # files have order, not rows
            kept = {column: old[column] for column in self.keep_when_null if new[column] is None}
            self.rows[key] = {**new, **kept}
        else:
            for column in self.keep_when_null:
                if old[column] is None:
                    old[column] = new[column]

    def same(self, old: Row, new: Row) -> bool:
        kept = [column for column in self.keep_when_null if new[column] is None]
        return all(old[column] == new[column] for column in self.columns if column not in kept)

    def order(self, row: Row) -> tuple[Any, ...]:
        values = [row[column] for column in (*self.order_by, "_staged_file", "_staged_row")]
        return tuple((value is not None, value) for value in values)

    def content(self) -> list[Row]:
        return sorted(self.rows.values(), key=lambda row: tuple(str(row[column]) for column in self.key))
