"""Large row groups are copied as they are, and proved."""

from typing import Any

import duckdb
import pyarrow
import pyarrow.parquet
import pytest

from compaction_platform.compact.audit import OutputAudit
from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.lake.parquet.writer import WriterOptions
from compaction_platform_tests.compact.yard import Yard, rows

pytestmark = pytest.mark.unit


ANY_IS_LARGE = WriterOptions(row_group_bytes=1)  # a row group of an input is one of the output


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
def test_large_row_groups_are_copied_as_they_are(yard: Yard, options: dict[str, Any], verify: Any) -> None:
    for number in range(4):
        nested = pyarrow.array([[{"x": value, "y": None}] * (value % 3) for value in range(3000)])
        yard.put(f"{number}.parquet", rows(number * 3000, 3000, nested=nested), row_group_size=1100, **options)
    before, metadata = yard.content(), yard.metadata("0.parquet")
    report = yard.compact(verify=verify, encoding=ANY_IS_LARGE)
    assert [each.engine for each in report.made] == ["stitch"]
    assert yard.content() == before
    (output,) = yard.outputs()
    after = yard.metadata(output)
    assert (after.num_rows, after.num_row_groups) == (12_000, 12)
    before_and_after = [each.row_group(0).column(0).total_compressed_size for each in (metadata, after)]
    assert abs(before_and_after[0] - before_and_after[1]) < 64, "only page headers are written again"
    if verify == "full":
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
    audited = OutputAudit(yard.store)(FileVersion(stored.key, stored.size, stored.etag, stored.last_modified))
    assert (audited.rows, audited.problem) == (12_000, None)


@pytest.mark.parametrize("verify", ["full", "pages"])
def test_a_copied_page_that_is_corrupt_is_found_and_its_file_stays(yard: Yard, verify: Any) -> None:
    for number in range(3):
        yard.put(f"{number}.parquet", rows(number * 1000, 1000), use_dictionary=False, compression="none")
    data = bytearray(yard.store.read("1.parquet"))
    place = data.index(b"word 3") + 2
    data[place] ^= 1
    yard.store.write("1.parquet", bytes(data))
    report = yard.compact(verify=verify, encoding=ANY_IS_LARGE)
    assert [each.engine for each in report.made] == ["stitch"]
    assert "checksum" in report.set_aside["1.parquet"].lower()
    assert len(yard.files()) == 2


def test_a_copied_page_without_checksum_that_is_corrupt_is_found_by_decoding(yard: Yard) -> None:
    for number in range(3):
        yard.put(f"{number}.parquet", rows(number * 1000, 1000), compression="zstd", write_page_checksum=False)
    column = yard.metadata("1.parquet").row_group(0).column(0)
    data = bytearray(yard.store.read("1.parquet"))
    place = data.index(b"\x28\xb5\x2f\xfd", column.dictionary_page_offset)  # how a frame of zstd begins
    data[place : place + 4] = bytes(4)
    yard.store.write("1.parquet", bytes(data))
    report = yard.compact(encoding=ANY_IS_LARGE)
    assert [each.engine for each in report.made] == ["stitch"]
    assert list(report.set_aside) == ["1.parquet"]
