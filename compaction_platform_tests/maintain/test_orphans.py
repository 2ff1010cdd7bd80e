"""What is nobody's goes; what readers use, or anybody might, stays, however long the process slept before the act."""

import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.table import Table

from compaction_platform.lake.iceberg.catalog import store_properties
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.maintain.operations import remove_orphan_files as orphans_module
from compaction_platform.maintain.operations.remove_orphan_files import (
    OrphanRemoval,
    SharedLocation,
    TableReplaced,
    comparable,
    is_named_by_iceberg,
)
from compaction_platform.persisted_names import QUARANTINE_DIRECTORY
from compaction_platform.settings import Settings

DAY = timedelta(hours=25)
ROWS = pyarrow.table({"id": pyarrow.array([1, 2], pyarrow.int64())})


class Place:
    """A table in a bucket that takes files of any name, and what lies below its location."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = ("care", f"o_{secrets.token_hex(6)}")
        self.catalog = InMemoryCatalog("orphans", warehouse="s3://lake/warehouse", **store_properties(settings))
        self.catalog.create_namespace("care")
        self.catalog.create_table(self.name, ROWS.schema).append(ROWS)
        self.said: list[str] = []

    @property
    def table(self) -> Table:
        return self.catalog.load_table(self.name)

    @property
    def store(self) -> ObjectStore:
        return self.orphans().store

    def orphans(self) -> OrphanRemoval:
        return OrphanRemoval(self.table, self.settings, timedelta(hours=24), timedelta(hours=24))

    def all_keys(self) -> set[str]:
        return {stored.key for stored in self.store.list()}

    def clear(self, days: int = 1) -> list[str]:
        """As a run would, so many days from now; the orphans it found."""
        orphans = self.orphans()
        found = orphans.find(datetime.now(UTC) + days * DAY)
        orphans.clear(found, self.said.append)
        return [each.key for each in found.orphans]

    def put(self, *keys: str, content: bytes = b"anything") -> None:
        for key in keys:
            self.store.write(key, content)

    def put_data(self, key: str) -> None:
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(ROWS, sink)
        self.store.write(key, sink.getvalue())

    def commit(self, key: str) -> None:
        table = self.table
        table.add_files([f"{table.location()}/{key}"], check_duplicate_files=False)

    def rows(self) -> int:
        return int(self.table.scan().to_arrow().num_rows)


@pytest.fixture
def place(settings: Settings) -> Place:
    return Place(settings)


# ---------------------------------------------------------------- what may be an orphan at all


@pytest.mark.unit
@pytest.mark.parametrize(
    "key",
    [
        "data/00000-0-a.parquet", "data/p=1/_q=_x/00001-a-deletes.orc", "data/a1/b2/x.avro", "data/x.puffin",
        "metadata/snap-1-a.avro", "metadata/a-m0.avro", "metadata/00001-a.metadata.json",
        "metadata/00001-a.gz.metadata.json", "metadata/v3.metadata.json.gz",
    ],
)  # fmt: skip
def test_what_iceberg_writes_may_be_an_orphan(key: str) -> None:
    assert is_named_by_iceberg(key)


@pytest.mark.unit
@pytest.mark.parametrize(
    "key",
    [
        "metadata/version-hint.text", "data/.00000-0-a.parquet.crc", "metadata/.v1.metadata.json.crc", "data/_SUCCESS",
        "data/_temporary/0/x.parquet", "data/.hive-staging_1/x.parquet", "data/p=1/.x.parquet", "data/readme.md",
        "metadata/1-a.stats", "metadata/sub/x.avro", "data/x.parquet.tmp", "data/_metadata", "other/x.parquet",
    ],
)  # fmt: skip
def test_what_iceberg_does_not_write_is_left(key: str) -> None:
    assert not is_named_by_iceberg(key)


@pytest.mark.unit
@pytest.mark.parametrize("key", ["p=a b/x", "p=a%20b/x", "p=a+b/x", "p=a%2520b//x"])
def test_ways_to_write_one_key_are_taken_for_the_same(key: str) -> None:
    assert comparable(comparable(key)) == "p=a b/x"


@pytest.mark.integration
def test_what_readers_use_stays_though_no_metadata_list_it(place: Place) -> None:
    live = [key for key in place.all_keys() if key.endswith((".parquet", ".metadata.json", ".avro"))]
    beside = [f"{key.rpartition('/')[0]}/.{key.rpartition('/')[2]}.crc" for key in live]
    others = ["data/_SUCCESS", "data/_temporary/0/x.parquet", "metadata/7-a.stats", "data/notes.txt"]
    uuid = b'{"table-uuid": "%s"}' % str(place.table.metadata.table_uuid).encode()
    place.put(*beside, *others, "metadata/version-hint.text", "data/x.parquet", "metadata/x.avro")
    place.put("metadata/v7.metadata.json", content=uuid)
    kept = place.all_keys() - {"data/x.parquet", "metadata/x.avro"}
    assert sorted(place.clear()) == ["data/x.parquet", "metadata/x.avro"]
    place.clear(days=3)
    assert place.all_keys() == kept
    (told,) = {said for said in place.said if "stay" in said}
    assert told.startswith(f"{len(others) + 1} files") and ".crc" not in told
    place.store.delete(["metadata/version-hint.text"])
    assert place.clear() == ["metadata/v7.metadata.json"]


@pytest.mark.integration
@pytest.mark.parametrize(
    "key", ["data/child/metadata/00001-a.gz.metadata.json", "_delta_log/00000000000000000000.json", ".hoodie/x"]
)
def test_a_location_that_somebody_else_uses_is_left_alone(place: Place, key: str) -> None:
    place.put(key, content=b'{"table-uuid": "another"}')
    place.put("data/x.parquet")
    with pytest.raises(SharedLocation, match="Nothing was moved or deleted"):
        place.clear()
    assert "data/x.parquet" in place.all_keys()


@pytest.mark.integration
def test_a_file_that_metadata_name_in_another_way_is_not_an_orphan(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = place.table
    place.put("data/p=a b/x.parquet", "data/y.parquet", "data/z.parquet")
    bucket, _, prefix = table.location().removeprefix("s3://").partition("/")
    real = orphans_module.needed_paths
    names = {f"s3a://{bucket}/{prefix}/data/p=a%20b/x.parquet", f"s3n://alias/{prefix}//data/y.parquet"}
    monkeypatch.setattr(orphans_module, "needed_paths", lambda table: real(table) | names)
    assert place.clear() == ["data/z.parquet"]


# ---------------------------------------------------------------- a process that slept


@pytest.mark.integration
def test_an_orphan_that_is_committed_before_it_is_moved_stays(place: Place) -> None:
    place.put_data("data/slow.parquet")
    orphans = place.orphans()
    found = orphans.find(datetime.now(UTC) + DAY)
    place.commit("data/slow.parquet")
    orphans.clear(found, place.said.append)
    assert place.rows() == 4
    assert "1 files were committed while" in " ".join(place.said)


@pytest.mark.integration
def test_an_orphan_that_is_written_anew_before_it_is_moved_stays(place: Place) -> None:
    place.put("data/x.parquet")
    orphans = place.orphans()
    found = orphans.find(datetime.now(UTC) + DAY)
    place.put_data("data/x.parquet")
    orphans.clear(found, place.said.append)
    place.commit("data/x.parquet")
    assert place.rows() == 4


@pytest.mark.integration
def test_what_is_committed_before_it_is_deleted_from_quarantine_is_put_back(place: Place) -> None:
    place.put_data("data/slow.parquet")
    assert place.clear() == ["data/slow.parquet"]
    orphans = place.orphans()
    found = orphans.find(datetime.now(UTC) + 2 * DAY)
    assert [each.key for each in found.to_delete] == [f"{QUARANTINE_DIRECTORY}/data/slow.parquet"]
    place.put_data("data/slow.parquet")  # for PyIceberg, which looks at what it is to commit
    place.commit("data/slow.parquet")
    place.store.delete(["data/slow.parquet"])
    orphans.clear(found, place.said.append)
    place.clear(days=2)
    assert place.rows() == 4
    assert "put back" in " ".join(place.said)


@pytest.mark.integration
def test_a_run_that_slept_before_its_delete_takes_nothing_that_cannot_be_put_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has copied the file and looked at the table. While it sleeps the file is committed, and another run, which
    sees the file in place and its copy in quarantine, clears up."""
    place.put_data("data/slow.parquet")
    real = orphans_module.delete_unchanged

    def slept_first(*arguments: Any) -> Any:
        monkeypatch.setattr(orphans_module, "delete_unchanged", real)
        place.commit("data/slow.parquet")
        place.clear(days=0)
        return real(*arguments)

    monkeypatch.setattr(orphans_module, "delete_unchanged", slept_first)
    place.clear()
    assert "data/slow.parquet" not in place.all_keys()
    place.clear()
    assert place.rows() == 4
    place.clear(days=3)
    assert place.rows() == 4 and not [key for key in place.all_keys() if key.startswith(QUARANTINE_DIRECTORY)]


@pytest.mark.integration
def test_a_table_that_was_made_again_under_its_name_loses_nothing(place: Place) -> None:
    place.put("data/x.parquet")
    orphans = place.orphans()
    found = orphans.find(datetime.now(UTC) + DAY)
    place.catalog.drop_table(place.name)
    place.catalog.create_table(place.name, ROWS.schema)
    act: Callable[..., Any] = orphans.clear
    with pytest.raises((TableReplaced, ValueError)):
        act(found, place.said.append)
    assert orphans.store.stat("data/x.parquet") is not None
