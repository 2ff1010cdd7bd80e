"""What a stitched file says about itself is so: dictionaries, sizes, encodings, checksums, statistics, page indexes."""

import io
import itertools
from typing import Any

import numpy
import polars
import pyarrow
import pyarrow.compute
import pyarrow.parquet
import pytest

from compaction_platform.lake.parquet.codecs import SNAPPY
from compaction_platform.lake.parquet.footer import MAGIC, FooterReader, footer_bytes
from compaction_platform.lake.parquet.page_header import header_of, pages_of
from compaction_platform.lake.parquet.stitch.errors import StitchUnsupported
from compaction_platform.lake.parquet.thrift_compact import I64, parse, serialize
from compaction_platform_tests.lake.stitch.material import (
    ROWS,
    TYPES,
    WRITERS,
    by_duckdb,
    by_pyarrow,
    stitched,
    strategies,
    table,
)

pytestmark = pytest.mark.unit

COMPARISONS = (("equal", "eq"), ("less_equal", "le"), ("greater_equal", "ge"))
FLAT = [name for name, (kind, _) in TYPES.items() if not pyarrow.types.is_nested(kind)]


def files_of(writer: str, names: list[str], count: int = 4) -> tuple[list[pyarrow.Table], list[bytes]]:
    tables = [table(number * 2000, ROWS + number * 50, names) for number in range(count)]
    return tables, [WRITERS[writer].write(rows) for rows in tables]


def read(data: bytes, **options: Any) -> pyarrow.Table:
    return pyarrow.parquet.ParquetFile(io.BytesIO(data), **options).read()


# ---------------------------------------------------------------- strategies


def test_the_strategy_is_chosen_by_what_is_there() -> None:
    chance = numpy.random.default_rng(1)

    def rows(number: int) -> pyarrow.Table:
        ids = numpy.arange(2000) + number * 2000
        return pyarrow.table(
            {
                "unique": [f"id-{value}" for value in ids],
                "few": [f"k{value % 9}" for value in ids],
                "nearly": numpy.sort(chance.integers(0, 50_000, 2000)) * 7919,
                "nearly_text": [f"{value}" for value in chance.integers(0, 50_000, 2000)],
                "ratio": chance.random(2000).round(4),
                "truth": ids % 2 == 0,
            }
        )

    tables = [rows(number) for number in range(3)]
    output, choices = stitched([by_pyarrow(compression="zstd")(each) for each in tables])
    assert strategies(choices) == {
        "unique": "identity",
        "few": "dictionary",
        "nearly": "plain",
        "nearly_text": "plain",
        "ratio": "plain",
        "truth": "raw",
    }
    assert all(choice.reason for choice in choices)
    assert read(output).equals(pyarrow.concat_tables(tables))
    group = pyarrow.parquet.read_metadata(io.BytesIO(output)).row_group(0)
    encodings = {group.column(n).path_in_schema: set(group.column(n).encodings) for n in range(group.num_columns)}
    assert encodings["nearly"] == {"RLE", "DELTA_BINARY_PACKED"}, "numbers are smaller as differences"
    assert encodings["few"] == {"RLE", "PLAIN", "RLE_DICTIONARY"}
    assert encodings["ratio"] == {"RLE", "PLAIN"}
    plain = by_pyarrow(compression="zstd", use_dictionary=False)
    assert set(strategies(stitched([plain(each) for each in tables])[1]).values()) == {"raw"}


@pytest.mark.parametrize("writer", ["pyarrow", "zstd", "overflow", "duckdb", "polars", "uncompressed"])
def test_dictionaries_have_every_entry_once(writer: str) -> None:
    names = ["string", "binary", "long_string"]
    tables, files = files_of(writer, names)
    output, choices = stitched(files)
    coded = [choice.column for choice in choices if choice.strategy == "dictionary"]
    assert "string_few" in coded
    found = read(output, read_dictionary=coded)
    expected = pyarrow.concat_tables(tables)
    for name in coded:
        for chunk in found.column(name).chunks:
            entries = chunk.dictionary.to_pylist()
            assert len(entries) == len(set(entries)), name
        assert (
            found.column(name).cast(expected.schema.field(name).type).to_pylist() == expected.column(name).to_pylist()
        )


@pytest.mark.parametrize("writer", ["overflow", "overflow v2", "plain and dictionary"])
def test_no_dictionary_comes_behind_plain_pages(writer: str) -> None:
    """Spark's vectorized reader would look the plain values up in the dictionary."""
    few = pyarrow.table({"s": [f"k{n % 40}" for n in range(1000)], "i": [n % 40 for n in range(1000)]})
    if writer == "plain and dictionary":
        files = [by_pyarrow(use_dictionary=number % 2 == 1)(few) for number in range(4)]
    else:
        version = "2.0" if writer.endswith("v2") else "1.0"
        how = {"dictionary_pagesize_limit": 100, "data_page_size": 100, "write_batch_size": 50}
        files = [by_pyarrow(data_page_version=version, **how)(few)] * 4
    output, choices = stitched(files)
    assert {choice.strategy for choice in choices} == {"anew"}, "this one column is encoded by Arrow"
    assert read(output).equals(pyarrow.concat_tables([few] * 4))
    for chunk in FooterReader().read(output).row_groups[0].chunks:
        uses = [page.uses_dictionary for page in pages_of(memoryview(output), chunk) if page.is_data]
        assert uses == sorted(uses, reverse=True)


@pytest.mark.parametrize("values", [list("aba"), list("abaaaaaa"), list("acca")])
def test_entries_of_a_dictionary_that_no_row_uses_do_not_become_rows(values: list[str]) -> None:
    """Of a type with a fixed set of values, polars writes all of them, and indices as narrow as those in use allow."""
    kinds = polars.Enum([*"acb", *"defgh"][: max(3, len(values))])
    rows = polars.DataFrame(
        {"id": range(600), "kind": polars.Series([*values, *[None] * (600 - len(values))], dtype=kinds)}
    )
    sink = io.BytesIO()
    rows.write_parquet(sink)
    output, choices = stitched([sink.getvalue()] * 3)
    assert strategies(choices)["kind"] == "dictionary"
    assert read(output)["kind"].cast(pyarrow.string()).drop_null().to_pylist() == values * 3


def test_dictionaries_that_have_much_in_common_are_judged_together() -> None:
    """Each file has almost as many entries as values; all of them have the same."""
    rows = pyarrow.table({"s": [f"a rather long text {n % 900}" for n in range(1000)]})
    output, choices = stitched([by_pyarrow(compression="zstd")(rows)] * 20)
    assert [choice.strategy for choice in choices] == ["dictionary"]
    assert read(output).equals(pyarrow.concat_tables([rows] * 20))


# ---------------------------------------------------------------- footers, checksums


@pytest.mark.parametrize("writer", ["pyarrow", "overflow", "many pages v2", "row groups", "duckdb", "polars", "int96"])
def test_sizes_encodings_and_checksums_are_true(writer: str) -> None:
    _, files = files_of(writer, [name for name in TYPES if name not in WRITERS[writer].without])
    output, _ = stitched(files, row_group_bytes=1 << 18)
    metadata = pyarrow.parquet.read_metadata(io.BytesIO(output))
    assert metadata.num_row_groups > 1
    footer = FooterReader().read(output)
    place = 4
    for number, group in enumerate(footer.row_groups):
        told = metadata.row_group(number)
        assert told.total_byte_size == group.uncompressed
        for column, chunk in enumerate(group.chunks):
            pages = list(pages_of(memoryview(output), chunk))
            assert chunk.start == place, "columns lie one behind the other"
            place += chunk.compressed
            known = {0: "PLAIN", 2: "PLAIN_DICTIONARY", 3: "RLE", 5: "DELTA_BINARY_PACKED", 8: "RLE_DICTIONARY"}
            found = {known[page.encoding] for page in pages}
            assert set(told.column(column).encodings) - {"RLE"} == found - {"RLE"}
            assert all(page.has_checksum for page in pages), "also on pages whose writer made none"
            assert told.column(column).has_dictionary_page == (not pages[0].is_data)
    flipped = bytearray(output)
    chunk = footer.row_groups[0].chunks[0]
    flipped[chunk.start + chunk.compressed - 1] ^= 1
    with pytest.raises(OSError, match="(?i)crc|checksum"):
        read(bytes(flipped), page_checksum_verification=True)


def test_a_column_is_compressed_alike_in_all_row_groups() -> None:
    """Some readers take the codec of the first row group for that of all others."""
    tables = [table(number * 2000, ROWS, ["string", "int64"]) for number in range(4)]
    codecs = ["snappy", "none", "zstd", "snappy"]
    files = [by_pyarrow(compression=codec)(rows) for codec, rows in zip(codecs, tables, strict=True)]
    output, _ = stitched(files, row_group_bytes=1)
    groups = FooterReader().read(output).row_groups
    assert len(groups) == 4
    assert {chunk.codec for group in groups for chunk in group.chunks} == {SNAPPY}
    assert read(output).equals(pyarrow.concat_tables(tables))


# ---------------------------------------------------------------- statistics


@pytest.mark.parametrize("writer", ["pyarrow", "overflow", "duckdb", "polars", "page index", "integer decimals"])
def test_bounds_and_nulls_are_those_of_all_rows(writer: str) -> None:
    names = [name for name in FLAT if name not in WRITERS[writer].without]
    tables, files = files_of(writer, names)
    output, _ = stitched(files)
    expected = pyarrow.concat_tables(tables)
    group = pyarrow.parquet.read_metadata(io.BytesIO(output)).row_group(0)
    checked = 0
    for number in range(group.num_columns):
        column = group.column(number)
        values = expected.column(column.path_in_schema)
        statistics = column.statistics
        if statistics is None or not statistics.has_min_max or values.null_count == len(values):
            continue
        if statistics.has_null_count:
            assert statistics.null_count == values.null_count
        kind = values.type
        if pyarrow.types.is_temporal(kind) and not pyarrow.types.is_date(kind):
            continue  # they are given as other Python values; the bounds check and the filters below look at them
        low, high = statistics.min, statistics.max
        least = pyarrow.compute.min_max(values).as_py()
        assert low <= least["min"] and least["max"] <= high, column.path_in_schema
        checked += 1
    assert checked > 20
    if writer == "pyarrow":
        told = {group.column(n).path_in_schema: group.column(n).statistics for n in range(group.num_columns)}
        assert (told["uint64_unique"].min, told["uint64_unique"].max) == (
            pyarrow.compute.min_max(expected.column("uint64_unique")).as_py()["min"],
            pyarrow.compute.min_max(expected.column("uint64_unique")).as_py()["max"],
        )
        assert not told["half_unique"].has_min_max, "half floats have no order that all agree on"


def test_zeros_are_between_their_bounds_whatever_their_sign() -> None:
    files = [by_pyarrow()(pyarrow.table({"x": [0.0] * 600})), by_pyarrow()(pyarrow.table({"x": [-0.0] * 600}))]
    output, _ = stitched(files)
    chunk = FooterReader().read(output).row_groups[0].chunks[0]
    assert (chunk.statistics.low, chunk.statistics.high) == (bytes(7) + b"\x80", bytes(8))


def test_bounds_that_one_file_lacks_are_computed() -> None:
    rows = pyarrow.table({"x": list(range(600)), "y": list(range(600))})
    other = by_pyarrow(write_statistics=["y"])(rows)
    output, _ = stitched([by_pyarrow()(rows), other])
    group = pyarrow.parquet.read_metadata(io.BytesIO(output)).row_group(0)
    told = [group.column(number).statistics for number in range(2)]
    assert [(each.min, each.max, each.null_count) for each in told] == [(0, 599, 0)] * 2


@pytest.mark.parametrize("writer", ["pyarrow", "duckdb", "many pages"])
def test_a_filter_at_every_boundary_finds_the_rows(writer: str) -> None:
    names = ["int32", "uint64", "string", "decimal_18", "date", "moment", "tidy", "double"]
    tables, files = files_of(writer, names, count=3)
    output, _ = stitched(files, row_group_bytes=200_000)
    metadata = pyarrow.parquet.read_metadata(io.BytesIO(output))
    assert metadata.num_row_groups > 1
    rows = pyarrow.concat_tables(tables)
    frame = polars.scan_parquet(io.BytesIO(output))
    for name in (f"{each}_{kind}" for each in names for kind in ("unique", "few", "nulls")):
        values = rows.column(name)
        extremes = [pyarrow.compute.min_max(part.column(name)) for part in tables]
        edges = {str(scalar): scalar for each in extremes for scalar in each.values() if scalar.is_valid}
        for edge, (compare, by_polars) in itertools.product(edges.values(), COMPARISONS):
            test = getattr(pyarrow.compute, compare)
            wanted = pyarrow.compute.sum(test(values, edge)).as_py()
            filters = test(pyarrow.compute.field(name), edge)
            found = pyarrow.parquet.read_table(io.BytesIO(output), columns=[name], filters=filters).num_rows
            assert found == wanted > 0, (name, edge, compare)
            if name.startswith(("int32", "string", "date", "uint64", "tidy")):
                there = getattr(polars.col(name), by_polars)(edge.as_py())
                assert frame.filter(there).select(name).collect().height == wanted, (name, edge, compare, "polars")


# ---------------------------------------------------------------- page indexes


@pytest.mark.parametrize("writer", ["pyarrow", "no dictionaries", "many pages v2", "overflow", "duckdb", "row groups"])
def test_page_indexes_tell_where_rows_are_and_what_they_hold(writer: str) -> None:
    names = ["int32", "string", "long_string", "tidy", "date", "bool", "texts", "struct"]
    tables, files = files_of(writer, names)
    output, _ = stitched(files, row_group_bytes=300_000)
    rows = pyarrow.concat_tables(tables)
    view = memoryview(output)
    first = 0
    indexed = 0
    for group in FooterReader().read(output).row_groups:
        mine = rows.slice(first, group.rows)
        first += group.rows
        for chunk in group.chunks:
            if chunk.offset_index is None:
                assert len(list(pages_of(view, chunk))) > 1 and "list" in chunk.path, "only nested pages may be unknown"
                continue
            offsets, _ = parse(bytes(view[chunk.offset_index[0] : sum(chunk.offset_index)]))
            places = [(each.get_value(1), each.get_value(2), each.get_value(3)) for each in offsets.get_value(1).items]
            data = [page for page in pages_of(view, chunk) if page.is_data]
            assert len(places) == len(data)
            assert places[0][0] == chunk.data_page and sum(places[-1][:2]) == chunk.start + chunk.compressed
            starts = [row for _, _, row in places] + [group.rows]
            assert starts[0] == 0 and starts == sorted(starts)
            if chunk.column_index is None or len(chunk.path) > 1:
                continue
            index, _ = parse(bytes(view[chunk.column_index[0] : sum(chunk.column_index)]))
            indexed += check_index(index, mine.column(chunk.path[0]), starts)
    assert indexed > 20


def check_index(index: Any, values: pyarrow.ChunkedArray, starts: list[int]) -> int:
    """How many pages have bounds, and they hold."""
    null_pages, nulls = index.get_value(1).items, index.get_value(5)
    checked = 0
    for number, (start, end) in enumerate(itertools.pairwise(starts)):
        part = values.slice(start, end - start)
        if nulls is not None:
            assert nulls.items[number] == part.null_count
        assert not null_pages[number] or part.null_count == len(part)
        low, high = index.get_value(2).items[number], index.get_value(3).items[number]
        if part.null_count == len(part):
            continue
        extremes = pyarrow.compute.min_max(part).as_py()
        if pyarrow.types.is_string(values.type):
            assert low <= extremes["min"].encode() and extremes["max"].encode() <= high
            checked += 1
        elif pyarrow.types.is_int32(values.type):
            assert int.from_bytes(low, "little", signed=True) <= extremes["min"]
            assert extremes["max"] <= int.from_bytes(high, "little", signed=True)
            checked += 1
    return checked


# ---------------------------------------------------------------- what differs between files


def test_files_that_differ_in_what_may_be_null_become_one_in_which_it_may() -> None:
    def rows(first: int, nullable: bool) -> pyarrow.Table:
        schema = pyarrow.schema(
            [pyarrow.field("id", pyarrow.int64(), nullable=nullable), pyarrow.field("k", pyarrow.string(), nullable)]
        )
        ids = [None if nullable and n % 5 == 0 else n for n in range(first, first + 600)]
        return pyarrow.table({"id": ids, "k": [f"k{n % 3}" for n in range(600)]}, schema=schema)

    tables = [rows(0, False), rows(600, True), rows(1200, False)]
    for options in ({}, {"use_dictionary": False}, {"data_page_version": "2.0"}, {"compression": "none"}):
        output, _ = stitched([by_pyarrow(store_schema=False, **options)(each) for each in tables])
        found = read(output, page_checksum_verification=True)
        assert found.to_pylist() == [row for each in tables for row in each.to_pylist()]
        assert found.schema.field("id").nullable
    whole, with_null = (pyarrow.table({"a": values}) for values in (list(range(700)), [None, *range(699)]))
    output, _ = stitched([by_duckdb("COMPRESSION zstd")(each) for each in (whole, with_null)])
    assert read(output).column("a").to_pylist() == [*range(700), None, *range(699)]


def test_files_of_several_codecs_become_one() -> None:
    tables = [table(number * 700, 700, ["int64", "string", "texts"]) for number in range(4)]
    for dictionaries in (True, False):
        for version in ("1.0", "2.0"):
            files = [
                by_pyarrow(compression=codec, use_dictionary=dictionaries, data_page_version=version)(rows)
                for codec, rows in zip(("zstd", "snappy", "zstd", "none"), tables, strict=True)
            ]
            output, _ = stitched(files)
            assert read(output, page_checksum_verification=True).equals(pyarrow.concat_tables(tables))


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        (pyarrow.table({"a": pyarrow.array(range(600), pyarrow.int32())}), "schemas differ"),
        (pyarrow.table({"b": range(600)}), "schemas differ"),
        (pyarrow.table({"a": range(600), "b": range(600)}), "schemas differ"),
        (pyarrow.table({"a": [[n] for n in range(600)]}), "schemas differ"),
    ],
)
def test_files_of_other_columns_are_refused(others: pyarrow.Table, reason: str) -> None:
    files = [by_pyarrow()(pyarrow.table({"a": range(600)})), by_pyarrow()(others)]
    with pytest.raises(StitchUnsupported, match=reason):
        stitched(files)


def test_compressed_pages_of_which_an_old_writer_says_that_they_are_not_are_refused() -> None:
    """Arrow knows by the writer's name that they are; in a file of another writer it would believe them."""
    rows = pyarrow.table({"x": numpy.random.default_rng(1).integers(0, 1 << 62, 1000)})
    options: dict[str, Any] = {"use_dictionary": False, "write_statistics": False, "store_schema": False}
    plain = by_pyarrow(compression="none", data_page_version="2.0", **options)(rows)
    footer = FooterReader().read(plain)
    (chunk,) = footer.row_groups[0].chunks
    (page,) = pages_of(memoryview(plain), chunk)
    levels = bytes(page.data[: page.definitions])
    page.data = memoryview(levels + pyarrow.Codec("snappy").compress(page.data[page.definitions :], asbytes=True))
    page.is_compressed = False
    body = header_of(page, checksum=False) + bytes(page.data)
    chunk.codec, chunk.data_page, chunk.compressed = SNAPPY, 4, len(body)
    chunk.uncompressed = len(body) - len(page.data) + page.uncompressed
    chunk.column_index = chunk.offset_index = None
    footer.created_by = b"parquet-cpp version 1.5.1-SNAPSHOT"
    old = MAGIC + body + footer_bytes(footer)
    assert read(old).equals(rows), "Arrow knows"
    for files in ([old, old], [old, plain], [plain, old]):
        with pytest.raises(StitchUnsupported, match="ARROW-10353"):
            stitched(files)


def test_levels_of_repetition_that_mean_nothing_do_not_come_along() -> None:
    """A page of a flat column says that it has some. Readers pass over them."""
    rows = pyarrow.table({"x": [None if number % 11 == 0 else f"v{number % 50}" for number in range(15_000)]})
    options: dict[str, Any] = {"write_statistics": False, "store_schema": False}
    plain = by_pyarrow(compression="zstd", data_page_version="2.0", **options)(rows)
    footer = FooterReader().read(plain)
    (chunk,) = footer.row_groups[0].chunks
    dictionary, page = pages_of(memoryview(plain), chunk)
    page.data, page.repetitions = memoryview(b"\x07\x00\x00" + bytes(page.data)), 3
    page.uncompressed += 3
    pages = [header_of(each) + bytes(each.data) for each in (dictionary, page)]
    chunk.dictionary_page, chunk.data_page, chunk.compressed = 4, 4 + len(pages[0]), sum(map(len, pages))
    chunk.uncompressed = chunk.compressed + sum(each.uncompressed - len(each.data) for each in (dictionary, page))
    chunk.column_index = chunk.offset_index = None
    odd = MAGIC + b"".join(pages) + footer_bytes(footer)
    assert read(odd).equals(rows), "Arrow passes over them"
    output, choices = stitched([odd, plain])
    assert strategies(choices) == {"x": "dictionary"}
    assert read(output).equals(pyarrow.concat_tables([rows, rows]))


def test_a_footer_that_cannot_be_written_again_is_refused_and_nothing_else_happens() -> None:
    rows = pyarrow.table({"x": [f"{number}" for number in range(1000)]})
    sound = by_pyarrow(compression="zstd", store_schema=False)(rows)
    length = int.from_bytes(sound[-8:-4], "little")
    footer, _ = parse(sound[-8 - length : -8])
    footer.set_value(6, I64, 5)  # who has written it
    encoded = serialize(footer)
    odd = sound[: -8 - length] + encoded + len(encoded).to_bytes(4, "little") + MAGIC
    assert read(odd).equals(rows), "Arrow does not mind"
    with pytest.raises(StitchUnsupported):
        stitched([odd, odd])


def test_more_than_can_be_held_in_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pyarrow.table({"a": range(1000), "b": range(1000)})
    monkeypatch.setattr("compaction_platform.lake.parquet.stitch.stitch_plan.MOST_CHUNKS", 5)
    files = [by_pyarrow()(rows)] * 3
    stitched(files[:2])
    with pytest.raises(StitchUnsupported, match="too many columns in too many row groups"):
        stitched(files)


def test_tiny_pages_are_refused() -> None:
    file = by_pyarrow()(pyarrow.table({"a": range(100)}))
    with pytest.raises(StitchUnsupported, match="pages would be too small"):
        stitched([file, file])


def test_row_groups_that_are_large_keep_their_pages_and_their_dictionary() -> None:
    rows = pyarrow.table({"k": [f"k{n % 100}" for n in range(50_000)], "n": range(50_000)})
    file = by_pyarrow(compression="zstd")(rows)
    output, choices = stitched([file, file], row_group_bytes=1)
    assert {choice.reason for choice in choices} == {"a row group of its own"}
    assert read(output).equals(pyarrow.concat_tables([rows, rows]))
    metadata = pyarrow.parquet.read_metadata(io.BytesIO(output))
    assert metadata.num_row_groups == 2 and metadata.row_group(1).column(0).has_dictionary_page


def test_row_groups_and_files_without_rows_leave_no_trace() -> None:
    rows = pyarrow.table({"a": range(600)})
    output, _ = stitched([by_pyarrow()(each) for each in (rows.slice(0, 0), rows, rows.slice(0, 0), rows)])
    assert read(output).equals(pyarrow.concat_tables([rows, rows]))
