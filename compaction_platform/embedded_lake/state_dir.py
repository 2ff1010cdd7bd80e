"""The state directory of one embedded lake: who may use it, which ports and credentials it has.

Everything is below one directory that git ignores. Files with credentials have mode 0600.
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

from compaction_platform.embedded_lake.processes import ProcessRecord
from compaction_platform.errors import CompactionError

# Below the range from which kernels take ports for outgoing connections.
LOWEST_PORT, HIGHEST_PORT = 20000, 32000


class StateUnusable(CompactionError):
    """The state directory cannot be read or written."""


class LakeAlreadyRunning(CompactionError):
    """Another process runs the embedded lake of this state directory."""


class PortTaken(CompactionError):
    """A remembered port belongs to another program now."""


@dataclass(frozen=True)
class Ports:
    s3: int
    iceberg: int
    s3_grpc: int
    master: int
    master_grpc: int
    volume: int
    volume_grpc: int
    filer: int
    filer_grpc: int
    admin: int
    admin_grpc: int
    postgres: int
    spark_connect: int
    dagster: int

    @classmethod
    def choose(cls) -> "Ports":
        names = [field.name for field in fields(cls)]
        return cls(**dict(zip(names, free_ports(len(names)), strict=True)))


@dataclass(frozen=True, repr=False)
class Credentials:
    access_key_id: str
    secret_access_key: str
    postgres_password: str
    spark_token: str

    @classmethod
    def generate(cls) -> "Credentials":
        return cls(secrets.token_hex(10), *(secrets.token_urlsafe(30) for _ in range(3)))


@dataclass(frozen=True)
class StateDirectory:
    path: Path

    def __post_init__(self) -> None:
        for directory in (self.path, self.records, self.logs):
            try:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise StateUnusable(
                    f"the state directory {directory} cannot be created: {error.strerror}. "
                    "Choose another place with COMPACTION_STATE_DIR."
                ) from error

    @property
    def records(self) -> Path:
        return self.path / "processes"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def owner_record(self) -> Path:
        return self.path / "owner.json"

    def ports(self, new: bool = False) -> Ports:
        path = self.path / "ports.json"
        if new or not path.exists():
            write_private(path, json.dumps(asdict(Ports.choose()), indent=1))
        return Ports(**_read_fields(path, Ports, "`compaction down`, then `compaction up --new-ports` makes new ones"))

    def credentials(self) -> Credentials:
        path = self.path / "credentials.json"
        if not path.exists():
            if self.data.exists():
                raise StateUnusable(
                    f"{path} is gone, but there is data that was made with it in {self.data}. Restore the file, "
                    "or start afresh with `make clean`, which deletes this embedded lake."
                )
            write_private(path, json.dumps(asdict(Credentials.generate()), indent=1))
        return Credentials(
            **_read_fields(
                path,
                Credentials,
                "the data next to it is untouched; restore the file, or start afresh with `make clean`, "
                "which deletes this embedded lake",
            )
        )

    def owner(self) -> ProcessRecord | None:
        """The process that runs this lake now."""
        record = ProcessRecord.read(self.owner_record)
        return record if record and record.process() else None

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """Hold this directory: one lake at a time. The kernel lets go when the process dies."""
        with self._open_lock() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = self.owner()
                who = f"process {owner.pid}" if owner else "another process"
                raise LakeAlreadyRunning(
                    f"the embedded lake in {self.path} is already run by {who}. "
                    "Use it, or stop it with `compaction down`."
                ) from None
            ProcessRecord.of("owner", os.getpid()).write(self.owner_record)
            try:
                yield
            finally:
                self.owner_record.unlink(missing_ok=True)

    def _open_lock(self) -> IO[str]:
        path = self.path / "lock"
        try:
            return path.open("w")
        except OSError as error:
            raise StateUnusable(
                f"{path} cannot be opened: {error.strerror}. Is the state directory yours? Nothing was started."
            ) from None


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, never half."""
    unfinished = path.with_name(f".{path.name}.new")
    try:
        unfinished.unlink(missing_ok=True)
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        unfinished.replace(path)
    except OSError as error:
        raise StateUnusable(f"{path} cannot be written: {error.strerror}.") from error


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now, and that no other lake that is just being started has chosen."""
    found: set[int] = set()
    while len(found) < count:
        port = LOWEST_PORT + secrets.randbelow(HIGHEST_PORT - LOWEST_PORT)
        if is_free(port) and _reserve(port):
            found.add(port)
    return list(found)


_reserved: set[int] = set()  # by this process
_reservations: list[int] = []  # the descriptor of the one open file whose locks they are


def _reserve(port: int) -> bool:
    """Lock this port's byte in a file that all processes of a user share. The kernel lets go when a process ends."""
    if port in _reserved:
        return False
    if not _reservations:
        path = Path(tempfile.gettempdir()) / f"compaction-ports-{os.getuid()}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StateUnusable(f"{path} cannot be opened: {error.strerror}. Nothing was started.") from None
        _reservations.append(descriptor)
    try:
        fcntl.lockf(_reservations[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    _reserved.add(port)
    return True


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def require_room(directory: Path, needed_bytes: int = 1 << 30) -> None:
    """The servers must not start on a disk that is about to be full: they would fail in the middle of writes."""
    free = shutil.disk_usage(directory).free
    if free < needed_bytes:
        raise StateUnusable(
            f"only {free >> 20} MB are free on the disk of {directory}, {needed_bytes >> 20} MB are needed. "
            "Make room, or choose another place with COMPACTION_STATE_DIR. Nothing was started."
        )


def require_free(ports: dict[str, int]) -> None:
    for name, port in ports.items():
        if not is_free(port):
            raise PortTaken(
                f"port {port}, remembered for {name}, is taken by another program. "
                "End that program, or choose new ports with `compaction up --new-ports`."
            )


def _read_fields(path: Path, kind: type, what_to_do: str) -> dict[str, Any]:
    expected = {field.name: field.type for field in fields(kind)}
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict) or set(content) != set(expected):
            raise ValueError("its entries are not the expected ones")
        if any(type(content[name]) is not wanted for name, wanted in expected.items()):
            raise ValueError("an entry is not of the expected type")
        if any(wanted is int and not 1024 <= content[name] <= 65535 for name, wanted in expected.items()):
            raise ValueError("an entry is not a port between 1024 and 65535")
    except (OSError, ValueError) as error:
        raise StateUnusable(f"{path} cannot be used ({error}); {what_to_do}.") from None
    return content
