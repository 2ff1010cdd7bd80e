"""One embedded lake and one Spark session for each process of a test run, and one Spark for all of them."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import settings as hypothesis_settings

from compaction_platform.embedded_lake.embedded import EmbeddedLake
from compaction_platform.settings import PREFIX, Settings
from compaction_platform_tests.metrics_receiver import Receiver, receiving
from compaction_platform_tests.one_spark import LakeBesideSpark, SharedSpark, one_spark
from compaction_platform_tests.zygote import Zygote, started

hypothesis_settings.register_profile("project", deadline=None, database=None, derandomize=True)
hypothesis_settings.load_profile("project")


# Files that take minutes are begun first, so that no process has to wait for another at the end.
LONG_ONES = ("scenarios", "docker", "test_spark.py", "test_archive_faults.py", "test_maintain_faults.py")


# What makes an integration test of a test that uses it. (One that starts servers of its own is marked by hand.)
SERVERS = {"lake", "shared_spark", "catalog_server"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        used = SERVERS.intersection(getattr(item, "fixturenames", ()))
        if used and any(item.iter_markers("unit")):
            raise pytest.UsageError(f"{item.nodeid} is marked unit and uses {', '.join(sorted(used))}")
        if not any(item.iter_markers("unit")) and not any(item.iter_markers("integration")):
            item.add_marker("integration" if used else "unit")
    items.sort(key=lambda item: not {item.path.name, item.path.parent.name} & set(LONG_ONES))


@pytest.fixture(autouse=True, scope="session")
def no_settings_from_outside(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests see neither the developer's settings nor a .env nor a lake that happens to run."""
    for name in [name for name in os.environ if name.startswith((PREFIX, "AWS_ACCESS", "AWS_SECRET", "AWS_SESSION"))]:
        del os.environ[name]
    os.environ[f"{PREFIX}ENV_FILE"] = ""
    os.environ[f"{PREFIX}STATE_DIR"] = str(tmp_path_factory.mktemp("no-lake-here"))
    home = tmp_path_factory.mktemp("dagster-home")
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    os.environ["DAGSTER_HOME"] = str(home)


@pytest.fixture(autouse=True, scope="session")
def java_starts_quickly() -> None:
    """A Spark of a test does not live long: code that is compiled as well as can be is not used often enough to be
    worth it. Nor need the classes of pinned jars be verified each time."""
    quickly = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    os.environ.setdefault("JAVA_TOOL_OPTIONS", quickly)


@pytest.fixture(autouse=True, scope="session")
def signals_are_heard() -> None:
    """A background job starts with SIGINT ignored. Dagster then gives SIGTERM the same treatment, every process
    that a test starts inherits that, and none can be ended in an orderly way."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Makes processes for tests to kill."""
    with started() as zygote:
        yield zygote


@pytest.fixture(scope="session")
def shared_spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SharedSpark:
    """It ends when the processes do: the last test of one of them has no time to wait for the others."""
    common = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        common = common.parent
    sharing = one_spark(common / "spark")
    spark = sharing.__enter__()
    request.config.add_cleanup(lambda: sharing.__exit__(None, None, None))
    return spark


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory, shared_spark: SharedSpark) -> Iterator[EmbeddedLake]:
    with LakeBesideSpark(tmp_path_factory.mktemp("lake"), shared_spark) as lake:
        yield lake


@pytest.fixture(scope="session")
def settings(lake: EmbeddedLake) -> Settings:
    return lake.settings()


@pytest.fixture(scope="session")
def spark(settings: Settings) -> Iterator[Any]:
    from compaction_platform.lake.spark.session import spark_session

    with spark_session(settings) as session:
        yield session


@pytest.fixture
def lake_environment(lake: EmbeddedLake, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """This process's environment leads to the test lake, as it would in a Dagster run."""
    environment = lake.isolated_environment(os.environ)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment


@pytest.fixture(scope="session")
def project() -> Path:
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared_data(project: Path) -> Path:
    """Real corrupt, odd and evolved files; they are not part of the project."""
    place = Path(os.environ.get("SHARED_TEST_DATA") or project.parent / "shared" / "data")
    if not place.is_dir():
        pytest.skip(f"the collection of real files is not here ({place}); SHARED_TEST_DATA names another place")
    return place


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


@pytest.fixture(autouse=True)
def chains_are_forgotten() -> Iterator[None]:
    """The tables of chains that a test has made."""
    yield
    scene = sys.modules.get("compaction_platform_tests.archive.scene")
    while scene is not None and scene.MADE:
        with contextlib.suppress(psycopg.OperationalError):  # a database that has ended with its test
            scene.MADE.pop().drop_tables()
