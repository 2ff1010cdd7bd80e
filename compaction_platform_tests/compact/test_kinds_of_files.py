"""Small files become one, whatever they are like; or they stay where they are."""

import base64
import json
from typing import Any

import duckdb
import pyarrow
import pyarrow.parquet
import pytest
from pyarrow.parquet import encryption

from compaction_platform.compact.plan.bin_packing import PackingPolicy
from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.compact.rewrite.read_inputs import SourceFile
from compaction_platform.persisted_names import FOOTER_INPUTS
from compaction_platform_tests.compact.yard import Yard, rows

pytestmark = pytest.mark.unit


# ---------------------------------------------------------------- schemas

ANY_COLUMNS = PackingPolicy(unify="columns")


def test_columns_that_come_and_go_change_places_or_grow_wider(yard: Yard) -> None:
    yard.put("0.parquet", pyarrow.table({"a": pyarrow.array([1, 2], pyarrow.int32()), "b": ["x", "y"]}))
    yard.put("1.parquet", pyarrow.table({"b": ["z"], "a": pyarrow.array([1 << 40], pyarrow.int64())}))
    yard.put("2.parquet", pyarrow.table({"a": pyarrow.array([5], pyarrow.int8()), "c": [1.5]}))
    yard.put(
        "3.parquet",
        pyarrow.table({"a": pyarrow.array([None], pyarrow.null()), "c": pyarrow.array([2.5], pyarrow.float32())}),
    )
    yard.compact(policy=ANY_COLUMNS)
    (output,) = yard.files()
    assert yard.content()[""] == [
        {"a": 1, "b": "x", "c": None},
        {"a": 2, "b": "y", "c": None},
        {"a": 1 << 40, "b": "z", "c": None},
        {"a": 5, "b": None, "c": 1.5},
        {"a": None, "b": None, "c": 2.5},
    ]
    types = {column.name: column.type for column in yard.metadata(output).schema.to_arrow_schema()}
    assert types == {"a": pyarrow.int64(), "b": pyarrow.string(), "c": pyarrow.float64()}


@pytest.mark.parametrize(
    ("odd", "complaint"),
    [
        ({"a": ["text"]}, "its column a is string, in the others it is int64"),
        ({"A": [1]}, "its column A is a in the others"),
        ({"a": [1.5]}, "its column a is double"),
        ({"a": [[1]]}, "its column a is list"),
    ],
)
@pytest.mark.parametrize("name", ["0-the first.parquet", "the last.parquet"])
def test_a_file_that_does_not_go_together_with_the_others_stays(
    yard: Yard, odd: dict[str, Any], complaint: str, name: str
) -> None:
    for number in range(3):
        yard.put(f"{number}.parquet", pyarrow.table({"a": [number]}))
    yard.put(name, pyarrow.table(odd))
    odd_bytes = bytes(yard.store.read(name))
    report = yard.compact()
    assert complaint in report.set_aside[name]
    assert complaint in yard.notes()[name]
    assert bytes(yard.store.read(name)) == odd_bytes
    assert len(yard.files()) == 2
    assert yard.run().plan()[0].plan.is_empty


def with_ids(table: pyarrow.Table, *ids: int) -> pyarrow.Table:
    fields = [
        column.with_metadata({"PARQUET:field_id": str(number)})
        for column, number in zip(table.schema, ids, strict=True)
    ]
    return table.cast(pyarrow.schema(fields))


def test_field_ids_survive_and_are_not_mixed_up(yard: Yard) -> None:
    yard.put("0.parquet", with_ids(pyarrow.table({"a": [1], "b": [2]}), 7, 9))
    yard.put("1.parquet", with_ids(pyarrow.table({"a": [3], "b": [4]}), 7, 9))
    yard.put("2.parquet", with_ids(pyarrow.table({"c": [5], "b": [6]}), 7, 9))
    report = yard.compact(policy=ANY_COLUMNS)
    assert "has the field id of a in the others" in report.set_aside["2.parquet"]
    (output,) = yard.outputs()
    schema = yard.metadata(output).schema.to_arrow_schema()
    assert [column.metadata[b"PARQUET:field_id"] for column in schema] == [b"7", b"9"]


# ---------------------------------------------------------------- files of another kind


class OneKey(encryption.KmsClient):  # type: ignore[misc]
    """Wraps keys with a key of its own: enough to encrypt a file."""

    def __init__(self, configuration: encryption.KmsConnectionConfig) -> None:
        encryption.KmsClient.__init__(self)

    def wrap_key(self, key: bytes, name: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, wrapped: bytes, name: str) -> bytes:
        return base64.b64decode(wrapped)


@pytest.mark.parametrize("plaintext_footer", [False, True])
@pytest.mark.parametrize("encrypted", [1, 3])
def test_encrypted_files_are_left_alone(yard: Yard, plaintext_footer: bool, encrypted: int) -> None:
    settings = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"key": ["word"]}, plaintext_footer=plaintext_footer
    )
    properties = encryption.CryptoFactory(OneKey).file_encryption_properties(encryption.KmsConnectionConfig(), settings)
    for number in range(encrypted):
        yard.put(f"{number}.parquet", rows(number), encryption_properties=properties, write_page_checksum=False)
    for number in range(encrypted, 5):
        yard.put(f"{number}.parquet", rows(number * 50))
    before = {key: bytes(yard.store.read(key)) for key in yard.files()[:encrypted]}
    report = yard.compact()
    assert list(report.set_aside) == [f"{number}.parquet" for number in range(encrypted)]
    assert {key: bytes(yard.store.read(key)) for key in before} == before
    (output,) = yard.outputs()
    assert yard.metadata(output).num_rows == 50 * (5 - encrypted)
    assert yard.run().plan()[0].plan.is_empty


def test_thousands_of_columns(yard: Yard) -> None:
    wide = {f"column_{number:04d}": pyarrow.array([number, None, -number]) for number in range(3000)}
    for number in range(3):
        yard.put(f"{number}.parquet", pyarrow.table({**wide, f"only_{number}": ["a", "b", "c"]}))
    report = yard.compact(policy=ANY_COLUMNS)
    assert report.failed == {}
    (output,) = yard.outputs()
    table = pyarrow.parquet.read_table(pyarrow.BufferReader(bytes(yard.store.read(output))))
    assert (table.num_rows, table.num_columns) == (9, 3003)
    assert table["column_2999"].to_pylist() == [2999, None, -2999] * 3
    assert table["only_1"].to_pylist() == [None] * 3 + ["a", "b", "c"] + [None] * 3


def test_what_a_writer_says_about_its_columns_is_not_said_of_others(yard: Yard) -> None:
    """Spark takes its schema from a key of the footer, whatever columns the file has."""
    for number in range(3):
        kind = pyarrow.int64() if number == 1 else pyarrow.int32()
        told = {b"org.apache.spark.sql.parquet.row.metadata": str(kind).encode(), b"owner": b"me"}
        more = {"y": ["a"]} if number == 1 else {}
        table = pyarrow.table({"x": pyarrow.array([number], kind), **more})
        sink = pyarrow.BufferOutputStream()
        with pyarrow.parquet.ParquetWriter(sink, table.schema) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata(told)
        yard.put(f"{number}.parquet", sink.getvalue().to_pybytes())
    yard.compact()
    (output,) = yard.outputs()
    keys = yard.metadata(output).metadata
    assert b"org.apache.spark.sql.parquet.row.metadata" not in keys
    assert keys[b"owner"] == b"me"
    inputs = json.loads(keys[FOOTER_INPUTS])
    assert [each["metadata"]["org.apache.spark.sql.parquet.row.metadata"] for each in inputs] == [
        "int32",
        "int64",
        "int32",
    ]


def test_uuids_stay_uuids(yard: Yard) -> None:
    for number in range(2):
        duckdb.sql(
            f"COPY (SELECT uuid() AS id, i FROM range(5) t(i)) TO '{yard.uri}/{number}.parquet' (FORMAT parquet)"
        )
    files = f"{yard.uri}/*.parquet"
    before = duckdb.sql(f"SELECT typeof(id), id, i FROM read_parquet('{files}') ORDER BY id").fetchall()
    assert yard.compact().failed == {}
    assert len(yard.files()) == 1
    assert duckdb.sql(f"SELECT typeof(id), id, i FROM read_parquet('{files}') ORDER BY id").fetchall() == before
    assert before[0][0] == "UUID"


@pytest.mark.parametrize(
    ("kinds", "becomes", "stays"),
    [
        (["timestamp[ms]", "timestamp[ms]", "timestamp[us]"], "timestamp[us]", []),
        (["timestamp[us]", "timestamp[us]", "timestamp[ns]"], "timestamp[ns]", []),
        (["string", "string", "fixed_size_binary[4]"], "string", ["2.parquet"]),
        (["string", "string", "binary"], "string", ["2.parquet"]),
    ],
    ids=str,
)
def test_kinds_that_are_alike_but_not_the_same(yard: Yard, kinds: list[str], becomes: str, stays: list[str]) -> None:
    types = {
        "timestamp[ms]": pyarrow.timestamp("ms"),
        "timestamp[us]": pyarrow.timestamp("us"),
        "timestamp[ns]": pyarrow.timestamp("ns"),
        "string": pyarrow.string(),
        "binary": pyarrow.binary(),
        "fixed_size_binary[4]": pyarrow.binary(4),
    }
    for number, kind in enumerate(kinds):
        values = [1234567] if "timestamp" in kind else [b"\xff\xfe\x00\x01" if "binary" in kind else "text"]
        yard.put(f"{number}.parquet", pyarrow.table({"x": pyarrow.array(values, types[kind])}))
    report = yard.compact()
    assert report.failed == {}
    assert list(report.set_aside) == stays
    (output,) = yard.outputs()
    assert str(yard.metadata(output).schema.to_arrow_schema().field("x").type) == becomes
    assert yard.metadata(output).num_rows == 3 - len(stays)


def test_wide_rows_are_read_a_few_at_a_time() -> None:
    wide = pyarrow.table({f"c{number}": pyarrow.array([0.0] * 5000) for number in range(1500)})
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(wide, sink)
    largest = max(batch.nbytes for batch in SourceFile(FileVersion("x", 0, ""), sink.getvalue()).decoded())
    assert largest <= 17 << 20
