"""Processes for tests to kill, there at once: forks of one that has imported what they need and used none of it.

A Python that imports pyspark, pyiceberg and pyarrow has worked for a second or two before its script begins. The zygote
pays that once. A fork of it is a process of its own (a SIGKILL ends it and nothing else; no memory, file or connection
is shared), and ends as any Python ends.

A fork inherits the memory of its parent, and not its threads: a library whose threads are gone waits for them for
ever. So the zygote does nothing but import (the imports at the top of a script, before its first fork), and refuses to
fork when it has more threads than one.
"""

import ast
import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import psutil

# Threads that numpy and pyarrow start as soon as they are imported (linear algebra; memory that is given back).
NO_THREADS_AT_IMPORT = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


@dataclass(frozen=True)
class Request:
    script: str
    arguments: tuple[Any, ...]
    environment: dict[str, str]
    output: Path  # stdout and stderr


class Zygote:
    """Runs scripts, each in a process of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self.pid = process.pid

    def run(
        self, script: str, *arguments: Any, environment: Mapping[str, str] | None = None, timeout: float = 60
    ) -> "subprocess.CompletedProcess[str]":
        """As `python -c script` would. The script finds its arguments in `arguments`; what it imports it imports at
        its top."""
        with tempfile.TemporaryDirectory(prefix="forked-") as place:
            output = Path(place) / "output"
            self._send(Request(script, arguments, dict(os.environ if environment is None else environment), output))
            pid = self._answer(timeout)
            try:
                status = self._answer(timeout)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self._answer(timeout)
                raise TimeoutError(f"not done after {timeout} seconds: {output.read_text()[-2000:]}") from None
            said = output.read_text(errors="replace")
        return subprocess.CompletedProcess(args=[script], returncode=status, stdout=said, stderr=said)

    def die(self, script: str, *arguments: Any, environment: Mapping[str, str] | None = None) -> None:
        """Run a script that kills itself, and require that it did."""
        ended = self.run(script, *arguments, environment=environment)
        assert ended.returncode == -signal.SIGKILL, f"it was not killed: {ended.returncode}, {ended.stderr[-2000:]}"

    def _send(self, request: Request) -> None:
        assert self._process.stdin is not None
        pickle.dump(request, self._process.stdin)
        self._process.stdin.flush()

    def _answer(self, timeout: float) -> int:
        answers = self._process.stdout
        assert answers is not None
        if not select.select([answers], [], [], timeout)[0]:
            raise TimeoutError
        line = answers.readline()
        assert line, "the zygote has ended; what it said is above"
        return int(line)


@contextlib.contextmanager
def started() -> Iterator[Zygote]:
    command = [sys.executable, "-m", "compaction_platform_tests.zygote"]
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **NO_THREADS_AT_IMPORT, "PYTHONPATH": path}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment
    ) as process:
        yield Zygote(process)
        assert process.stdin is not None
        process.stdin.close()  # it ends when there are no more requests


def serve(requests: BinaryIO, answers: int) -> Request | None:
    """Fork for each request. Returns the request in its fork, and nothing in the zygote when there are no more."""
    known: set[str] = set()
    while True:
        try:
            request = pickle.load(requests)  # noqa: S301 (from the test that started us)
        except EOFError:
            return None
        if request.script not in known:
            import_what_it_needs(request.script)
            known.add(request.script)
        require_one_thread()
        child = os.fork()
        if child == 0:
            return request
        os.write(answers, b"%d\n" % child)
        os.write(answers, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def import_what_it_needs(script: str) -> None:
    top = [each for each in ast.parse(script).body if isinstance(each, ast.Import | ast.ImportFrom)]
    exec(compile(ast.Module(top, []), "<imports of a script>", "exec"), {})  # noqa: S102 (the script of a test)


def require_one_thread() -> None:
    threads = psutil.Process().num_threads()  # also those that Python does not know
    if threads != 1:
        raise RuntimeError(f"an import has started {threads - 1} threads: a fork would lack them")


def become(request: Request) -> dict[str, Any]:
    """From now on this process has the output and the environment of the request."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(request.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for place, opened in ((0, nothing), (1, output), (2, output)):
        os.dup2(opened, place)
    os.environ.clear()
    os.environ.update(request.environment)
    return {"__name__": "__main__", "arguments": request.arguments}


if __name__ == "__main__":
    # Here, and not in a function: so a fork ends as a script does, with its status and its last words.
    if to_do := serve(sys.stdin.buffer, sys.stdout.fileno()):
        exec(compile(to_do.script, "<script>", "exec"), become(to_do))  # noqa: S102
