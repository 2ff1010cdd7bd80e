"""Hot tables under row-level security: rows that the role cannot see stop a run, they are never lost."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import sql

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.hot.snapshot import HotRowsHidden
from compaction_platform.archive.jobs.purge_range import PurgeRun
from compaction_platform.archive.jobs.restore_range import RestoreRun
from compaction_platform_tests.archive.scene import RANGE, Scene, hot
from compaction_platform_tests.archive.test_purge import partitioned

pytestmark = pytest.mark.integration


@pytest.fixture
def role(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A role that owns the hot tables and may do everything with them; its address is in MY_HOT."""
    name = f"indexer_{scene.chain_id}"
    quoted = sql.Identifier(name)
    with scene.connect() as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(quoted))
        for schema in ("compaction", scene.schema):
            place = sql.Identifier(schema)
            connection.execute(sql.SQL("GRANT ALL ON SCHEMA {} TO {}").format(place, quoted))
            for kind in ("TABLES", "SEQUENCES"):
                grant = sql.SQL("GRANT ALL ON ALL {} IN SCHEMA {} TO {}").format(sql.SQL(kind), place, quoted)
                connection.execute(grant)
    parts = psycopg.conninfo.conninfo_to_dict(scene.url)
    monkeypatch.setenv("MY_HOT", f"postgresql://{name}:x@{parts['host']}:{parts['port']}/{parts['dbname']}")
    yield name
    with scene.connect() as connection:
        connection.execute(sql.SQL("REASSIGN OWNED BY {} TO CURRENT_USER").format(quoted))
        connection.execute(sql.SQL("DROP OWNED BY {}").format(quoted))
        connection.execute(sql.SQL("DROP ROLE {}").format(quoted))


def hide(scene: Scene, role: str) -> None:
    """From now on the role, which owns all tables, sees no more than the first log of each block."""
    tables = f"SELECT oid::regclass FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = '{scene.schema}'"
    for (name,) in scene.execute(f"{tables}::regnamespace"):
        scene.execute(f"ALTER TABLE {name} OWNER TO {role}")
    scene.execute("ALTER TABLE TABLES.logs ENABLE ROW LEVEL SECURITY")
    scene.execute("ALTER TABLE TABLES.logs FORCE ROW LEVEL SECURITY")
    scene.execute("CREATE POLICY first_of_a_block ON TABLES.logs USING (log_index = 0)")


def as_role(scene: Scene) -> Any:
    return replace(scene.archive, hot_variable="MY_HOT")


@pytest.mark.parametrize("by_partition", [True, False])
def test_rows_hidden_by_a_policy_are_neither_archived_without_the_others_nor_purged(
    scene: Scene, role: str, by_partition: bool
) -> None:
    if by_partition:
        partitioned(scene, "block_number", [("0", "10"), ("10", "20"), ("20", "30")])
    expected = hot(scene)
    hide(scene, role)
    scene.archive = as_role(scene)
    with pytest.raises(HotRowsHidden, match=f'{role}.*"logs".*Nothing was changed.*ALTER ROLE {role} BYPASSRLS'):
        scene.archived(10, 20)
    assert scene.states(RANGE) in ([], ["failed"])
    assert hot(scene) == expected
    scene.execute(f"ALTER ROLE {role} BYPASSRLS")
    scene.archived(10, 20)
    assert len(scene.cold("logs")) == len([row for row in expected["logs"] if 10 <= row[1] < 20])


@pytest.mark.parametrize("by_partition", [True, False])
def test_a_policy_that_came_after_the_copy_stops_the_purge(scene: Scene, role: str, by_partition: bool) -> None:
    """The rows that the role sees are archived; others came, which it cannot see."""
    if by_partition:
        partitioned(scene, "block_number", [("0", "10"), ("10", "20"), ("20", "30")])
    scene.execute("DELETE FROM TABLES.logs WHERE log_index > 0")
    scene.archived(10, 20)
    scene.execute(
        "INSERT INTO TABLES.logs SELECT chain_id, block_number, 1, block_hash FROM TABLES.logs WHERE log_index = 0"
    )
    expected = scene.hot("logs")
    hide(scene, role)
    with pytest.raises(HotRowsHidden):
        PurgeRun(as_role(scene), scene.settings, owner="a purge").run(RANGE)
    assert scene.hot("logs") == expected
    assert scene.states(RANGE) == ["purging"]


def test_a_purge_is_not_over_while_rows_are_hidden(scene: Scene, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last look of a purge must see what is left, or say that it cannot."""
    scene.archived(10, 20)
    real = PurgeRun._require_nothing_left

    def late(run: PurgeRun, connection: Any, version: Any) -> None:
        scene.execute(f"INSERT INTO TABLES.logs VALUES ({scene.chain_id}, 14, 7, 'late')")
        hide(scene, role)
        real(run, connection, version)

    monkeypatch.setattr(PurgeRun, "_require_nothing_left", late)
    with pytest.raises(HotRowsHidden):
        PurgeRun(as_role(scene), scene.settings, owner="a purge").run(RANGE)
    assert scene.states(RANGE) == ["purging"]


def test_restore_and_reading_do_not_pass_over_hidden_rows(scene: Scene, role: str) -> None:
    from compaction_platform.archive.cold.read import hot_and_cold

    scene.archived(10, 20)
    scene.purge(10, 20)
    hide(scene, role)
    with pytest.raises(HotRowsHidden):
        RestoreRun(as_role(scene), scene.settings).run(RANGE)
    with pytest.raises(HotRowsHidden), hot_and_cold(as_role(scene), scene.settings, BlockRange(0, 30)) as rows:
        rows.arrow("logs")
