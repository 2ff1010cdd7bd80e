"""Every operation, through HTTP, against the real lake."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest

from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.serve.tables import queries
from compaction_platform.settings import Settings
from compaction_platform_tests.serve.served import SCHEMA, Caller, Served

pytestmark = pytest.mark.integration

ALL_TYPES = {
    "fields": {
        "id": {"type": "long", "required": True, "doc": "Which one."},
        "small": {"type": "int"},
        "ratio": {"type": "double"},
        "single": {"type": "float"},
        "flag": {"type": "boolean"},
        "day": {"type": "date"},
        "at": {"type": "timestamptz"},
        "local": {"type": "timestamp"},
        "price": {"type": "decimal(10, 2)"},
        "huge": {"type": "decimal(38, 0)"},
        "name": {"type": "string"},
        "bytes": {"type": "binary"},
        "tags": {"type": "list<string>"},
        "counts": {"type": "map<string, long>"},
        "place": {"type": "struct<x: double, y: double>"},
    }
}
FULL = {
    "id": 2**63 - 1,
    "small": -(2**31),
    "ratio": 0.1,
    "single": 1.5,
    "flag": True,
    "day": "0001-01-01",
    "at": "2026-05-01T10:00:00.123456+02:00",
    "local": "9999-12-31T23:59:59.999999",
    "price": "-99999999.99",
    "huge": "9" * 38,
    "name": "snow ☃ 😀 \u0000 ' \" \\ \n",
    "bytes": "AP8=",
    "tags": ["a", None, ""],
    "counts": {"x": 1, "y": None},
    "place": {"x": 1.5, "y": None},
}


def test_values_of_every_type_come_back_as_they_went_in(caller: Caller) -> None:
    table = caller.table(schema=ALL_TYPES)
    empty = dict.fromkeys(ALL_TYPES["fields"]) | {"id": -(2**63)}
    special = dict.fromkeys(ALL_TYPES["fields"]) | {"id": 0, "ratio": "NaN", "single": "-Infinity"}
    written = caller.do(
        "WRITE", table, records=[FULL, {"id": -(2**63)}, {"id": 0, "ratio": "NaN", "single": "-Infinity"}]
    )
    assert written["records_written"] == 3
    found = {row["id"]: row for row in caller.rows(table)}
    expected = FULL | {"at": "2026-05-01T08:00:00.123456Z", "counts": [["x", 1], ["y", None]]}
    assert found == {FULL["id"]: expected, -(2**63): empty, 0: special}


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("id", None, "required"),
        ("id", 2**63, "does not fit into 64 bits"),
        ("id", 10**400, "too large"),
        ("id", 1.0, "an integer is wanted"),
        ("id", True, "an integer is wanted"),
        ("small", 2**31, "32 bits"),
        ("ratio", "1.5", "a number is wanted"),
        ("ratio", 2**53 + 1, "cannot be kept exactly"),
        ("single", 1e39, "too large for 32 bits"),
        ("flag", 1, "true or false"),
        ("day", "2026-02-30", "a day"),
        ("day", "20260501", "a day"),
        ("at", "2026-05-01T10:00:00", "a time"),
        ("at", "2026-05-01T10:00:00.1234567Z", "a time"),
        ("local", "2026-05-01T10:00:00Z", "without a zone"),
        ("price", 1.5, "as text"),
        ("price", "1.005", "more than 2 digits after"),
        ("price", "123456789.00", "more than 8 digits before"),
        ("price", "NaN", "as text"),
        ("price", "1e999999999", "as text"),
        ("price", "1e99", "digits before"),
        ("price", " 1_0 ", "as text"),
        ("name", 5, "text is wanted"),
        ("bytes", "not base64!", "base64"),
        ("tags", "a", "a list"),
        ("tags", [1], "text is wanted"),
        ("counts", [["a", 1], ["a", 2]], "twice"),
        ("counts", {"a": "1"}, "an integer"),
        ("place", {"z": 1}, "no field z"),
        ("unknown", 1, "no such field"),
    ],
)
def test_a_bad_record_refuses_the_whole_write(served: Served, field: str, value: Any, why: str) -> None:
    caller = served.caller("types")
    caller.do("CREATE_TABLE", "all_types", schema=ALL_TYPES, if_not_exists=True)
    before = caller.do("DESCRIBE_TABLE", "all_types")["snapshot"]
    records = [{"id": 1}, {"id": 2, field: value} if field != "id" else {"id": value}]
    error = caller.refused(400, "INVALID_RECORDS", "WRITE", "all_types", records=records)
    (problem,) = error["details"]["problems"]
    assert (problem["index"], problem["field"]) == (1, field) and why in problem["reason"]
    assert caller.do("DESCRIBE_TABLE", "all_types")["snapshot"] == before


def test_a_table_is_made_described_and_listed(caller: Caller) -> None:
    schema = {"fields": {"id": {"type": "long", "required": True, "doc": "Which."}, "at": {"type": "timestamptz"}}}
    made = caller.do("CREATE_TABLE", "orders", schema=schema, partition_by=["day(at)", "bucket(4, id)"])
    assert made["created"] is True
    described = caller.do("DESCRIBE_TABLE", "orders")
    assert described["fields"]["id"] == {"type": "long", "required": True, "doc": "Which."}
    assert described["partition_by"] == ["day(at)", "bucket[4](id)"]
    assert (described["snapshot"], described["records"], described["files"]) == (None, 0, 0)
    assert caller.do("LIST_TABLES")["tables"] == ["orders"]
    caller.refused(409, "TABLE_EXISTS", "CREATE_TABLE", "orders", schema=schema)
    assert caller.do("CREATE_TABLE", "orders", schema=schema, if_not_exists=True)["created"] is False
    caller.refused(409, "TABLE_EXISTS", "CREATE_TABLE", "orders", schema=SCHEMA, if_not_exists=True)
    records = [{"id": number, "at": f"2026-05-0{1 + number % 3}T00:00:00Z"} for number in range(9)]
    caller.do("WRITE", "orders", records=[*records, {"id": 99, "at": None}])
    assert caller.do("DESCRIBE_TABLE", "orders")["records"] == 10
    found = caller.rows("orders", filters=[{"field": "at", "op": "<", "value": "2026-05-02T00:00:00Z"}])
    assert sorted(row["id"] for row in found) == [0, 3, 6]
    assert [row["id"] for row in caller.rows("orders", filters=[{"field": "at", "op": "is_null"}])] == [99]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"schema": {"fields": {"a": {"type": "uuid"}}}}, "not supported"),
        ({"schema": {"fields": {"a": {"type": "long; DROP"}}}}, "not a type"),
        ({"schema": {"fields": {"a b": {"type": "long"}}}}, "not a usable name"),
        ({"schema": {"fields": {"a": {"type": "long"}, "A": {"type": "long"}}}}, "twice"),
        ({"schema": {"fields": {"a": {"type": "list<" * 300 + "long" + ">" * 300}}}}, "nested too deeply"),
        ({"schema": {"fields": {"a": {"type": "decimal(5, 10)"}}}}, "digits"),
        ({"schema": {"fields": {"a": {"type": "struct<a: long, a: long>"}}}}, "twice"),
        ({"schema": {"fields": {"a": {"type": "struct<: long>"}}}}, "names are letters"),
        ({"partition_by": ["word", "truncate(2, word)"]}, "twice"),
        ({"schema": {"fields": {"b": {"type": "binary"}}}, "partition_by": ["truncate(2, b)"]}, "cannot be done"),
        (
            {
                "schema": {"fields": {"a": {"type": "long"}, "a_bucket": {"type": "long"}}},
                "partition_by": ["bucket(4, a)"],
            },
            "another field",
        ),
        ({"partition_by": ["nowhere"]}, "no field nowhere"),
        ({"partition_by": ["day(word)"]}, "cannot be done with string"),
        ({"partition_by": ["bucket(0, id)"]}, "not understood"),
        ({"partition_by": ["id); DROP"]}, "not understood"),
        ({"partition_by": ["id", "id"]}, "twice"),
    ],
)
def test_a_schema_that_cannot_be_meant(caller: Caller, changes: dict[str, Any], why: str) -> None:
    error = caller.refused(400, "INVALID_SCHEMA", "CREATE_TABLE", "t", **{"schema": SCHEMA, **changes})
    assert why in error["message"]
    caller.refused(404, "TABLE_NOT_FOUND", "DESCRIBE_TABLE", "t")


# ---------------------------------------------------------------- queries

ROWS = [
    {"id": number, "word": None if number % 5 == 0 else f"w{number % 7}", "price": f"{number}.50", "score": number / 4}
    for number in range(200)
]
PRICED = {
    "fields": {
        "id": {"type": "long"},
        "word": {"type": "string"},
        "price": {"type": "decimal(10, 2)"},
        "score": {"type": "double"},
    }
}


@pytest.fixture(scope="module")
def priced(served: Served) -> tuple[Caller, str]:
    caller = served.caller()
    table = caller.table(schema=PRICED, partition_by=["bucket(3, id)"])
    for start in range(0, 200, 50):
        caller.do("WRITE", table, records=ROWS[start : start + 50])
    return caller, table


@pytest.mark.parametrize(
    ("filters", "sql"),
    [
        ([], "true"),
        ([{"field": "id", "op": "=", "value": 7}], "id = 7"),
        ([{"field": "id", "op": "!=", "value": 7}], "id <> 7"),
        ([{"field": "word", "op": "!=", "value": "w1"}], "word <> 'w1'"),
        ([{"field": "id", "op": ">=", "value": 50}, {"field": "id", "op": "<", "value": 60}], "id >= 50 and id < 60"),
        ([{"field": "price", "op": "<=", "value": "10.5"}], "price <= 10.5"),
        ([{"field": "score", "op": ">", "value": 40}], "score > 40"),
        ([{"field": "word", "op": "in", "value": ["w1", "w2"]}], "word in ('w1', 'w2')"),
        ([{"field": "id", "op": "not_in", "value": [1, 2, 3]}], "id not in (1, 2, 3)"),
        ([{"field": "word", "op": "not_in", "value": ["w1"]}], "word not in ('w1')"),
        ([{"field": "word", "op": "not_in", "value": ["w1", "w2"]}], "word not in ('w1', 'w2')"),
        ([{"field": "word", "op": "is_null"}], "word is null"),
        ([{"field": "word", "op": "not_null"}], "word is not null"),
        ([{"field": "word", "op": "starts_with", "value": "w"}], "word like 'w%'"),
        ([{"field": "word", "op": "=", "value": "x' OR '1'='1"}], "false"),
    ],
)
def test_filters_give_what_a_database_gives(
    priced: tuple[Caller, str], filters: list[dict[str, Any]], sql: str
) -> None:
    caller, table = priced
    import pyarrow

    model = pyarrow.Table.from_pylist([{**row, "price": Decimal(str(row["price"]))} for row in ROWS])
    expected = [row[0] for row in duckdb.sql(f"SELECT id FROM model WHERE {sql} ORDER BY id").fetchall()]
    assert sorted(row["id"] for row in caller.rows(table, filters=filters, columns=["id"])) == expected
    assert model.num_rows == 200


@pytest.mark.parametrize(("limit", "descending"), [(7, False), (50, True), (1000, False)])
def test_pages_give_every_row_once_and_in_order(
    priced: tuple[Caller, str], limit: int, descending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "FILES_AT_ONCE", 5)  # of twelve
    caller, table = priced
    found = caller.rows(table, limit=limit)
    assert sorted(row["id"] for row in found) == list(range(200))
    order = [{"field": "word", "descending": descending}, {"field": "id"}]
    found = caller.rows(table, limit=limit, order_by=order, columns=["id", "word"])
    by = f"word {'DESC' if descending else 'ASC'} NULLS LAST, id"
    import pyarrow

    model = pyarrow.Table.from_pylist([{"id": row["id"], "word": row["word"]} for row in ROWS])
    assert [row["id"] for row in found] == [
        row[0] for row in duckdb.sql(f"SELECT id FROM model ORDER BY {by}").fetchall()
    ]
    assert model.num_rows == 200


def test_all_pages_are_of_one_snapshot(caller: Caller) -> None:
    table = caller.table()
    caller.do("WRITE", table, records=[{"id": number} for number in range(10)])
    first = caller.do("QUERY", table, limit=4)
    caller.do("WRITE", table, records=[{"id": 100}])
    caller.do("COMPACT", table, force=True)
    second = caller.do("QUERY", table, limit=4, cursor=first["cursor"])
    third = caller.do("QUERY", table, limit=4, cursor=second["cursor"])
    found = [row["id"] for page in (first, second, third) for row in page["records"]]
    assert sorted(found) == list(range(10)) and third["cursor"] is None
    assert {page["snapshot"] for page in (first, second, third)} == {first["snapshot"]}
    earlier = caller.do("QUERY", table, snapshot=first["snapshot"])
    assert len(earlier["records"]) == 10 and len(caller.rows(table)) == 11


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"filters": [{"field": "nothing", "op": "=", "value": 1}]}, "INVALID_FILTER"),
        ({"filters": [{"field": "id", "op": "=", "value": "1 OR 1=1"}]}, "INVALID_FILTER"),
        ({"filters": [{"field": "id", "op": "=", "value": None}]}, "INVALID_FILTER"),
        ({"filters": [{"field": "id", "op": "in", "value": []}]}, "INVALID_FILTER"),
        ({"filters": [{"field": "id", "op": "starts_with", "value": "1"}]}, "INVALID_FILTER"),
        ({"filters": [{"field": "id", "op": "is_null", "value": 1}]}, "INVALID_FILTER"),
        ({"filters": [{"field": "score", "op": "<", "value": "NaN"}]}, "INVALID_FILTER"),
        ({"filters": [{"field": "id", "op": "LIKE", "value": "1"}]}, "INVALID_REQUEST"),
        ({"columns": ["id", "nothing"]}, "INVALID_REQUEST"),
        ({"order_by": [{"field": "nothing"}]}, "INVALID_REQUEST"),
        ({"limit": 0}, "INVALID_REQUEST"),
        ({"limit": 10_001}, "INVALID_REQUEST"),
        ({"snapshot": 1}, "INVALID_REQUEST"),
        ({"cursor": "nonsense"}, "INVALID_CURSOR"),
        ({"cursor": "WzEsMiwzLDRd"}, "INVALID_CURSOR"),
        ({"sql": "SELECT 1"}, "INVALID_REQUEST"),
        ({"snapshot": -1}, "INVALID_REQUEST"),
        ({"snapshot": 2**70}, "INVALID_REQUEST"),
    ],
)
def test_a_query_that_cannot_be_meant(priced: tuple[Caller, str], fields: dict[str, Any], code: str) -> None:
    caller, table = priced
    caller.refused(400, code, "QUERY", table, **fields)


def test_what_python_or_json_find_hard_is_compared_all_the_same(caller: Caller) -> None:
    fields = {"big": {"type": "decimal(38, 2)"}, "day": {"type": "date"}, "later": {"type": "string"}}
    table = caller.table(schema={"fields": fields}, partition_by=["year(day)"])
    caller.do(
        "WRITE", table, records=[{"big": "9" * 36 + ".99", "day": "0001-01-01"}, {"big": "0.01", "day": "9999-12-31"}]
    )
    big = {"field": "big", "op": "=", "value": "9" * 36 + ".99"}
    assert len(caller.rows(table, filters=[big])) == 1
    assert len(caller.rows(table, filters=[{"field": "day", "op": ">=", "value": "0001-01-01"}])) == 2
    for value in (b"NaN", b"Infinity", b'"\\ud800"', b"1e999"):
        body = b'{"operation": "QUERY", "tenant_id": "%s", "namespace": "shop", "table": "%s", "filters": ' % (
            caller.tenant.encode(),
            table.encode(),
        )
        body += b'[{"field": "later", "op": "=", "value": ' + value + b"}]}"
        assert caller.client.post("/database", content=body).status_code == 400


def test_odd_partition_values_are_written_and_found(caller: Caller) -> None:
    schema = {"fields": {"id": {"type": "long"}, "word": {"type": "string"}}}
    table = caller.table(schema=schema, partition_by=["word"])
    words = ["", "x" * 3000, "a/b", "ü ☃", "..", None, "%2F", "="]
    caller.do("WRITE", table, records=[{"id": number, "word": word} for number, word in enumerate(words)])
    for number, word in enumerate(words):
        wanted = {"field": "word", "op": "=", "value": word} if word is not None else {"field": "word", "op": "is_null"}
        assert [row["id"] for row in caller.rows(table, filters=[wanted])] == [number]
    assert caller.do("COMPACT", table, force=True)["success"]


def test_a_table_without_rows_has_none(caller: Caller) -> None:
    table = caller.table()
    assert caller.do("QUERY", table) == {"success": True, "records": [], "snapshot": None, "cursor": None}


# ---------------------------------------------------------------- compaction


def test_every_nth_write_says_whether_compaction_is_due(served: Served, caller: Caller) -> None:
    table = caller.table()
    said = [caller.do("WRITE", table, records=[{"id": number}]) for number in range(10)]
    looked = [number for number, each in enumerate(said, start=1) if each["small_files_count"] is not None]
    assert looked == [5, 10] and served.service.check_interval == 5
    assert [said[4]["small_files_count"], said[9]["small_files_count"]] == [5, 10]
    assert said[4]["compaction_recommended"] and not said[5]["compaction_recommended"]
    before = caller.rows(table)
    done = caller.do("COMPACT", table)
    assert done["compacted"] is True
    assert (done["stats"]["files_before"], done["stats"]["files_after"], done["stats"]["files_compacted"]) == (
        10,
        1,
        10,
    )
    assert set(done["stats"]) == {
        "files_before", "files_after", "files_compacted", "files_removed", "bytes_before", "bytes_after", "bytes_saved",
        "snapshots_expired", "compaction_time_ms", "small_files_remaining",
    }  # fmt: skip
    again = caller.do("COMPACT", table)
    assert again["compacted"] is False and again["reason"]
    assert sorted(row["id"] for row in caller.rows(table)) == sorted(row["id"] for row in before)


def test_a_compaction_follows_its_request(caller: Caller) -> None:
    schema = {"fields": {"id": {"type": "long"}, "country": {"type": "string"}}}
    table = caller.table(schema=schema, partition_by=["country"])
    for number in range(4):
        caller.do("WRITE", table, records=[{"id": number, "country": "de"}, {"id": number, "country": "fr"}])
    done = caller.do("COMPACT", table, partition_filter="country = 'de'", max_files=3)
    assert (done["stats"]["files_compacted"], done["stats"]["files_after"]) == (3, 6)
    expired = 0
    for _ in range(20):  # the store's clock tells seconds: what was replaced within this one is not old yet
        done = caller.do("COMPACT", table, force=True, expire_snapshots=True, snapshot_retention_hours=0)
        expired += done["stats"]["snapshots_expired"]
        if expired:
            break
    assert expired > 0
    assert len(caller.rows(table)) == 8
    for fields, code in (
        ({"partition_filter": "id); DROP TABLE x"}, "INVALID_FILTER"),
        ({"partition_filter": "nothing = 1"}, "INVALID_FILTER"),
        ({"snapshot_retention_hours": 0}, "INVALID_REQUEST"),
        ({"target_file_size_mb": 0}, "INVALID_REQUEST"),
        ({"max_files": 1}, "INVALID_REQUEST"),
        ({"snapshot_retention_hours": 10**12}, "INVALID_REQUEST"),
    ):
        caller.refused(400, code, "COMPACT", table, **fields)
    caller.refused(404, "TABLE_NOT_FOUND", "COMPACT", "nowhere")


# ---------------------------------------------------------------- dropped, and back


def test_a_dropped_table_can_come_back(caller: Caller) -> None:
    table = caller.table()
    caller.do("WRITE", table, records=[{"id": 1}])
    until = caller.do("DROP_TABLE", table)["restorable_until"]
    assert until.endswith("Z")
    for operation, fields in (("QUERY", {}), ("WRITE", {"records": [{"id": 2}]}), ("DROP_TABLE", {}), ("COMPACT", {})):
        caller.refused(404, "TABLE_NOT_FOUND", operation, table, **fields)
    assert table not in caller.do("LIST_TABLES")["tables"]
    caller.do("RESTORE_TABLE", table)
    assert caller.rows(table) == [{"id": 1, "word": None}]
    caller.do("DROP_TABLE", table)
    caller.do("CREATE_TABLE", table, schema=SCHEMA)
    caller.do("WRITE", table, records=[{"id": 3}])
    caller.refused(409, "TABLE_EXISTS", "RESTORE_TABLE", table)
    assert [row["id"] for row in caller.rows(table)] == [3]
    caller.refused(404, "TABLE_NOT_FOUND", "RESTORE_TABLE", "nowhere")


# ---------------------------------------------------------------- requests


def test_a_request_that_comes_again_is_written_once(caller: Caller, settings: Settings) -> None:
    table = caller.table()
    first = caller.do("WRITE", table, records=[{"id": 1}], request_id="a")
    again = caller.do("WRITE", table, records=[{"id": 1}], request_id="a")
    assert (again["repeated"], again["snapshot"], again["records_written"]) == (True, first["snapshot"], 1)
    caller.refused(409, "REQUEST_ID_REUSED", "WRITE", table, records=[{"id": 2}], request_id="a")
    caller.do("WRITE", table, records=[{"id": 1}], request_id="b")
    assert [row["id"] for row in caller.rows(table)] == [1, 1]
    from compaction_platform_tests.serve.served import serving

    with serving(settings) as another:  # a new process knows it from the table itself
        other = another.caller(caller.tenant)
        assert other.do("WRITE", table, records=[{"id": 1}], request_id="a")["repeated"] is True
    with ThreadPoolExecutor(8) as pool:
        records = [{"id": 7}]
        said = list(pool.map(lambda _: caller.send("WRITE", table, records=records, request_id="c"), range(8)))
    assert {each.status_code for each in said} == {200}  # and they get the same answer
    assert len({each.json()["snapshot"] for each in said}) == 1
    assert sum(row["id"] == 7 for row in caller.rows(table)) == 1


def test_unknown_fields_operations_and_paths_are_refused(caller: Caller) -> None:
    caller.refused(400, "INVALID_REQUEST", "LIST_TABLES", more=1)
    caller.refused(400, "INVALID_REQUEST", "DROP_DATABASE")
    caller.refused(400, "INVALID_REQUEST", "WRITE", "t", records=[])
    for body in (b"", b"{", b"[]", b'"x"', b"\xff\xfe", b'{"operation": "LIST_TABLES"', b"1" * 5000):
        answer = caller.client.post("/database", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400 and answer.json()["error"]["code"] in ("INVALID_REQUEST", "HTTP_400")
    assert caller.client.get("/nowhere").status_code == 404
    assert caller.client.get("/database").json()["success"] is False


def test_health_and_the_documentation(served: Served) -> None:
    assert httpx.get(f"{served.url}/health").json() == {"status": "ok", "lake": "reachable"}
    spec = httpx.get(f"{served.url}/openapi.json").json()
    assert set(spec["paths"]) == {"/health", "/database"}
    assert "CreateTable" in spec["components"]["schemas"]
    page = httpx.get(f"{served.url}/docs").text
    assert "https://" not in page  # nothing is loaded from elsewhere


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium on this machine to open the page with")
def test_a_browser_shows_the_documentation(served: Served, tmp_path: Path) -> None:
    shown = subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"),
            *("--timeout=20000", "--virtual-time-budget=20000", "--dump-dom", f"{served.url}/docs"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    ).stdout
    assert "All operations on tables" in shown and "CREATE_TABLE" in shown and "/health" in shown


def test_tables_are_ordinary_ones_for_others(caller: Caller, settings: Settings, spark: Any) -> None:
    table = caller.table(schema=ALL_TYPES)
    caller.do("WRITE", table, records=[{"id": 1, "price": "1.50"}, {"id": 2, "tags": ["x"]}])
    name = f"t{len(caller.tenant)}_{caller.tenant}_shop.{table}"
    found = open_catalog(settings).load_table(name).scan().to_arrow().to_pylist()
    assert sorted(row["id"] for row in found) == [1, 2]
    assert spark.sql(f"SELECT sum(id), sum(price) FROM lake.{name}").collect()[0][0] == 3
    spark.sql(f"DELETE FROM lake.{name} WHERE id = 1")
    assert [row["id"] for row in caller.rows(table)] == [2]
    spark.sql(f"ALTER TABLE lake.{name} ADD COLUMN later string")
    caller.do("WRITE", table, records=[{"id": 3, "later": "y"}])
    assert {row["id"]: row["later"] for row in caller.rows(table)} == {2: None, 3: "y"}
