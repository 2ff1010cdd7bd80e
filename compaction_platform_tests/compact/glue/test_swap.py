"""A partition switches to its compacted files; everything else about it stays."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow
import pyarrow.parquet
import pytest

from compaction_platform.compact.commit.delete_inputs import InputDeletion
from compaction_platform.compact.glue.commit.catalog import CatalogRefused, GlueCatalog, TableUnsuitable
from compaction_platform.compact.glue.names import partition_name
from compaction_platform.compact.glue.plan.inventory import NOTHING_TO_GAIN, Selection
from compaction_platform.compact.glue.plan.partition_plan import GOOD, NO_FILES, YOUNG, PartitionRules, version_digest
from compaction_platform.compact.glue.plan.predicate import PredicateInvalid
from compaction_platform.compact.plan.bin_packing import PackingPolicy
from compaction_platform.lake.storage.sizes import MB
from compaction_platform.settings import SettingsInvalid
from compaction_platform_tests.compact.glue.scene import COLUMNS, GRACE_OVER, RULES, Scene, as_parquet, clicks

pytestmark = pytest.mark.integration


def test_a_partition_leads_to_few_files_with_the_same_rows(scene: Scene) -> None:
    home = scene.partition("2023", "05", recordCount="0", other="1")
    scene.fill(home)
    before = scene.described("2023", "05")
    (result,) = scene.compact().results
    assert (result.outcome, result.before.files, result.after.files, result.rows) == ("compacted", 6, 1, 120)
    place = scene.place("2023", "05")
    assert place.startswith(f"{scene.location}-compacted/year=2023/month=05/v-")
    assert len(scene.names(place)) == 1
    assert scene.ids("2023", "05") == list(range(120))
    assert len(scene.names(home)) == 6
    after = scene.described("2023", "05")
    assert after["Parameters"] == {
        "made_by": "the writer",
        "other": "1",
        "recordCount": "120",
        "numFiles": "1",
        "numRows": "120",
        "totalSize": str(result.after.bytes),
    }
    assert after["StorageDescriptor"].pop("Location") == f"{place}/"
    before["StorageDescriptor"].pop("Location")
    assert after["StorageDescriptor"] == before["StorageDescriptor"]
    assert after["StorageDescriptor"]["Columns"] == COLUMNS


def test_the_manifest_tells_what_was_done(scene: Scene) -> None:
    home = scene.partition("2023", "05")
    scene.fill(home, files=2)
    scene.compact()
    place = scene.place("2023", "05")
    manifest = json.loads(scene.content(place, "_compaction.json"))
    assert manifest["replaces"] == manifest["home"] == home
    assert [each["name"] for each in manifest["inputs"]] == ["part-000.parquet", "part-001.parquet"]
    (output,) = manifest["outputs"]
    assert output["inputs"] == ["part-000.parquet", "part-001.parquet"] and output["rows"] == 40
    assert scene.names(place) == [output["name"]]


def test_running_again_does_nothing(scene: Scene) -> None:
    scene.fill(scene.partition("2023", "05"))
    scene.compact()
    place = scene.place("2023", "05")
    everything = scene.names(f"{scene.location}-compacted", hidden=True)
    scene.server.calls.clear()
    (result,) = scene.compact().results
    assert result.outcome == "left alone" and not result.did_something
    assert scene.place("2023", "05") == place
    assert scene.names(f"{scene.location}-compacted", hidden=True) == everything
    assert "UpdatePartition" not in scene.server.calls


def test_originals_are_removed_only_after_the_grace_and_only_if_asked(scene: Scene) -> None:
    home = scene.partition("2023", "05")
    scene.fill(home)
    scene.compact(GRACE_OVER)
    assert len(scene.names(home)) == 6  # running queries may still read them
    (result,) = scene.compact().results
    assert result.removed == 0 and len(scene.names(home)) == 6
    (result,) = scene.compact(replace(GRACE_OVER, delete_originals=False)).results
    assert result.removed == 0 and len(scene.names(home)) == 6
    (result,) = scene.compact(GRACE_OVER).results
    assert result.removed == 6 and scene.names(home) == []
    assert scene.ids("2023", "05") == list(range(120))
    assert not scene.compact(GRACE_OVER).results[0].did_something


def test_originals_that_another_table_reads_stay(scene: Scene) -> None:
    home = scene.partition("2023", "05")
    scene.fill(home)
    scene.create_table("also_clicks", StorageDescriptor=scene.storage(f"{home}/"), PartitionKeys=[])
    scene.compact(GRACE_OVER)
    report = scene.compact(GRACE_OVER)
    assert report.results[0].removed == 0 and "table also_clicks" in report.kept[home]
    assert len(scene.names(home)) == 6


def test_originals_that_another_partition_reads_stay(scene: Scene) -> None:
    home = scene.partition("2023", "05")
    scene.fill(home)
    scene.compact(GRACE_OVER)
    scene.partition("2023", "06", location=home)
    report = scene.compact(GRACE_OVER, selection=Selection(("year=2023/month=05",)))
    assert report.results[0].removed == 0 and "partition year=2023/month=06" in report.kept[home]
    assert scene.ids("2023", "06") == list(range(120))


def test_the_grace_of_a_location_runs_from_its_own_swap(scene: Scene) -> None:
    """Partitions that are swapped again and again do not pile up what was replaced."""
    home = scene.partition("2023", "05")
    scene.fill(home)
    scene.compact()
    for round in range(2):
        for number in range(2):
            scene.put(
                scene.place("2023", "05"), f"by-catalog-{round}-{number}", clicks(1000 + round * 40 + number * 20)
            )
        assert scene.compact().results[0].outcome == "compacted"
    manifest = json.loads(scene.content(scene.place("2023", "05"), "_compaction.json"))
    assert [since is None for since in manifest["old_places"].values()] == [False, False, True]
    assert next(iter(manifest["old_places"])) == manifest["home"] == home
    assert scene.ids("2023", "05") == [*range(120), *range(1000, 1080)]
    removed = scene.compact(GRACE_OVER).results[0].removed
    assert removed == 6 + 1 + 2 + 1 + 2
    assert scene.ids("2023", "05") == [*range(120), *range(1000, 1080)]


def test_a_partition_that_was_being_compacted_in_place_is_finished_first(scene: Scene) -> None:
    home = scene.partition("2023", "05")
    scene.fill(home)
    kept = {name: scene.content(home, name) for name in scene.names(home)}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(InputDeletion, "remove", lambda self, *arguments, **named: {"all": "as if it had died"})
        scene.compact(publish="in_place")
    report = scene.compact()
    assert "has not ended" in report.problems["year=2023/month=05"] and scene.place("2023", "05") == home
    for name, data in kept.items():  # a state from before is restored: the same bytes, of another time
        moved_on(scene, home, name, data)
    report = scene.compact()
    assert "is a copy of a file" in report.problems["year=2023/month=05"] and scene.place("2023", "05") == home


def test_what_spark_has_noted_about_old_dates_is_kept(scene: Scene) -> None:
    home = scene.partition("2023", "05")
    for number in range(4):
        notes = {b"org.apache.spark.legacyDateTime": b""} if number % 2 else {}
        scene.put(home, f"{number}.parquet", clicks(number * 20).replace_schema_metadata(notes))
    assert scene.compact().results[0].after.files == 2
    place = scene.place("2023", "05")
    found = {}
    for name in scene.names(place):
        data = io.BytesIO(scene.content(place, name))
        legacy = b"org.apache.spark.legacyDateTime" in pyarrow.parquet.read_metadata(data).metadata
        found[legacy] = pyarrow.parquet.read_table(data)["id"].to_pylist()
    assert found == {False: [*range(20), *range(40, 60)], True: [*range(20, 40), *range(60, 80)]}


def test_a_late_file_at_the_old_location_becomes_visible(scene: Scene) -> None:
    home = scene.partition("2023", "05")
    scene.fill(home)
    scene.compact()
    scene.put(home, "late.parquet", clicks(1000))
    (survey,) = scene.plan()
    assert [late.file.key for late in survey.plan.late] == ["late.parquet"]
    (result,) = scene.compact().results
    assert result.late == 1
    expected = [*range(120), *range(1000, 1020)]
    assert scene.ids("2023", "05") == expected
    assert scene.compact().results[0].late == 0
    assert scene.ids("2023", "05") == expected
    # Two new ones make a new version; the first one's files go with its grace, and nothing is seen twice.
    scene.put(home, "later.parquet", clicks(2000))
    (result,) = scene.compact(replace(GRACE_OVER, delete_originals=False)).results
    assert (result.outcome, result.late, result.after.files) == ("compacted", 1, 1)
    expected += range(2000, 2020)
    assert scene.ids("2023", "05") == expected
    (result,) = scene.compact(replace(GRACE_OVER, delete_originals=False)).results
    assert result.removed == 3  # the first version: one compacted file and two late ones
    versions = {
        name.split("/")[0] for name in scene.names(f"{scene.location}-compacted/year=2023/month=05", hidden=True)
    }
    assert versions == {scene.place("2023", "05").rpartition("/")[2]}
    assert len(scene.names(home)) == 8
    (result,) = scene.compact(GRACE_OVER).results
    assert result.removed == 8 and scene.names(home) == []
    assert scene.ids("2023", "05") == expected


def test_a_file_that_was_overwritten_after_the_swap_is_for_a_person(scene: Scene) -> None:
    home = scene.partition("2023", "05")
    scene.fill(home)
    scene.compact()
    scene.put(home, "part-000.parquet", clicks(5000))
    report = scene.compact(GRACE_OVER)
    assert not report.is_clean and "part-000.parquet" in report.problems["year=2023/month=05"]
    assert len(scene.names(home)) == 6
    assert scene.ids("2023", "05") == list(range(120))


def test_the_same_file_delivered_again_after_the_swap_is_for_a_person(scene: Scene) -> None:
    """Name and bytes are those of an original, the time is not: a producer may mean its rows to count twice."""
    home = scene.partition("2023", "05")
    scene.fill(home)
    scene.compact()
    again = scene.content(home, "part-000.parquet")
    moved_on(scene, home, "part-000.parquet", again)
    for _ in range(2):
        report = scene.compact(GRACE_OVER)
        assert not report.is_clean and "part-000.parquet" in report.problems["year=2023/month=05"]
        assert scene.content(home, "part-000.parquet") == again and scene.ids("2023", "05") == list(range(120))


def test_the_same_file_delivered_again_right_before_it_is_removed_stays(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = scene.partition("2023", "05")
    scene.fill(home)
    scene.compact(GRACE_OVER)
    real = InputDeletion.remove
    again = scene.content(home, "part-000.parquet")
    happened: list[str] = []

    def delivered_first(self: InputDeletion, *arguments: Any) -> Any:
        happened.append("delivered")
        moved_on(scene, home, "part-000.parquet", again)
        return real(self, *arguments)

    monkeypatch.setattr(InputDeletion, "remove", delivered_first)
    report = scene.compact(GRACE_OVER)
    assert happened and list(report.not_removed) == [f"{home}/part-000.parquet"] and report.results[0].removed == 5
    assert scene.names(home) == ["part-000.parquet"]


def moved_on(scene: Scene, place: str, name: str, content: bytes) -> None:
    """Written again and again until the store's clock, which tells seconds, shows another one."""
    key = f"{place.removeprefix('s3://lake/')}/{name}"
    before = scene.s3.head_object(Bucket="lake", Key=key)
    while (now := scene.s3.head_object(Bucket="lake", Key=key))["LastModified"] == before["LastModified"]:
        scene.put(place, name, content)
    assert now["ETag"] == before["ETag"]


def test_a_manifest_of_the_first_format_is_carried_on(scene: Scene) -> None:
    """There, digests are of etags alone. Nothing is late because of that, and the next version says it in full."""
    home = scene.partition("2023", "05")
    scene.fill(home)
    scene.compact()
    place = scene.place("2023", "05")
    told = json.loads(scene.content(place, "_compaction.json"))
    for each in told["inputs"]:
        del each["changed_at"]
    for each in told["outputs"]:
        del each["content"]
    told["absorbed"] = [version_digest(each["place"], each["name"], each["etag"]) for each in told["inputs"]]
    scene.put(place, "_compaction.json", json.dumps({**told, "format_version": 1}).encode())
    (survey,) = scene.plan()
    assert survey.plan.is_empty and survey.plan.problem is None
    for number in range(2):
        scene.put(place, f"new-{number}", clicks(500 + number * 20))
    assert scene.compact().results[0].outcome == "compacted"
    told = json.loads(scene.content(scene.place("2023", "05"), "_compaction.json"))
    assert told["format_version"] == 2
    removed = scene.compact(GRACE_OVER)
    assert removed.is_clean and removed.results[0].removed == 9 and scene.names(home) == []
    assert scene.ids("2023", "05") == [*range(120), *range(500, 540)]


def test_files_are_joined_only_with_files_of_exactly_their_columns(scene: Scene) -> None:
    """Nothing is widened or reordered: a table that says int could not read bigint."""
    home = scene.partition("2023", "05")
    narrow = pyarrow.schema([("id", pyarrow.int32()), ("word", pyarrow.string())])
    upper = pyarrow.schema([("ID", pyarrow.int64()), ("word", pyarrow.string())])
    kinds: dict[str, Callable[[int], pyarrow.Table]] = {
        "plain": clicks,
        "narrow": lambda first: clicks(first).cast(narrow),
        "turned": lambda first: clicks(first).select(["word", "id"]),
        "more": lambda first: clicks(first, price=[1.5] * 20),
        "upper": lambda first: clicks(first).rename_columns(upper.names),
    }
    before: dict[str, list[dict[str, Any]]] = {}
    for number, (name, make) in enumerate(kinds.items()):
        tables = [make(number * 100), make(number * 100 + 20)]
        for part, table in enumerate(tables):
            scene.put(home, f"{part}-{name}.parquet", table)
        before[str(tables[0].schema)] = [row for table in tables for row in table.to_pylist()]
    scene.put(home, "9-alone.parquet", clicks(5000).append_column("alone", pyarrow.array([1] * 20)))
    (result,) = scene.compact().results
    assert (result.outcome, result.before.files, result.after.files) == ("compacted", 11, 6)
    place = scene.place("2023", "05")
    found = {}
    for name in scene.names(place):
        table = pyarrow.parquet.read_table(io.BytesIO(scene.content(place, name)))
        found[str(table.schema)] = table.to_pylist()
    alone = next(rows for schema, rows in found.items() if "alone" in schema)
    assert len(alone) == 20
    assert {schema: rows for schema, rows in found.items() if "alone" not in schema} == before
    assert "exactly its columns" in next(each.reason for each in result.outputs if each.how == "copy")
    assert scene.compact().results[0].outcome == "left alone"


def test_types_are_stored_as_they_were(scene: Scene) -> None:
    """What other readers go by: physical and logical types, and whether a column may be null."""
    home = scene.partition("2023", "05")
    schema = pyarrow.schema(
        [
            pyarrow.field("id", pyarrow.int64(), nullable=False),
            ("small", pyarrow.int8()),
            ("price", pyarrow.decimal128(9, 2)),
            ("huge", pyarrow.decimal128(38, 0)),
            ("at", pyarrow.timestamp("ms", "UTC")),
            ("local", pyarrow.timestamp("us")),
            ("day", pyarrow.date32()),
            ("tags", pyarrow.list_(pyarrow.string())),
            ("pair", pyarrow.struct([("a", pyarrow.int32()), ("b", pyarrow.string())])),
            ("by_name", pyarrow.map_(pyarrow.string(), pyarrow.float64())),
        ]
    )
    row = {
        "small": 1,
        "price": Decimal("1.50"),
        "huge": Decimal(10) ** 37,
        "at": 0,
        "local": 0,
        "day": 0,
        "tags": ["x", None],
        "pair": {"a": 1, "b": None},
        "by_name": [("k", 1.0)],
    }
    signatures = set()
    for as_integers in (False, True):
        for number in range(3):
            rows = pyarrow.Table.from_pylist([{"id": number, **row}], schema)
            name = f"{as_integers}-{number}.parquet"
            scene.put(home, name, rows, store_decimal_as_integer=as_integers)
            signatures.add(_signature(as_parquet(rows, store_decimal_as_integer=as_integers)))
    for number in range(2):
        data = as_parquet(
            clicks(0, at=pyarrow.array([0] * 20, pyarrow.timestamp("us"))), use_deprecated_int96_timestamps=True
        )
        scene.put(home, f"int96-{number}.parquet", data)
        signatures.add(_signature(data))
    (result,) = scene.compact().results
    assert result.outcome == "compacted" and result.after.files == 3
    place = scene.place("2023", "05")
    assert {_signature(scene.content(place, name)) for name in scene.names(place)} == signatures


def _signature(data: bytes) -> tuple[Any, ...]:
    """As DuckDB, not Arrow, reads it out of a footer."""
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        file.write(data)
        file.flush()
        columns = "name, type, type_length, repetition_type, converted_type, scale, precision, logical_type"
        query = f"SELECT {columns} FROM parquet_schema('{file.name}') WHERE num_children IS NULL"
        return tuple(duckdb.sql(query).fetchall())


def test_files_of_other_writers_are_joined(scene: Scene, tmp_path: Any) -> None:
    """DuckDB says of 64 bits that they are an integer of 64 bits; Hive names its files as it likes."""
    home = scene.partition("2023", "05")
    for number in range(3):
        path = tmp_path / "x.parquet"
        duckdb.sql(
            f"COPY (SELECT range + {number * 20} AS id, 'w' AS word FROM range(20)) TO '{path}' (FORMAT parquet)"
        )
        scene.put(home, f"00000{number}_0", path.read_bytes())
    (result,) = scene.compact().results
    assert (result.outcome, result.after.files) == ("compacted", 1)
    assert scene.ids("2023", "05") == list(range(60))


def test_a_damaged_file_is_carried_over_byte_for_byte(scene: Scene) -> None:
    home = scene.partition("2023", "05")
    scene.fill(home, files=3)
    broken = as_parquet(clicks(500), write_page_checksum=True)
    broken = broken[:50] + b"\xff\x00\xff" + broken[53:]
    scene.put(home, "part-900.parquet", broken)
    scene.put(home, "part-901.parquet", b"no Parquet at all")
    scene.put(home, "empty.parquet", b"")
    (result,) = scene.compact().results
    assert (result.outcome, result.after.files, result.rows) == ("compacted", 3, None)
    place = scene.place("2023", "05")
    kept = [name for name in scene.names(place) if ".copied-" in name]
    assert sorted(scene.content(place, name) for name in kept) == sorted([broken, b"no Parquet at all"])
    assert "numRows" not in scene.described("2023", "05")["Parameters"]
    assert scene.compact().results[0].outcome == "left alone"


def test_large_files_are_copied_and_not_counted_as_compacted(scene: Scene) -> None:
    home = scene.partition("2023", "05")
    rules = replace(RULES, policy=PackingPolicy.for_target(MB // 10))
    large = as_parquet(pyarrow.table({"id": pyarrow.array(range(20_000)), "word": ["x"] * 20_000}), compression="none")
    assert len(large) > MB // 10
    scene.put(home, "large.parquet", large)
    scene.fill(home, files=3, first=100_000)
    (result,) = scene.compact(rules).results
    assert (result.files_compacted, result.after.files) == (3, 2)
    place = scene.place("2023", "05")
    (copied,) = [name for name in scene.names(place) if ".copied-" in name]
    assert scene.content(place, copied) == large


def test_nothing_is_swapped_if_nothing_is_gained(scene: Scene) -> None:
    home = scene.partition("2023", "05")
    scene.put(home, "a.parquet", clicks(0))
    scene.put(home, "b.parquet", clicks(20).select(["word", "id"]))
    (result,) = scene.compact().results
    assert (result.outcome, result.why) == ("left alone", NOTHING_TO_GAIN)
    assert scene.place("2023", "05") == home
    left = scene.names(f"{scene.location}-compacted/year=2023/month=05", hidden=True)
    assert [name.startswith("_nothing_gained") for name in left] == [True]
    (survey,) = scene.plan()  # it is not tried again until its files change
    assert survey.plan.is_empty and survey.plan.why_not == NOTHING_TO_GAIN
    scene.put(home, "c.parquet", clicks(40))
    assert scene.compact().results[0].after.files == 2


# ---------------------------------------------------------------- which partitions


def test_partitions_are_chosen_by_glue_and_by_name(scene: Scene) -> None:
    for year, month in (("2022", "12"), ("2023", "05"), ("2023", "06")):
        scene.fill(scene.partition(year, month), files=2)
    chosen = scene.compact(selection=Selection(predicate="year='2023' AND month IN ('05', '07')"))
    assert [each.name for each in chosen.results] == ["year=2023/month=05"]
    named = scene.compact(selection=Selection(("year=2023/month=06",)))
    assert [each.name for each in named.results] == ["year=2023/month=06"]
    declared = scene.compact(predicate="year < '2023'")
    assert [each.name for each in declared.results] == ["year=2022/month=12"]
    with pytest.raises(PredicateInvalid, match="country is not a partition key"):
        scene.compact(selection=Selection(predicate="country='de'"))
    missing = scene.compact(selection=Selection(("year=1999/month=01", "year=2023/month=06")))
    assert missing.problems == {"year=1999/month=01": "the catalog has no such partition"}


def test_many_partitions_come_in_pages(scene: Scene) -> None:
    for number in range(230):
        scene.glue.create_partition(
            DatabaseName=scene.database,
            TableName="clicks",
            PartitionInput={
                "Values": ["2023", str(number)],
                "StorageDescriptor": scene.storage(f"s3://lake/none/{number}"),
            },
        )
    scene.server.calls.clear()
    found = scene.run().surveyor.partitions(Selection())
    assert len({each.name for each in found}) == 230
    assert scene.server.calls.count("GetPartitions") == 3


def test_partitions_at_odd_places(new_scene: Callable[..., Scene]) -> None:
    scene = new_scene(keys=[("key", "string")])
    odd = {
        "__HIVE_DEFAULT_PARTITION__": "",
        "a/b": f"{scene.location}/key=a%2Fb/",
        "space and +": f"{scene.location}/key=space and +",
        "50%": f"{scene.location}/key=50%25/",
        "ü, [x]...": f"{scene.location}/key=ü",
        "elsewhere": f"s3a://lake/somewhere/{scene.database}/else/",
    }
    for number, (value, location) in enumerate(odd.items()):
        place = scene.partition(value, location=location) if location else scene.partition(value)
        scene.fill(place.replace("s3a://", "s3://"), files=3, first=number * 100)
    report = scene.compact(GRACE_OVER)
    assert {each.name: (each.outcome, each.why) for each in report.results} == {
        partition_name(["key"], [value]): ("compacted", "") for value in odd
    }
    assert scene.described("elsewhere")["StorageDescriptor"]["Location"].startswith("s3a://")
    assert sum(each.removed for each in scene.compact(GRACE_OVER).results) == 18
    for number, value in enumerate(odd):
        location = scene.place(value).replace("s3a://", "s3://")
        assert len(scene.names(location)) == 1
        rows = pyarrow.parquet.read_table(io.BytesIO(scene.content(location, scene.names(location)[0])))
        assert rows["id"].to_pylist() == list(range(number * 100, number * 100 + 60))


def test_partitions_that_cannot_be_looked_after_are_reported(scene: Scene) -> None:
    good = scene.partition("2023", "01")
    scene.fill(good, files=2)
    scene.partition("2023", "02", location=None)
    scene.partition("2023", "03", location="hdfs://node/x")
    shared = scene.partition("2023", "04")
    scene.fill(shared)
    scene.partition("2023", "05", location=shared)
    scene.partition("2023", "06")  # empty, or gone
    below = scene.partition("2023", "07")
    scene.fill(below, files=2)
    scene.put(below, "deeper/x.parquet", clicks(0))
    text = scene.partition("2023", "08")
    scene.fill(text, files=2)
    csv = {**scene.storage(text), "InputFormat": "org.apache.hadoop.mapred.TextInputFormat"}
    scene.update("2023", "08", StorageDescriptor=csv)
    report = scene.compact(GRACE_OVER)
    told = {each.name.removeprefix("year=2023/month="): each for each in report.results}
    assert [name for name, each in told.items() if each.outcome == "compacted"] == ["01"]
    assert told["06"].why == NO_FILES and told["06"].problem is None
    reasons = {name: each.problem for name, each in told.items() if each.problem}
    assert set(reasons) == {"02", "03", "04", "05", "07", "08"}
    for name, part in {
        "02": "no location",
        "03": "not on S3",
        "04": "lies in its location, too",
        "05": "shares its location with",
        "07": "directories below",
        "08": "TextInputFormat",
    }.items():
        assert part in str(reasons[name])
    assert not report.is_clean
    assert len(scene.names(shared)) == 6


def test_a_partition_that_cannot_be_looked_at_does_not_stop_the_others(scene: Scene) -> None:
    scene.fill(scene.partition("2023", "05"))
    scene.partition("2023", "06", location="s3://no-such-bucket/x")
    report = scene.compact()
    assert {each.outcome for each in report.results} == {"compacted", "left alone"}
    assert "cannot be looked at" in report.problems["year=2023/month=06"]


def test_a_partition_that_is_written_to_is_left_to_its_writers(scene: Scene) -> None:
    scene.fill(scene.partition("2023", "05"))
    (result,) = scene.compact(replace(RULES, quiet_for=timedelta(minutes=10))).results
    assert (result.outcome, result.why) == ("left alone", YOUNG)


def test_few_small_files_are_left_as_they_are(scene: Scene) -> None:
    scene.fill(scene.partition("2023", "05"), files=3)
    policy = replace(PartitionRules().policy, min_files=4)
    (result,) = scene.compact(replace(RULES, policy=policy)).results
    assert (result.outcome, result.why) == ("left alone", GOOD)


def test_another_target_is_used(scene: Scene) -> None:
    scene.fill(scene.partition("2023", "05"))
    target = f"s3://lake/elsewhere/{scene.database}"
    scene.compact(target=target)
    assert scene.place("2023", "05").startswith(f"{target}/{scene.database}/clicks/year=2023/month=05/v-")
    assert scene.ids("2023", "05") == list(range(120))


# ---------------------------------------------------------------- which tables


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"PartitionKeys": []}, "not partitioned"),
        ({"Parameters": {"table_type": "ICEBERG"}}, "MaintainedTable"),
        ({"Parameters": {"spark.sql.sources.provider": "delta"}}, "Delta Lake"),
        ({"Parameters": {"projection.enabled": "true"}}, "partition projection"),
        ({"TableType": "VIRTUAL_VIEW"}, "a view"),
        ({"StorageDescriptor": {"InputFormat": "org.apache.hadoop.mapred.TextInputFormat"}}, "not of Parquet"),
        ({"StorageDescriptor": {"BucketColumns": ["id"], "NumberOfBuckets": 4}}, "bucketed"),
        ({"StorageDescriptor": {"Location": ""}}, "no location"),
    ],
)
def test_other_tables_are_refused_before_anything_is_read(scene: Scene, changes: dict[str, Any], why: str) -> None:
    if storage := changes.get("StorageDescriptor"):
        changes = {"StorageDescriptor": {**scene.storage(scene.location), **storage}}
    scene.create_table("other", **changes)
    scene.table = "other"
    scene.server.calls.clear()
    with pytest.raises(TableUnsuitable, match=why):
        scene.compact()
    assert scene.server.calls == ["GetTable"]


def test_a_table_or_target_that_is_not_there_or_in_the_way(scene: Scene) -> None:
    scene.fill(scene.partition("2023", "05"))
    for target in (f"{scene.location}/inside", "s3://lake/glue", scene.location):
        with pytest.raises(TableUnsuitable, match="lie inside one another"):
            scene.compact(target=target)
    scene.create_table("bucket", StorageDescriptor=scene.storage("s3://lake/"))
    scene.table = "bucket"
    with pytest.raises(TableUnsuitable, match="say where compacted files shall go"):
        scene.compact()
    scene.table = "nowhere"
    with pytest.raises(TableUnsuitable, match="there is no table"):
        scene.compact()


def test_keys_of_another_store_are_not_sent_to_aws(scene: Scene) -> None:
    with pytest.raises(SettingsInvalid, match="COMPACTION_GLUE_ENDPOINT"):
        GlueCatalog.at(scene.settings.model_copy(update={"glue_endpoint": None}))


def test_throttling_is_waited_out_and_a_refusal_is_told(scene: Scene) -> None:
    scene.fill(scene.partition("2023", "05"))
    refused: list[str] = []

    def throttle(operation: str, request: dict[str, Any]) -> tuple[int, str] | None:
        if operation not in refused:
            refused.append(operation)
            return 400, "ThrottlingException"
        return None

    scene.server.before = throttle
    assert scene.compact().results[0].outcome == "compacted"
    assert {"GetTable", "GetPartitions", "GetPartition", "UpdatePartition"} <= set(refused)
    scene.server.before = lambda operation, request: (400, "AccessDeniedException")
    with pytest.raises(CatalogRefused, match="Glue refused GetTable: AccessDeniedException"):
        scene.compact()


# ---------------------------------------------------------------- in place


def test_in_place_the_catalog_is_not_touched(scene: Scene) -> None:
    home = scene.partition("2023", "05")
    scene.fill(home)
    scene.put(home, "odd.parquet", clicks(500).select(["word", "id"]))
    before = scene.described("2023", "05")
    (result,) = scene.compact(publish="in_place").results
    assert (result.outcome, result.after.files) == ("compacted", 2)
    assert scene.ids("2023", "05") == [*range(120), *range(500, 520)]
    assert scene.described("2023", "05") == before
    assert "odd.parquet" in scene.names(home)  # nothing goes together with it exactly
    assert scene.compact(publish="in_place").results[0].outcome == "left alone"
