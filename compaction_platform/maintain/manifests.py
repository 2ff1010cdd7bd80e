"""Many small manifests become few: every query plan reads them all."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException

from compaction_platform.lake.replace import Change, commit_change
from compaction_platform.maintain.dangling import COMMIT_ATTEMPTS, KIND_PROPERTY
from compaction_platform.maintain.look import Look

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

SMALL_BYTES = 2 << 20
MANIFESTS = "manifests"


def to_merge(manifests: Sequence["ManifestFile"], worth_it_from: int) -> list["ManifestFile"]:
    """The small ones, if they are so many that it pays."""
    small = [each for each in manifests if each.manifest_length < SMALL_BYTES]
    return small if len(small) >= worth_it_from else []


def merge_manifests(table: "Table", worth_it_from: int, say: Callable[[str], None]) -> int:
    """How many were merged. A table that others keep changing is left for the next run."""
    for _ in range(COMMIT_ATTEMPTS):
        now = Look.at(table)
        small = to_merge(now.files.manifests, worth_it_from)
        if not small:
            return 0
        change = Change(merged=frozenset(each.manifest_path for each in small), properties={KIND_PROPERTY: MANIFESTS})
        try:
            snapshot_id = commit_change(table, change, now.manifests)
        except CommitFailedException:
            table.refresh()
            continue
        say(f"snapshot {snapshot_id}: {len(small)} manifests were merged")
        return len(small)
    say("others kept committing; manifests are left for the next run")
    return 0
