"""Large row groups are copied as they are, and proved."""

from typing import Any

import duckdb
import pyarrow
import pyarrow.parquet
import pytest

from compaction_platform.compact import concat
from compaction_platform.compact.audit import Audit
from compaction_platform.compact.inputs import Input
from compaction_platform.compact.listed import Listed
from compaction_platform.lake.parquet_format.thrift import serialize
from compaction_platform_tests.compact.yard import Yard, rows

pytestmark = pytest.mark.unit


@pytest.fixture
def any_row_group_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concat, "LARGE_ROW_GROUP_BYTES", 1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"write_page_index": True},
        {"data_page_version": "2.0"},
        {"use_dictionary": False},
        {"write_page_checksum": False},  # proved by decoding
    ],
    ids=str,
)
@pytest.mark.parametrize("verify", ["full", "pages"])
def test_large_row_groups_are_copied_as_they_are(
    yard: Yard, any_row_group_is_large: None, options: dict[str, Any], verify: Any
) -> None:
    for number in range(4):
        nested = pyarrow.array([[{"x": value, "y": None}] * (value % 3) for value in range(3000)])
        yard.put(f"{number}.parquet", rows(number * 3000, 3000, nested=nested), row_group_size=1100, **options)
    before, metadata = yard.content(), yard.metadata("0.parquet")
    report = yard.compact(verify=verify)
    assert [each.engine for each in report.made] == ["concat"]
    assert yard.content() == before
    (output,) = yard.outputs()
    after = yard.metadata(output)
    assert (after.num_rows, after.num_row_groups) == (12_000, 12)
    assert after.row_group(0).column(0).total_compressed_size == metadata.row_group(0).column(0).total_compressed_size
    assert after.row_group(5).column(0).statistics.min == 3000 + 2200
    path = f"{yard.uri}/{output}"
    assert duckdb.sql(f"SELECT count(*), sum(id), count(word) FROM '{path}'").fetchall() == [
        (12_000, sum(range(12_000)), sum(1 for number in range(12_000) if number % 11))
    ]
    assert duckdb.sql(f"SELECT count(*) FROM '{path}' WHERE id BETWEEN 7000 AND 7009").fetchall() == [(10,)]
    file = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
    assert file.read().num_rows == 12_000
    stored = yard.store.stat(output)
    assert stored is not None
    audited = Audit(yard.store)(Listed(stored.key, stored.size, stored.etag))
    assert (audited.rows, audited.problem) == (12_000, None)


@pytest.mark.parametrize("verify", ["full", "pages"])
def test_a_copied_page_that_is_corrupt_is_found_and_its_file_stays(
    yard: Yard, any_row_group_is_large: None, verify: Any
) -> None:
    for number in range(3):
        yard.put(f"{number}.parquet", rows(number * 100, 100), use_dictionary=False, compression="none")
    data = bytearray(yard.store.read("1.parquet"))
    place = data.index(b"word 3") + 2
    data[place] ^= 1
    yard.store.write("1.parquet", bytes(data))
    report = yard.compact(verify=verify)
    assert [each.engine for each in report.made] == ["concat"]
    assert "checksum" in report.set_aside["1.parquet"].lower()
    assert len(yard.files()) == 2


def test_a_copied_page_without_checksum_that_is_corrupt_is_found_by_decoding(
    yard: Yard, any_row_group_is_large: None
) -> None:
    for number in range(3):
        yard.put(f"{number}.parquet", rows(number * 100, 100), compression="zstd", write_page_checksum=False)
    column = yard.metadata("1.parquet").row_group(0).column(0)
    data = bytearray(yard.store.read("1.parquet"))
    place = column.dictionary_page_offset + 60
    data[place : place + 20] = bytes(20)
    yard.store.write("1.parquet", bytes(data))
    report = yard.compact()
    assert [each.engine for each in report.made] == ["concat"]
    assert list(report.set_aside) == ["1.parquet"]


@pytest.mark.parametrize("options", [{"compression": "zstd"}, {"data_page_version": "2.0"}, {"use_dictionary": False}])
def test_checksums_prove_a_file_only_if_each_holds_and_no_page_is_missing(yard: Yard, options: dict[str, Any]) -> None:
    yard.put("1.parquet", rows(0, 9000), **options)
    data = bytes(yard.store.read("1.parquet"))
    file = Listed("1.parquet", len(data), "")
    assert concat.rows_by_checksums(Input(file, pyarrow.py_buffer(data))) == 9000
    column = yard.metadata("1.parquet").row_group(0).column(1)
    first, size = column.dictionary_page_offset or column.data_page_offset, column.total_compressed_size
    for place in range(first + size // 2, first + size, size // 10):  # the header is covered by no checksum
        damaged = bytearray(data)
        damaged[place] ^= 4
        assert concat.rows_by_checksums(Input(file, pyarrow.py_buffer(bytes(damaged)))) is None
    footer = concat.footer_of(pyarrow.py_buffer(data))
    meta = footer.get_value(4).items[0].get_value(1).items[0].get_value(3)
    meta.set_value(5, 6, meta.get_value(5) + 7)  # seven more values than there are pages for
    encoded = serialize(footer)
    lying = data[: -8 - int.from_bytes(data[-8:-4], "little")] + encoded + len(encoded).to_bytes(4, "little") + b"PAR1"
    assert concat.rows_by_checksums(Input(file, pyarrow.py_buffer(lying))) is None
