"""Take a compaction back: the files it replaced come back, those it made go. What others committed since stays."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestEntry

from compaction_platform.lake.errors import CompactionError
from compaction_platform.lake.history import published
from compaction_platform.lake.replace import Added, Change, commit_change
from compaction_platform.maintain.compaction import COMPACTION, RUN_PROPERTY, TableBusy
from compaction_platform.maintain.dangling import COMMIT_ATTEMPTS, KIND_PROPERTY
from compaction_platform.maintain.deletes import is_position_delete, may_refer_to, place_of
from compaction_platform.maintain.look import Look

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

UNDO = "undo"
UNDONE_PROPERTY = "compaction.undone"


class NothingToUndo(CompactionError):
    """No compaction is left that could be taken back."""


class CannotUndo(CompactionError):
    """Rows of the compacted files were changed since. Nothing was done."""


@dataclass(frozen=True)
class Undone:
    run_id: str
    snapshot_id: int
    files_back: int
    files_removed: int


def last_compaction(table: "Table") -> tuple[str, list["Snapshot"]]:
    """The run that compacted last and has not been taken back, and its snapshots."""
    snapshots = published(table).snapshots
    undone = set(published(table).properties(UNDONE_PROPERTY))
    for snapshot in snapshots:
        properties = snapshot.summary.additional_properties if snapshot.summary else {}
        run_id = properties.get(RUN_PROPERTY)
        if properties.get(KIND_PROPERTY) == COMPACTION and run_id and run_id not in undone:
            return run_id, [each for each in snapshots if _is_of(each, run_id)]
    raise NothingToUndo(
        f"{'.'.join(table.name())}: no compaction is left that could be taken back. Its snapshots are gone with the "
        "retention, or it was taken back already. Nothing was done."
    )


def undo_last(table: "Table", say: Callable[[str], None]) -> Undone:
    for _ in range(COMMIT_ATTEMPTS):
        now = Look.at(table)
        run_id, snapshots = last_compaction(table)
        _require_retained(table, snapshots)
        made, replaced = _changes(now, snapshots)
        _require_unchanged(now, made, snapshots)
        change = Change(
            added=[Added(entry.data_file, entry.sequence_number) for entry in replaced],
            removed=frozenset(made),
            properties={KIND_PROPERTY: UNDO, UNDONE_PROPERTY: run_id},
        )
        try:
            snapshot_id = commit_change(table, change, now.manifests)
        except CommitFailedException as lost:
            say(f"another commit came first ({lost}); looking again")
            table.refresh()
            continue
        say(f"snapshot {snapshot_id}: {len(made)} compacted files went, {len(replaced)} files are back")
        return Undone(run_id, snapshot_id, len(replaced), len(made))
    raise TableBusy(f"others committed during each of {COMMIT_ATTEMPTS} attempts. Nothing was done. Run again.")


def _is_of(snapshot: "Snapshot", run_id: str) -> bool:
    properties = snapshot.summary.additional_properties if snapshot.summary else {}
    return properties.get(RUN_PROPERTY) == run_id and properties.get(KIND_PROPERTY) == COMPACTION


def _changes(look: Look, snapshots: list["Snapshot"]) -> tuple[dict[str, ManifestEntry], list[ManifestEntry]]:
    """What the run made and is there at its end, and what was there before it."""
    made: dict[str, ManifestEntry] = {}
    replaced: dict[str, ManifestEntry] = {}
    for snapshot in reversed(snapshots):  # oldest first
        added, removed = look.manifests.changes_of(snapshot)
        for entry in removed:
            path = entry.data_file.file_path
            if made.pop(path, None) is None:
                replaced[path] = entry
        made |= {entry.data_file.file_path: entry for entry in added}
    return made, list(replaced.values())


def _require_retained(table: "Table", snapshots: list["Snapshot"]) -> None:
    """The files come back from the snapshots before: those must be there still, or the files may be gone."""
    known = {each.snapshot_id for each in table.metadata.snapshots}
    if any(each.parent_snapshot_id not in known for each in snapshots):
        raise CannotUndo(
            f"{'.'.join(table.name())}: the snapshot before the last compaction has expired, and with it the files "
            "that would have to come back. Nothing was done."
        )


def _require_unchanged(now: Look, made: dict[str, ManifestEntry], snapshots: list["Snapshot"]) -> None:
    """A later delete or rewrite is about the new files; the old ones would bring its rows back."""
    if gone := made.keys() - now.files.data.keys():
        raise CannotUndo(
            f"{len(gone)} of the compacted files were rewritten or removed since (such as {min(gone)}). Nothing was "
            "done. To see the rows as they were, read an earlier snapshot (time travel)."
        )
    newest = max(snapshot.sequence_number or 0 for snapshot in snapshots)
    for delete in now.files.deletes.values():
        if not is_position_delete(delete) or (delete.sequence_number or 0) <= newest:
            continue
        for path, entry in made.items():
            same_place = place_of(delete.data_file) == place_of(entry.data_file)
            if same_place and may_refer_to(delete.data_file, path):
                raise CannotUndo(
                    f"rows of compacted files were deleted since (by {delete.data_file.file_path}); the old files "
                    "would bring them back. Nothing was done."
                )
