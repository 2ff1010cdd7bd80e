"""Spark sessions: the same session API from a local JVM, any Spark master, or Spark Connect.

One thing to know: the Iceberg catalog is configured on the running session, never on its command line.
PySpark and spark-submit put start-up settings into the arguments of the JVM, where every user of the
machine can read them; a session setting stays inside.
"""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage.identifiers import checked_identifier
from compaction_platform.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_CONNECT_PORT = 15002  # where no port is given
LOCAL_MASTER = "local[*,4]"  # 4: a task whose Python worker dies is tried again, as on a cluster


class SparkUnreachable(CompactionError):
    """No Spark session could be had."""


def session_config() -> dict[str, str]:
    """What every Spark of ours is started with; a foreign Spark Connect server needs the extensions line."""
    return {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Python workers are forked from a process that has pyarrow loaded: half the cost of a task.
        "spark.python.daemon.module": "compaction_platform.lake.spark.python_daemon",
        "spark.sql.shuffle.partitions": "8",
        "spark.driver.memory": "2g",
    }


def catalog_config(settings: Settings) -> dict[str, str]:
    """The Iceberg catalog as Spark session settings."""
    catalog = {"": "org.apache.iceberg.spark.SparkCatalog", **_catalog_properties(settings)}
    prefix = f"spark.sql.catalog.{settings.catalog_name}"
    return {f"{prefix}.{name}" if name else prefix: value for name, value in catalog.items()}


def _catalog_properties(settings: Settings) -> dict[str, str]:
    settings.require("catalog_warehouse", purpose="the Iceberg catalog")
    properties = {
        "warehouse": str(settings.catalog_warehouse),
        "client.region": settings.s3_region,
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        # Otherwise a session may not see what another process committed in the last 30 seconds.
        "cache-enabled": "false",
    }
    if settings.catalog_kind == "rest":
        settings.require("catalog_uri", purpose="the Iceberg REST catalog")
        properties |= {
            "type": "rest",
            "uri": str(settings.catalog_uri),
            "rest.sigv4-enabled": "true",
            "rest.signing-name": settings.catalog_signing_name,
            "rest.signing-region": settings.s3_region,
        }
    else:
        properties |= {"type": "glue"}
        if settings.catalog_uri:
            properties["glue.endpoint"] = settings.catalog_uri
    if settings.s3_endpoint:
        properties |= {"s3.endpoint": settings.s3_endpoint, "s3.path-style-access": "true"}
    secrets = {
        "access-key-id": settings.s3_access_key_id,
        "secret-access-key": settings.s3_secret_access_key,
        "session-token": settings.s3_session_token,
    }
    for name, secret in secrets.items():
        if secret:
            properties |= {f"s3.{name}": secret.get_secret_value(), f"rest.{name}": secret.get_secret_value()}
    return properties


def start_session(config: dict[str, str]) -> "SparkSession":
    """A session in a JVM of our own."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in config.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def open_session(
    settings: Settings, start: Callable[[dict[str, str]], "SparkSession"] = start_session
) -> "SparkSession":
    """The session these settings lead to, with the Iceberg catalog ready to use."""
    catalog = catalog_config(settings) if settings.catalog_warehouse else {}  # an error here starts nothing
    if settings.spark_remote:
        session = _connect(settings.spark_remote.get_secret_value())
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        session = start(_own_session_config(settings))
    for name, value in {**catalog, "spark.sql.session.timeZone": "UTC"}.items():
        session.conf.set(name, value)
    return session


def _own_session_config(settings: Settings) -> dict[str, str]:
    master = settings.spark_master or LOCAL_MASTER
    here = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    # On a cluster, the first job waits until most executors are there; otherwise it sees too few slots. (A
    # standalone master knows how many to wait for only if spark.cores.max is set.)
    there = {
        "spark.scheduler.minRegisteredResourcesRatio": "0.8",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    }
    return {
        **session_config(),
        "spark.ui.enabled": "false",
        **(here if _is_local(master) else there),
        **settings.spark_config,
        "spark.master": master,
    }


def _is_local(master: str) -> bool:
    return master.startswith("local")


@contextmanager
def spark_session(
    settings: Settings, start: Callable[[dict[str, str]], "SparkSession"] = start_session
) -> Iterator["SparkSession"]:
    """A session that is stopped at the end, however that comes about."""
    session = open_session(settings, start)
    try:
        yield session
    finally:
        stop_session(session)


def stop_session(session: "SparkSession") -> None:
    session.stop()
    _defuse(session)


def _defuse(session: Any) -> None:
    """Keep the garbage collector from closing a Spark Connect session that is closed already.

    PySpark's destructor waits until the requests of all sessions of the process are done. It may run in any
    thread, also in the one that signs those requests: then both wait for ever.
    """
    if type(session).__module__.startswith("pyspark.sql.connect"):  # others raise when they are asked for a client
        session.client.close = _nothing


def _nothing() -> None:
    pass


def _connect(remote: str) -> "SparkSession":
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    address = remote.split(";", maxsplit=1)[0].rstrip("/")  # a token may follow
    parts = urlsplit(address)
    session: Any = None
    try:
        # Spark's own client would try for ten minutes; a server that is not there is known at once.
        socket.create_connection((parts.hostname or "", parts.port or SPARK_CONNECT_PORT), timeout=10).close()
        session = SparkSession.builder.remote(remote).create()
        # A server that dies while we work is given half a minute to come back, not ten.
        session.client.set_retry_policies([DefaultPolicy(max_retries=6, max_backoff=15_000)])
        session.version  # noqa: B018 (the first call is what connects)
    except (OSError, PySparkException) as error:
        if session is not None:
            session.client.close()
            _defuse(session)
        raise SparkUnreachable(
            f"Spark Connect at {address} does not answer ({type(error).__name__}). "
            "Is it running, and is the token right? On a laptop, `compaction up` starts it."
        ) from error
    return cast("SparkSession", session)


def task_slots(session: "SparkSession", settings: Settings) -> int:
    """How many tasks this Spark runs at once."""
    if settings.spark_slots:
        return settings.spark_slots
    if settings.spark_remote is None:
        if not _is_local(settings.spark_master or LOCAL_MASTER):
            session.range(1).collect()  # waits until executors have registered
        return int(session.sparkContext.defaultParallelism)
    # Spark Connect has no sparkContext; a plain range is cut into as many pieces as there are slots.
    from pyspark.sql import functions

    pieces = session.range(1 << 16).select(functions.spark_partition_id().alias("piece")).distinct()
    return max(1, pieces.count())


def qualified_name(settings: Settings, namespace: str, table: str) -> str:
    """A table's name for Spark SQL, from parts that were checked."""
    return ".".join(f"`{checked_identifier(part)}`" for part in (settings.catalog_name, namespace, table))


if __name__ == "__main__":
    # For spark-defaults.conf: `python -m compaction_platform.lake.spark.session > $SPARK_CONF_DIR/spark-defaults.conf`
    sys.stdout.writelines(f"{name} {value}\n" for name, value in session_config().items())
