"""Large outputs go to S3 while they are made, hidden, and are copied to their place when they are proved."""

import random
import signal
import subprocess
import sys
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pyarrow
import pytest

from compaction_platform.compact import reconcile, run, stitching, uploads
from compaction_platform.compact.report import Report
from compaction_platform.compact.uploads import HIDDEN
from compaction_platform.lake import objects
from compaction_platform.lake.aws import aws_client
from compaction_platform.lake.objects import Growing, Objects, StoreRefused
from compaction_platform.lake.settings import Settings
from compaction_platform.lake.spread import Spread
from compaction_platform.lake.stitch.errors import CannotStitch
from compaction_platform_tests.compact.yard import Yard

pytestmark = pytest.mark.integration

FILES, ROWS, ROW_BYTES = 10, 1024, 4096


@pytest.fixture
def yard(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Yard:
    """Files that become one of 40 MB."""
    monkeypatch.setattr(objects, "PIECE", 5 << 20)  # the least that S3 takes
    monkeypatch.setattr(objects, "PARTS_AT_ONCE", 1)  # a part is there before the next is taken
    yard = Yard(f"{settings.lake_uri}/uploads/{uuid4()}", settings, lambda: Spread(None, 1))
    for number in range(FILES):
        chance = random.Random(number)
        raw = [chance.randbytes(ROW_BYTES) for _ in range(ROWS)]
        yard.put(f"{number}.parquet", pyarrow.table({"id": range(number * ROWS, (number + 1) * ROWS), "raw": raw}))
    return yard


def compact(yard: Yard) -> Report:
    return yard.compact(upload="while_made")


def every_row_once(yard: Yard) -> None:
    (rows,) = yard.content().values()
    assert [row["id"] for row in rows] == list(range(FILES * ROWS))
    for number in range(FILES):
        chance = random.Random(number)
        some = rows[number * ROWS : (number + 1) * ROWS]
        assert [row["raw"] for row in some] == [chance.randbytes(ROW_BYTES) for _ in range(ROWS)]


def is_compacted(yard: Yard) -> None:
    assert len(yard.files()) == len(yard.outputs()) == 1
    every_row_once(yard)


def hidden(yard: Yard) -> list[str]:
    return [stored.key for stored in yard.store.list(HIDDEN)]


def unfinished(yard: Yard) -> list[bool]:
    """For each upload that has begun and not ended, whether there are parts of it."""
    client = aws_client("s3", yard.settings, yard.settings.s3_endpoint)
    bucket, _, prefix = yard.uri.removeprefix("s3://").partition("/")
    found = client.list_multipart_uploads(Bucket=bucket, Prefix=prefix).get("Uploads", [])
    assert all(each["Key"].startswith(f"{prefix}/{HIDDEN}/") for each in found)
    return [
        bool(client.list_parts(Bucket=bucket, Key=each["Key"], UploadId=each["UploadId"]).get("Parts"))
        for each in found
    ]


def test_an_output_goes_to_the_store_while_it_is_made_and_is_seen_when_it_is_proved(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[list[bool], list[str]]] = []
    proved_at: list[datetime] = []
    real = stitching.proved

    def watched(*given: Any, **options: Any) -> Any:
        seen.append((unfinished(yard), yard.outputs() + hidden(yard)))
        proved_at.append(Objects.at(f"{yard.uri}/_clock", yard.settings).now())
        return real(*given, **options)

    monkeypatch.setattr(stitching, "proved", watched)
    report = compact(yard)
    assert seen == [([True], [])]
    assert [each.engine for each in report.done] == ["stitch"]
    is_compacted(yard)
    assert (hidden(yard), unfinished(yard)) == ([], [])
    stored = yard.store.stat(yard.outputs()[0])
    assert stored is not None and stored.last_modified >= proved_at[0], "it is as old as its commit, not as its upload"


def test_an_output_that_is_not_proved_is_given_up_and_the_next_engine_begins_anew(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    during: list[list[bool]] = []

    def refused(*_: Any, **__: Any) -> Any:
        during.append(unfinished(yard))
        raise CannotStitch("it is not what it should be")

    monkeypatch.setattr(stitching, "proved", refused)
    report = compact(yard)
    assert [each.engine for each in report.done] == ["re-encode"]
    assert during == [[True]]
    is_compacted(yard)
    assert (hidden(yard), unfinished(yard)) == ([], [])


def test_a_store_that_refuses_a_part_gets_the_file_whole(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals: list[str] = []

    def refuse(growing: Growing, _: Any) -> None:
        refusals.append(growing.key)
        raise StoreRefused("busy")

    monkeypatch.setattr(Growing, "write", refuse)
    assert compact(yard).failed == {}
    assert len(refusals) == 1
    is_compacted(yard)
    assert (hidden(yard), unfinished(yard)) == ([], [])


def test_a_store_that_loses_a_part_changes_nothing(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Growing.write
    monkeypatch.setattr(Growing, "write", lambda growing, data: real(growing, bytes(data)[:-1]))
    (problem,) = compact(yard).failed.values()
    assert "not as large" in problem
    assert (len(yard.files()), yard.outputs(), hidden(yard)) == (FILES, [], [])
    every_row_once(yard)


def test_of_two_runs_that_make_the_same_file_one_commits(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is done with everything right before this one copies its file to its place."""
    monkeypatch.setattr(reconcile, "SETTLED_AFTER", timedelta(seconds=1))
    monkeypatch.setattr(run, "WAIT_SECONDS", 0.1)
    happened: list[Any] = []
    real = Objects.copy

    def copy(store: Objects, source: str, target: str, *, overwrite: bool = False) -> None:
        if not happened and not target.startswith(HIDDEN):
            happened.append(None)
            happened.append(compact(yard))
        real(store, source, target, overwrite=overwrite)

    monkeypatch.setattr(Objects, "copy", copy)
    report = compact(yard)
    assert len(happened) == 2 and [each.is_somebody_elses for each in happened[1].done] == [False]
    assert [each.is_somebody_elses for each in report.done] == [True]
    is_compacted(yard)
    assert (hidden(yard), unfinished(yard)) == ([], [])


def test_a_store_that_would_copy_over_a_file_gets_files_whole(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    real = Objects.copy
    monkeypatch.setattr(Objects, "copy", lambda store, source, target, **_: real(store, source, target, overwrite=True))
    monkeypatch.setattr(Objects, "begin", lambda store, key: begun.append(key))
    assert uploads.can_commit_by_copy(yard.store) is False
    assert compact(yard).failed == {}
    assert begun == []
    is_compacted(yard)


def test_nothing_is_hidden_if_that_is_not_declared(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(Objects, "begin", lambda store, key: begun.append(key))
    assert yard.compact().failed == {}
    assert begun == []
    is_compacted(yard)


# ---------------------------------------------------------------- death

SCRIPT = """
import os, signal, sys
from compaction_platform.compact import stitching
from compaction_platform.compact.run import CompactRun, Directory
from compaction_platform.lake import objects
from compaction_platform.lake.objects import Objects
from compaction_platform.lake.settings import load_settings
from compaction_platform.lake.spread import Spread

uri, point = sys.argv[1:]
objects.PIECE, objects.PARTS_AT_ONCE = 5 << 20, 1
real = Objects.copy

def die(*arguments, **named):
    os.kill(os.getpid(), signal.SIGKILL)

def die_at_the_commit(store, source, target, **options):
    if not target.startswith("_compaction/"):
        die()
    real(store, source, target, **options)

if point == "while it is made":
    stitching.proved = die
elif point == "before it is copied to its place":
    Objects.copy = die_at_the_commit
CompactRun(Directory(uri, upload="while_made"), load_settings(), lambda: Spread(None, 1)).run()
"""


@pytest.mark.parametrize(
    ("point", "left"),
    [("while it is made", (0, [True])), ("before it is copied to its place", (1, []))],
)
def test_what_a_killed_run_has_left_is_not_seen_and_is_removed_later(
    yard: Yard,
    lake_environment: dict[str, str],
    point: str,
    left: tuple[int, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", SCRIPT, yard.uri, point], capture_output=True, timeout=120, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    assert (len(hidden(yard)), unfinished(yard)) == left
    assert (len(yard.files()), yard.outputs()) == (FILES, [])
    assert compact(yard).failed == {}
    is_compacted(yard)
    assert (len(hidden(yard)), unfinished(yard)) == left, "it might be another run's that is at work"
    monkeypatch.setattr(uploads, "LEFT_AFTER", timedelta(hours=-1))
    uploads.remove_leftovers(yard.store, yard.settings, yard.run().now(), yard.said.append)
    assert (hidden(yard), unfinished(yard)) == ([], [])
    assert any("killed runs had left" in said or "given up" in said for said in yard.said)
    is_compacted(yard)


def test_a_run_with_large_outputs_looks_for_leftovers(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    yard.store.write(f"{HIDDEN}/left", b"by a killed run")
    monkeypatch.setattr(uploads, "LEFT_AFTER", timedelta(hours=-1))
    assert compact(yard).failed == {}
    assert hidden(yard) == []
    is_compacted(yard)
