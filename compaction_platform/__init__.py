"""compaction_platform keeps a data lake healthy.

The components a user names in YAML (`type: compaction_platform.LakeFoundation`) are attributes of this
package. They are imported when asked for, so that the command line and Spark tasks, which import other
parts of the package, do not pay for Dagster.
"""

from typing import Any

from compaction_platform.verbs import VERBS, load

__version__ = "0.1.0"

_COMPONENTS = {
    place.partition(":")[2]: place
    for place in ("lake.dagster.component:LakeFoundation", *(place for verb in VERBS for place in verb.components))
}

__all__ = sorted(_COMPONENTS)  # noqa: PLE0605 (a list of names, made of the list of verbs)


def __getattr__(name: str) -> Any:
    if name not in _COMPONENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(_COMPONENTS[name])


def __dir__() -> list[str]:
    return [*globals(), *_COMPONENTS]
