"""Many small manifests become few: every query plan reads them all."""

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestContent, ManifestFile

from compaction_platform.lake.iceberg.replace_files import ENTRIES_PER_MANIFEST, FileChange, commit_change
from compaction_platform.lake.storage.retry import attempts
from compaction_platform.maintain.operations.remove_dangling_deletes import COMMIT_ATTEMPTS
from compaction_platform.maintain.plan.delete_index import is_known
from compaction_platform.maintain.table_state import TableState
from compaction_platform.persisted_names import COMMIT_KIND

if TYPE_CHECKING:
    from pyiceberg.table import Table

SMALL_BYTES = 2 << 20
FEWEST = 2  # that can become one; less means never
MANIFESTS = "manifests"


def to_merge(look: TableState, worth_it_from: int) -> list[ManifestFile]:
    """The small ones of a kind, if they are so many that it pays."""
    if worth_it_from < FEWEST:
        return []
    specs, schema = look.metadata.specs(), look.metadata.schema()
    alike: dict[tuple[int, bool], list[ManifestFile]] = defaultdict(list)
    for each in look.files.manifests:
        entries = (each.added_files_count or 0) + (each.existing_files_count or 0)
        is_small = each.manifest_length < SMALL_BYTES and entries < ENTRIES_PER_MANIFEST // 2
        if is_small and is_known(specs[each.partition_spec_id], schema):
            alike[each.partition_spec_id, each.content == ManifestContent.DATA].append(each)
    return [each for some in alike.values() if len(some) >= worth_it_from for each in some]


def merge_manifests(table: "Table", worth_it_from: int, say: Callable[[str], None]) -> int:
    """How many were merged. A table that others keep changing is left for the next run."""
    for _ in attempts(COMMIT_ATTEMPTS):
        now = TableState.at(table)
        small = to_merge(now, worth_it_from)
        if not small:
            return 0
        change = FileChange(merged=frozenset(each.manifest_path for each in small), properties={COMMIT_KIND: MANIFESTS})
        try:
            snapshot_id = commit_change(table, change, now.manifests)
        except CommitFailedException:
            table.refresh()
            continue
        say(f"snapshot {snapshot_id}: {len(small)} manifests were merged")
        return len(small)
    say("others kept committing; manifests are left for the next run")
    return 0
