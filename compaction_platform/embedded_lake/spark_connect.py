"""A Spark Connect server: one warm JVM that every run attaches to in a second."""

import os
import socket
import sys
from pathlib import Path

from compaction_platform.embedded_lake.jars import jars_directory, missing_jars
from compaction_platform.embedded_lake.java import find_java
from compaction_platform.embedded_lake.processes import Server, ServerFailed
from compaction_platform.embedded_lake.state_dir import Credentials, Ports


def spark_connect(data: Path, ports: Ports, credentials: Credentials, config: dict[str, str]) -> Server:
    """The server. `config` is what any Spark session of ours gets; addresses are added here."""
    find_java()
    if missing := missing_jars(jars_directory()):
        names = ", ".join(jar.file_name for jar in missing)
        raise ServerFailed(f"Spark jars are missing: {names}. Run `python -m compaction_platform.embedded_lake.jars`.")
    home = jars_directory().parent
    scratch = data / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    config = {
        **config,
        "spark.master": config.get("spark.master", "local[*,4]"),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(ports.spark_connect),
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(data / "warehouse"),
        "spark.sql.shuffle.partitions": "8",  # 200, the default, is for a cluster: here it is mostly empty tasks
    }
    properties = data / "spark.properties"
    properties.write_text("".join(f"{name} {value}\n" for name, value in sorted(config.items())))
    return Server(
        name="spark",
        command=[
            *(str(home / "bin" / "spark-submit"), "--properties-file", str(properties)),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
        ],
        environment={
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": credentials.spark_token,
        },
        is_ready=lambda: _listens(ports.spark_connect),
    )


def variables_of(port: int, token: str) -> dict[str, str]:
    """The settings, without their prefix, that lead to a server on this machine."""
    # "localhost", not 127.0.0.1: PySpark sends a token without TLS only to that name.
    return {"SPARK_SLOTS": str(os.cpu_count() or 1), "SPARK_REMOTE": f"sc://localhost:{port}/;token={token}"}


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2):
            return True
    except OSError:
        return False
