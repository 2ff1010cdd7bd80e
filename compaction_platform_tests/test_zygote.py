"""What tests that kill processes stand on."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from compaction_platform_tests.zygote import Zygote

pytestmark = pytest.mark.unit

IMPORTS = "import os, signal, sys\nimport pyarrow.parquet, pyiceberg.io.pyarrow, pyspark.sql.connect.session\n"


def test_a_fork_is_a_process_of_its_own_that_can_be_killed(zygote: Zygote) -> None:
    told = zygote.run("import os\nprint(os.getpid(), os.getppid())")
    pid, parent = map(int, told.stdout.split())
    assert pid != parent == zygote.pid
    assert not psutil.pid_exists(pid)
    zygote.die("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\nprint('alive')")
    assert psutil.Process(zygote.pid).is_running(), "only the fork is dead"


def test_nothing_of_one_fork_is_seen_by_the_next(zygote: Zygote) -> None:
    change = "import os, pyarrow\npyarrow.changed = os.environ['CHANGED'] = 'yes'"
    assert zygote.run(change).returncode == 0
    look = "import os, pyarrow\nprint(hasattr(pyarrow, 'changed'), os.environ.get('CHANGED'), os.environ['MINE'])"
    assert zygote.run(look, environment={**os.environ, "MINE": "here"}).stdout == "False None here\n"


def test_imports_are_paid_by_the_zygote_and_libraries_with_threads_work_in_forks(
    zygote: Zygote, tmp_path: Path
) -> None:
    script = (
        IMPORTS
        + """
from time import process_time
print(process_time())
table = pyarrow.table({"a": list(range(100_000))})
pyarrow.parquet.write_table(table, arguments[0])
assert pyarrow.parquet.read_table(arguments[0], use_threads=True) == table
assert table.group_by("a", use_threads=True).aggregate([]).num_rows == 100_000
"""
    )
    for number in range(2):
        ended = zygote.run(script, tmp_path / f"{number}.parquet")
        assert ended.returncode == 0, ended.stderr
        assert float(ended.stdout) < 0.3, "seconds of CPU until the imports are done; a new process needs over one"


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        ("print(*arguments)", 0, "1 two"),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('in vain')", 1, "in vain"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, ""),
    ],
)
def test_a_script_ends_as_with_python_c(zygote: Zygote, script: str, status: int, said: str) -> None:
    ended = zygote.run(script, 1, "two")
    assert ended.returncode == status
    assert said in ended.stdout


def test_one_that_hangs_is_ended(zygote: Zygote) -> None:
    with pytest.raises(TimeoutError, match="begun"):
        zygote.run("import signal\nprint('begun', flush=True)\nsignal.pause()", timeout=0.5)
    assert zygote.run("print('next')").stdout == "next\n"


def test_a_death_that_does_not_come_is_a_failure(zygote: Zygote) -> None:
    with pytest.raises(AssertionError, match="was not killed"):
        zygote.die("pass")
