"""Take a compaction back: the files it replaced come back, those it made go. What others committed since stays."""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFileContent, ManifestEntry

from compaction_platform.lake.errors import CompactionError
from compaction_platform.lake.history import published
from compaction_platform.lake.replace import Added, Change, commit_change
from compaction_platform.maintain.compaction import COMPACTION, RUN_PROPERTY
from compaction_platform.maintain.dangling import COMMIT_ATTEMPTS, KIND_PROPERTY
from compaction_platform.maintain.deletes import Deletes
from compaction_platform.maintain.look import Look, require_fit

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

DAY_MS = 24 * 3600 * 1000
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
    """The run that compacted last, if it was not taken back, and its snapshots, newest first."""
    snapshots = published(table).snapshots
    for snapshot in snapshots:
        kind, run_id = _property(snapshot, KIND_PROPERTY), _property(snapshot, RUN_PROPERTY)
        if kind == UNDO:
            break  # asking twice, for instance because an answer was lost, takes nothing else back
        if kind == COMPACTION and run_id:
            return run_id, [each for each in snapshots if _property(each, RUN_PROPERTY) == run_id]
    raise NothingToUndo(
        f"{'.'.join(table.name())}: no compaction is left that could be taken back. Its snapshots are gone with the "
        "retention, or it was taken back already. Nothing was done."
    )


def undo_last(table: "Table", say: Callable[[str], None]) -> Undone:
    require_fit(table.metadata, ".".join(table.name()))
    for _ in range(COMMIT_ATTEMPTS):
        run_id, snapshots = last_compaction(table)
        with _kept(table, snapshots):
            now = Look.at(table)
            made, replaced = _changes(now, snapshots)
            _require_unchanged(now, made)
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
    raise CannotUndo(f"others committed during each of {COMMIT_ATTEMPTS} attempts. Nothing was done. Run again.")


def _property(snapshot: "Snapshot", name: str) -> str | None:
    return snapshot.summary.additional_properties.get(name) if snapshot.summary else None


@contextmanager
def _kept(table: "Table", snapshots: list["Snapshot"]) -> Iterator[None]:
    """The files come back from the snapshots before. Meanwhile these are tagged: nobody may expire them."""
    known = {each.snapshot_id for each in table.metadata.snapshots}
    parents = sorted({each.parent_snapshot_id or 0 for each in snapshots} - {each.snapshot_id for each in snapshots})
    tags = {f"undo_{secrets.token_hex(6)}": parent for parent in parents}
    try:
        if not set(parents) <= known:
            raise ValueError
        manage = table.manage_snapshots()
        for name, parent in tags.items():
            manage = manage.create_tag(parent, name, max_ref_age_ms=_tag_life(table, parent))
        manage.commit()
    except ValueError:  # PyIceberg's word for a snapshot that is not there
        raise CannotUndo(
            f"{'.'.join(table.name())}: the snapshot before the last compaction has expired, and with it the files "
            "that would have to come back. Nothing was done."
        ) from None
    try:
        yield
    finally:
        table.refresh()
        manage = table.manage_snapshots()
        for name in tags:
            manage = manage.remove_tag(name)
        manage.commit()


def _tag_life(table: "Table", snapshot_id: int) -> int:
    """A tag that a killed run leaves behind goes with the next expiry after a day; its age is its snapshot's."""
    snapshot = table.snapshot_by_id(snapshot_id)
    age = round(time.time() * 1000) - snapshot.timestamp_ms if snapshot else 0
    return DAY_MS + max(0, age)


def _changes(look: Look, snapshots: list["Snapshot"]) -> tuple[dict[str, ManifestEntry], list[ManifestEntry]]:
    """What the run made and is there at its end; and what was there before it, with all deletes that applied."""
    by_id = {each.snapshot_id: each for each in look.metadata.snapshots}
    made: dict[str, ManifestEntry] = {}
    replaced: dict[str, ManifestEntry] = {}
    for snapshot in reversed(snapshots):  # oldest first
        added, removed = look.manifests.changes_of(snapshot)
        before = look.manifests.of(by_id[snapshot.parent_snapshot_id or 0])
        deletes = Deletes.of(before.deletes.values(), look.metadata.specs())
        for entry in removed:
            path = entry.data_file.file_path
            if entry.data_file.content != DataFileContent.DATA:
                continue
            if (ours := made.pop(path, None)) is not None:
                _require_undeleted(ours, deletes)
                continue
            replaced[path] = entry
            for delete in deletes.applying_to(entry).entries:
                if delete.data_file.file_path not in look.files.deletes:
                    replaced[delete.data_file.file_path] = delete
        made |= {entry.data_file.file_path: entry for entry in added}
    return made, list(replaced.values())


def _require_unchanged(now: Look, made: dict[str, ManifestEntry]) -> None:
    """A later delete or rewrite is about the new files; the old ones would bring its rows back."""
    if gone := made.keys() - now.files.data.keys():
        raise CannotUndo(
            f"{len(gone)} of the compacted files were rewritten or removed since (such as {min(gone)}). Nothing was "
            "done. To see the rows as they were, read an earlier snapshot (time travel)."
        )
    for entry in made.values():
        _require_undeleted(entry, now.deletes)


def _require_undeleted(made: ManifestEntry, deletes: Deletes) -> None:
    """Position deletes that came after the file was made are about it alone. (Equality deletes apply to the old files
    as well.)"""
    since = made.file_sequence_number or 0
    for delete in deletes.applying_to(made).positions:
        if (delete.sequence_number or 0) > since:
            raise CannotUndo(
                f"rows of compacted files were deleted since (by {delete.data_file.file_path}); the old files would "
                "bring them back. Nothing was done."
            )
