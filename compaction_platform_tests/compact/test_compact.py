"""Small files become one: the same rows, in the same order."""

import json
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy
import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from compaction_platform.compact.cli import app
from compaction_platform.compact.plan.bin_packing import LATER, YOUNG, PackingPolicy
from compaction_platform.lake.parquet.writer import WriterOptions
from compaction_platform.lake.storage import prefetch
from compaction_platform.lake.storage.sizes import MB
from compaction_platform.persisted_names import FOOTER_INPUTS
from compaction_platform_tests.compact.yard import Yard, local_yard, rows

pytestmark = pytest.mark.unit


def test_the_rows_and_their_order_stay_and_the_files_become_few(yard: Yard) -> None:
    for hour in ("dt=2026-11-01/hour=00", "dt=2026-11-01/hour=01"):
        for number in range(20):
            yard.put(f"{hour}/part-{number:03d}.parquet", rows(number * 50))
    before = yard.content()
    report = yard.compact()
    assert yard.content() == before
    assert len(yard.files()) == 2
    assert report.files_compacted == 40
    assert [each.rows for each in report.made] == [1000, 1000]
    assert {each.engine for each in report.made} == {"re-encode"}
    query = f"SELECT hour, count(*), sum(id) FROM read_parquet('{yard.uri}/**/*.parquet') GROUP BY 1 ORDER BY 1"
    assert duckdb.sql(query).fetchall() == [("00", 1000, 499500), ("01", 1000, 499500)]


def test_a_second_run_does_nothing(yard: Yard) -> None:
    for number in range(5):
        yard.put(f"{number}.parquet", rows(number))
    yard.compact()
    keys = {key: yard.store.stat(key) for key in yard.files()}
    report = yard.compact()
    assert report.plan.is_empty
    assert {key: yard.store.stat(key) for key in yard.files()} == keys


def test_late_files_join_what_is_there(yard: Yard) -> None:
    for number in range(5):
        yard.put(f"{number}.parquet", rows(number * 50))
    yard.compact()
    yard.grow_older()
    yard.put("7.parquet", rows(1000))
    yard.put("8.parquet", rows(1050))
    before = yard.content()
    yard.compact()
    assert yard.content() == before
    assert len(yard.files()) == 1


def test_an_output_says_what_it_is_made_of(yard: Yard) -> None:
    for number in range(3):
        yard.put(f"{number}.parquet", rows(number).replace_schema_metadata({"origin": "sensor", "batch": str(number)}))
    versions = {key: yard.store.stat(key) for key in yard.files()}
    yard.compact()
    (output,) = yard.outputs()
    metadata = yard.metadata(output).metadata
    inputs = json.loads(metadata[FOOTER_INPUTS])
    assert {each["name"]: each["version"].partition("@")[0] for each in inputs} == {
        key: stored.etag for key, stored in versions.items()
    }
    assert metadata[b"origin"] == b"sensor"
    assert [each["metadata"]["batch"] for each in inputs] == ["0", "1", "2"], "what differs is kept with its file"


def test_outputs_are_well_made(yard: Yard) -> None:
    numbers = numpy.arange(40_000)
    for number in range(4):
        table = pyarrow.table({"unique": numbers + number * 40_000, "few": [f"k{value % 5}" for value in numbers]})
        yard.put(f"{number}.parquet", table, compression="zstd", row_group_size=1000)
    yard.compact()
    (output,) = yard.outputs()
    metadata = yard.metadata(output)
    assert (metadata.num_rows, metadata.num_row_groups) == (160_000, 1)
    unique, few = (metadata.row_group(0).column(number) for number in range(2))
    assert (unique.compression, unique.has_dictionary_page, few.has_dictionary_page) == ("ZSTD", False, True)
    assert unique.has_column_index and unique.has_offset_index
    assert (unique.statistics.min, unique.statistics.max) == (0, 159_999)
    data = bytearray(yard.store.read(output))
    data[unique.data_page_offset + 60] ^= 1
    with pytest.raises(OSError, match="(?i)crc|checksum"):
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(bytes(data)), page_checksum_verification=True)
        file.read(columns=["unique"])


@pytest.mark.parametrize(
    ("engine", "written", "how"),
    [
        ("stitch", {}, {}),
        ("re-encode", {"row_group_size": 100}, {}),
        ("sort", {}, {"encoding": WriterOptions(sort_by=("word",))}),
    ],
)
def test_what_the_proof_takes_is_told_apart(
    yard: Yard, engine: str, written: dict[str, Any], how: dict[str, Any]
) -> None:
    for number in range(4):
        yard.put(f"{number}.parquet", rows(number * 3000, 3000), **written)
    (made,) = yard.compact(**how).made
    assert made.engine == engine
    assert 0 < made.proof_seconds < made.seconds
    assert f"{made.seconds:.1f} s, {made.proof_seconds:.1f} s of them for the proof" in "\n".join(yard.said)


def test_how_columns_were_made_is_told_once_for_all_outputs_that_are_alike(yard: Yard) -> None:
    for hour in range(3):
        for number in range(4):
            ids = range(number * 2000, (number + 1) * 2000)
            table = pyarrow.table({"id": [f"{hour}-{each}" for each in ids], "kind": [f"k{each % 7}" for each in ids]})
            yard.put(f"hour={hour}/{number}.parquet", table)
    assert {each.engine for each in yard.compact().made} == {"stitch"}
    (told,) = [said for said in yard.said if said.startswith("columns of hour=")]
    assert (
        "id: identity (every value is in its dictionary once, in the order of the rows); kind: dictionary (7 e" in told
    )


@pytest.mark.parametrize("verify", ["full", "pages"])
def test_inputs_that_are_too_much_for_memory_are_spooled(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: Any
) -> None:
    monkeypatch.setattr(prefetch, "MOST_IN_MEMORY", 1000)
    spool = tmp_path / "spool"
    spool.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(spool))
    written: list[int] = []
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, place: written.append(place) or real(file, data, place))
    for number in range(4):
        yard.put(f"{number}.parquet", rows(number * 50))
    yard.put("4.parquet", b"PAR1 broken")
    before = yard.content(unreadable=["4.parquet"])
    assert list(yard.compact(verify=verify).set_aside) == ["4.parquet"]
    assert yard.content(unreadable=["4.parquet"]) == before
    assert len(set(written)) == 5, "each in its place"
    assert not list(spool.iterdir())


@pytest.mark.parametrize(("megabytes", "code"), [("0", 2), ("1", 0), ("2048", 0), ("2049", 2)])
def test_files_as_large_as_no_single_request_takes_cannot_be_asked_for(yard: Yard, megabytes: str, code: int) -> None:
    yard.put("a.parquet", rows(0))
    assert CliRunner().invoke(app, ["plan", yard.uri, "--target-mb", megabytes]).exit_code == code


# ---------------------------------------------------------------- directories


def test_a_directory_inside_another_does_not_come_between(yard: Yard) -> None:
    for name in ("a", "b", "m/p", "m/q", "y", "z"):
        yard.put(f"{name}.parquet", rows(ord(name[-1]) * 100))
    yard.compact()
    assert sorted(key.rpartition("/")[0] for key in yard.files()) == ["", "m"]
    assert yard.run().plan()[0].plan.is_empty


def test_a_file_that_only_looks_like_ours_stops_its_own_directory_and_no_other(yard: Yard) -> None:
    for hour in range(2):
        for number in range(3):
            yard.put(f"h={hour}/{number}.parquet", rows(number * 50))
    foreign = f"h=0/x.compacted-128mb-{'0' * 24}.parquet"
    yard.put(foreign, rows(9000))
    report = yard.compact()
    assert len([key for key in yard.files() if key.startswith("h=1/")]) == 1
    assert len([key for key in yard.files() if key.startswith("h=0/")]) == 4
    assert "does not say what it is made of" in report.plan.conflicts[foreign]
    assert not report.is_clean


@pytest.mark.parametrize("originals", ["keep", "delete"])
def test_a_target_gets_all_of_the_data(yard: Yard, tmp_path: Path, originals: Any) -> None:
    """Large files and single ones, too: it is read instead of the source, not besides."""
    target = local_yard(tmp_path / "target", yard.settings)
    policy = PackingPolicy(target_bytes=4000, max_bytes=8000, small_bytes=3000)
    for number in range(6):
        yard.put(f"many/{number}.parquet", rows(number * 50))
    yard.put("alone/0.parquet", rows(900))
    yard.put("large/0.parquet", rows(2000, 5000))
    yard.put("large/1.parquet", b"PAR1 broken")
    before = yard.content(unreadable=["large/1.parquet"])
    for _ in range(2):
        yard.compact(originals=originals, target_uri=target.uri, policy=policy)
        assert target.content() == before
        assert yard.files() == ([*sorted(yard.files())] if originals == "keep" else ["large/1.parquet"])
    assert yard.run(originals=originals, target_uri=target.uri, policy=policy).plan()[0].plan.is_empty


# ---------------------------------------------------------------- names, and what is no data


def test_names_with_anything_in_them(yard: Yard) -> None:
    for name in ("a b", "a%20b", "a=b", "ü-ñ-日本", "x" * 180, "1+1", "quote'd"):
        yard.put(f"k=v %25/{name}.parquet", rows(len(name)))
    before = sorted(str(row) for row in yard.content()["k=v %25"])
    yard.compact()
    assert sorted(str(row) for row in yard.content()["k=v %25"]) == before
    assert len(yard.files()) == 1


def test_what_is_no_data_is_left_and_a_summary_of_removed_files_goes(yard: Yard) -> None:
    for number in range(3):
        yard.put(f"p=1/{number}.parquet", rows(number))
        yard.put(f"p=1/.{number}.parquet.crc", b"crc")
    for name in ("_SUCCESS", "_common_metadata", "_metadata", "notes.txt"):
        yard.put(name, b"x")
    yard.compact()
    names = {stored.key for stored in yard.store.list()}
    assert {"_SUCCESS", "_common_metadata", "notes.txt", "p=1/.0.parquet.crc"} <= names
    assert "_metadata" not in names, "it points at files that are gone"
    (trashed,) = yard.store.list("_compaction/trash")
    assert trashed.key.endswith("Z-72h/_metadata")
    assert bytes(yard.store.read(trashed.key)) == b"x"


def test_files_without_rows_and_without_bytes(yard: Yard) -> None:
    yard.put("0.parquet", rows(0, 0))
    yard.put("1.parquet", rows(0, 10))
    yard.put("2.parquet", rows(10, 0))
    yard.put("3.parquet", b"")
    yard.compact()
    assert yard.store.stat("3.parquet") is not None
    (output,) = yard.outputs()
    assert yard.metadata(output).num_rows == 10


def test_trash_keeps_the_originals_aside(yard: Yard) -> None:
    for number in range(3):
        yard.put(f"d/{number}.parquet", rows(number))
    originals = {key: bytes(yard.store.read(key)) for key in yard.files()}
    yard.compact(originals="trash")
    assert len(yard.files()) == 1
    assert originals == {
        "/".join(stored.key.split("/")[3:]): bytes(yard.store.read(stored.key))
        for stored in yard.store.list("_compaction/trash")
    }
    assert yard.run(originals="trash").plan()[0].plan.is_empty


def test_trash_is_emptied_after_its_time(yard: Yard) -> None:
    for number in range(3):
        yard.put(f"d/{number}.parquet", rows(number))
    yard.store.write("_compaction/trash/20200101T000000Z/d/old.parquet", b"moved long ago")
    yard.store.write("_compaction/trash/mine/d/old.parquet", b"somebody put it here")
    yard.compact(originals="trash", trash_for=timedelta(hours=1))
    trashed = [stored.key for stored in yard.store.list("_compaction/trash")]
    assert len(trashed) == 4
    assert "_compaction/trash/mine/d/old.parquet" in trashed
    assert "_compaction/trash/20200101T000000Z/d/old.parquet" not in trashed
    assert any("deleted" in said for said in yard.said)


@pytest.mark.parametrize("row_group_bytes", [64 * MB, 2_000])
def test_rows_are_sorted_where_that_is_wanted(yard: Yard, row_group_bytes: int) -> None:
    for number in range(4):
        yard.put(f"d/{number}.parquet", rows(number * 50))
    before = [row for directory in yard.content().values() for row in directory]
    yard.compact(encoding=WriterOptions(row_group_bytes=row_group_bytes, sort_by=("word",)))
    (output,) = yard.outputs()
    assert yard.metadata(output).num_row_groups == (1 if row_group_bytes == 64 * MB else 2)
    expected = sorted(before, key=lambda row: (row["word"] is not None, row["word"] or ""))  # stable, as ours must be
    assert yard.content() == {"d": expected}


def test_a_sort_column_that_no_file_has_is_an_error_and_changes_nothing(yard: Yard) -> None:
    for number in range(2):
        yard.put(f"d/{number}.parquet", rows(number * 50))
    report = yard.compact(encoding=WriterOptions(sort_by=("absent",)))
    assert "sort column absent: there is none; there are id, word" in next(iter(report.failed.values()))
    assert len(yard.files()) == 2


def test_files_that_changed_within_the_grace_wait(yard: Yard) -> None:
    for number in range(2):
        yard.put(f"{number}.parquet", rows(number * 50))
    (survey,) = yard.run(grace=timedelta(hours=1)).plan()
    assert (survey.plan.inputs, list(survey.plan.left_alone)) == (0, [YOUNG])
    os.utime(Path(yard.uri) / "0.parquet", (0, 0))
    os.utime(Path(yard.uri) / "1.parquet", (0, 0))
    (survey,) = yard.run(grace=timedelta(hours=1)).plan()
    assert survey.plan.inputs == 2


def test_several_prefixes_are_one_run_and_nothing_else_is_touched(yard: Yard) -> None:
    for hour in range(4):
        for number in range(2):
            yard.put(f"h={hour}/{number}.parquet", rows(number))
    report = yard.run().run(["h=1", "h=2", "h=9"])
    assert [key.rpartition("/")[0] for key in yard.outputs()] == ["h=1", "h=2"]
    assert len(yard.files()) == 6
    assert report.skipped == {"h=9": "no files"}
    assert (report.before.files, report.after.files) == (4, 2)


def test_a_run_over_several_prefixes_takes_no_more_files_than_it_may(yard: Yard) -> None:
    for hour in range(3):
        for number in range(3):
            yard.put(f"h={hour}/{number}.parquet", rows(number))
    policy = replace(PackingPolicy(), max_files=5)
    surveys = yard.run(policy=policy).plan(["h=0", "h=1", "h=2"])
    assert [survey.plan.inputs for survey in surveys] == [3, 2, 0]
    assert surveys[2].why_nothing == f"3 {LATER}"


def test_keep_leaves_the_originals_and_does_not_compact_them_twice(yard: Yard, tmp_path: Path) -> None:
    for number in range(3):
        yard.put(f"d/{number}.parquet", rows(number))
    before = yard.files()
    target = local_yard(tmp_path / "target", yard.settings)
    yard.compact(originals="keep", target_uri=target.uri)
    assert yard.files() == before
    assert target.content() == yard.content()
    assert yard.run(originals="keep", target_uri=target.uri).plan()[0].plan.is_empty
    yard.put("d/8.parquet", rows(800))
    yard.put("d/9.parquet", rows(900))
    yard.compact(originals="keep", target_uri=target.uri)
    assert target.content() == yard.content()
