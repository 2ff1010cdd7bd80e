"""Files that are corrupt, odd or of another shape: set aside or merged, never fatal, never lost."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from compaction_platform.lake.dagster.provisioning import TableColumn
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.merge.intake.staged_file_reader import Reading
from compaction_platform.merge.plan.staged_hours import StagedFile
from compaction_platform_tests.merge.scene import COLUMNS, DAY, SCHEMA, Scene, event, parquet

pytestmark = pytest.mark.integration

NewScene = Callable[..., Scene]
GOOD = [event(f"good-{number}", 1, number * 1.0) for number in range(20)]


@pytest.fixture(params=["here", "in Spark tasks"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small batches are read in the driver, large ones in tasks: both must judge alike."""
    if request.param != "here":
        monkeypatch.setattr("compaction_platform.merge.intake.intake.SMALL_BATCH_BYTES", -1)
    return str(request.param)


def flipped(data: bytes) -> bytes:
    """One bit of a data page is wrong; only the page's checksum can tell."""
    place = data.index(b"good-7") + 2
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_bad_files_are_set_aside_with_the_reason_and_the_others_go_on(scene: Scene, way: str) -> None:
    plain = io.BytesIO()
    table = pyarrow.Table.from_pylist(GOOD, SCHEMA)
    pyarrow.parquet.write_table(table, plain, compression="none", use_dictionary=False, write_page_checksum=True)
    whole = plain.getvalue()
    scene.stage("good.parquet", GOOD)
    scene.stage("empty but valid.parquet", [])
    bad = {
        "zero.parquet": (b"", "0 bytes"),
        "cut.parquet": (whole[: len(whole) // 2], "footer"),
        "flipped.parquet": (flipped(whole), "checksum"),
        "deep/er/text.parquet": (b"id,name\n1,one\n", "footer"),
    }
    for name, (data, _) in bad.items():
        scene.stage(name, data)
    outcome = scene.merge(0)
    scene.check()
    manifest = outcome.manifests[scene.hour(0)]
    assert {file.key for file in manifest.quarantined} == set(bad)
    assert {file.key: file.rows for file in manifest.sound} == {"good.parquet": 20, "empty but valid.parquet": 0}
    kept = scene.quarantine()
    reasons = {json.loads(data)["key"]: json.loads(data) for name, data in kept.items() if name.endswith("reason.json")}
    for name, (data, reason) in bad.items():
        assert reason in reasons[name]["reason"].lower()
        (copy,) = [
            held for held in kept if held.startswith("2026-11-01/") and Path(name).stem in held and "reason" not in held
        ]
        assert kept[copy] == data, "the copy in quarantine is byte for byte the file"
        assert (scene.staging / name).read_bytes() == data, "and the file stays in staging"
    assert len(kept) == 2 * len(bad)
    scene.run(again=True).take_in([scene.hour(0)])
    assert scene.quarantine() == kept, "judging again changes nothing"


def test_rows_without_a_key_are_set_aside(scene: Scene, way: str) -> None:
    rows = [event("a"), {**event("b"), "event_id": None}, event("c"), {**event("d"), "event_id": None}]
    scene.stage("mixed.parquet", rows)
    outcome = scene.merge(0)
    scene.check()
    (report,) = outcome.manifests[scene.hour(0)].files
    assert (report.rows, report.rejected, report.fate) == (4, 2, "sound")
    (rejects,) = scene.quarantine().items()
    assert rejects[0].endswith(".rejects.parquet")
    held = pyarrow.parquet.read_table(pyarrow.BufferReader(rejects[1])).to_pylist()
    assert [row["_staged_row"] for row in held] == [1, 3]
    assert [row["event_time"] for row in held] == [rows[1]["event_time"], rows[3]["event_time"]]
    assert "have no event_id" in held[0]["reason"]


def test_both_ways_of_reading_give_the_same_table(new_scene: NewScene, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = []
    for limit in (1 << 30, -1):
        monkeypatch.setattr("compaction_platform.merge.intake.intake.SMALL_BATCH_BYTES", limit)
        scene = new_scene()
        for hour in range(2):
            for number in range(3):
                rows = [event(str(n % 7), hour * 5 + (n * number) % 5, n * 1.0, day=n % 7 % 3) for n in range(hour, 30)]
                rows = [{**row, "country": ("pt", None)[n % 2]} for n, row in enumerate(rows)]
                scene.stage(f"{hour}-{number}.parquet", rows, hour)
            outcome = scene.merge(hour)
            scene.check()
            assert outcome.merged.audit is not None
        assert not scene.merge(1, again=True).merged.published
        contents.append(scene.content())
    assert contents[0] == contents[1]


def test_a_large_file_is_spooled_and_decoded_in_pieces(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compaction_platform.merge.intake.intake.SMALL_BATCH_BYTES", -1)
    monkeypatch.setattr("compaction_platform.merge.intake.staged_file_reader.HELD_IN_MEMORY_BYTES", 1000)
    monkeypatch.setattr("compaction_platform.lake.storage.object_store.PIECE", 700)
    rows = [event(f"{number:06d}", 1, number * 1.0) for number in range(5000)] + [{**event("x"), "event_id": None}]
    scene.stage("large.parquet", rows)
    store = ObjectStore.at(str(scene.staging), scene.settings)
    (stored,) = store.list()
    reading = Reading(store, None, SCHEMA, ("event_id",), ("event_id",), "add")
    report, batches = reading.read(StagedFile(stored.key, stored.size, stored.etag, stored.last_modified))
    assert (report.rows, report.rejected) == (5001, 1)
    given = pyarrow.Table.from_batches(batches, reading.output)
    assert given.column("event_id").to_pylist() == [row["event_id"] for row in rows[:-1]]
    assert given.column("_staged_row").to_pylist() == list(range(5000))


# ---------------------------------------------------------------- columns


def table_of(**columns: object) -> pyarrow.Table:
    base = {"event_id": ["a", "b"], "event_time": pyarrow.array([DAY, DAY], pyarrow.timestamp("us", "UTC"))}
    return pyarrow.table({**base, **columns})


def test_new_columns_are_added_widened_and_kept(scene: Scene, way: str) -> None:
    scene.stage("1.parquet", table_of(clicks=pyarrow.array([1, 2], pyarrow.int16()), amount=[1.0, 2.0]))
    scene.stage("2.parquet", table_of(event_id=["c", "d"], clicks=pyarrow.array([2**40, None]), Label=["x", "y"]))
    scene.stage("3.parquet", table_of(event_id=["e", "f"], clicks=["many", "few"]))
    outcome = scene.merge(0)
    fields = {field.name: str(field.field_type) for field in scene.table().schema().fields}
    assert (fields["clicks"], fields["label"]) == ("long", "string")
    rows = {row["event_id"]: (row["clicks"], row["label"]) for row in scene.content()}
    assert rows == {"a": (1, None), "b": (2, None), "c": (2**40, "x"), "d": (None, "y")}
    (bad,) = outcome.manifests[scene.hour(0)].quarantined
    assert bad.key == "3.parquet"
    assert "clicks is string, which does not fit into int64" in bad.reason


def test_new_columns_can_be_ignored_or_rejected(new_scene: NewScene) -> None:
    ignoring = new_scene(on_new_column="ignore")
    ignoring.stage("1.parquet", table_of(clicks=[1, 2]))
    outcome = ignoring.merge(0)
    assert "clicks" not in ignoring.table().schema().column_names
    assert len(ignoring.content()) == 2
    assert outcome.manifests[ignoring.hour(0)].files[0].ignored == ("clicks",)
    rejecting = new_scene(on_new_column="reject")
    rejecting.stage("1.parquet", table_of(clicks=[1, 2]))
    rejecting.stage("2.parquet", table_of(nothing=pyarrow.nulls(2)))
    outcome = rejecting.merge(0)
    assert {file.key: file.fate for file in outcome.manifests[rejecting.hour(0)].files} == {
        "1.parquet": "quarantined",
        "2.parquet": "sound",
    }
    assert len(rejecting.content()) == 2


@pytest.mark.parametrize("name", ["drop table", "a`b", "_hidden", "x;y", "ä"])
def test_a_new_column_whose_name_could_do_harm_is_refused(scene: Scene, name: str) -> None:
    scene.stage("1.parquet", table_of(**{name: [1, 2]}))
    outcome = scene.run().take_in([scene.hour(0)])
    (report,) = outcome.manifests[scene.hour(0)].files
    assert report.fate == "quarantined"
    assert name in report.reason
    assert len(scene.table().schema().fields) == 7


def test_columns_missing_renamed_retyped_and_reordered(new_scene: NewScene) -> None:
    scene = new_scene(columns=(*COLUMNS, TableColumn("count", "long"), TableColumn("on_day", "timestamptz")))
    moment = pyarrow.array([DAY, DAY], pyarrow.timestamp("us", "UTC"))
    scene.stage("missing.parquet", table_of())
    reordered = {"amount": [5.0, 6.0], "updated_at": moment, "event_time": moment, "event_id": ["c", "d"]}
    scene.stage("reordered.parquet", pyarrow.table(reordered))
    scene.stage("upper.parquet", pyarrow.table({"EVENT_ID": ["e"], "Event_Time": moment.slice(1), "Amount": [7.0]}))
    wider = {"count": pyarrow.array([1, 2], pyarrow.int32()), "amount": pyarrow.array([0.5, None], pyarrow.float32())}
    dates = pyarrow.array([20000, None], pyarrow.date32())
    scene.stage("narrower.parquet", table_of(event_id=["g", "h"], on_day=dates, **wider))
    bad = {
        "no key.parquet": pyarrow.table({"id": ["x"], "amount": [1.0], "odd": [1]}),
        "no partition.parquet": pyarrow.table({"event_id": ["a"], "amount": [9.0]}),
        "wide amount.parquet": table_of(amount=["1.0", "2.0"]),
        "big count.parquet": table_of(count=pyarrow.array([1.5, 2.0])),
        "key as number.parquet": pyarrow.table({"event_id": [1, 2]}),
        "twice.parquet": pyarrow.table([pyarrow.array(["x"]), pyarrow.array(["y"])], names=["event_id", "Event_Id"]),
        "nanoseconds.parquet": table_of(updated_at=pyarrow.array([1, 2], pyarrow.timestamp("ns", "UTC"))),
    }
    for name, table in bad.items():
        scene.stage(name, parquet(table))
    outcome = scene.merge(0)
    assert {file.key for file in outcome.manifests[scene.hour(0)].quarantined} == set(bad)
    rows = {row["event_id"]: row for row in scene.content()}
    assert sorted(rows) == ["a", "b", "c", "d", "e", "g", "h"]
    assert (rows["a"]["amount"], rows["c"]["amount"], rows["e"]["amount"]) == (None, 5.0, 7.0)
    assert (rows["g"]["count"], rows["g"]["amount"]) == (1, 0.5)
    assert "odd" not in scene.table().schema().column_names, "a file that is set aside adds no column"
    assert rows["g"]["on_day"].isoformat() == "2024-10-04T00:00:00+00:00"


# ---------------------------------------------------------------- real files


@pytest.mark.parametrize("way", ["here", "in Spark tasks"], indirect=True)
def test_real_corrupt_files(new_scene: NewScene, shared_data: Path, way: str) -> None:
    """All but two are bad, whatever some readers say; the collection's README has the right answers."""
    scene = new_scene(on_new_column="ignore")
    scene.stage("good.parquet", GOOD)
    files = sorted((shared_data / "corrupt_parquet").glob("*.parquet"))
    assert len(files) == 7
    for file in files:
        scene.stage(file.name, file.read_bytes())
    outcome = scene.merge(0)
    scene.check()
    assert {report.key for report in outcome.manifests[scene.hour(0)].quarantined} == {file.name for file in files}
    reasons = {report.key: report.reason for report in outcome.manifests[scene.hour(0)].quarantined}
    # These two can be read. They lack the key, and are set aside for that alone.
    for name in ("ARROW-GH-43605.parquet", "nation.dict-malformed.parquet"):
        assert "the column event_id is missing" in reasons[name]


def test_real_files_are_judged_by_their_pages(shared_data: Path) -> None:
    """The same files with their own columns as the table: only the sound ones give rows."""
    fates = {}
    for folder in ("corrupt_parquet", "odd_parquet"):
        store = ObjectStore(f"file://{shared_data / folder}")
        for stored in store.list():
            if stored.key.endswith(".parquet"):
                reading = Reading(store, None, pyarrow.schema([]), (), (), "ignore")
                report, batches = reading.read(StagedFile(stored.key, stored.size, stored.etag, stored.last_modified))
                rows = sum(batch.num_rows for batch in batches)
                fates[stored.key] = rows if report.fate == "sound" else report.fate
    corrupt = {path.name: fates[path.name] for path in (shared_data / "corrupt_parquet").glob("*.parquet")}
    assert {name for name, fate in corrupt.items() if fate != "quarantined"} == {
        "ARROW-GH-43605.parquet",
        "nation.dict-malformed.parquet",
    }
    assert corrupt["ARROW-GH-43605.parquet"] == 21186
    assert fates["repeated_no_annotation.parquet"] == 6, "its footer says 0 rows"
    assert fates["datapage_v1-uncompressed-checksum.parquet"] == 5120
    assert fates["concatenated_gzip_members.parquet"] == 513
    odd_and_refused = {
        path.name for path in (shared_data / "odd_parquet").glob("*.parquet") if fates[path.name] == "quarantined"
    }
    # pyarrow refuses the one, and reads a moment of the other as another; a refusal keeps the source
    assert odd_and_refused == {"incorrect_map_schema.parquet", "int96_from_spark.parquet"}
