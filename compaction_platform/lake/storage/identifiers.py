"""Names that come from outside, before they become SQL or paths."""

import re

from compaction_platform.errors import CompactionError


class NameInvalid(CompactionError):
    """This may not stand in SQL or in a path."""


def checked_identifier(name: str) -> str:
    """This very name, if it may stand in SQL and paths."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,127}", name):
        raise NameInvalid(
            f"{name!r} is not a usable name: lower-case letters, digits and underscores, not starting with a digit."
        )
    return name


def quoted(name: str) -> str:
    """A column's name for Spark SQL."""
    return f"`{name.replace('`', '``')}`"
