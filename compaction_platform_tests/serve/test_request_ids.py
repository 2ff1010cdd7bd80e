"""A request that comes again, however much later: it is in the table once, and not taken for written when it is not."""

import uuid
from typing import Any

import pytest
from pyiceberg.io import load_file_io
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.update import SetSnapshotRefUpdate

from compaction_platform.lake.iceberg import replace_files
from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.persisted_names import SERVE_REQUESTS
from compaction_platform.serve.tables import idempotency, table_writer
from compaction_platform.serve.tables.idempotency import CommittedRequest, Key, RequestIds
from compaction_platform.settings import Settings
from compaction_platform_tests.serve.served import Caller, Served, serving

UUID = uuid.UUID(int=7)


def key(number: int) -> Key:
    made = Key.of(f"r{number}", [{"id": number}])
    assert made is not None
    return made


def written(number: int) -> CommittedRequest:
    """Request so and so, which snapshot so and so has."""
    return CommittedRequest(key(number), number, 1)


def table_of(*snapshots: tuple[int, int | None], main: int | None = None, at: uuid.UUID = UUID) -> Table:
    """A table with these snapshots (and their parents), each of which has the request of its number."""
    metadata: dict[str, Any] = {
        "format-version": 2,
        "table-uuid": str(at),
        "location": "file:///nowhere",
        "last-updated-ms": 1,
        "last-column-id": 0,
        "last-sequence-number": 99,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": []}],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "current-snapshot-id": main or snapshots[-1][0],
        "snapshots": [
            {
                "snapshot-id": number,
                "parent-snapshot-id": parent,
                "sequence-number": number,
                "timestamp-ms": number * 1000,
                "manifest-list": "file:///nowhere/list.avro",
                "summary": {"operation": "append", SERVE_REQUESTS: written(number).entry},
            }
            for number, parent in snapshots
        ],
    }
    return Table(("n", "t"), TableMetadataUtil.parse_obj(metadata), "", load_file_io({}), None)  # type: ignore[arg-type]


def known(requests: RequestIds, table: Table, *numbers: int) -> list[int]:
    """Which of these requests the table certainly has."""
    found = requests.find(table, {key(number).id for number in numbers})
    assert all(found[key(number).id].key == key(number) for number in numbers if key(number).id in found)
    return [number for number in numbers if key(number).id in found and found[key(number).id].is_in_main]


# ---------------------------------------------------------------- what is known


@pytest.mark.unit
def test_every_snapshot_of_main_answers_however_little_is_remembered() -> None:
    table = table_of((1, None), *((number, number - 1) for number in range(2, 50)))
    assert known(RequestIds(most=3), table, *range(1, 60)) == list(range(1, 50))


@pytest.mark.unit
def test_a_request_that_was_rolled_back_is_not_known() -> None:
    table = table_of((1, None), (2, 1), (3, 2), main=2)
    assert RequestIds().find(table, {key(3).id}) == {}


@pytest.mark.unit
@pytest.mark.parametrize("parent", [3, None], ids=["Iceberg leaves the parent", "PyIceberg removes it"])
def test_of_a_snapshot_whose_way_to_main_has_expired_neither_is_said(parent: int | None) -> None:
    """A tag may keep it. It may have been rolled back, or not."""
    table = table_of((1, None), (4, parent), (5, 4))
    found = RequestIds().find(table, {key(1).id})
    assert found == {key(1).id: CommittedRequest(key(1), 1, 1, is_in_main=False)}


@pytest.mark.unit
def test_what_is_remembered_outlives_its_snapshot_only_while_main_goes_on_from_there() -> None:
    requests = RequestIds()
    requests.remember(UUID, None, 1, [written(1)])
    requests.remember(UUID, 1, 2, [written(2)])
    assert known(requests, table_of((2, 1), (3, 2)), 1, 2) == [1, 2], "2 is there"
    assert known(requests, table_of((4, 3)), 1, 2) == [1, 2], "3 has expired, but 4 says that it came from there"
    assert known(requests, table_of((6, 5)), 1, 2) == [], "4 may have been rolled back"
    assert known(requests, table_of((4, 3)), 1, 2) == [], "and is not believed any more"


@pytest.mark.unit
def test_a_writer_that_lost_its_turn_makes_nothing_known_that_may_not_be_there() -> None:
    requests = RequestIds()
    requests.remember(UUID, 4, 6, [written(6)])
    requests.remember(UUID, 5, 7, [written(7)])  # main was rolled back meanwhile
    assert known(requests, table_of((8, 7)), 6, 7) == [7]


@pytest.mark.unit
def test_memory_is_bounded_for_all_tables_together_and_the_newest_are_kept() -> None:
    requests = RequestIds(most=30)
    idle, busy = uuid.UUID(int=1), uuid.UUID(int=2)
    requests.remember(idle, None, 1, [written(1)])
    for number in range(2, 102):
        requests.remember(busy, number - 1 if number > 2 else None, number, [written(number)])
    assert sum(len(each.requests) for each in requests._tables.values()) <= 30
    assert requests._count == len(requests._tables[busy].requests)
    newest = known(requests, table_of((102, 101), at=busy), *range(2, 102))
    assert 25 <= len(newest) <= 30 and newest == list(range(102 - len(newest), 102))
    assert known(requests, table_of((3, 1), at=idle), 1) == [], "the table that was not written to is forgotten first"


# ---------------------------------------------------------------- the service


def load(settings: Settings, caller: Caller, table: str) -> Table:
    return open_catalog(settings).load_table(f"t{len(caller.tenant)}_{caller.tenant}_shop.{table}")


@pytest.mark.integration
def test_a_cold_process_knows_the_newest_requests_as_well_as_the_oldest(
    served: Served, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "MOST_REMEMBERED", 3)
    caller = served.caller()
    table = caller.table()
    for number in range(6):
        caller.do("WRITE", table, records=[{"id": number}], request_id=f"r{number}")
    with serving(settings) as another:
        other = another.caller(caller.tenant)
        for number in (5, 0, 3):
            again = other.do("WRITE", table, records=[{"id": number}], request_id=f"r{number}")
            assert again["repeated"] is True
    assert sorted(row["id"] for row in caller.rows(table)) == list(range(6))


@pytest.mark.integration
def test_a_request_whose_snapshot_has_expired_is_known_to_the_process_that_wrote_it(
    served: Served, settings: Settings
) -> None:
    caller = served.caller()
    table = caller.table()
    first = caller.do("WRITE", table, records=[{"id": 0}], request_id="first")["snapshot"]
    caller.do("WRITE", table, records=[{"id": 1}])
    loaded = load(settings, caller, table)
    loaded.maintenance.expire_snapshots().by_id(first).commit()
    assert caller.do("WRITE", table, records=[{"id": 0}], request_id="first")["repeated"] is True
    with serving(settings) as another:  # as documented: beyond what the table's snapshots tell
        other = another.caller(caller.tenant)
        assert other.do("WRITE", table, records=[{"id": 0}], request_id="first")["repeated"] is False
    assert sorted(row["id"] for row in caller.rows(table)) == [0, 0, 1]


@pytest.mark.integration
def test_a_request_that_was_rolled_back_and_expired_is_written_again(served: Served, settings: Settings) -> None:
    """This process has seen the request in the table; that it was taken out again left no trace but its absence."""
    caller = served.caller()
    table = caller.table()
    before = caller.do("WRITE", table, records=[{"id": 0}])["snapshot"]
    gone = caller.do("WRITE", table, records=[{"id": 1}], request_id="once")["snapshot"]
    loaded = load(settings, caller, table)
    replace_files.commit(loaded, (), (SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=before),))
    loaded.refresh().maintenance.expire_snapshots().by_id(gone).commit()
    assert caller.do("WRITE", table, records=[{"id": 1}], request_id="once")["repeated"] is False
    assert sorted(row["id"] for row in caller.rows(table)) == [0, 1]


@pytest.mark.integration
def test_tables_that_are_not_written_to_are_not_held_in_memory(
    served: Served, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_writer, "MOST_SNAPSHOTS_HELD", 4)
    caller = served.caller()
    tables = [caller.table() for _ in range(3)]
    for table in tables:
        for number in range(3):
            caller.do("WRITE", table, records=[{"id": number}], request_id=f"r{number}")
    held = {where.name: each.metadata is not None for where, each in served.service.writes._writers.items()}
    assert [held[table] for table in tables] == [False, False, True]
    for table in tables:
        assert caller.do("WRITE", table, records=[{"id": 2}], request_id="r2")["repeated"] is True
