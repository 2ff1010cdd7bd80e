"""What says that another engine must take these files."""

import struct

import pyarrow

from compaction_platform.lake.errors import CompactionError


class CannotStitch(CompactionError):
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


def unfit(problem: BaseException) -> CannotStitch:
    return problem if isinstance(problem, CannotStitch) else CannotStitch(" ".join(str(problem).split())[:300])
