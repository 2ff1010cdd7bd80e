"""Becomes a server process: records itself, then executes the server's command.

Runs as `python -m compaction_platform.embedded_lake.exec_recorded RECORD USER SIGNAL PARENT COMMAND...`, in the
process that will be the server, so that the record exists before the server does: a parent killed at any moment
leaves nothing unrecorded. Where the kernel offers it (Linux), the server also gets SIGNAL when its parent dies.
"""

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

from compaction_platform.embedded_lake.processes import ProcessRecord

PR_SET_PDEATHSIG = 1


def main() -> None:
    record, user, signal_number, parent, *command = sys.argv[1:]
    _end_if_orphaned(int(parent))
    ProcessRecord.of(Path(command[0]).name, os.getpid()).write(Path(record))
    if user:
        _become(user)
    # A change of user clears the parent-death signal, so it is asked for after that.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal_number))
    _end_if_orphaned(int(parent))
    _listen_to_signals()
    os.execvp(command[0], command)  # noqa: S606


def _end_if_orphaned(parent: int) -> None:
    """The parent may have died before this process could ask to be told."""
    if os.getppid() != parent:
        sys.exit(1)


def _listen_to_signals() -> None:
    """Ignored signals are inherited, and a shell's background job ignores some: such a server would not end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _become(user: str) -> None:
    import pwd

    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


if __name__ == "__main__":
    main()
