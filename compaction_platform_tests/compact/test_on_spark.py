"""The same on S3 and in Spark tasks, and by the command."""

import json
import os
import secrets
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from compaction_platform.compact.commit.delete_inputs import InputDeletion
from compaction_platform.compact.plan import reconcile
from compaction_platform.compact.plan.own_lists import FilesListedElsewhere
from compaction_platform.embedded_lake.embedded import EmbeddedLake
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.settings import Settings
from compaction_platform_tests.compact.yard import TINY, Yard, local_yard, rows

pytestmark = pytest.mark.integration


@pytest.fixture
def yard(settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Yard:
    monkeypatch.setattr("compaction_platform.compact.job.SMALL_WORK_BYTES", -1)
    monkeypatch.setattr("compaction_platform.lake.spark.parallel_map.SMALL_WORK_BYTES", -1)
    return Yard(f"{settings.lake_uri}/yard-{secrets.token_hex(4)}", settings, lambda: ParallelMap(spark, 2))


def test_directories_on_s3_are_compacted_in_spark_tasks(yard: Yard) -> None:
    for hour in range(3):
        for number in range(12):
            yard.put(f"dt=2026-11-01/hour={hour:02d}/part {number:03d}.parquet", rows(number * 50))
    yard.put("dt=2026-11-01/hour=00/bad.parquet", b"PAR1 not Parquet PAR1")
    before = yard.content(unreadable=["dt=2026-11-01/hour=00/bad.parquet"])
    report = yard.compact()
    assert (report.failed, report.files_compacted, len(report.made)) == ({}, 36, 3)
    assert yard.content(unreadable=["dt=2026-11-01/hour=00/bad.parquet"]) == before
    assert len(yard.files()) == 4
    assert set(yard.notes()) == {"dt=2026-11-01/hour=00/bad.parquet"}
    assert yard.run().plan()[0].plan.is_empty


@pytest.mark.parametrize(
    "list_name", ["_delta_log/00000000000000000000.json", "_spark_metadata/0", "data/metadata/v1.metadata.json"]
)
def test_files_on_s3_that_a_list_above_them_names_are_refused(yard: Yard, list_name: str) -> None:
    for number in range(3):
        yard.put(f"data/dt=2026-11-01/{number}.parquet", rows(number * 50))
    yard.store.write(list_name, b"{}")
    below = Yard(f"{yard.uri}/data/dt=2026-11-01", yard.settings)
    with pytest.raises(FilesListedElsewhere, match="Nothing was done"):
        below.compact()
    assert len(below.files()) == 3


def test_an_upload_to_s3_that_is_there_already_is_finished(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "SETTLED_AFTER", timedelta())
    for number in range(4):
        yard.put(f"{number}.parquet", rows(number * 50))
    before = yard.content()
    with monkeypatch.context() as dying:  # before it removed its inputs
        dying.setattr(InputDeletion, "_remove_some", lambda *_: {})
        Yard(yard.uri, yard.settings).compact()
    (output,) = yard.outputs()
    assert len(yard.files()) == 5
    assert len(yard.compact().plan.superseded) == 4
    assert yard.files() == [output]
    assert yard.content() == before


def test_several_outputs_of_one_directory(yard: Yard) -> None:
    import numpy
    import pyarrow

    chance = numpy.random.default_rng(1)
    for number in range(20):
        yard.put(
            f"{number:02d}.parquet", pyarrow.table({"id": chance.integers(0, 1 << 62, 30_000)}), compression="none"
        )
    before = yard.content()
    report = yard.compact(policy=TINY)
    assert len(report.made) > 2
    assert yard.content() == before
    assert yard.run(policy=TINY).plan()[0].plan.is_empty


def command(lake: EmbeddedLake, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "compaction"), *arguments],
        env={**lake.isolated_environment(os.environ), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command_plans_compacts_and_has_nothing_left_to_do(lake: EmbeddedLake, tmp_path: Path) -> None:
    yard = local_yard(tmp_path / "yard", Settings(_env_file=None))
    for number in range(10):
        yard.put(f"{number}.parquet", rows(number * 50))
    yard.put("notes.txt", b"x")
    before = yard.content()
    planned = command(lake, "plan", yard.uri)
    assert planned.returncode == 0, planned.stderr
    assert "11 files now, 2 afterwards" in planned.stdout
    assert "not Parquet, by its name (e.g. notes.txt)" in planned.stdout
    dry = command(lake, "compact", yard.uri, "--dry-run", "--json")
    assert json.loads(dry.stdout)["files_to_compact"] == 10
    assert len(yard.files()) == 11
    done = command(lake, "compact", yard.uri)
    assert done.returncode == 0, done.stderr
    assert "10 → 1" in done.stdout
    assert {row["id"] for row in yard.content()[""]} == {row["id"] for row in before[""]}
    again = json.loads(command(lake, "compact", yard.uri, "--json").stdout)
    assert (again["files_compacted"], again["plan"]["bins"]) == (0, [])


def test_the_command_starts_a_spark_of_its_own_for_much_work(tmp_path: Path) -> None:
    import numpy
    import pyarrow

    yard = local_yard(tmp_path / "yard", Settings(_env_file=None))
    chance = numpy.random.default_rng(2)
    for number in range(9):
        table = pyarrow.table({"id": chance.integers(0, 1 << 62, 500_000)})
        yard.put(f"{number}.parquet", table, compression="none", use_dictionary=False)
    total = sum(row["id"] for row in yard.content()[""])
    ended = subprocess.run(
        [str(Path(sys.executable).parent / "compaction"), "compact", yard.uri, "--json"],
        # (this process talks to Spark Connect, which leaves its mark in the environment)
        env={name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
        capture_output=True,
        text=True,
        timeout=270,  # it starts a JVM of its own, while other tests use both cores
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert json.loads(ended.stdout)["files_compacted"] == 9
    assert sum(row["id"] for row in yard.content()[""]) == total
    assert len(yard.files()) == 1


def test_the_command_says_when_there_is_no_such_directory(lake: EmbeddedLake, tmp_path: Path) -> None:
    ended = command(lake, "compact", str(tmp_path / "nowhere"))
    assert ended.returncode == 1
    assert "nowhere" in ended.stderr
