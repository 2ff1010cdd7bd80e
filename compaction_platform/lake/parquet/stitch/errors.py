"""What says that another engine must take these files."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow

from compaction_platform.errors import CompactionError


class StitchUnsupported(CompactionError):
    """These files cannot be joined page by page. Nothing is wrong with them: they can be encoded anew."""


# What bytes that are not what they should be may lead to, here and in Arrow.
UNFIT = (
    CompactionError,
    pyarrow.ArrowException,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
    NotImplementedError,
    struct.error,
)


@contextmanager
def unsupported_if_unreadable() -> Iterator[None]:
    """Whatever bytes lead to that are not what they should be becomes a CannotStitch."""
    try:
        yield
    except StitchUnsupported:
        raise
    except UNFIT as problem:
        raise StitchUnsupported(" ".join(str(problem).split())[:300]) from problem
