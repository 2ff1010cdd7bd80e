"""The embedded lake as one thing: start it, know its addresses, stop it.

`with EmbeddedLake(directory) as lake:` leaves nothing behind, whether the block ends well, raises, or the
process is interrupted; a process killed with -9 is cleaned up after by the next start.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from compaction_platform.embedded_lake.postgres import HOT_DATABASE, SUPERUSER, create_hot_database, postgres
from compaction_platform.embedded_lake.processes import RunningServer, Server, end_leftovers, start
from compaction_platform.embedded_lake.seaweedfs import BUCKET, TABLE_BUCKET, seaweedfs
from compaction_platform.embedded_lake.spark_connect import spark_connect, variables_of
from compaction_platform.embedded_lake.state_dir import StateDirectory, require_free, require_room, write_private
from compaction_platform.lake.spark.session import session_config
from compaction_platform.settings import (
    EMBEDDED_LAKE_FILE,
    ENV_FILE_VARIABLE,
    PREFIX,
    STATE_VARIABLE,
    Settings,
    settings_from,
)

AWS_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
    "AWS_PROFILE",
)


class EmbeddedLake:
    def __init__(
        self,
        directory: Path,
        *,
        spark: bool = True,
        new_ports: bool = False,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.directory = directory
        self.running: list[RunningServer] = []
        self.has_spark = spark
        self._new_ports = new_ports
        self._say = say
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> "EmbeddedLake":
        with contextlib.ExitStack() as undo:
            self.state = StateDirectory(self.directory)
            require_room(self.directory)
            undo.enter_context(self.state.owned())
            if ended := end_leftovers(self.state.records):
                self._say(f"ended leftovers of an earlier start: {', '.join(ended)}")
            self.ports = self.state.ports(self._new_ports)
            self.credentials = self.state.credentials()
            undo.callback(self._stop)
            self._start()
            self._cleanup = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    def _servers(self) -> Iterator[Server]:
        if self.has_spark:  # the slowest to start goes first
            yield spark_connect(self.state.data / "spark", self.ports, self.credentials, session_config())
        yield seaweedfs(self.state.data / "seaweedfs", self.ports, self.credentials)
        yield postgres(self.state.data / "postgres", self.ports, self.credentials)

    def _start(self) -> None:
        used = vars(self.ports)
        require_free({name: port for name, port in used.items() if self.has_spark or name != "spark_connect"})
        self.state.data.mkdir(mode=0o700, exist_ok=True)
        for server in self._servers():
            self.add(server, wait=False)
        for running in self.running:
            running.wait_until_ready()
            self._say(f"{running.server.name} is ready")
        create_hot_database(self._hot_postgres_url())
        write_private(self.state.path / EMBEDDED_LAKE_FILE, self._env_file())

    def add(self, server: Server, *, wait: bool = True) -> None:
        """Start one more server that lives and dies with this lake."""
        running = start(server, self.state.records, self.state.logs)
        self.running.append(running)
        if wait:
            running.wait_until_ready()

    def raise_if_server_died(self) -> None:
        for running in self.running:
            running.raise_if_dead()

    def _stop(self) -> None:
        (self.state.path / EMBEDDED_LAKE_FILE).unlink(missing_ok=True)
        for running in reversed(self.running):
            running.ask_to_stop()
        for running in reversed(self.running):
            running.stop()
        self.running.clear()

    def _hot_postgres_url(self) -> str:
        password = self.credentials.postgres_password
        return f"postgresql://{SUPERUSER}:{password}@127.0.0.1:{self.ports.postgres}/{HOT_DATABASE}"

    def variables(self) -> dict[str, str]:
        """The COMPACTION_* variables that lead to this lake."""
        values = {
            "PROFILE": "development",
            "LAKE_URI": f"s3://{BUCKET}",
            "S3_ENDPOINT": f"http://127.0.0.1:{self.ports.s3}",
            "S3_ACCESS_KEY_ID": self.credentials.access_key_id,
            "S3_SECRET_ACCESS_KEY": self.credentials.secret_access_key,
            "CATALOG_URI": f"http://127.0.0.1:{self.ports.iceberg}",
            "CATALOG_WAREHOUSE": f"s3://{TABLE_BUCKET}",
            "HOT_POSTGRES_URL": self._hot_postgres_url(),
        }
        if self.has_spark:
            values |= variables_of(self.ports.spark_connect, self.credentials.spark_token)
        return {f"{PREFIX}{name}": value for name, value in values.items()}

    def overrides(self, environment: Mapping[str, str]) -> dict[str, str | None]:
        """What must change in this environment so that it leads to this lake and to nothing else; None takes away."""
        elsewhere = [
            name
            for name, value in environment.items()
            if name.upper().startswith((PREFIX, *AWS_CREDENTIALS)) and not _is_catalog_here(name, value)
        ]
        here = {**self.variables(), ENV_FILE_VARIABLE: "", STATE_VARIABLE: str(self.directory)}
        return {**dict.fromkeys(elsewhere), **here}

    def isolated_environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        changed = {**environment, **self.overrides(environment)}
        return {name: value for name, value in changed.items() if value is not None}

    def settings(self) -> Settings:
        return settings_from(self.variables())

    def _env_file(self) -> str:
        return "".join(f"{name}='{value}'\n" for name, value in self.variables().items())


def _is_catalog_here(name: str, value: str) -> bool:
    """The lake has no Glue of its own; one on this machine may stand beside it."""
    return name.upper() == f"{PREFIX}GLUE_ENDPOINT" and urlsplit(value).hostname in ("127.0.0.1", "localhost", "::1")
