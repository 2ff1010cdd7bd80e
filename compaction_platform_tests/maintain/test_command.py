"""`compaction maintain`, `undo-compaction` and `status`, on the table that the project declares."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow
import pytest
from typer.testing import CliRunner

from compaction_platform import cli
from compaction_platform.cli import app
from compaction_platform.errors import CompactionError
from compaction_platform.lake.dagster.provisioning import IcebergTable, TableColumn
from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.lake.iceberg.data_file_writer import DataFileWriter
from compaction_platform.lake.iceberg.replace_files import AddedFile, FileChange, commit_change
from compaction_platform.lake.iceberg.snapshot_files import Manifests
from compaction_platform.settings import Settings

pytestmark = pytest.mark.integration

TABLE = "silver.events"
FILES = 4


@pytest.fixture(autouse=True)
def wide_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.console, "_width", 200)


@pytest.fixture
def table(settings: Settings, lake_environment: dict[str, str]) -> Iterator[str]:
    columns = (TableColumn("event_id", "string"), TableColumn("event_time", "timestamptz"))
    IcebergTable("silver", "events", columns).ensure(settings)
    table = open_catalog(settings).load_table(TABLE)
    for number in range(FILES):
        rows = pyarrow.table({"event_id": [str(number)], "event_time": [datetime(2026, 1, 1, tzinfo=UTC)]})
        files = DataFileWriter.of(table, settings).write(rows)
        commit_change(table, FileChange(added=[AddedFile(file) for file in files]), Manifests(table.io))
    yield TABLE
    open_catalog(settings).drop_table(TABLE)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def rows(settings: Settings) -> list[str]:
    return sorted(open_catalog(settings).load_table(TABLE).scan().to_arrow()["event_id"].to_pylist())


def test_a_table_is_looked_at_maintained_and_put_back(table: str, settings: Settings) -> None:
    before = next(line for line in json.loads(run("status", "--json")) if line["what"] == f"table {table}")
    assert (before["files"], before["small_files"]) == (FILES, FILES)
    assert "could become 1" in before["why"] and before["health"] < 80
    assert "become 1" in run("maintain", table, "--dry-run")
    assert f"{FILES} → 1" in run("maintain", table)
    after = json.loads(run("status", "--json"))
    scores = [-1 if line["health"] is None else line["health"] for line in after]  # there is no chain in this lake
    assert scores == sorted(scores), "what needs most is first"
    (staging,) = (line for line in after if line["what"] == f"staging of {table}")
    assert (staging["health"], staging["why"]) == (100, "all that is over is merged")
    assert next(line for line in after if line["what"] == f"table {table}")["health"] > before["health"]
    assert rows(settings) == ["0", "1", "2", "3"]
    assert "as before the compaction" in run("undo-compaction", table)
    assert rows(settings) == ["0", "1", "2", "3"]
    assert "directory clicks" in run("status")


def test_a_table_that_is_not_declared_is_refused_with_those_that_are(lake_environment: dict[str, str]) -> None:
    with pytest.raises(CompactionError, match="There are: silver.events"):
        run("maintain", "silver.orders")
