"""A chain in Dagster: the sensor, the runs it asks for, the checks, what people read."""

import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import dagster as dg
import pytest

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.component import ColdRanges, DeclaredFinality, HotTable
from compaction_platform.archive.jobs.purge_range import NotArchived
from compaction_platform.lake.dagster.resources import LakeResource, SparkResource
from compaction_platform.settings import Settings
from compaction_platform_tests.archive.scene import GENESIS_TIME, Scene, block_hash, everything_once

pytestmark = pytest.mark.integration

NAMES = ("blocks", "transactions", "logs")


def component(scene: Scene, **changes: Any) -> ColdRanges:
    tables = [
        HotTable(
            name="blocks",
            table=f"{scene.schema}.blocks",
            key=["block_number"],
            hash_column="hash",
            parent_hash_column="parent_hash",
            time_column="block_time",
        ),
        HotTable(
            name="transactions",
            table=f"{scene.schema}.transactions",
            key=["block_number", "transaction_index"],
            hash_column="block_hash",
            counted_by="transaction_count",
            dense_index=True,
        ),
        HotTable(
            name="logs", table=f"{scene.schema}.logs", key=["block_number", "log_index"], hash_column="block_hash"
        ),
    ]
    values: dict[str, Any] = {
        "chain_id": scene.chain_id,
        "datasets": tables,
        "finality": DeclaredFinality(mode="depth", finality_depth_blocks=5),
        "uri": scene.archive.uri,
        "range_size": 10,
        "chunk_size": 15,
        "delete_after_compact": True,
        "namespace": None,
        **changes,
    }
    return ColdRanges(**values)


class Here:
    """One chain, its definitions and a Dagster instance of its own."""

    def __init__(self, scene: Scene, instance: dg.DagsterInstance, **changes: Any) -> None:
        self.scene, self.instance = scene, instance
        platform = dg.Definitions(
            resources={"lake": LakeResource(), "spark": SparkResource()}, executor=dg.in_process_executor
        )
        self.definitions = dg.Definitions.merge(component(scene, **changes).definitions(), platform)
        self.partitions = f"blocks_{scene.chain_id}"

    def tick(self) -> dg.SensorResult:
        sensor = self.definitions.resolve_sensor_def(f"final_ranges_{self.scene.chain_id}")
        context = dg.build_sensor_context(
            instance=self.instance, definitions=self.definitions, resources={"lake": LakeResource()}
        )
        result: Any = sensor(context)
        for request in result.dynamic_partitions_requests or []:
            self.instance.add_dynamic_partitions(self.partitions, list(request.partition_keys))
        return result

    def asked_for(self) -> list[str]:
        return [str(request.partition_key) for request in self.tick().run_requests or []]

    def run(
        self, key: str, *, expect_failure: bool = False, tags: Mapping[str, str] | None = None, **config: Any
    ) -> Any:
        self.instance.add_dynamic_partitions(self.partitions, [key])
        job = self.definitions.resolve_job_def(f"archive_{self.scene.chain_id}")
        ops = {f"copy_ranges_{self.scene.chain_id}": {"config": config}} if config else {}
        return job.execute_in_process(
            run_config={"ops": ops, "loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            instance=self.instance,
            partition_key=key,
            tags={"compaction/table": f"archive_{self.scene.chain_id}", **(tags or {})},
            raise_on_error=not expect_failure,
        )

    def check(self, name: str) -> dg.AssetCheckEvaluation:
        job = dg.define_asset_job("only_checks", selection=dg.AssetSelection.all_asset_checks())
        definitions = dg.Definitions.merge(self.definitions, dg.Definitions(jobs=[job]))
        done = definitions.resolve_job_def("only_checks").execute_in_process(
            instance=self.instance,
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            raise_on_error=False,
        )
        return next(each for each in done.get_asset_check_evaluations() if each.check_name == name)


@pytest.fixture
def scene(settings: Settings, lake_environment: dict[str, str]) -> Scene:
    scene = Scene(settings)
    scene.grow(0, 30)
    return scene


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def here(scene: Scene, instance: dg.DagsterInstance) -> Here:
    return Here(scene, instance)


def evaluations(run: Any) -> dict[str, bool]:
    return {each.check_name: each.passed for each in run.get_asset_check_evaluations()}


def metadata(run: Any, *key: str) -> dict[str, Any]:
    for event in run.get_asset_materialization_events():
        if event.asset_key == dg.AssetKey(list(key)):
            return {name: each.value for name, each in event.materialization.metadata.items()}
    raise AssertionError(f"{key} was not materialized")


def test_final_ranges_are_asked_for_archived_and_purged(here: Here) -> None:
    scene = here.scene
    expected = {name: scene.hot(name) for name in NAMES}
    assert here.asked_for() == ["0-10", "10-20"]
    for key in ("0-10", "10-20"):
        run = here.run(key)
        assert evaluations(run) == {
            "range_is_final": True,
            "blocks_are_contiguous": True,
            "cold_equals_source": True,
            "no_range_missing_below_the_tip": key == "10-20",
            "hot_retention": True,  # looked at after the purge
            "finality_lag": True,
            "no_reorg_after_archiving": True,
        }
    assert here.asked_for() == []
    assert [row[1] for row in scene.hot("blocks")] == list(range(20, 30))
    everything_once(scene, expected)
    told = metadata(run, "cold", str(scene.chain_id), "logs")
    assert (told["partition_key"], told["dataset_version"], told["rows"], told["outcome"]) == (
        "10-20",
        1,
        10,
        "archived",
    )
    assert metadata(run, "purged", str(scene.chain_id))["rows_deleted_blocks"] == 10
    scene.grow(30, 47)
    assert here.asked_for() == ["20-30", "30-40"]


def test_the_event_names_dataset_version_and_partition(here: Here) -> None:
    run = here.run("10-20")
    key = dg.AssetKey(["cold", str(here.scene.chain_id), "logs"])
    (event,) = [each for each in run.get_asset_materialization_events() if each.asset_key == key]
    version = here.scene.ledger.live(BlockRange(10, 20))
    assert version is not None
    manifest = version.manifests["logs"]
    assert event.materialization.tags["dagster/data_version"] == manifest.data_version
    told = {name: each.value for name, each in event.materialization.metadata.items()}
    assert (told["dataset_uuid"], told["dataset_version"], told["partition_key"]) == (manifest.dataset_uuid, 1, "10-20")


def test_a_tick_asks_for_a_bounded_number_of_ranges(scene: Scene, instance: dg.DagsterInstance) -> None:
    scene.grow(30, 110)
    here = Here(scene, instance, max_ranges_per_tick=3)
    assert here.asked_for() == ["0-10", "10-20", "20-30"]
    here.run("0-10")
    assert here.asked_for() == ["10-20", "20-30", "30-40"]


def test_a_range_that_is_not_final_is_refused_in_the_run(here: Here) -> None:
    run = here.run("20-30", expect_failure=True)
    assert not run.success
    assert evaluations(run)["range_is_final"] is False
    (check,) = [each for each in run.get_asset_check_evaluations() if each.check_name == "range_is_final"]
    assert "last block is 29, the last final block is 24" in str(check.description)
    assert here.scene.visible("blocks") == []


def test_a_gap_fails_the_check_and_nothing_is_purged(here: Here) -> None:
    here.scene.execute("DELETE FROM TABLES.blocks WHERE block_number = 15")
    run = here.run("10-20", expect_failure=True)
    assert not run.success
    assert evaluations(run)["blocks_are_contiguous"] is False
    assert len(here.scene.hot("transactions")) == sum(number % 4 for number in range(30))


def test_a_range_whose_runs_fail_is_not_asked_for_without_end(here: Here) -> None:
    here.scene.execute("DELETE FROM TABLES.blocks WHERE block_number = 15")
    for _ in range(3):
        (request,) = [each for each in here.tick().run_requests or [] if each.partition_key == "10-20"]
        here.run("10-20", expect_failure=True, tags=request.tags)
    assert here.asked_for() == ["0-10"]
    here.scene.execute("DELETE FROM TABLES.blocks WHERE block_number = 16")
    assert here.asked_for() == ["0-10", "10-20"], "what a run would find has changed"


def test_a_partition_that_is_no_range_is_refused(here: Here) -> None:
    run = here.run("15-25", expect_failure=True)
    assert not run.success
    errors = [str(event.event_specific_data.error) for event in run.all_events if event.is_step_failure]
    assert "15-25 is not one of the ranges of 10 blocks; the one with block 15 is 10-20" in errors[0]


def test_a_dry_run_shows_what_would_be_done_and_does_nothing(scene: Scene, instance: dg.DagsterInstance) -> None:
    here = Here(scene, instance, delete_after_compact=False)
    run = here.run("10-20", dry_run=True)
    observed = {
        str(event.asset_key.path[-1]): {
            name: each.value for name, each in event.asset_observation_data.asset_observation.metadata.items()
        }
        for event in run.all_events
        if event.event_type == dg.DagsterEventType.ASSET_OBSERVATION
    }
    assert observed["transactions"]["rows"] == sum(number % 4 for number in range(10, 20))
    assert observed["transactions"]["dry_run"] is True
    assert scene.all_keys() == []
    assert scene.states(BlockRange(10, 20)) == []
    assert run.get_asset_materialization_events() == []


def test_a_reason_replaces_what_is_archived(scene: Scene, instance: dg.DagsterInstance) -> None:
    here = Here(scene, instance, delete_after_compact=False)
    here.run("10-20")
    scene.execute("DELETE FROM TABLES.logs WHERE block_number = 14")
    assert metadata(here.run("10-20"), "cold", str(scene.chain_id), "logs")["outcome"] == "kept"
    run = here.run("10-20", invalidate_because="spam")
    assert metadata(run, "cold", str(scene.chain_id), "logs")["outcome"] == "replaced"


# ---------------------------------------------------------------- heads


def test_a_head_that_goes_back_makes_the_sensor_wait(here: Here) -> None:
    assert here.asked_for() == ["0-10", "10-20"]
    here.scene.execute("DELETE FROM TABLES.blocks WHERE block_number = 29")
    assert "the head went back from block 29 to 28" in str(here.tick().skip_reason)
    here.scene.grow(29, 31)
    assert here.asked_for() == ["0-10", "10-20"]


def test_a_head_that_contradicts_its_history_makes_the_sensor_wait(here: Here) -> None:
    here.tick()
    here.scene.execute("UPDATE TABLES.blocks SET hash = '0xother' WHERE block_number = 24")
    assert "block 24 was final as" in str(here.tick().skip_reason)


def test_a_tip_that_is_reorganised_is_waited_for_once(here: Here) -> None:
    here.tick()
    here.scene.execute("UPDATE TABLES.blocks SET hash = '0xother' WHERE block_number = 29")
    assert "is being reorganised" in str(here.tick().skip_reason)
    assert here.asked_for() == ["0-10", "10-20"]


def test_a_stale_head_makes_the_sensor_wait(scene: Scene, instance: dg.DagsterInstance) -> None:
    finality = DeclaredFinality(mode="depth", finality_depth_blocks=5, max_head_age="1h")
    result = Here(scene, instance, finality=finality).tick()
    assert "older than 1:00:00" in str(result.skip_reason)
    scene.execute("UPDATE TABLES.blocks SET block_time = now() WHERE block_number = 29")
    assert Here(scene, instance, finality=finality).asked_for() == ["0-10", "10-20"]


def test_a_chain_without_tables_makes_the_sensor_wait(here: Here) -> None:
    here.scene.execute("DROP TABLE TABLES.logs")
    assert "does not exist" in str(here.tick().skip_reason)


# ---------------------------------------------------------------- a node


class FakeNode:
    """A JSON-RPC node on loopback that says what a test wants it to say."""

    def __init__(self) -> None:
        self.latest, self.finalized = 29, 17
        self.hashes: dict[int, str] = {}
        self.answer: bytes | None = None
        node = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                body = node.answer or json.dumps(node.reply(request)).encode()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v2/sekret-key"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def reply(self, request: Any) -> Any:
        which = request["params"][0]
        number = {"latest": self.latest, "finalized": self.finalized}.get(which)
        number = int(which, 16) if number is None else number
        if number > self.latest:
            return {"jsonrpc": "2.0", "id": 1, "result": None}
        time = int(GENESIS_TIME.timestamp()) + number
        own = self.hashes.get(number, block_hash(number))
        return {"jsonrpc": "2.0", "id": 1, "result": {"number": hex(number), "hash": own, "timestamp": hex(time)}}


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNode]:
    node = FakeNode()
    monkeypatch.setenv("MY_NODE", node.url)
    yield node
    node.server.shutdown()
    node.server.server_close()


def by_tag(mode: str = "tag") -> DeclaredFinality:
    depth = 5 if mode == "both" else None
    return DeclaredFinality(mode=mode, finality_depth_blocks=depth, node_url_variable="MY_NODE")  # type: ignore[arg-type]


def test_the_node_says_what_is_final(scene: Scene, instance: dg.DagsterInstance, node: FakeNode) -> None:
    here = Here(scene, instance, finality=by_tag())
    assert here.asked_for() == ["0-10"]
    node.finalized = 19
    assert here.asked_for() == ["0-10", "10-20"]
    node.latest, node.finalized = 500, 400
    assert here.asked_for() == ["0-10", "10-20", "20-30"], "no further than the hot database is"


def test_the_lower_of_depth_and_tag_counts(scene: Scene, instance: dg.DagsterInstance, node: FakeNode) -> None:
    node.finalized = 29
    assert Here(scene, instance, finality=by_tag("both")).asked_for() == ["0-10", "10-20"]
    node.finalized = 12
    assert "went back" in str(Here(scene, instance, finality=by_tag("both")).tick().skip_reason)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"<html>sorry</html>", "does not answer"),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":-32005,"message":"limit exceeded"}}', "limit exceeded"),
        (b'{"jsonrpc":"2.0","id":1,"result":{"number":"0x1d"}}', "is no block"),
        (b'{"jsonrpc":"2.0","id":1,"result":null}', "knows no latest block"),
        (b"[]", "refuses"),
    ],
)
def test_a_lying_node_makes_the_sensor_wait(
    scene: Scene, instance: dg.DagsterInstance, node: FakeNode, answer: bytes, told: str
) -> None:
    node.answer = answer
    reason = str(Here(scene, instance, finality=by_tag()).tick().skip_reason)
    assert told in reason
    assert "sekret" not in reason


def test_a_hot_database_on_another_fork_than_the_node_makes_the_sensor_wait(
    scene: Scene, instance: dg.DagsterInstance, node: FakeNode
) -> None:
    node.hashes[17] = "0xfork"
    assert "is " + block_hash(17) + " in the hot database, but 0xfork at the node" in str(
        Here(scene, instance, finality=by_tag()).tick().skip_reason
    )


# ---------------------------------------------------------------- reorganisations, and the chain as a whole


def test_a_reorganisation_behind_an_archived_range_fails_the_check_and_stops_the_purge(
    scene: Scene, instance: dg.DagsterInstance
) -> None:
    here = Here(scene, instance, delete_after_compact=False)
    here.run("10-20")
    assert here.check("no_reorg_after_archiving").passed
    for table in NAMES:
        scene.execute(f"DELETE FROM TABLES.{table} WHERE block_number >= 18")
    scene.grow(18, 34, fork=" b", parent=block_hash(17))
    found = here.check("no_reorg_after_archiving")
    assert not found.passed
    assert "block 19 is archived as" in str(found.description)
    assert "invalidate_because" in str(found.metadata["what_to_do"].value)
    with pytest.raises(NotArchived, match="marked invalid"):
        scene.purge(10, 20)
    scene.ledger.forget_head()
    run = here.run("10-20", invalidate_because="a reorganisation at block 18")
    assert metadata(run, "cold", str(scene.chain_id), "blocks")["outcome"] == "replaced"
    assert [row[2] for row in scene.cold("blocks")][-2:] == [block_hash(18, " b"), block_hash(19, " b")]
    assert here.check("no_reorg_after_archiving").passed
    scene.purge(10, 20)


def test_the_hot_seam_shows_a_reorganisation_of_a_purged_range(here: Here) -> None:
    here.run("10-20")
    here.scene.execute("UPDATE TABLES.blocks SET parent_hash = '0xother' WHERE block_number = 20")
    found = here.check("no_reorg_after_archiving")
    assert not found.passed
    assert "hot block 20 says its parent is 0xother" in str(found.description)


def test_the_node_shows_a_reorganisation_and_how_far_it_goes(
    scene: Scene, instance: dg.DagsterInstance, node: FakeNode
) -> None:
    node.finalized = 29
    scene.grow(30, 40)
    node.latest = 39
    here = Here(scene, instance, finality=by_tag())
    for key in ("0-10", "10-20", "20-30"):
        here.run(key)
    assert here.check("no_reorg_after_archiving").passed
    node.hashes |= {number: f"0xfork{number}" for number in range(15, 30)}
    found = here.check("no_reorg_after_archiving")
    assert not found.passed
    invalid = {version.blocks.key for version in scene.ledger.versions() if version.invalid_because}
    assert invalid == {"10-20", "20-30"}


def test_the_checks_see_missing_ranges_hot_leftovers_and_lag(scene: Scene, instance: dg.DagsterInstance) -> None:
    here = Here(scene, instance, delete_after_compact=False, max_lag="15s")
    here.run("0-10")
    missing = here.check("no_range_missing_below_the_tip")
    assert (missing.passed, missing.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "10-20 (end not included) is final and not archived" in str(missing.description)
    lag = here.check("finality_lag")
    assert (lag.passed, lag.metadata["lag_seconds"].value) == (False, 20.0)
    here.run("10-20")
    assert here.check("no_range_missing_below_the_tip").passed
    assert here.check("finality_lag").passed
    hot = here.check("hot_retention")
    assert not hot.passed
    assert "0-10 (end not included) is archived, and rows of it are hot: 10 of blocks, 13 of" in str(hot.description)


def test_alone_the_checks_read_cold_files_again(here: Here) -> None:
    here.run("10-20")
    assert here.check("cold_equals_source").passed
    assert here.check("blocks_are_contiguous").passed
    (key, *_) = here.scene.visible("blocks")
    content = bytearray(here.scene.store.read(key))
    content[100] ^= 1
    here.scene.store.write(key, bytes(content))
    found = here.check("cold_equals_source")
    assert not found.passed
    assert "is not the file that was committed" in str(found.description)


def test_a_chain_whose_tables_are_not_there_yet_does_not_fail_the_checks_of_others(here: Here) -> None:
    here.scene.execute("DROP TABLE TABLES.logs")
    assert here.check("range_is_final").passed
    found = here.check("no_range_missing_below_the_tip")
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "does not exist" in str(found.description)
