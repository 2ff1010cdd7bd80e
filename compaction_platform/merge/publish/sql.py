"""The SQL of a merge, as text. Names are quoted and were checked when they were declared; values are bound.

`s` is the staged row, `t` the table's. A row is newer by `order_by`, then by the file it came from (and inside a
batch by its position there); NULL is older than any value.
"""

from collections.abc import Sequence

import pyarrow

from compaction_platform.lake.storage.identifiers import quoted
from compaction_platform.lake.verification.canonical_form import is_list
from compaction_platform.merge.config import ORIGIN, MergeRules
from compaction_platform.merge.plan.partition_bounds import Bounds, bounding


def newest_of_each_key(rules: MergeRules, columns: pyarrow.Schema, rows: str) -> str:
    """The batch with one row for each key. A column that keeps its value when NULL comes takes the newest value
    there is."""
    keys = ", ".join(map(quoted, rules.key))
    order = ", ".join(f"{quoted(name)} DESC NULLS LAST" for name in rules.order)
    window = f"PARTITION BY {keys} ORDER BY {order}"
    whole = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
    kept = [
        f"first_value({quoted(name)}, true) OVER ({window} {whole}) AS {quoted(name)}" for name in rules.keep_when_null
    ]
    others = [quoted(column.name) for column in columns if column.name not in rules.keep_when_null]
    chosen = ", ".join([*others, *map(quoted, ORIGIN), *kept])
    wanted = ", ".join(quoted(name) for name in (*columns.names, *ORIGIN))
    return (
        f"SELECT {wanted} FROM (SELECT {chosen}, row_number() OVER ({window}) AS `_rank` FROM {rows}) WHERE `_rank` = 1"
    )


def merge(rules: MergeRules, columns: pyarrow.Schema, *, into: str, staged: str, bounds: Bounds) -> str:
    names = (*columns.names, *ORIGIN)
    fills = " OR ".join(f"(t.{quoted(name)} IS NULL AND s.{quoted(name)} IS NOT NULL)" for name in rules.keep_when_null)
    newer_values = ", ".join(f"{quoted(name)} = {_newer_value(rules, name)}" for name in names)
    filled = ", ".join(f"{c} = coalesce(t.{c}, s.{c})" for c in map(quoted, rules.keep_when_null))
    fill = f"WHEN MATCHED AND ({fills}) THEN UPDATE SET {filled} " if fills else ""
    listed = ", ".join(map(quoted, names))
    values = ", ".join(f"s.{quoted(name)}" for name in names)
    return (
        f"MERGE INTO {into} t USING {staged} s ON {same_key(rules)} AND ({bounds.on('t')}) "
        f"WHEN MATCHED AND {is_update(rules, columns)} THEN UPDATE SET {newer_values} "
        f"{fill}"
        f"WHEN NOT MATCHED THEN INSERT ({listed}) VALUES ({values})"
    )


def audit(rules: MergeRules, columns: pyarrow.Schema, *, result: str, staged: str, bounds: Bounds) -> str:
    """One row of counts about the partitions that were touched."""
    keys = ", ".join(f"t.{quoted(name)}" for name in rules.key)
    per_key = (
        f"SELECT {keys}, count(*) AS `_n`, count(s.{quoted(rules.key[0])}) AS `_staged`, "
        f"count_if(s.{quoted(rules.key[0])} IS NOT NULL AND NOT {is_right(rules, columns)}) AS `_wrong` "
        f"FROM {result} t LEFT JOIN {staged} s ON {same_key(rules)} WHERE {bounds.on('t')} GROUP BY {keys}"
    )
    return (
        "SELECT coalesce(sum(`_n`), 0) AS rows_after, count_if(`_n` > 1) AS doubled_keys, "
        "count_if(`_staged` > 0) AS staged_keys_found, coalesce(sum(`_wrong`), 0) AS wrong_rows, "
        f"(SELECT count(*) FROM {staged}) AS staged_keys FROM ({per_key})"
    )


def count_rows(table: str, bounds: Bounds) -> str:
    return f"SELECT count(*) AS n FROM {table} t WHERE {bounds.on('t')}"


def missing_or_wrong(
    rules: MergeRules, columns: pyarrow.Schema, *, result: str, staged: str, bounds: Bounds, limit: int
) -> str:
    """Staged keys that are not in the table with their content or a newer one."""
    keys = ", ".join(f"s.{quoted(name)}" for name in rules.key)
    first = f"t.{quoted(rules.key[0])}"
    return (
        f"SELECT {keys}, s.{quoted(ORIGIN[0])} AS file, {first} IS NULL AS missing FROM {staged} s "
        f"LEFT JOIN (SELECT * FROM {result} t WHERE {bounds.on('t')}) t ON {same_key(rules)} "
        f"WHERE {first} IS NULL OR NOT {is_right(rules, columns)} LIMIT {limit}"
    )


def doubled_keys(rules: MergeRules, *, result: str, bounds: Bounds, limit: int) -> str:
    keys = ", ".join(f"t.{quoted(name)}" for name in rules.key)
    return (
        f"SELECT {keys}, count(*) AS copies FROM {result} t WHERE {bounds.on('t')} "
        f"GROUP BY {keys} HAVING count(*) > 1 LIMIT {limit}"
    )


def effect(
    rules: MergeRules, columns: pyarrow.Schema, *, result: str, staged: str, bounds: Bounds, to_add: Sequence[str] = ()
) -> str:
    """How many rows a merge would insert and update. `to_add`: columns that the table does not have yet."""
    first = f"t.{quoted(rules.key[0])}"
    fills = [f"(t.{quoted(name)} IS NULL AND s.{quoted(name)} IS NOT NULL)" for name in rules.keep_when_null]
    news = [f"(s.{quoted(name)} IS NOT NULL AND {_is_newer(rules)})" for name in to_add]
    known = pyarrow.schema([column for column in columns if column.name not in to_add])
    changes = " OR ".join([is_update(rules, known), *fills, *news])
    return (
        f"SELECT count_if({first} IS NULL) AS inserted, "
        f"count_if({first} IS NOT NULL AND ({changes})) AS updated FROM {staged} s "
        f"LEFT JOIN (SELECT * FROM {result} t WHERE {bounds.on('t')}) t ON {same_key(rules)}"
    )


def same_key(rules: MergeRules) -> str:
    return " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in rules.key)


def is_update(rules: MergeRules, columns: pyarrow.Schema) -> str:
    return f"({_is_newer(rules)} AND NOT {_same_content(rules, columns)})"


def is_right(rules: MergeRules, columns: pyarrow.Schema) -> str:
    """The table's row is newer than the staged one, or says the same."""
    return f"({_order(rules, 't')} > {_order(rules, 's')} OR {_same_content(rules, columns)})"


def _is_newer(rules: MergeRules) -> str:
    return f"({_order(rules, 's')} >= {_order(rules, 't')})"


def _order(rules: MergeRules, alias: str) -> str:
    return f"struct({', '.join(f'{alias}.{quoted(name)}' for name in rules.order_across_batches)})"


def _newer_value(rules: MergeRules, name: str) -> str:
    column = quoted(name)
    return f"coalesce(s.{column}, t.{column})" if name in rules.keep_when_null else f"s.{column}"


def _same_content(rules: MergeRules, columns: pyarrow.Schema) -> str:
    """Equal in every column, but for a NULL in one that keeps its value. Where a row came from is not content."""
    parts = []
    for column in columns:
        if column.name in rules.key:
            continue
        name = quoted(column.name)
        same = f"{_comparable(f't.{name}', column.type)} <=> {_comparable(f's.{name}', column.type)}"
        parts.append(f"(s.{name} IS NULL OR {same})" if column.name in rules.keep_when_null else f"({same})")
    return f"({' AND '.join(parts) or 'true'})"


def _comparable(value: str, kind: pyarrow.DataType, depth: int = 0) -> str:
    """The value in a form Spark can compare: it refuses maps, also inside other types."""
    if not _has_map(kind):
        return value
    element = f"e{depth}"
    if pyarrow.types.is_map(kind):
        entry = f"struct({element}.key, {_comparable(f'{element}.value', kind.item_type, depth + 1)})"
        return f"array_sort(transform(map_entries({value}), {element} -> {entry}))"
    if is_list(kind):
        return f"transform({value}, {element} -> {_comparable(element, kind.value_type, depth + 1)})"
    fields = ", ".join(_comparable(f"{value}.{quoted(field.name)}", field.type, depth + 1) for field in kind)
    return f"if({value} IS NULL, NULL, struct({fields}))"


def _has_map(kind: pyarrow.DataType) -> bool:
    if pyarrow.types.is_map(kind):
        return True
    if is_list(kind):
        return _has_map(kind.value_type)
    return bool(pyarrow.types.is_struct(kind)) and any(_has_map(field.type) for field in kind)


# ---------------------------------------------------------------- partitions


def partitions_of(rules: MergeRules, rows: str, where: str = "") -> str:
    """The distinct partitions of these rows, as far as they can bound a merge, each with its number of rows.

    A time is given as the first microsecond of its partition and the first of the next: there are moments in
    data that Python's calendar does not have.
    """
    selected: list[str] = []
    for field in bounding(rules):
        column = f"t.{quoted(field.column)}"
        if field.time_unit:
            start = f"date_trunc('{field.time_unit}', CAST({column} AS timestamp))"
            selected += [f"unix_micros({start})", f"unix_micros({start} + INTERVAL 1 {field.time_unit})"]
        else:
            selected.append(column)
    named = [f"{expression} AS c{number}" for number, expression in enumerate(selected)]
    grouped = f" GROUP BY {', '.join(selected)}" if selected else ""
    return f"SELECT {', '.join([*named, 'count(*) AS n'])} FROM {rows} t {where}{grouped}"
