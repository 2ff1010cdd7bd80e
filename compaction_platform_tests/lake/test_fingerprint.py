"""Fingerprints against an independent model: plain Python values."""

import itertools
import math
import random
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from compaction_platform.lake.verification.canonical_form import TypeHasNoFingerprint
from compaction_platform.lake.verification.fingerprint import (
    OrderedFingerprint,
    combined,
    ordered_fingerprint,
    unordered_fingerprint,
)

pytestmark = pytest.mark.unit

INT, TEXT = pyarrow.int64(), pyarrow.string()
INTS = pyarrow.list_(INT)
STRUCT = pyarrow.struct([("a", INT)])
BERLIN = pyarrow.timestamp("us", "Europe/Berlin")

NAN_WITH_PAYLOAD = memoryview(bytes.fromhex("010000000000f87f")).cast("d")[0]

SCALARS: dict[str, tuple[pyarrow.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pyarrow.bool_(), st.booleans()),
    "int8": (pyarrow.int8(), st.integers(-128, 127)),
    "int64": (pyarrow.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint64": (pyarrow.uint64(), st.integers(0, 2**64 - 1)),
    "float": (pyarrow.float32(), st.floats(width=32)),
    "double": (pyarrow.float64(), st.floats() | st.sampled_from([0.0, -0.0, math.nan, NAN_WITH_PAYLOAD])),
    "string": (pyarrow.string(), st.text(max_size=20)),
    "binary": (pyarrow.binary(), st.binary(max_size=20)),
    "fixed": (pyarrow.binary(3), st.binary(min_size=3, max_size=3)),
    "decimal": (pyarrow.decimal128(38, 2), st.decimals(-(10**30), 10**30, places=2)),
    "wide decimal": (pyarrow.decimal256(50, 3), st.decimals(-(10**40), 10**40, places=3)),
    "date": (pyarrow.date32(), st.dates()),
    "time": (pyarrow.time64("us"), st.times()),
    "instant": (pyarrow.timestamp("us", "UTC"), st.integers(-(2**50), 2**50)),
    "local time": (pyarrow.timestamp("ns"), st.integers(-(2**60), 2**60)),
    "duration": (pyarrow.duration("ms"), st.integers(-(2**40), 2**40)),
    "null": (pyarrow.null(), st.none()),
}


def nested(name: str) -> tuple[pyarrow.DataType, st.SearchStrategy[Any]]:
    kind, values = SCALARS[name]
    item = values | st.none()
    return {
        "int64": (pyarrow.list_(kind), st.lists(item, max_size=4)),
        "string": (
            pyarrow.map_(pyarrow.string(), kind),
            st.dictionaries(st.text(max_size=4), item, max_size=3).map(lambda d: list(d.items())),
        ),
        "double": (
            pyarrow.struct([("a", kind), ("b", pyarrow.list_(kind))]),
            st.fixed_dictionaries({"a": item, "b": st.none() | st.lists(item, max_size=3)}),
        ),
        "bool": (pyarrow.list_(kind, 2), st.lists(item, min_size=2, max_size=2)),
        "decimal": (
            pyarrow.list_(pyarrow.struct([("d", kind)])),
            st.lists(st.none() | st.fixed_dictionaries({"d": item}), max_size=3),
        ),
    }[name]


KINDS = [*SCALARS.values(), *(nested(name) for name in ("int64", "string", "double", "bool", "decimal"))]


@st.composite
def tables(draw: st.DrawFn, min_rows: int = 0) -> pyarrow.Table:
    rows = draw(st.integers(min_rows, 12))
    chosen = draw(st.lists(st.integers(0, len(KINDS) - 1), min_size=1, max_size=4))
    columns = {}
    for place, number in enumerate(chosen):
        kind, values = KINDS[number]
        nullable = values | st.none()
        columns[f"c{place}"] = pyarrow.array(draw(st.lists(nullable, min_size=rows, max_size=rows)), kind)
    return pyarrow.table(columns)


def cut(table: pyarrow.Table, draw: Any) -> list[pyarrow.RecordBatch]:
    """The same rows in random batches, some of them empty, all of them slices of something larger."""
    cuts = sorted(draw(st.lists(st.integers(0, table.num_rows), max_size=5)))
    edges = [0, *cuts, table.num_rows]
    padded = pyarrow.concat_tables([table.slice(0, 1), table, table.slice(0, 1)]).combine_chunks()
    lead = min(1, table.num_rows)
    batches: list[pyarrow.RecordBatch] = []
    for start, end in itertools.pairwise(edges):
        batches += padded.slice(lead + start, end - start).to_batches()
    return batches


def model(value: Any) -> Any:
    """A value as something Python compares the way the fingerprint promises to."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, dict):
        return ("struct", tuple((name, model(part)) for name, part in value.items()))
    if isinstance(value, (list, tuple)):
        return ("list", tuple(model(part) for part in value))
    return (type(value).__name__, value)


def rows_of(table: pyarrow.Table) -> list[Any]:
    columns = [
        [None if scalar is None else model(scalar) for scalar in _python_values(column)] for column in table.columns
    ]
    return list(zip(*columns, strict=True))


def _python_values(column: pyarrow.ChunkedArray) -> list[Any]:
    if pyarrow.types.is_timestamp(column.type) or pyarrow.types.is_duration(column.type):
        return column.cast(pyarrow.int64()).to_pylist()
    return column.to_pylist()


@given(tables(), st.data())
@settings(max_examples=100)
def test_rows_cut_any_way_have_one_in_order_fingerprint(table: pyarrow.Table, data: st.DataObject) -> None:
    assert ordered_fingerprint(cut(table, data.draw), table.schema) == ordered_fingerprint(table)


@given(tables(), st.data())
@settings(max_examples=60)
def test_rows_in_any_order_have_one_any_order_fingerprint(table: pyarrow.Table, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(table.num_rows)))
    # Rebuilt from Python values: a shuffle by another way than the code under test uses.
    shuffled = pyarrow.table(
        {
            name: pyarrow.concat_arrays([table[name].combine_chunks().slice(row, 1) for row in order])
            if order
            else table[name]
            for name in table.column_names
        },
        schema=table.schema,
    )
    assert unordered_fingerprint(cut(shuffled, data.draw), table.schema) == unordered_fingerprint(table)


@given(tables(min_rows=1), st.data())
@settings(max_examples=150)
def test_one_changed_value_gives_another_fingerprint(table: pyarrow.Table, data: st.DataObject) -> None:
    column = data.draw(st.integers(0, table.num_columns - 1))
    row = data.draw(st.integers(0, table.num_rows - 1))
    kind = table.schema.field(column).type
    replacement = data.draw(next(values for known, values in KINDS if known == kind) | st.none())
    piece = pyarrow.array([replacement], kind)
    name = table.column_names[column]
    before = table[name].combine_chunks()
    changed_column = pyarrow.concat_arrays([before.slice(0, row), piece, before.slice(row + 1)])
    changed = table.set_column(column, name, changed_column)
    same = rows_of(changed) == rows_of(table)
    assert (ordered_fingerprint(changed) == ordered_fingerprint(table)) is same
    assert (unordered_fingerprint(changed) == unordered_fingerprint(table)) is same


@given(tables(min_rows=1), st.data())
@settings(max_examples=40)
def test_a_dropped_or_doubled_row_gives_another_fingerprint(table: pyarrow.Table, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, table.num_rows - 1))
    dropped = pyarrow.concat_tables([table.slice(0, row), table.slice(row + 1)])
    doubled = pyarrow.concat_tables([table.slice(0, row + 1), table.slice(row)])
    for fingerprint in (ordered_fingerprint, unordered_fingerprint):
        assert fingerprint(dropped) != fingerprint(table)
        assert fingerprint(doubled) != fingerprint(table)


@given(tables(min_rows=2), st.data())
@settings(max_examples=40)
def test_swapped_rows_show_in_order_but_not_in_any_order(table: pyarrow.Table, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, table.num_rows - 2))
    second = data.draw(st.integers(first + 1, table.num_rows - 1))
    rows = rows_of(table)
    assume(rows[first] != rows[second])
    swapped = pyarrow.concat_tables(
        [
            table.slice(0, first),
            table.slice(second, 1),
            table.slice(first + 1, second - first - 1),
            table.slice(first, 1),
            table.slice(second + 1),
        ]
    )
    assert ordered_fingerprint(swapped) != ordered_fingerprint(table)
    assert unordered_fingerprint(swapped) == unordered_fingerprint(table)


def test_values_swapped_between_columns_show() -> None:
    one = pyarrow.table({"a": [1, 2], "b": [3, 4]})
    other = pyarrow.table({"a": [3, 4], "b": [1, 2]})
    assert ordered_fingerprint(one) != ordered_fingerprint(other)
    assert unordered_fingerprint(one) != unordered_fingerprint(other)


def test_values_moved_between_rows_show_in_any_order() -> None:
    """Columns that are each a permutation of themselves are not the same rows."""
    one = pyarrow.table({"a": [1, 2], "b": [3, 4]})
    other = pyarrow.table({"a": [1, 2], "b": [4, 3]})
    assert unordered_fingerprint(one) != unordered_fingerprint(other)


def test_the_same_pair_of_duplicates_does_not_cancel() -> None:
    base = pyarrow.table({"a": [1, 2, 3]})
    twice = pyarrow.table({"a": [1, 2, 3, 7, 7]})
    other = pyarrow.table({"a": [1, 2, 3, 8, 8]})
    assert len({unordered_fingerprint(table) for table in (base, twice, other)}) == 3


def test_how_values_are_held_does_not_matter() -> None:
    text = pyarrow.array(["a", None, "", "a", "länger als ein Wort"])
    lists = pyarrow.array([[1, None], None, [], [2], [3]])
    decimals = pyarrow.array([1, None, 2, 3, -4], pyarrow.int64()).cast(pyarrow.decimal128(21, 2))
    plain = pyarrow.table({"t": text, "l": lists, "d": decimals, "i": pyarrow.array([1, 1, 1, 2, 2])})
    held = pyarrow.table(
        {
            # another order of columns, too
            "i": pyarrow.compute.run_end_encode(plain["i"]),
            "d": decimals.cast(pyarrow.decimal256(21, 2)),
            "l": lists.cast(pyarrow.large_list(pyarrow.int64())),
            "t": text.dictionary_encode(),
        }
    )
    views = held.set_column(3, "t", text.cast(pyarrow.string_view())).set_column(
        2, "l", pyarrow.array(lists.to_pylist(), pyarrow.list_view(pyarrow.int64()))
    )
    for fingerprint in (ordered_fingerprint, unordered_fingerprint):
        assert fingerprint(plain) == fingerprint(held) == fingerprint(views)


VIEWS = pyarrow.array(["a", None, "a longer text than fits a view"], pyarrow.string_view())
RUNS = pyarrow.RunEndEncodedArray.from_arrays([2, 3], pyarrow.array(["a", None]))
WORDS = pyarrow.array(["a", "b", "a"]).dictionary_encode()
ROW_MASK = pyarrow.array([False, True, False])


@pytest.mark.parametrize("held", [VIEWS, RUNS, WORDS], ids=["views", "runs", "dictionary"])
def test_how_values_are_held_does_not_matter_inside_nested_types_under_nulls(held: pyarrow.Array) -> None:
    plain = pyarrow.array(held.to_pylist(), pyarrow.string())

    def nestings(values: pyarrow.Array) -> dict[str, pyarrow.Array]:
        offsets = pyarrow.array([0, 1, 2, 3], pyarrow.int32())
        keys = pyarrow.array(["x", "y", "z"])
        return {
            "struct": pyarrow.StructArray.from_arrays([values], ["v"], mask=ROW_MASK),
            "list": pyarrow.ListArray.from_arrays(offsets, values, mask=ROW_MASK),
            "map": pyarrow.MapArray.from_arrays(offsets, keys, values, mask=ROW_MASK),
        }

    for fingerprint in (ordered_fingerprint, unordered_fingerprint):
        for (name, one), other in zip(nestings(held).items(), nestings(plain).values(), strict=True):
            assert one.to_pylist() == other.to_pylist()
            assert fingerprint(pyarrow.table({"c": one})) == fingerprint(pyarrow.table({"c": other})), name
            for start in range(3):  # slices of it, too
                cut = fingerprint(pyarrow.table({"c": one.slice(start, 1)}))
                assert cut == fingerprint(pyarrow.table({"c": pyarrow.array([other[start].as_py()], other.type)})), name


def test_encodings_of_encodings_are_taken_apart() -> None:
    plain = pyarrow.table({"c": ["a", "a", "b"]})
    views = pyarrow.DictionaryArray.from_arrays([0, 0, 1], pyarrow.array(["a", "b"], pyarrow.string_view()))
    runs = pyarrow.RunEndEncodedArray.from_arrays([2, 3], pyarrow.array(["a", "b"]).dictionary_encode())
    for fingerprint in (ordered_fingerprint, unordered_fingerprint):
        for held in (views, runs):
            assert fingerprint(pyarrow.table({"c": held})) == fingerprint(plain)


@pytest.mark.parametrize("kind", [pyarrow.binary(0), pyarrow.month_day_nano_interval(), pyarrow.float16()])
def test_rare_types_have_a_fingerprint(kind: pyarrow.DataType) -> None:
    value = {"fixed_size_binary[0]": b"", "halffloat": 1.5}.get(str(kind), pyarrow.MonthDayNano([1, 2, 3]))
    one = pyarrow.table({"c": pyarrow.array([value, None, value], kind)})
    other = pyarrow.table({"c": pyarrow.array([value, value, None], kind)})
    for fingerprint in (ordered_fingerprint, unordered_fingerprint):
        assert fingerprint(one) == fingerprint(one)
    assert ordered_fingerprint(one) != ordered_fingerprint(other)
    assert unordered_fingerprint(one) == unordered_fingerprint(other)


@pytest.mark.parametrize("length", [255, 256, 257, 100_000])
def test_long_values_differ_in_one_byte(length: int) -> None:
    value = b"x" * length
    for place in (0, length // 2, length - 1):
        changed = value[:place] + b"y" + value[place + 1 :]
        for fingerprint in (ordered_fingerprint, unordered_fingerprint):
            assert fingerprint(pyarrow.table({"c": [value]})) != fingerprint(pyarrow.table({"c": [changed]}))


def test_the_order_inside_a_list_counts_in_both_kinds() -> None:
    for one, other in (([1, 2, 3], [3, 2, 1]), ([1, 1, 2], [1, 2, 2]), ([None, 1], [1, None])):
        for fingerprint in (ordered_fingerprint, unordered_fingerprint):
            assert fingerprint(pyarrow.table({"c": [one]})) != fingerprint(pyarrow.table({"c": [other]}))


def test_a_column_that_is_not_in_the_schema_is_refused() -> None:
    schema = pyarrow.schema([("a", INT)])
    for fingerprint in (ordered_fingerprint, unordered_fingerprint):
        with pytest.raises(ValueError, match="do not fit"):
            fingerprint([pyarrow.record_batch({"a": [1], "b": [2]})], schema)


def test_bytes_under_nulls_do_not_count() -> None:
    clean = pyarrow.array([1, None, 3])
    dirty = pyarrow.Array.from_buffers(pyarrow.int64(), 3, [clean.buffers()[0], pyarrow.array([1, 99, 3]).buffers()[1]])
    text_clean = pyarrow.array(["a", None, "c"])
    text_dirty = pyarrow.Array.from_buffers(
        pyarrow.string(), 3, [text_clean.buffers()[0], *pyarrow.array(["a", "ghost", "c"]).buffers()[1:]]
    )
    struct_clean = pyarrow.StructArray.from_arrays([clean], ["x"], mask=pyarrow.array([False, False, True]))
    struct_dirty = pyarrow.StructArray.from_arrays([dirty], ["x"], mask=pyarrow.array([False, False, True]))
    one = pyarrow.table({"i": clean, "t": text_clean, "s": struct_clean})
    other = pyarrow.table({"i": dirty, "t": text_dirty, "s": struct_dirty})
    for fingerprint in (ordered_fingerprint, unordered_fingerprint):
        assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pyarrow.array([0.0]), pyarrow.array([-0.0])),
        (pyarrow.array([None], INT), pyarrow.array([0], INT)),
        (pyarrow.array([""]), pyarrow.array([None], TEXT)),
        (pyarrow.array([[]], INTS), pyarrow.array([None], INTS)),
        (pyarrow.array([{"a": None}], STRUCT), pyarrow.array([None], STRUCT)),
        (pyarrow.array(["ab", "c"]), pyarrow.array(["a", "bc"])),
        (pyarrow.array([[1], [2, 3]]), pyarrow.array([[1, 2], [3]])),
        (pyarrow.array([1], pyarrow.int32()), pyarrow.array([1], pyarrow.int64())),
        (pyarrow.array(["1"]), pyarrow.array([b"1"])),
        (pyarrow.array([1], pyarrow.timestamp("us")), pyarrow.array([1], pyarrow.timestamp("us", "UTC"))),
        (pyarrow.array([1], pyarrow.timestamp("us")), pyarrow.array([1], pyarrow.timestamp("ms"))),
    ],
)  # fmt: skip
def test_what_is_different_stays_different(one: pyarrow.Array, other: pyarrow.Array) -> None:
    for fingerprint in (ordered_fingerprint, unordered_fingerprint):
        assert fingerprint(pyarrow.table({"c": one})) != fingerprint(pyarrow.table({"c": other}))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pyarrow.array([math.nan]), pyarrow.array([NAN_WITH_PAYLOAD])),
        (pyarrow.array([1], pyarrow.timestamp("us", "UTC")), pyarrow.array([1], BERLIN)),
        (pyarrow.array([[1, 2]], pyarrow.list_(INT, 2)), pyarrow.array([[1, 2]], INTS)),
    ],
)  # fmt: skip
def test_what_is_equal_is_equal(one: pyarrow.Array, other: pyarrow.Array) -> None:
    for fingerprint in (ordered_fingerprint, unordered_fingerprint):
        assert fingerprint(pyarrow.table({"c": one})) == fingerprint(pyarrow.table({"c": other}))


def test_parquet_keeps_the_fingerprint_whatever_the_row_groups(tmp_path: Any) -> None:
    numbers = random.Random(3)
    rows = 2_000
    table = pyarrow.table(
        {
            "id": [f"{numbers.getrandbits(64):016x}" for _ in range(rows)],
            "value": pyarrow.array(numbers.choices([None, 1.5, -0.0, math.nan], k=rows), pyarrow.float64()),
            "tags": pyarrow.array(numbers.choices([None, [], ["a", None]], k=rows), pyarrow.list_(TEXT)),
            "at": pyarrow.array(range(rows), pyarrow.timestamp("us", "UTC")),
        }
    )  # fmt: skip
    digests = set()
    for size in (17, 500, 5_000):
        path = tmp_path / f"{size}.parquet"
        pyarrow.parquet.write_table(table, path, row_group_size=size)
        file = pyarrow.parquet.ParquetFile(path, read_dictionary=["id"] if size == 500 else [])
        digests.add(ordered_fingerprint(file.iter_batches(batch_size=333), file.schema_arrow))
    assert digests == {ordered_fingerprint(table)}


def test_fingerprints_of_parts_add_up() -> None:
    table = pyarrow.table({"a": list(range(100)), "b": [str(number % 7) for number in range(100)]})
    parts = [unordered_fingerprint(table.slice(start, 30)) for start in range(0, 100, 30)]
    assert combined(parts) == unordered_fingerprint(table)
    for apart in ([ordered_fingerprint(table)], [], [parts[0], unordered_fingerprint(pyarrow.table({"z": [1]}))]):
        with pytest.raises(ValueError, match="can be combined"):
            combined(apart)


def test_an_empty_stream_has_the_fingerprint_of_an_empty_table() -> None:
    schema = pyarrow.schema([("a", pyarrow.int64())])
    assert ordered_fingerprint([], schema) == ordered_fingerprint(schema.empty_table())
    assert ordered_fingerprint([], schema).rows == 0


def test_differences_are_named() -> None:
    one = ordered_fingerprint(pyarrow.table({"a": [1], "b": [1], "c": [1]}))
    other = ordered_fingerprint(pyarrow.table({"a": [1], "b": [2], "d": [1]}))
    assert one.differences(other) == [
        "column c is only on one side",
        "column d is only on one side",
        "column b differs",
    ]
    assert one.differences(one) == []


def test_a_type_without_meaning_is_refused_by_name() -> None:
    union = pyarrow.UnionArray.from_sparse(pyarrow.array([0], pyarrow.int8()), [pyarrow.array([1])])
    with pytest.raises(TypeHasNoFingerprint, match="union"):
        ordered_fingerprint(pyarrow.table({"u": union}))


def test_columns_of_one_name_are_refused() -> None:
    table = pyarrow.Table.from_arrays([pyarrow.array([1]), pyarrow.array([2])], ["a", "a"])
    for fingerprint in (ordered_fingerprint, unordered_fingerprint):
        with pytest.raises(TypeHasNoFingerprint, match="same name"):
            fingerprint(table)


def test_a_batch_of_another_type_is_refused() -> None:
    digest = OrderedFingerprint(pyarrow.schema([("a", pyarrow.int32())]))
    with pytest.raises(ValueError, match="column a is int64"):
        digest.update(pyarrow.record_batch({"a": pyarrow.array([1], pyarrow.int64())}))
