"""Take a compaction back: the table is rolled back to the snapshot before it, if nobody else has committed since.

The files it replaced are never put back by another commit: expiry of other tools deletes what an expired snapshot has
taken out, without a look at whether somebody has put it back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import AssertRefSnapshotId, SetSnapshotRefUpdate

from compaction_platform.errors import CompactionError
from compaction_platform.lake.iceberg.branches import commit
from compaction_platform.lake.iceberg.history import published
from compaction_platform.maintain.operations import expire_snapshots
from compaction_platform.maintain.operations.commit_groups import COMPACTION
from compaction_platform.maintain.table_state import require_fit
from compaction_platform.persisted_names import COMMIT_KIND, MAINTENANCE_RUN

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from compaction_platform.maintain.plan.snapshot_retention import Retention

SOON = timedelta(hours=1)


class NothingToRollBack(CompactionError):
    """No compaction is left that could be taken back."""


class CannotRollBack(CompactionError):
    """Taking the compaction back would lose something. Nothing was done."""


@dataclass(frozen=True)
class RolledBack:
    run_id: str
    from_snapshot: int
    to_snapshot: int


def last_compaction(table: "Table") -> tuple[str, list["Snapshot"]]:
    """The run that compacted last, and its snapshots, newest first."""
    snapshots = published(table).snapshots
    for snapshot in snapshots:
        run_id = _property(snapshot, MAINTENANCE_RUN)
        if _property(snapshot, COMMIT_KIND) == COMPACTION and run_id:
            return run_id, [each for each in snapshots if _property(each, MAINTENANCE_RUN) == run_id]
    raise NothingToRollBack(
        f"{'.'.join(table.name())}: no compaction is left that could be taken back: its snapshots are gone with the "
        "retention, or there was none. Nothing was done."
    )


def roll_back_last(table: "Table", retention: "Retention", now: datetime, say: Callable[[str], None]) -> RolledBack:
    name = ".".join(table.name())
    require_fit(table.metadata, name)
    run_id, snapshots = last_compaction(table)
    before = snapshots[-1].parent_snapshot_id
    _require_retained(table, before, retention, now)
    _require_alone(table, snapshots[-1])
    head = table.metadata.refs[MAIN_BRANCH]
    change = SetSnapshotRefUpdate(
        ref_name=MAIN_BRANCH,
        type=SnapshotRefType.BRANCH,
        snapshot_id=before or 0,
        max_ref_age_ms=head.max_ref_age_ms,
        max_snapshot_age_ms=head.max_snapshot_age_ms,
        min_snapshots_to_keep=head.min_snapshots_to_keep,
    )
    try:
        commit(table, (AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=head.snapshot_id),), (change,))
    except CommitFailedException as lost:
        raise CannotRollBack(
            f"{name}: another commit came first ({lost}). Nothing was done. Look, and run again."
        ) from None
    except Exception:
        table.refresh()
        if table.metadata.current_snapshot_id != before:
            raise
    say(f"{name} is at snapshot {before} again, as before the compaction of run {run_id}")
    return RolledBack(run_id, head.snapshot_id, before or 0)


def _property(snapshot: "Snapshot", name: str) -> str | None:
    return snapshot.summary.additional_properties.get(name) if snapshot.summary else None


def _require_retained(table: "Table", before: int | None, retention: "Retention", now: datetime) -> None:
    known = {each.snapshot_id for each in table.metadata.snapshots}
    if before not in known or before in expire_snapshots.due(table.metadata, retention, now + SOON):
        raise CannotRollBack(
            f"{'.'.join(table.name())}: the snapshot before the last compaction has expired, or may at any moment, and "
            "with it the files that the table would need. Nothing was done."
        )


def _require_alone(table: "Table", first: "Snapshot") -> None:
    """Everything from the compaction on must be ours: what a writer committed would be lost."""
    since = []
    for snapshot in published(table).snapshots:
        since.append(snapshot)
        if snapshot.snapshot_id == first.snapshot_id:
            break
    others = [each for each in since if _property(each, COMMIT_KIND) is None]
    if others:
        raise CannotRollBack(
            f"{'.'.join(table.name())}: writers have committed {len(others)} times since the last compaction (first: "
            f"snapshot {others[-1].snapshot_id}), and a roll back would lose that. Nothing was done. A compaction "
            "changes no row; to see the files as they were, read an earlier snapshot (time travel)."
        )
