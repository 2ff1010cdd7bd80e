"""Footers that one reader reads one after the other, damaged and crafted ones too, are read as if each were alone."""

import io
import random
from typing import Any

import duckdb
import pyarrow
import pyarrow.parquet
import pytest

from compaction_platform.lake.parquet.footer import MAGIC, Footer, FooterReader
from compaction_platform.lake.parquet.thrift_compact import (
    BINARY,
    I32,
    I64,
    LIST,
    ListOf,
    ThriftInvalid,
    parse,
    serialize,
)

pytestmark = pytest.mark.unit


def by_pyarrow(rows: pyarrow.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(rows, sink, **options)
    return sink.getvalue()


def by_duckdb(rows: pyarrow.Table, place: Any) -> bytes:
    with duckdb.connect() as connection:
        connection.register("given", rows)
        connection.execute(f"COPY given TO '{place}' (FORMAT parquet)")
    return bytes(place.read_bytes())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    rows = pyarrow.table(
        {"id": range(50), "text": [f"value {n % 7}" for n in range(50)], "list": [[n] for n in range(50)]}
    )
    place = tmp_path_factory.mktemp("duckdb") / "one.parquet"
    return [
        by_pyarrow(rows),
        by_pyarrow(rows, use_dictionary=False, compression="zstd", row_group_size=20),
        by_pyarrow(rows, write_page_index=True, write_statistics=False),
        by_duckdb(rows, place),
    ]


def found(reader: FooterReader, data: bytes) -> Footer | None:
    try:
        return reader.read(data)
    except ThriftInvalid:
        return None


def with_footer(data: bytes, footer: bytes) -> bytes:
    return data[: -8 - len(footer_of(data))] + footer + len(footer).to_bytes(4, "little") + MAGIC


def footer_of(data: bytes) -> bytes:
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


def test_what_was_read_before_changes_nothing(files: list[bytes]) -> None:
    chance = random.Random(11)
    differing = []
    for number in range(2000):
        if number % 100 == 0:
            shared = FooterReader()
            for data in chance.sample(files * 3, 3 * len(files)):  # by the third time, their forms are known
                assert found(shared, data) is not None
        footer = bytearray(footer_of(chance.choice(files)))
        for _ in range(chance.choice([0, 1, 1, 2])):
            footer[chance.randrange(len(footer))] = chance.randrange(256)
        damaged = with_footer(files[0], bytes(footer))
        if found(shared, damaged) != found(FooterReader(), damaged):
            differing.append(number)
    assert differing == []


def test_a_field_that_is_said_again_counts_as_for_other_readers(files: list[bytes]) -> None:
    footer, _ = parse(footer_of(files[0]))
    description = footer[4][1].items[0][1][1].items[0][3][1]
    usual = serialize(description)
    codec_again = b"\x05\x08\x00"  # field 4, told by its number: not compressed
    again = with_footer(files[0], footer_of(files[0]).replace(usual, usual[:-1] + codec_again + b"\0"))
    assert pyarrow.parquet.read_metadata(io.BytesIO(again)).row_group(0).column(0).compression == "UNCOMPRESSED"
    shared = FooterReader()
    shared.read(files[0])
    assert [reader.read(again).row_groups[0].chunks[0].codec for reader in (shared, FooterReader())] == [0, 0]


@pytest.mark.parametrize("number", [2, 3])  # encodings, path
def test_a_list_that_is_none_is_refused(files: list[bytes], number: int) -> None:
    footer, _ = parse(footer_of(files[0]))
    footer[4][1].items[0][1][1].items[0][3][1][number] = (BINARY, b"id")
    with pytest.raises(ThriftInvalid):
        FooterReader().read(with_footer(files[0], serialize(footer)))


@pytest.mark.parametrize("number, kind, value", [(3, I64, 7), (3, LIST, ListOf(I32, [1]))], ids=["number", "list"])
def test_a_column_that_is_none_is_refused(files: list[bytes], number: int, kind: int, value: Any) -> None:
    footer, _ = parse(footer_of(files[0]))
    footer[4][1].items[0][1][1].items[0][number] = (kind, value)
    with pytest.raises(ThriftInvalid):
        FooterReader().read(with_footer(files[0], serialize(footer)))


def test_a_place_that_is_no_number_is_refused(files: list[bytes]) -> None:
    footer, _ = parse(footer_of(files[0]))
    footer[4][1].items[0][1][1].items[0][3][1][11] = (LIST, ListOf(I32, [1]))
    with pytest.raises(ThriftInvalid):
        FooterReader().read(with_footer(files[0], serialize(footer)))


@pytest.mark.parametrize("field", [1, 2, 4, 5, 6, 7])  # 3, how many rows there are, is not believed
def test_a_field_of_another_kind_is_refused(files: list[bytes], field: int) -> None:
    """A version or row groups that are a text, a writer or a schema that is a number."""
    footer, _ = parse(footer_of(files[0]))
    footer[field] = (BINARY, b"seven") if field in (1, 4, 5) else (I32, 7)
    with pytest.raises(ThriftInvalid):
        FooterReader().read(with_footer(files[0], serialize(footer)))
