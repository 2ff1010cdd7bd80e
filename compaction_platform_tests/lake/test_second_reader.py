"""A second Parquet decoder reads a part of every run, and what it finds decides."""

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from compaction_platform.archive.jobs.copy_file import CopyDiffers, CopyTask, fingerprint_of_file
from compaction_platform.lake.parquet import second_reader
from compaction_platform.lake.parquet.second_reader import (
    NotJudged,
    ReadersDisagree,
    RowRange,
    SecondReaderRefused,
    connected,
    require_agreement,
    require_same_rows,
    verify_sample,
)
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.merge.intake.staged_file_reader import Reading
from compaction_platform.merge.plan.staged_hours import StagedFile
from compaction_platform.settings import Settings
from compaction_platform_tests.compact.yard import local_yard, rows

pytestmark = pytest.mark.unit

ANY = Settings(_env_file=None)
KINDS: dict[str, pyarrow.Array] = {
    "bool": pyarrow.array([True, None, False]),
    "int8": pyarrow.array([-1, None, 0], pyarrow.int8()),
    "uint64": pyarrow.array([2**64 - 1, None, 0], pyarrow.uint64()),
    "half": pyarrow.array([1, None, float("nan")], pyarrow.float16()),
    "double": pyarrow.array([float("nan"), None, -0.0]),
    "decimal": pyarrow.array([Decimal("1.10"), None, Decimal("-2.25")], pyarrow.decimal128(30, 2)),
    "wide decimal": pyarrow.array([Decimal("1.10"), None, Decimal(10) ** 45], pyarrow.decimal256(50, 2)),
    "text": pyarrow.array(["ä", None, ""], pyarrow.large_string()),
    "dictionary": pyarrow.array(["a", None, "b"]).dictionary_encode(),
    "bytes": pyarrow.array([b"\xff", None, b""]),
    "fixed": pyarrow.array([b"abc", None, b"def"], pyarrow.binary(3)),
    "uuid": pyarrow.array([b"0" * 16, None, b"1" * 16], pyarrow.uuid()),
    "date": pyarrow.array([0, None, -700_000], pyarrow.date32()),
    "time ns": pyarrow.array([1, None, 3], pyarrow.time64("ns")),
    "time ms": pyarrow.array([1, None, 3], pyarrow.time32("ms")),
    "moment ns": pyarrow.array([1, None, 3], pyarrow.timestamp("ns")),
    "moment s": pyarrow.array([1, None, 3], pyarrow.timestamp("s")),
    "instant": pyarrow.array([-62135596800 * 10**6, None, 2**62], pyarrow.timestamp("us", "Europe/Berlin")),
    "structs": pyarrow.array([{"x": None, "y": [1]}, None, {"x": "a", "y": None}]),
    "list of structs": pyarrow.array([[{"a": 1}], None, [], [None]]),
    "map": pyarrow.array([[("k", None)], None, []], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
    "fixed list": pyarrow.array([[1, 2], None, [3, 4]], pyarrow.list_(pyarrow.int32(), 2)),
    "duration": pyarrow.array([1, None, 2], pyarrow.duration("us")),
    "nothing": pyarrow.nulls(3),
}
NO_COMMON_TYPE = {"wide decimal"}


def written(path: Path, table: pyarrow.Table, **options: Any) -> pyarrow.parquet.ParquetFile:
    pyarrow.parquet.write_table(table, path, **options)
    return pyarrow.parquet.ParquetFile(path)


@pytest.mark.parametrize("kind", KINDS)
def test_both_readers_agree_on_what_is_sound(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.parquet"
    file = written(path, pyarrow.table({'a "quoted" name': KINDS[kind]}))
    with connected(tmp_path) as connection:
        if kind in NO_COMMON_TYPE:
            with pytest.raises(NotJudged):
                require_agreement(connection, path, file, RowRange.chosen(file.metadata, "all", 0))
        else:
            require_agreement(connection, path, file, RowRange.chosen(file.metadata, "all", 0))


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_compared_with_those_that_it_was_made_of(tmp_path: Path, kind: str) -> None:
    """Each value of them, and their order: as the second reader has it."""
    one, other, whole = (tmp_path / name for name in ("1", "2", "whole"))
    table = pyarrow.table({"a": KINDS[kind]})
    written(one, table.slice(0, 1))
    written(other, table.slice(1))
    written(whole, table, row_group_size=2)
    with connected(tmp_path) as connection:
        require_same_rows(connection, [one, other], whole)
        if kind != "nothing":
            with pytest.raises(ReadersDisagree, match="other values than what it was made of in a$"):
                require_same_rows(connection, [other, one], whole)
        with pytest.raises(ReadersDisagree, match="rows"):
            require_same_rows(connection, [one, one, other], whole)


@pytest.mark.parametrize(("extent", "seed", "is_found"), [("all", 0, True), ("sample", 3, True), ("sample", 1, False)])
def test_a_value_that_they_read_otherwise_is_found_where_they_look(
    tmp_path: Path, extent: Any, seed: int, is_found: bool
) -> None:
    """Each opens another file; they differ in one row of the fourth row group."""
    one, other = tmp_path / "1.parquet", tmp_path / "2.parquet"
    written(one, rows(0, 400), row_group_size=100)
    changed = rows(0, 400).set_column(0, "id", [[*range(350), -1, *range(351, 400)]])
    file = written(other, changed, row_group_size=100)
    chosen = RowRange.chosen(file.metadata, extent, seed)
    with connected(tmp_path) as connection:
        if is_found:
            with pytest.raises(ReadersDisagree, match="different values in id"):
                require_agreement(connection, one, file, chosen)
        else:
            require_agreement(connection, one, file, chosen)


def test_a_sample_is_some_rows_of_one_row_group_and_every_row_can_be_in_one(tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", rows(0, 50_000), row_group_size=25_000)
    seen = {RowRange.chosen(file.metadata, "sample", seed) for seed in range(20_000)}
    assert {(each.row_groups, each.count) for each in seen} == {((0,), 20_000), ((1,), 20_000)}
    assert {each.first for each in seen} == {*range(5_001), *range(25_000, 30_001)}
    assert RowRange.chosen(file.metadata, "none", 1).count == 0
    empty = written(tmp_path / "b.parquet", rows(0, 0))
    assert RowRange.chosen(empty.metadata, "sample", 1).count == 0


def test_what_duckdb_refuses_is_refused() -> None:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({"a": ["abc"] * 9}), sink, compression="none", write_statistics=False)
    content = sink.getvalue().to_pybytes().replace(b"abc", b"ab\xa3")
    with pytest.raises(SecondReaderRefused, match="[Ii]nvalid"):
        verify_sample(content, "a", "sample")
    verify_sample(content, "a", "none")


# ---------------------------------------------------------------- what it decides


@pytest.fixture
def reading_otherwise(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Arrow's side of the comparison has lost its first row; how often it was asked."""
    real = second_reader._arrow_batches
    asked: list[int] = []

    def one_row_less(*arguments: Any) -> Iterator[pyarrow.RecordBatch]:
        asked.append(1)
        first, *others = real(*arguments)
        yield from (first.slice(1), *others)

    monkeypatch.setattr(second_reader, "_arrow_batches", one_row_less)
    return asked


@pytest.mark.parametrize(("extent", "asked"), [("sample", 1), ("all", 4), ("none", 0)])
def test_compact_takes_no_file_on_which_readers_disagree(
    tmp_path: Path, reading_otherwise: list[int], extent: Any, asked: int
) -> None:
    yard = local_yard(tmp_path / "yard", ANY)
    for number in range(4):
        yard.put(f"{number}.parquet", rows(number * 50))
    report = yard.compact(second_reader=extent)
    assert len(reading_otherwise) >= asked and bool(reading_otherwise) == bool(asked)
    assert len(report.set_aside) >= asked and (not report.made) == (extent != "none")
    assert sorted(row["id"] for row in yard.content()[""]) == list(range(200))


def test_merge_quarantines_a_staged_file_on_which_readers_disagree(
    tmp_path: Path, reading_otherwise: list[int]
) -> None:
    (tmp_path / "staging").mkdir()
    staging = ObjectStore.at(str(tmp_path / "staging"), ANY)
    columns = pyarrow.schema({"id": pyarrow.int64(), "word": pyarrow.string()})
    written(tmp_path / "staging" / "a.parquet", rows(0))
    (stored,) = staging.list()
    file = StagedFile(key=stored.key, size=stored.size, etag=stored.etag, arrived=datetime.now(UTC))
    fates = {}
    for extent in ("all", "none"):
        reading = Reading(staging, None, columns, ("id",), ("id",), "add", second_reader=extent)  # type: ignore[arg-type]
        report, _ = reading.read(file)
        fates[extent] = (report.fate, "Arrow reads 49 rows" in report.reason)
    assert fates == {"all": ("quarantined", True), "none": ("sound", False)}


def test_archive_commits_no_cold_file_on_which_readers_disagree(tmp_path: Path, reading_otherwise: list[int]) -> None:
    written(tmp_path / "part.parquet", rows(0), write_page_checksum=True)
    content = (tmp_path / "part.parquet").read_bytes()
    expected, sha256 = fingerprint_of_file(content), hashlib.sha256(content).hexdigest()
    task = CopyTask("", "", 1, ObjectStore.at(str(tmp_path), ANY), "attempt")
    with pytest.raises(CopyDiffers, match="not read alike"):
        task._require_readable("part.parquet", sha256, expected)
    assert reading_otherwise
