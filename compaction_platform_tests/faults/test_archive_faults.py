"""What may happen in the middle of archiving and purging, made to happen: real PostgreSQL, real S3. Afterwards hot and
committed cold hold every row exactly once."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.cold.publish import Publication, StagedFilesMissing
from compaction_platform.archive.hot.snapshot import HotUnreachable
from compaction_platform.archive.jobs.archive_range import ArchiveRun, CopyFailed
from compaction_platform.archive.jobs.copy_file import CopyTask
from compaction_platform.archive.jobs.purge_range import HotRowsDiffer, PurgeRun
from compaction_platform.archive.ledger import ledger as ledger_module
from compaction_platform.archive.ledger.lease import LeaseLost, RangeLease
from compaction_platform.archive.ledger.ledger import Ledger, RangeBusy
from compaction_platform.embedded_lake.embedded import EmbeddedLake
from compaction_platform.embedded_lake.postgres import postgres
from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.settings import Settings
from compaction_platform_tests.archive.databases import another_database
from compaction_platform_tests.archive.scene import NAMES, RANGE, Scene, everything_once, hot
from compaction_platform_tests.zygote import Zygote

pytestmark = pytest.mark.integration


@pytest.fixture
def scene(settings: Settings) -> Scene:
    scene = Scene(settings)
    scene.grow(0, 30)
    return scene


def is_settled(scene: Scene, expected: dict[str, Any], state: str) -> None:
    everything_once(scene, expected)
    assert [each for each in scene.states(RANGE) if each not in ("superseded", "failed")] == [state]
    assert not [key for key in scene.all_keys() if "_attempts" in key]


# ---------------------------------------------------------------- death

SCRIPT = """
import os, signal
from compaction_platform.archive.jobs import archive_range as archive_run
from compaction_platform.archive.cold import publish
from compaction_platform.archive.jobs.copy_file import CopyTask
from compaction_platform.archive.hot.snapshot import HotUnreachable
from compaction_platform.archive.ledger.lease import RangeLease
from compaction_platform.archive.ledger.ledger import Ledger
from compaction_platform.archive.cold.publish import Publication
from compaction_platform.archive.jobs.purge_range import PurgeRun
from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.jobs.archive_range import ArchiveRun
from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.lake.spark.parallel_map import ParallelMap

blocks = BlockRange(10, 20)

def die(*arguments, **named):
    os.kill(os.getpid(), signal.SIGKILL)

def dying_after(owner, name, times=1):
    real, left = getattr(owner, name), [times]
    def call(*arguments, **named):
        value = real(*arguments, **named)
        left[0] -= 1
        if left[0] == 0:
            die()
        return value
    setattr(owner, name, call)

points = {
    "before planned": lambda: setattr(Ledger, "_plan", die),
    "after planned": lambda: dying_after(Ledger, "_plan"),
    "after claimed": lambda: dying_after(Ledger, "claim"),
    "while copying": lambda: dying_after(CopyTask, "_written", 2),
    "after copying": lambda: dying_after(ArchiveRun, "_copy"),
    "after one manifest": lambda: dying_after(archive_run, "stage_manifest"),
    "before staged": lambda: setattr(RangeLease, "stage", die),
    "after staged": lambda: dying_after(RangeLease, "stage"),
    "after one file was set aside": lambda: dying_after(Publication, "_set_aside", 2),
    "after one file was shown": lambda: dying_after(Publication, "_copy"),
    "after one dataset was shown": lambda: dying_after(Publication, "_show"),
    "before committed": lambda: setattr(RangeLease, "commit", die),
    "after committed": lambda: dying_after(RangeLease, "commit"),
    "before publishing": lambda: dying_after(publish, "clear_attempts"),
    "while cleaning up": lambda: dying_after(publish, "clear_attempts", 4),  # three before, three after
    "before purging": lambda: setattr(Ledger, "claim_purge", die),
    "after purging": lambda: dying_after(Ledger, "claim_purge"),
    "in a deletion": lambda: setattr(PurgeRun, "_record", die),
    "after one file was purged": lambda: dying_after(PurgeRun, "_delete"),
    "after a dataset was purged": lambda: dying_after(PurgeRun, "_delete", 3),
    "before purged": lambda: setattr(RangeLease, "purged", die),
    "after purged": lambda: dying_after(RangeLease, "purged"),
}
def work(point, archive, settings):
    points[point]()
    ArchiveRun(archive, settings, lambda: ParallelMap(None, 1), owner="to be killed").run(blocks)
    PurgeRun(archive, settings, owner="to be killed").run(blocks)

work(*arguments)
"""

ARCHIVING = [
    "before planned",
    "after planned",
    "after claimed",
    "while copying",
    "after copying",
    "after one manifest",
    "before staged",
    "after staged",
    "before publishing",
    "after one file was shown",
    "after one dataset was shown",
    "before committed",
    "after committed",
    "while cleaning up",
]
PURGING = [
    "before purging",
    "after purging",
    "in a deletion",
    "after one file was purged",
    "after a dataset was purged",
    "before purged",
    "after purged",
]


def die_at(scene: Scene, point: str, zygote: Zygote) -> None:
    zygote.die(SCRIPT, point, scene.archive, scene.settings)


@pytest.mark.parametrize("point", ARCHIVING)
def test_an_archive_that_is_killed_is_finished_by_the_next_run(scene: Scene, point: str, zygote: Zygote) -> None:
    expected = hot(scene)
    die_at(scene, point, zygote)
    assert hot(scene) == expected, "archiving deletes nothing"
    scene.expire_leases()
    scene.archived(10, 20)
    is_settled(scene, expected, "committed")


@pytest.mark.parametrize("point", PURGING)
def test_a_purge_that_is_killed_is_finished_by_the_next_run(scene: Scene, point: str, zygote: Zygote) -> None:
    expected = hot(scene)
    die_at(scene, point, zygote)
    everything_once(scene, expected)
    scene.expire_leases()
    scene.archived(10, 20)
    scene.purge(10, 20)
    is_settled(scene, expected, "purged")


@pytest.mark.parametrize(
    "point", ["after staged", "after one file was set aside", "after one file was shown", "before committed"]
)
def test_a_replacement_that_is_killed_is_finished_by_the_next_run(scene: Scene, point: str, zygote: Zygote) -> None:
    scene.archived(10, 20)
    scene.execute("UPDATE TABLES.logs SET data = 'changed' WHERE block_number = 14")
    expected = hot(scene)
    die_at(scene, point, zygote)
    for name in NAMES:
        attempts = {key.rpartition("-")[2] for key in scene.visible(name)}
        assert len(attempts) <= 1, "never two versions for a plain reader"
    scene.expire_leases()
    assert scene.archived(10, 20).outcome == "finished"
    is_settled(scene, expected, "committed")
    assert scene.archived(10, 20).outcome == "unchanged"


# ---------------------------------------------------------------- paused workers


@contextmanager
def paused(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """A worker thread that stops when it first calls this, until it is told to go on."""
    reached, go_on = threading.Event(), threading.Event()
    real = getattr(owner, name)
    first = threading.Lock()

    def waiting(*arguments: Any, **named: Any) -> Any:
        if first.acquire(blocking=False):
            reached.set()
            assert go_on.wait(60)
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, waiting)
    outcome: list[BaseException | None] = []

    def start(work: Callable[[], Any]) -> Callable[[], BaseException | None]:
        def attempt() -> None:
            try:
                work()
                outcome.append(None)
            except BaseException as error:  # noqa: BLE001 (it is what the test asks about)
                outcome.append(error)

        thread = threading.Thread(target=attempt, daemon=True)
        thread.start()
        assert reached.wait(60)

        def finish() -> BaseException | None:
            go_on.set()
            thread.join(60)
            return outcome[0]

        return finish

    yield start
    go_on.set()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (RangeLease, "stage"),
        (Publication, "_copy"),
        (ObjectStore, "copy"),
        (RangeLease, "commit"),
        (Publication, "clean_up"),
    ],
)
def test_a_worker_that_was_paused_longer_than_its_lease_does_no_harm(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    with paused(owner, name, monkeypatch) as start:
        finish = start(lambda: scene.archived(10, 20))
        scene.expire_leases()
        scene.archived(10, 20)
        scene.execute("UPDATE TABLES.logs SET data = 'changed' WHERE block_number = 14")
        expected = hot(scene)
        scene.archived(10, 20)
        scene.purge(10, 20)
        everything_once(scene, expected)
        finish()
    everything_once(scene, expected)
    assert scene.states(RANGE)[-1] == "purged"
    assert scene.archived(10, 20).outcome == "kept"


@pytest.mark.parametrize("name", ["_delete", "_record", "_require_cold"])
def test_a_purge_that_was_paused_longer_than_its_lease_deletes_nothing_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    expected = hot(scene)
    scene.archived(10, 20)
    with paused(PurgeRun, name, monkeypatch) as start:
        finish = start(lambda: scene.purge(10, 20))
        if name == "_record":  # in a transaction that holds the claim: nobody gets past it
            with scene.connect() as connection:
                connection.execute("SET lock_timeout = '200ms'")
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    connection.execute(
                        "UPDATE compaction.archive_versions SET lease_until = '-infinity' WHERE range_id IN "
                        f"(SELECT id FROM compaction.archive_ranges WHERE chain_id = {scene.chain_id})"
                    )
            assert finish() is None
        else:
            scene.expire_leases()
            scene.purge(10, 20)
            scene.execute(f"INSERT INTO TABLES.logs VALUES ({scene.chain_id}, 14, 0, 'written again by the indexer')")
            assert isinstance(finish(), LeaseLost)
            assert len([row for row in scene.hot("logs") if row[1] == 14]) == 1
            scene.execute("DELETE FROM TABLES.logs WHERE block_number = 14")
    everything_once(scene, expected)


def test_a_run_that_died_and_is_tried_again_need_not_wait_for_its_own_lease(scene: Scene, zygote: Zygote) -> None:
    expected = hot(scene)
    die_at(scene, "after copying", zygote)
    with pytest.raises(RangeBusy, match="run to be killed has it"):
        scene.archived(10, 20)
    again = replace(scene.run(), owner="to be killed")
    assert again.run(RANGE).outcome == "archived"
    is_settled(scene, expected, "committed")


def test_a_run_that_died_in_its_purge_need_not_wait_for_its_own_lease(scene: Scene, zygote: Zygote) -> None:
    expected = hot(scene)
    die_at(scene, "after one file was purged", zygote)
    with pytest.raises(RangeBusy, match="run to be killed has it"):
        scene.archived(10, 20)
    assert replace(scene.run(), owner="to be killed").run(RANGE).outcome == "kept"
    PurgeRun(scene.archive, scene.settings, owner="to be killed").run(RANGE)
    is_settled(scene, expected, "purged")


# ---------------------------------------------------------------- two at once


def test_two_runs_of_one_range_make_one_version(scene: Scene) -> None:
    expected = hot(scene)
    outcomes: list[str] = []

    def archive() -> None:
        try:
            outcomes.append(scene.archived(10, 20).outcome)
        except RangeBusy:
            outcomes.append("busy")

    threads = [threading.Thread(target=archive) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("archived") == 1
    assert set(outcomes) <= {"archived", "busy", "unchanged"}
    is_settled(scene, expected, "committed")


def test_ranges_are_planned_one_at_a_time(scene: Scene) -> None:
    """Of eight runs that insert one range at the same instant, PostgreSQL ends one as a deadlock in 2 % of tries."""
    name = f"held_{scene.chain_id}"
    waiting = "SELECT wait_event FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
    with (
        another_database(scene, name) as url,
        ThreadPoolExecutor(8) as pool,
        psycopg.connect(url, autocommit=True) as gate,
    ):
        ledger = Ledger(url, scene.chain_id)
        ledger.create_tables()
        gate.execute("""
            CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END';
            CREATE TRIGGER wait BEFORE INSERT ON compaction.archive_ranges FOR EACH ROW EXECUTE FUNCTION wait()""")
        gate.execute("SELECT pg_advisory_lock(1)")
        claims = [pool.submit(ledger.claim, RANGE, f"run {number}") for number in range(8)]
        while len(waits := [event for (event,) in gate.execute(waiting, (name,))]) < len(claims):
            assert not any(claim.done() for claim in claims)
        assert waits.count("advisory") == 1  # only this one is in its INSERT
        gate.execute("SELECT pg_advisory_unlock(1)")
        lost = [claim.exception() for claim in claims if claim.exception()]
    assert [type(error) for error in lost] == [RangeBusy] * 7


def test_a_run_that_sleeps_while_it_plans_stops_no_other_for_ever(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "PLANNING_TIMEOUT", "200ms")
    with psycopg.connect(scene.url) as sleeper:
        sleeper.execute("SELECT id FROM compaction.archive_ledger FOR UPDATE")
        with pytest.raises(RangeBusy, match="Nothing was done here; run again"):
            scene.ledger.claim(RANGE, "another")
    scene.ledger.claim(RANGE, "another")


def test_overlapping_ranges_cannot_be_claimed_at_once(scene: Scene) -> None:
    from compaction_platform.archive.ledger.ledger import RangesOverlap

    outcomes: list[str] = []

    def claim(start: int, end: int) -> None:
        try:
            scene.ledger.claim(BlockRange(start, end), "a test")
            outcomes.append(f"{start}-{end}")
        except (RangesOverlap, RangeBusy) as error:
            outcomes.append(type(error).__name__)

    pairs = [(start, start + 10) for start in range(0, 12, 2)]
    threads = [threading.Thread(target=claim, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    claimed = [BlockRange(*map(int, each.split("-"))) for each in outcomes if each[0].isdigit()]
    assert claimed
    assert not any(one.start < two.end and two.start < one.end for one in claimed for two in claimed if one != two)


# ---------------------------------------------------------------- rows that change in between


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO TABLES.logs SELECT chain_id, block_number, 9, block_hash FROM TABLES.logs WHERE block_number = 14",
        "UPDATE TABLES.logs SET removed = false WHERE block_number = 13",
        "DELETE FROM TABLES.logs WHERE block_number = 14",
    ],
)
def test_rows_that_change_while_they_are_copied_are_archived_as_of_one_moment(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    before = hot(scene)
    with paused(CopyTask, "__call__", monkeypatch) as start:
        finish = start(lambda: scene.archived(10, 20))
        scene.execute(change)
        assert finish() is None
    assert [row[:3] for row in scene.cold("logs")] == [row[:3] for row in before["logs"] if 10 <= row[1] < 20]
    with pytest.raises(HotRowsDiffer):
        scene.purge(10, 20)
    assert len(scene.hot("blocks")) == 30


# ---------------------------------------------------------------- lost answers and restarts


class LossyProxy:
    """Between us and PostgreSQL: the answer to a message with `mark` is lost, and the connection with it."""

    def __init__(self, host: str, port: int, mark: bytes) -> None:
        self.target, self.mark, self.fired = (host, port), mark, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self._armed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.target)
            state = {"seen": False}
            threading.Thread(target=self._to_server, args=(client, server, state), daemon=True).start()
            threading.Thread(target=self._to_client, args=(server, client, state), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket, state: dict[str, bool]) -> None:
        while data := _received(client):
            if self.mark in data and self.fired == 0:
                state["seen"] = True
            if state["seen"] and b"COMMIT" in data:
                state["commit"] = True
            server.sendall(data)
        _closed(server)

    def _to_client(self, server: socket.socket, client: socket.socket, state: dict[str, bool]) -> None:
        while data := _received(server):
            if state.get("commit") and self.fired == 0:
                self.fired += 1
                _closed(client)
                _closed(server)
                return
            try:
                client.sendall(data)
            except OSError:
                break
        _closed(client)

    def close(self) -> None:
        self.listener.close()


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except OSError:
        return b""


def _closed(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


@pytest.mark.parametrize("state", ["staged", "committed", "purged"])
def test_a_change_whose_answer_was_lost_counts(scene: Scene, settings: Settings, state: str) -> None:
    expected = hot(scene)
    parts = psycopg.conninfo.conninfo_to_dict(scene.url)
    proxy = LossyProxy(str(parts["host"]), int(str(parts["port"])), parameter(state))
    address = psycopg.conninfo.make_conninfo(scene.url, port=proxy.port)
    through = settings.model_copy(update={"hot_postgres_url": _secret(address)})
    try:
        lossy = ArchiveRun(scene.archive, through, scene.run().spread, scene.said.append, owner="unlucky")
        assert lossy.run(RANGE).outcome == "archived"
        PurgeRun(scene.archive, through, owner="unlucky").run(RANGE)
    finally:
        proxy.close()
    assert proxy.fired == 1
    is_settled(scene, expected, "purged")


def parameter(text: str) -> bytes:
    """As the protocol sends it: not part of any statement's own words."""
    return len(text).to_bytes(4, "big") + text.encode()


def _secret(url: str) -> Any:
    from pydantic import SecretStr

    return SecretStr(url)


def test_postgres_restarts_during_copy_commit_and_purge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A server ends with the thread that has started it.
    with ThreadPoolExecutor(1) as keeper, EmbeddedLake(tmp_path / "lake", spark=False) as lake:
        scene = Scene(lake.settings())
        scene.grow(0, 30)
        expected = hot(scene)
        before(monkeypatch, CopyTask, "_written", lambda: restart(lake, keeper))
        with pytest.raises((CopyFailed, HotUnreachable)):
            scene.archived(10, 20)
        scene.expire_leases()
        before(monkeypatch, RangeLease, "commit", lambda: restart_slowly(lake, keeper))
        assert scene.archived(10, 20).outcome == "archived"
        everything_once(scene, expected)
        before(monkeypatch, PurgeRun, "_record", lambda: restart(lake, keeper))
        with pytest.raises(HotUnreachable):
            scene.purge(10, 20)
        everything_once(scene, expected)
        scene.expire_leases()
        scene.purge(10, 20)
        is_settled(scene, expected, "purged")


def before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, what: Callable[[], None]) -> None:
    """Do this once, right before the first call."""
    real = getattr(owner, name)
    todo = [what]

    def call(*arguments: Any, **named: Any) -> Any:
        if todo:
            todo.pop()()
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, call)


def restart(lake: EmbeddedLake, keeper: ThreadPoolExecutor) -> None:
    stop_postgres(lake)
    keeper.submit(start_postgres, lake).result()


def restart_slowly(lake: EmbeddedLake, keeper: ThreadPoolExecutor) -> None:
    """It is down when this returns, and comes back after somebody has knocked in vain."""
    stop_postgres(lake)
    knocked = threading.Event()
    real = psycopg.connect

    def knock(*arguments: Any, **named: Any) -> Any:
        try:
            return real(*arguments, **named)
        except psycopg.OperationalError:
            knocked.set()
            raise

    def come_back() -> None:
        assert knocked.wait(60)
        psycopg.connect = real
        start_postgres(lake)

    psycopg.connect = knock
    keeper.submit(come_back)


def stop_postgres(lake: EmbeddedLake) -> None:
    (running,) = [each for each in lake.running if each.server.name == "postgres"]
    running.ask_to_stop()
    running.stop()
    lake.running.remove(running)


def start_postgres(lake: EmbeddedLake) -> None:
    lake.add(postgres(lake.state.data / "postgres", lake.ports, lake.credentials))


# ---------------------------------------------------------------- the store


def test_staged_files_that_vanish_are_made_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = hot(scene)
    real = Publication.publish

    def vanish(publication: Publication) -> None:
        publication.store.delete([key for key in scene.all_keys() if "/logs/_attempts/" in key])
        monkeypatch.setattr(Publication, "publish", real)
        real(publication)

    monkeypatch.setattr(Publication, "publish", vanish)
    with pytest.raises(StagedFilesMissing, match="hot rows are untouched"):
        scene.archived(10, 20)
    assert scene.archived(10, 20).version == 2
    is_settled(scene, expected, "committed")


@pytest.mark.parametrize("step", ["publish", "_show"])
def test_staged_files_that_vanish_from_a_replacement_bring_the_old_version_back(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    scene = Scene(settings, namespace="cold_faults")
    scene.grow(0, 30)
    scene.archived(10, 20)
    first = {name: scene.cold(name) for name in NAMES}
    scene.execute("UPDATE TABLES.logs SET data = 'changed' WHERE block_number = 14")
    expected = hot(scene)

    def vanish() -> None:
        scene.store.delete([key for key in scene.all_keys() if "/logs/_attempts/" in key])

    before(monkeypatch, Publication, step, vanish)
    with pytest.raises(StagedFilesMissing):
        scene.archived(10, 20)
    assert {name: scene.cold(name) for name in NAMES} == first
    for name in NAMES:
        table = open_catalog(settings).load_table(("cold_faults", name))
        files = [task.file.file_path for task in table.scan(row_filter=f"chain_id = {scene.chain_id}").plan_files()]
        assert sorted(files) == [f"{scene.store.uri}/{key}" for key in scene.visible(name)]
    assert scene.states(RANGE) == ["superseded", "failed", "committed"], "its rows, under names that are new"
    assert scene.archived(10, 20).outcome == "replaced"
    is_settled(scene, expected, "committed")


def test_a_store_that_fails_while_publishing_is_finished_later(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    from compaction_platform.lake.storage.object_store import StoreRefused

    expected = hot(scene)
    real = ObjectStore.copy
    calls = [0]

    def refuse(*arguments: Any, **named: Any) -> None:
        calls[0] += 1
        if calls[0] == 3:
            raise StoreRefused("out of order")
        real(*arguments, **named)

    monkeypatch.setattr(ObjectStore, "copy", refuse)
    with pytest.raises(StoreRefused):
        scene.archived(10, 20)
    assert scene.states(RANGE) == ["staged"]
    assert scene.archived(10, 20).outcome == "finished", "at once: the failed run let go of its claim"
    is_settled(scene, expected, "committed")
