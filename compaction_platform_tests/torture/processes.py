"""A process that answers one JSON line to each JSON line, within a time limit; it is started again after it died."""

import json
import os
import select
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self


class ProcessFailed(Exception):
    """There is no answer, and the process was ended."""


class Died(ProcessFailed):
    """It ended by itself: a crash, or no memory."""


class Hung(ProcessFailed):
    """It gave no answer in time."""


@dataclass
class Answering:
    """Started at the first question."""

    command: Sequence[str]
    errors: Path  # where its standard error goes
    environment: Mapping[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None
    pending: bytes = b""

    def ask(self, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        process = self._started()
        pipe(process.stdin).write(json.dumps(question).encode() + b"\n")
        try:
            pipe(process.stdin).flush()
            line = self._line(process, seconds)
        except BrokenPipeError:
            line = b""
        if line is None:
            self.end()
            raise Hung(f"no answer within {seconds:g} s")
        if not line:
            code = process.wait()
            self.end()
            raise Died(f"exit code {code}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _started(self) -> "subprocess.Popen[bytes]":
        if self.process is None:
            self.pending = b""
            with self.errors.open("ab") as errors:
                self.process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env={**os.environ, **self.environment},
                )
        return self.process

    def _line(self, process: "subprocess.Popen[bytes]", seconds: float) -> bytes | None:
        """One line; empty at the end of the output; None if there is none in time."""
        output = pipe(process.stdout).fileno()
        while b"\n" not in self.pending:
            if not select.select([output], [], [], seconds)[0]:
                return None
            chunk = os.read(output, 1 << 16)
            if not chunk:
                return b""
            self.pending += chunk
        line, _, self.pending = self.pending.partition(b"\n")
        return line

    def end(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                try:
                    pipe(stream).close()
                except BrokenPipeError:
                    continue

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise ValueError("the process was started without pipes")
    return stream
