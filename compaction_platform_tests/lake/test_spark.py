"""Three ways to a session, one behaviour: the same script runs through each of them."""

import contextlib
import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from compaction_platform.embedded_lake.embedded import EmbeddedLake
from compaction_platform.embedded_lake.jars import jars_directory
from compaction_platform.embedded_lake.state_dir import free_ports
from compaction_platform.lake.spark.session import (
    SparkUnreachable,
    catalog_config,
    open_session,
    qualified_name,
    spark_session,
    task_slots,
)
from compaction_platform.lake.storage.identifiers import NameInvalid, checked_identifier
from compaction_platform.settings import Settings
from compaction_platform_tests.one_spark import SharedSpark

integration = pytest.mark.integration
unit = pytest.mark.unit

SCRIPT = Path(__file__).with_name("session_script.py")


def run_script(environment: dict[str, str], *arguments: str) -> dict[str, Any]:
    answer = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    result: dict[str, Any] = json.loads(answer.stdout.strip().splitlines()[-1])
    return result


def without_remote(lake: EmbeddedLake) -> dict[str, str]:
    nothing = {"COMPACTION_SPARK_REMOTE": "", "COMPACTION_SPARK_SLOTS": ""}
    # PySpark marks the environment of a process that has used Connect.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    return lake.isolated_environment(ours) | nothing


@integration
def test_a_session_over_spark_connect_reads_and_writes_iceberg(spark: Any, settings: Settings) -> None:
    name = qualified_name(settings, "connect", "numbers")
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.connect")
    spark.sql(f"CREATE OR REPLACE TABLE {name} (id int, name string) USING iceberg")
    spark.sql(f"INSERT INTO {name} VALUES (1, 'one'), (2, 'two')")
    assert sorted((row.id, row.name) for row in spark.table(name).collect()) == [(1, "one"), (2, "two")]


@integration
def test_a_local_session_through_dagster_pyspark_shows_no_secret_and_stops(lake: EmbeddedLake) -> None:
    result = run_script(without_remote(lake), "table")
    assert result["rows"] == [[1, "one"], [2, "two"]]
    assert result["doubled"] == list(range(0, 16, 2))
    assert "connect" not in result["session_class"]
    assert result["stopped"] is True
    for secret in (lake.credentials.secret_access_key, lake.credentials.access_key_id):
        assert secret not in result["command_lines"], "other users of the machine could read it in the process list"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A real standalone master with two workers of two slots each."""
    home = jars_directory().parent
    port, *others = free_ports(6)
    url = f"spark://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    daemons = [["Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(others[0])]]
    for number in (1, 2):
        worker = ["--cores", "2", "--memory", "1500M", "--work-dir", str(tmp_path / str(number))]
        ports = ["--host", "127.0.0.1", "--port", str(others[number]), "--webui-port", str(others[number + 2])]
        daemons.append(["Worker", url, *worker, *ports])
    logs = [(tmp_path / f"{number}.log").open("wb") for number in range(3)]
    processes = [
        subprocess.Popen(
            [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}", *arguments],
            env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )
        for (kind, *arguments), log in zip(daemons, logs, strict=True)
    ]  # fmt: skip
    try:
        _wait_for_workers(tmp_path / "0.log", 2)
        yield url
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGTERM)
        for process, log in zip(processes, logs, strict=True):
            process.wait(30)
            log.close()


def _wait_for_workers(master_log: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while master_log.read_text().count("Registering worker") < count:
        assert time.monotonic() < deadline, master_log.read_text()
        time.sleep(0.1)


@integration
def test_a_cluster_where_an_executor_is_killed_only_costs_a_retry(lake: EmbeddedLake, cluster: str) -> None:
    environment = without_remote(lake) | {
        "COMPACTION_SPARK_MASTER": cluster,
        "COMPACTION_SPARK_CONFIG": json.dumps(
            {
                "spark.executor.memory": "1g",
                "spark.cores.max": "4",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
            }
        ),
    }
    result = run_script(environment, "kill-executor")
    assert result["slots"] == 4, "the executors had registered before they were counted"
    assert result["killed"] > 0, "the fault was not injected"
    assert result["doubled"] == list(range(0, 16, 2))


@integration
def test_slots_are_asked_from_spark_when_not_set(spark: Any, settings: Settings) -> None:
    assert task_slots(spark, settings.model_copy(update={"spark_slots": None})) == os.cpu_count()
    assert task_slots(spark, settings.model_copy(update={"spark_slots": 7})) == 7


@integration
def test_a_session_without_the_token_is_refused(shared_spark: SharedSpark, settings: Settings) -> None:
    from pydantic import SecretStr

    wrong = SecretStr(f"sc://localhost:{shared_spark.port}/;token=wrong")
    with pytest.raises(SparkUnreachable, match=f"{shared_spark.port} does not answer.*token") as refused:
        open_session(settings.model_copy(update={"spark_remote": wrong}))
    assert "wrong" not in str(refused.value).replace("token right", "")


@integration
def test_a_session_that_is_over_leaves_the_others_alone(spark: Any, settings: Settings) -> None:
    """PySpark's destructor would wait for the requests of all sessions; in the wrong thread, for ever."""
    from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator
    from pyspark.sql.connect.session import SparkSession

    with spark_session(settings) as session:
        session.range(1).collect()
    spark.range(1).collect()
    pool = ExecutePlanResponseReattachableIterator._release_thread_pool_instance
    assert pool is not None
    over = [each for each in gc.get_objects() if type(each) is SparkSession and each is not spark]
    assert over
    for each in over:
        each.__del__()  # as the garbage collector does, at a time of its own choice
    assert ExecutePlanResponseReattachableIterator._release_thread_pool_instance is pool


@integration
def test_servers_listen_on_loopback_only(lake: EmbeddedLake, shared_spark: SharedSpark) -> None:
    addresses = set()
    for process in (shared_spark.process, *(psutil.Process(running.popen.pid) for running in lake.running)):
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):  # other tests kill Spark's Python workers
                addresses |= {c.laddr.ip for c in each.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert addresses
    assert {re.sub("^::ffff:", "", address) for address in addresses} == {"127.0.0.1"}


@integration
def test_no_secret_is_in_a_log_or_an_unprotected_file(
    lake: EmbeddedLake, shared_spark: SharedSpark, spark: Any
) -> None:
    spark.sql("SHOW NAMESPACES IN lake").collect()  # the catalog, and with it the credentials, are in use now
    secrets = [lake.credentials.secret_access_key, lake.credentials.postgres_password, shared_spark.token]
    files = [*lake.state.logs.iterdir(), *shared_spark.files]
    assert len(files) == 4
    for file in files:
        shown = file.read_text(errors="replace")
        assert shown
        assert not [secret for secret in secrets if secret in shown], file.name
    for name in ("lake.env", "credentials.json"):
        assert (lake.directory / name).stat().st_mode & 0o077 == 0


@unit
def test_a_server_that_is_not_there_is_known_at_once() -> None:
    from compaction_platform.settings import settings_from

    (port,) = free_ports(1)
    settings = settings_from(
        {"COMPACTION_ENV_FILE": "", "COMPACTION_SPARK_REMOTE": f"sc://127.0.0.1:{port}/;token=t0p"}
    )
    with pytest.raises(SparkUnreachable, match=f"sc://127.0.0.1:{port} does not answer") as refused:
        open_session(settings)
    assert "t0p" not in str(refused.value)


@unit
def test_a_glue_catalog_needs_no_address() -> None:
    from compaction_platform.settings import settings_from

    settings = settings_from(
        {
            "COMPACTION_CATALOG_KIND": "glue",
            "COMPACTION_CATALOG_WAREHOUSE": "s3://bucket/warehouse",
            "COMPACTION_S3_REGION": "eu-west-1",
        }
    )
    config = catalog_config(settings)
    assert config["spark.sql.catalog.lake"] == "org.apache.iceberg.spark.SparkCatalog"
    assert config["spark.sql.catalog.lake.type"] == "glue"
    assert config["spark.sql.catalog.lake.client.region"] == "eu-west-1"
    assert not [name for name in config if "access-key" in name]


@unit
@pytest.mark.parametrize("name", ["a`b", "a.b", "1a", "", "A", "a;drop", "a b", "ä", "a" * 200])
def test_names_that_could_become_sql_are_refused(name: str) -> None:
    with pytest.raises(NameInvalid):
        checked_identifier(name)
