"""Data files whose pages can be joined are stitched, and the table reads the same by every reader."""

import errno
import os
import random
from collections.abc import Callable
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Operation

from compaction_platform.lake.iceberg.data_file_reader import DataFileReader
from compaction_platform.lake.iceberg.data_file_writer import DataFileWriter
from compaction_platform.lake.iceberg.replace_files import AddedFile, FileChange, commit_change
from compaction_platform.lake.iceberg.snapshot_files import Manifests
from compaction_platform.lake.parquet.stitch.errors import StitchUnsupported
from compaction_platform.lake.storage import object_store, prefetch, staged_upload
from compaction_platform.lake.storage.aws_clients import aws_client
from compaction_platform.lake.storage.object_store import MultipartWrite, ObjectStore, StoreRefused
from compaction_platform.maintain.operations import rewrite_data_files
from compaction_platform_tests.maintain.scene import COLUMNS, Scene, ordered, rows_of

pytestmark = pytest.mark.integration

NewScene = Callable[..., Scene]
ROWS = 2000


def engines(report: Any) -> list[tuple[str, str]]:
    return [(each.result.engine, each.result.reason) for each in report.committed]


def data_files(scene: Scene) -> list[DataFile]:
    return [task.file for task in scene.table.scan().plan_files()]


def large_scene(new_scene: NewScene) -> Scene:
    """A table of four files of 4 MB."""
    scene = new_scene(columns="id bigint, raw binary", partitioned_by=None)
    chance = random.Random(10)
    schema = pyarrow.schema({"id": pyarrow.int64(), "raw": pyarrow.binary()})
    for number in range(4):
        rows = [{"id": number * ROWS + each, "raw": chance.randbytes(2000)} for each in range(ROWS)]
        scene.write(rows, schema=schema)
    return scene


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "PIECE", 5 << 20)  # the least that S3 takes
    monkeypatch.setattr(object_store, "PARTS_AT_ONCE", 1)  # a part is there before the next is taken
    monkeypatch.setattr(staged_upload, "HELD_BACK", 1 << 20)


def place_of(scene: Scene) -> dict[str, str]:
    bucket, _, prefix = scene.table.location().removeprefix("s3://").partition("/")
    return {"Bucket": bucket, "Prefix": prefix}


def unfinished(scene: Scene) -> list[dict[str, Any]]:
    """Uploads that have begun and not ended."""
    client = aws_client("s3", scene.settings, scene.settings.s3_endpoint)
    return list(client.list_multipart_uploads(**place_of(scene)).get("Uploads", []))


def parts_of(scene: Scene, upload: dict[str, Any]) -> int:
    client = aws_client("s3", scene.settings, scene.settings.s3_endpoint)
    bucket, key, number = place_of(scene)["Bucket"], upload["Key"], upload["UploadId"]
    return len(client.list_parts(Bucket=bucket, Key=key, UploadId=number).get("Parts", []))


def stored(scene: Scene) -> set[str]:
    """All data files in the table's place, whoever refers to them."""
    client = aws_client("s3", scene.settings, scene.settings.s3_endpoint)
    keys = [each["Key"] for each in client.list_objects_v2(**place_of(scene)).get("Contents", [])]
    return {key for key in keys if key.endswith(".parquet")}


def test_files_of_pyiceberg_are_stitched_with_metrics_identities_and_split_offsets(scene: Scene) -> None:
    scene.write(*(rows_of(range(number * ROWS, (number + 1) * ROWS)) for number in range(4)))
    report = scene.maintain()
    ((engine, reason),) = engines(report)
    assert (engine, reason.startswith("pages are joined; columns: ")) == ("stitch", True)
    assert all(0 < each.result.proof_seconds < each.result.seconds for each in report.committed)
    (columns,) = [said for said in scene.said if said.startswith("columns of ")]
    assert all(f"{field.name}: " in columns for field in scene.table.schema().fields), "how each was made, and why"
    scene.assert_nothing_lost()
    assert ordered(scene.table.scan().to_arrow().to_pylist()) == ordered(scene.expected), "PyIceberg reads the same"
    (file,) = data_files(scene)
    assert (file.record_count, dict(file.null_value_counts)) == (4 * ROWS, {1: 0, 2: 0, 3: 0})
    schema = scene.schema
    low, high = (
        {number: from_bytes(schema.find_type(number), value) for number, value in bounds.items()}
        for bounds in (file.lower_bounds, file.upper_bounds)
    )
    assert (low, high) == ({1: 0, 2: "de", 3: 1.0}, {1: 4 * ROWS - 1, 2: "de", 3: float(4 * ROWS)})
    content = DataFileReader(scene.table.metadata, scene.settings).fetch(file.file_path)
    footer = pyarrow.parquet.read_metadata(pyarrow.BufferReader(content))
    assert list(file.split_offsets) == [4] and footer.num_row_groups == 1
    fields = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content)).schema_arrow
    assert [field.metadata[b"PARQUET:field_id"] for field in fields] == [b"1", b"2", b"3"]


def test_files_of_spark_with_nested_columns_are_stitched(new_scene: NewScene, spark: Any) -> None:
    scene = new_scene(
        columns="id bigint, s struct<a: int, b: array<string>>, m map<string, double>, d decimal(30, 4), small "
        "decimal(9, 2), day date, at timestamp, ok boolean, raw binary, f float, text string",
        partitioned_by=None,
        write_parquet_compression__codec="zstd",
    )
    for number in range(4):
        scene.sql(
            f"INSERT INTO {scene.full_name} SELECT /*+ COALESCE(1) */ id, IF(id % 7 = 1, NULL, named_struct('a', "
            "CAST(id AS int), 'b', array(concat('x', id % 5), NULL))), map(concat('k', id % 3), id / 2D), id / 3, "
            "id % 100, date_add(DATE '2026-01-01', CAST(id % 300 AS int)), timestamp_seconds(id), id % 2 = 0, "
            "CAST(CAST(id AS string) AS binary), IF(id % 9 = 0, float('NaN'), CAST(id AS float)), concat('t', id % 10) "
            f"FROM range({number * ROWS}, {(number + 1) * ROWS})"
        )
    before = [str(row) for row in spark.table(scene.full_name).orderBy("id").collect()]
    ((engine, reason),) = engines(scene.maintain())
    assert engine == "stitch", reason
    assert scene.files() == 1
    rows = spark.table(scene.full_name).orderBy("id").collect()
    everything = spark.createDataFrame(rows, spark.table(scene.full_name).schema)
    for vectorized in ("true", "false"):
        scene.sql(
            f"ALTER TABLE {scene.full_name} SET TBLPROPERTIES ('read.parquet.vectorization.enabled'='{vectorized}')"
        )
        assert [str(row) for row in spark.table(scene.full_name).orderBy("id").collect()] == before
        for condition in ("id = 2000", "id >= 7999", "text = 't3' AND id > 7000", "day = DATE '2026-03-01'"):
            found = spark.table(scene.full_name).where(condition).orderBy("id").collect()
            kept = everything.where(condition).orderBy("id").collect()
            assert [str(row) for row in found] == [str(row) for row in kept] and found, (vectorized, condition)


def test_files_with_deletes_or_of_another_codec_or_schema_are_encoded_anew(new_scene: NewScene) -> None:
    deleted = new_scene()
    deleted.write(*(rows_of(range(number * ROWS, (number + 1) * ROWS)) for number in range(4)))
    deleted.delete("id % 100 = 7", lambda row: row["id"] % 100 == 7)
    ((engine, reason),) = engines(deleted.maintain())
    assert (engine, reason) == ("re-encode", "rows are deleted from these files")
    deleted.assert_nothing_lost()

    snappy = new_scene(write_parquet_compression__codec="snappy")
    snappy.write(*(rows_of(range(number * ROWS, (number + 1) * ROWS)) for number in range(4)))
    ((engine, reason),) = engines(snappy.maintain())
    assert (engine, "compressed by snappy, and zstd is wanted" in reason) == ("re-encode", True), reason
    snappy.assert_nothing_lost()

    evolved = new_scene(columns="id bigint, country string, amount double", partitioned_by=None)
    evolved.write(*(rows_of(range(number * ROWS, (number + 1) * ROWS)) for number in range(4)))
    evolved.sql(f"ALTER TABLE {evolved.full_name} RENAME COLUMN amount TO price")
    ((engine, reason),) = engines(evolved.maintain())
    assert (engine, reason) == ("re-encode", "files have another column in the place of price than the table has now")
    assert ordered(evolved.read()) == ordered(
        [{"id": row["id"], "country": row["country"], "price": row["amount"]} for row in evolved.expected]
    )


def test_a_damaged_file_is_found_although_pages_would_only_be_copied(scene: Scene) -> None:
    writer = DataFileWriter.of(scene.table, scene.settings)  # with checksums, as Spark writes them, too
    for number in range(4):
        rows = rows_of(range(number * ROWS, (number + 1) * ROWS))
        files = writer.write(pyarrow.Table.from_pylist(rows, COLUMNS))
        change = FileChange(added=[AddedFile(file) for file in files], operation=Operation.APPEND)
        commit_change(scene.table, change, Manifests(scene.table.io))
    bad = sorted(file.file_path for file in data_files(scene))[1]
    store = DataFileReader(scene.table.metadata, scene.settings).store(bad)
    key = bad.removeprefix("s3://").partition("/")[2]
    content = bytearray(store.read(key))
    content[100] ^= 0xFF
    store.write(key, bytes(content))
    report = scene.maintain()
    assert all(bad not in {file.path for file in each.group.files} for each in report.committed)
    assert scene.files() >= 2
    assert bytes(store.read(key)) == bytes(content)


@pytest.mark.usefixtures("small_parts")
def test_a_store_that_has_other_bytes_than_it_was_given_changes_nothing(
    new_scene: NewScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = large_scene(new_scene)
    before = {file.file_path for file in data_files(scene)}
    given: set[str] = set()
    real = MultipartWrite.write

    def altered(stored: MultipartWrite, data: Any) -> None:
        given.add(stored.key)
        content = bytearray(data)
        content[len(content) // 2] ^= 1
        real(stored, bytes(content))

    monkeypatch.setattr(MultipartWrite, "write", altered)
    report = scene.maintain()
    assert (len(given), report.committed) == (1, ())
    assert "is not what was stored" in "".join(report.failed.values())
    assert {file.file_path for file in data_files(scene)} == before
    assert DataFileReader(scene.table.metadata, scene.settings).store(next(iter(before))).stat(given.pop()) is None
    scene.assert_nothing_lost()


@pytest.mark.usefixtures("small_parts")
def test_an_output_goes_to_the_store_while_it_is_made_and_is_seen_when_it_is_proved(
    new_scene: NewScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = large_scene(new_scene)
    seen: list[tuple[int, bool]] = []
    real = rewrite_data_files.verify_stitched

    def watched(*given: Any, **options: Any) -> Any:
        (upload,) = unfinished(scene)
        seen.append((parts_of(scene, upload), upload["Key"] in stored(scene)))
        return real(*given, **options)

    monkeypatch.setattr(rewrite_data_files, "verify_stitched", watched)
    assert [engine for engine, _ in engines(scene.maintain())] == ["stitch"]
    ((parts, is_there),) = seen
    assert parts >= 1 and not is_there
    assert unfinished(scene) == []
    scene.assert_nothing_lost()


@pytest.mark.usefixtures("small_parts")
def test_an_output_that_is_not_proved_leaves_nothing_in_the_store(
    new_scene: NewScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = large_scene(new_scene)
    during: list[list[Any]] = []

    def refused(*_: Any, **__: Any) -> Any:
        during.append(unfinished(scene))
        raise StitchUnsupported("it is not what it should be")

    monkeypatch.setattr(rewrite_data_files, "verify_stitched", refused)
    before = stored(scene)
    report = scene.maintain()
    assert [len(each) for each in during] == [1]
    assert engines(report) == [("re-encode", "it is not what it should be")]
    assert unfinished(scene) == []
    committed = {file.file_path for file in data_files(scene)}
    assert stored(scene) - before == {path.removeprefix("s3://").partition("/")[2] for path in committed}
    scene.assert_nothing_lost()


@pytest.mark.usefixtures("small_parts")
def test_a_store_that_refuses_a_part_gets_the_file_whole(new_scene: NewScene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = large_scene(new_scene)
    refusals: list[str] = []

    def refused(stored: MultipartWrite, _: Any) -> None:
        refusals.append(stored.key)
        raise StoreRefused("the store is busy")

    monkeypatch.setattr(MultipartWrite, "write", refused)
    assert [engine for engine, _ in engines(scene.maintain())] == ["stitch"]
    assert len(refusals) == 1
    scene.assert_nothing_lost()


def test_a_store_that_refuses_everything_is_told_as_that_and_nothing_is_encoded_anew(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.write(*(rows_of(range(number * ROWS, (number + 1) * ROWS)) for number in range(4)))
    before = stored(scene)

    def refused(*_: Any) -> None:
        raise StoreRefused("the store is full")

    monkeypatch.setattr(ObjectStore, "create_from", refused)
    report = scene.maintain()
    assert (list(report.committed), "the store is full" in "".join(report.failed.values())) == ([], True)
    assert stored(scene) == before
    scene.assert_nothing_lost()


def test_without_room_for_the_inputs_files_are_encoded_anew(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.write(*(rows_of(range(number * ROWS, (number + 1) * ROWS)) for number in range(4)))

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(prefetch, "MOST_IN_MEMORY", 1000)
    monkeypatch.setattr(os, "pwrite", full)
    assert engines(scene.maintain()) == [("re-encode", "there is no room for the inputs in the temporary directory")]
    scene.assert_nothing_lost()
