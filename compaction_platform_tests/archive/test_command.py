"""`compaction archive`: what a person decides, on the chain that the project declares."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from compaction_platform import cli
from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.cli import _archive
from compaction_platform.archive.jobs.archive_range import ArchiveRun
from compaction_platform.archive.jobs.purge_range import PurgeRun
from compaction_platform.archive.ledger.ledger import Ledger
from compaction_platform.cli import app
from compaction_platform.errors import CompactionError
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.settings import Settings

pytestmark = pytest.mark.integration

CHAIN, RANGE = 10143, BlockRange(0, 10_000)
TABLES = """
CREATE TABLE public.blocks (chain_id bigint, block_number bigint, hash text, parent_hash text, block_time timestamptz,
    transaction_count int);
CREATE TABLE public.transactions (chain_id bigint, block_number bigint, transaction_index int, block_hash text);
CREATE TABLE public.logs (chain_id bigint, block_number bigint, log_index int, block_hash text);
INSERT INTO public.blocks SELECT 10143, n, 'h' || n, 'h' || n - 1, now() - make_interval(secs => 12000 - n), 0
    FROM generate_series(0, 10200) n;
"""


@pytest.fixture(autouse=True)
def wide_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.console, "_width", 200)


@pytest.fixture
def chain(settings: Settings, lake_environment: dict[str, str]) -> Iterator[Any]:
    assert settings.hot_postgres_url is not None
    url = settings.hot_postgres_url.get_secret_value()
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in TABLES.split(";\n"):
            if statement.strip():
                connection.execute(statement)
        Ledger(url, CHAIN).create_tables()
        yield connection
        connection.execute("DROP TABLE public.blocks, public.transactions, public.logs")


def told(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["archive", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def health_of(what: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["status", "--json"], catch_exceptions=False)
    (row,) = (row for row in json.loads(done.output) if row["what"] == what)
    return dict(row)


def test_what_a_person_decides_about_a_chain(chain: Any, settings: Settings) -> None:
    assert "final: up to block 10072" in told("status", "10143")
    assert "final, not archived" in told("status", "10143")
    due = health_of("chain 10143")
    assert (due["health"], due["why"]) == (0, "1 ranges are to be archived or purged")
    archive, _ = _archive(CHAIN)
    ArchiveRun(archive, settings, lambda: ParallelMap(None, 2)).run(RANGE)
    archived = health_of("chain 10143")
    assert archived["files"] == 3 and archived["bytes"] > 0
    assert "not purged until" in told("withhold", "10143", RANGE.key, "--because", "an [/odd] reason")
    assert "purge withheld: an [/odd] reason" in told("status", "10143")
    assert "counts as any other again" in told("believe", "10143", RANGE.key)
    PurgeRun(archive, settings).run(RANGE)
    assert chain.execute("SELECT count(*) FROM public.blocks").fetchone() == (201,)
    assert "10,000 rows of blocks 0-10000 (end not included) are hot again" in told("restore", "10143", RANGE.key)
    assert chain.execute("SELECT count(*) FROM public.blocks").fetchone() == (10_201,)
    assert "no head was remembered" not in told("forget-head", "10143")
    with pytest.raises(CompactionError, match="nothing of blocks 0-10000 .* was purged"):
        told("restore", "10143", RANGE.key)
    with pytest.raises(CompactionError, match="belong to this ledger already"):
        told("adopt", "10143")
    chain.execute(
        "DELETE FROM compaction.archive_versions WHERE range_id = "
        "(SELECT id FROM compaction.archive_ranges WHERE chain_id = 10143)"
    )
    assert "1 ranges: committed" in told("rebuild", "10143")
    assert "final, not archived" not in told("status", "10143")


def test_a_chain_that_is_not_declared_is_told(lake_environment: dict[str, str]) -> None:
    with pytest.raises(CompactionError, match="no chain 1 is declared in defs/. There are: 10143"):
        told("status", "1")
