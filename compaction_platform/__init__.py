"""compaction_platform keeps a data lake healthy.

The components a user names in YAML (`type: compaction_platform.LakeFoundation`) are attributes of this
package. They are imported when asked for, so that the command line and Spark tasks, which import other
parts of the package, do not pay for Dagster.
"""

from typing import Any

_COMPONENTS = {
    "ColdRanges": "compaction_platform.archive.component",
    "CompactedDirectory": "compaction_platform.compact.component",
    "CompactedGlueTable": "compaction_platform.compact.glue.component",
    "LakeFoundation": "compaction_platform.lake.dagster.component",
    "MaintainedTable": "compaction_platform.maintain.component",
    "MergedTable": "compaction_platform.merge.component",
}

__all__ = ["ColdRanges", "CompactedDirectory", "CompactedGlueTable", "LakeFoundation", "MaintainedTable", "MergedTable"]


def __getattr__(name: str) -> Any:
    if name not in _COMPONENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_COMPONENTS[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_COMPONENTS]
