"""What says that another engine must take these files."""

from compaction_platform.lake.errors import CompactionError


class CannotStitch(CompactionError):
    """These files cannot be joined page by page. Nothing is wrong with them: they can be encoded anew."""
