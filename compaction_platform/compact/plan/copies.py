"""Find files that are copies of what went into a compacted file beside them.

A half-finished state that was copied or restored has other etags and times: its inputs look like new data, and joined
once more every row would be there twice. Files that a producer delivers again look the same. A person tells which.
"""

from collections.abc import Mapping, Sequence

from compaction_platform.compact.plan.lineage import content_digest
from compaction_platform.compact.plan.listing import Ancestor, FileVersion
from compaction_platform.lake.storage.object_store import ObjectChanged, ObjectMissing, ObjectStore
from compaction_platform.lake.storage.threads import map_concurrently

READS_AT_ONCE = 8


def copies_of_inputs(
    store: ObjectStore, files: Sequence[FileVersion], ancestors: Mapping[str, tuple[Ancestor, ...]]
) -> dict[str, str]:
    """Files with the name and the bytes of an input, but of another version, by key: the compacted file that has their
    rows. Only files with the name and the size of an input are read."""
    known: dict[tuple[str, str], list[tuple[Ancestor, str]]] = {}
    for output, some in ancestors.items():
        directory = output.rpartition("/")[0]
        for one in some:
            known.setdefault((directory, one.name), []).append((one, output))
    suspects: list[tuple[FileVersion, list[tuple[Ancestor, str]]]] = []
    for file in files:
        same_name = known.get((file.directory, file.name), [])
        if any(one.version == file.version for one, _ in same_name):
            continue  # the very input: its rows are in the compacted file
        if same_size := [(one, output) for one, output in same_name if one.size == file.size]:
            suspects.append((file, same_size))

    def holder(suspect: tuple[FileVersion, list[tuple[Ancestor, str]]]) -> str | None:
        file, candidates = suspect
        try:
            content = content_digest(store.read(file.key, file.etag))
        except (ObjectChanged, ObjectMissing):
            return None
        return next((output for one, output in candidates if one.content == content), None)

    found = zip((file.key for file, _ in suspects), map_concurrently(holder, suspects, READS_AT_ONCE), strict=True)
    return {key: output for key, output in found if output is not None}
