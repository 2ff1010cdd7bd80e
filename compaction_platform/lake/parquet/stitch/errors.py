"""What says that another engine must take these files."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow

from compaction_platform.errors import CompactionError, VerificationFailed


class StitchUnsupported(CompactionError):
    """These files cannot be joined page by page. Nothing is wrong with them: they can be encoded anew."""


class StitchFailed(StitchUnsupported):
    """A defect: what was stitched did not pass its proof, or something happened that bytes do not explain. Nothing was
    published; the files are re-encoded, and the failure is counted and reported."""


UNEXPLAINED = (VerificationFailed, AttributeError, TypeError, LookupError, RecursionError)
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
    """Whatever bytes lead to that are not what they should be becomes StitchUnsupported."""
    try:
        yield
    except StitchUnsupported:
        raise
    except UNFIT as problem:
        kind = StitchFailed if isinstance(problem, UNEXPLAINED) else StitchUnsupported
        raise kind(f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}") from problem
