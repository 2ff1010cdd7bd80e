"""Files that lie in one directory and are not of one table: lists that name them, copies of them, other columns."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from typer.testing import CliRunner

from compaction_platform.cli import app
from compaction_platform.compact.plan import lineage
from compaction_platform.compact.plan.bin_packing import COPIED, NOT_ALIKE, PackingPolicy
from compaction_platform.compact.plan.own_lists import FilesListedElsewhere
from compaction_platform.compact.plan.schema_groups import differences, grouped
from compaction_platform.lake.storage.object_store import StoreRefused
from compaction_platform.settings import Settings
from compaction_platform_tests.compact.yard import Yard, local_yard, rows

pytestmark = pytest.mark.unit


def table(first: int, *columns: str) -> pyarrow.Table:
    return pyarrow.table({name: list(range(first, first + 10)) for name in columns})


# ---------------------------------------------------------------- columns


def test_columns_go_together_if_one_has_all_of_the_other_and_half_are_the_same() -> None:
    columns = {
        "a1": "id x y",
        "b1": "id p q r",
        "a2": "ID y x z",
        "c1": "id",
        "a3": "id x y",
        "b2": "id p q r",
        "d1": "id x w",
    }
    split = {key: names.split() for key, names in columns.items()}
    assert grouped(split, "additions") == [["b1", "b2"], ["a1", "a2", "a3"], ["d1"], ["c1"]]
    assert grouped(split, "columns") == [["b1", "c1", "b2"], ["a1", "a2", "a3", "d1"]]
    assert differences({key: split[key] for key in ("a1", "a3", "d1")}) == {"w": 2, "y": 1}


def test_tables_that_lie_in_one_directory_are_not_joined(yard: Yard) -> None:
    """Eight tables with an id each and little else in common."""
    for place in range(24):
        kind = place % 8
        yard.put(f"{place:02}.parquet", table(place * 10, "id", f"x{kind}", f"y{kind}", f"z{kind}"))
    before = sorted(map(str, yard.content()[""]))
    report = yard.compact()
    assert report.is_clean and len(report.made) == 8
    assert sorted(map(str, yard.content()[""])) == before, "no column was added to any row"
    assert yard.run().plan()[0].plan.is_empty
    assert yard.compact(policy=PackingPolicy(unify="columns")).made == [], "an id alone is not enough even so"


def test_files_that_fit_no_other_are_tried_once_and_again_when_one_comes_that_fits(yard: Yard) -> None:
    for place, name in enumerate(["x", "y", "x"]):
        yard.put(f"{place}.parquet", table(place * 10, "id", name, f"{name}{name}"))
    yard.put("3.parquet", table(30, "id", "z", "zz"))
    assert len(yard.compact().made) == 1
    assert set(yard.files()) - set(yard.outputs()) == {"1.parquet", "3.parquet"}
    plan = yard.run().plan()[0].plan
    assert plan.is_empty and plan.left_alone[NOT_ALIKE].files == 2
    yard.put("4.parquet", table(40, "id", "y", "yy"))
    yard.grow_older()
    assert len(yard.compact().made) == 1
    assert set(yard.files()) - set(yard.outputs()) == {"3.parquet"}
    assert sorted(row["id"] for row in yard.content()[""]) == list(range(50))


def test_a_plan_shows_what_would_be_unified_and_union_asks_for_it(tmp_path: Path, no_lake: None) -> None:
    yard = local_yard(tmp_path / "yard", Settings(_env_file=None))
    for place, names in enumerate([("id", "a"), ("id", "a", "b"), ("id", "c"), ("id", "c")]):
        yard.put(f"{place}.parquet", table(place * 10, *names))

    def plan(*options: str) -> Any:
        answer = CliRunner().invoke(app, ["plan", yard.uri, "--json", *options])
        assert answer.exit_code == 0, answer.output
        (only,) = json.loads(answer.stdout)["bins"]
        return [(len(group["files"]), group["lacking"]) for group in only["columns"]]

    assert plan() == [(2, {}), (2, {"b": 1})]
    assert plan("--union") == [(4, {"a": 2, "b": 3, "c": 2})]
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["plan", yard.uri]).output
    assert "columns differ" in shown and "group 2 of 2" in shown and "b (null in 1)" in shown
    assert CliRunner().invoke(app, ["compact", yard.uri, "--union"]).exit_code == 0
    assert len(yard.files()) == 1


@pytest.fixture
def no_lake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMPACTION_STATE_DIR", str(tmp_path / "no lake"))


# ---------------------------------------------------------------- lists of files

LISTS = {
    "a Delta Lake table": "_delta_log/00000000000000000000.json",
    "an Apache Hudi table": ".hoodie/hoodie.properties",
    "a Spark streaming query": "_spark_metadata/0",
    "an Apache Iceberg table": "metadata/00001-5fb2.metadata.json",
    "an Iceberg table of Hadoop": "metadata/version-hint.text",
    "an Apache Paimon table": "snapshot/snapshot-1",
    "a cold range": "_manifest.json",
    "a version of a Glue partition": "_compaction.json",
}


@pytest.mark.parametrize("place", ["here", "below", "above"])
@pytest.mark.parametrize("kind", LISTS)
def test_files_that_something_else_lists_by_name_are_refused(yard: Yard, kind: str, place: str) -> None:
    data = {"here": "part", "below": "year=2026/part", "above": "data/year=2026/part"}[place]
    root = {"here": "", "below": "year=2026/", "above": ""}[place]
    for number in range(3):
        yard.put(f"{data}-{number}.parquet", rows(number * 50))
    yard.store.write(f"{root}{LISTS[kind]}", b"{}")
    there = sorted(stored.key for stored in yard.store.list())
    inside = Yard(f"{yard.uri}/data", yard.settings) if place == "above" else yard
    for act in (lambda: inside.run().plan(), inside.compact):
        with pytest.raises(
            FilesListedElsewhere, match=kind.removesuffix(" of Hadoop").removeprefix("an Iceberg")
        ) as refused:
            act()
        assert "Nothing was done" in str(refused.value)
    assert sorted(stored.key for stored in yard.store.list()) == there


def test_the_command_refuses_a_listed_directory_by_name(tmp_path: Path, no_lake: None) -> None:
    yard = local_yard(tmp_path / "yard", Settings(_env_file=None))
    for number in range(3):
        yard.put(f"{number}.parquet", rows(number * 50))
    yard.store.write("_delta_log/00000000000000000000.json", b"{}")
    for command in ("plan", "compact"):
        answer = CliRunner().invoke(app, [command, yard.uri])
        assert answer.exit_code != 0
        assert "Delta Lake" in str(answer.exception) + answer.output
    assert len(yard.files()) == 3


def test_names_that_only_look_like_lists_are_no_lists(yard: Yard) -> None:
    for number in range(3):
        yard.put(f"metadata/x_manifest.json/{number}.parquet", rows(number * 50))
    yard.store.write("my_delta_log/0.json", b"{}")
    yard.store.write("_SUCCESS", b"")
    assert len(yard.compact().made) == 1


# ---------------------------------------------------------------- versions


def test_files_that_are_delivered_again_with_the_same_name_and_bytes_are_kept_for_a_person(yard: Yard) -> None:
    yard.put("keep.parquet", rows(0))
    yard.put("again.parquet", rows(50))
    content = bytes(yard.store.read("again.parquet"))
    yard.compact()
    yard.store.write("again.parquet", content)
    yard.put("more.parquet", rows(100))
    yard.put("most.parquet", rows(150))
    yard.grow_older()
    report = yard.compact()
    assert list(report.plan.conflicts) and not report.is_clean
    assert report.plan.left_alone[COPIED].examples == ("again.parquet",)
    assert bytes(yard.store.read("again.parquet")) == content
    assert len(report.made) == 1, "what is new beside it is compacted"


def test_another_file_of_the_same_name_and_size_is_new_data(yard: Yard) -> None:
    for number in range(2):
        yard.put(f"{number}.parquet", table(number * 10, "id"), compression="none")
    size = len(bytes(yard.store.read("0.parquet")))
    yard.compact()
    yard.put("0.parquet", table(5, "id"), compression="none")
    yard.put("2.parquet", table(20, "id"))
    assert len(bytes(yard.store.read("0.parquet"))) == size
    yard.grow_older()
    report = yard.compact()
    assert report.is_clean
    assert sorted(row["id"] for row in yard.content()[""]) == sorted([*range(30), *range(5, 15)])


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_half_finished_state_that_was_copied_is_refused(yard: Yard, tmp_path: Path, elsewhere: bool) -> None:
    """As `cp -r`, a restore or a copy of a bucket make it: the same bytes, other etags and times."""
    target = tmp_path / "target"
    options = {"target_uri": str(target), "originals": "keep"} if elsewhere else {}
    for number in range(4):
        yard.put(f"{number}.parquet", rows(number * 50))
    originals = {key: bytes(yard.store.read(key)) for key in yard.files()}
    yard.compact(**options)
    for key, content in originals.items():
        (Path(yard.uri) / key).write_bytes(content)
    copy = tmp_path / "copy"
    shutil.copytree(yard.uri, copy)
    for path in copy.glob("*.parquet"):  # later, by as little as a file system tells
        later = path.stat().st_mtime + 1
        os.utime(path, (later, later))
    copied = Yard(str(copy), yard.settings)
    before = copied.files()
    report = copied.compact(**options)
    assert not report.is_clean and report.made == []
    assert "copied or restored" in next(iter(report.plan.conflicts.values()))
    assert copied.files() == before
    assert copied.run(**options).plan()[0].plan.conflicts, "a plan alone tells it, too"


def test_a_store_that_tells_no_etags_is_refused(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        yard.put(f"{number}.parquet", rows(number * 50))
    real = lineage.ObjectStore.list

    def without_etags(store: Any, prefix: str = "") -> Any:
        return (replace(stored, etag="") for stored in real(store, prefix))

    monkeypatch.setattr(lineage.ObjectStore, "list", without_etags)
    with pytest.raises(StoreRefused, match="no etag"):
        yard.compact()
    assert len(list(Path(yard.uri).iterdir())) == 2
