"""Branches of an Iceberg table: write where no reader looks, then publish in one atomic step."""

import time
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException, RESTError
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from compaction_platform.lake.errors import CompactionError
from compaction_platform.lake.names import quoted

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

BRANCH_LIFE_MS = 24 * 3600 * 1000  # a branch left by a killed run goes with the next expiry of snapshots
LOST_RACE = "sequence number"  # what catalogs say, in other ways than as a conflict, when another commit came first


class BranchUnrelated(CompactionError):
    """A branch does not continue what it is to replace. Nothing was published."""


def create_branch(table: "Table", branch: str, session: "SparkSession", spark_name: str) -> None:
    """A branch of main as this `table` knows it."""
    base = table.current_snapshot()
    if base is not None:
        age = max(0, round(time.time() * 1000) - base.timestamp_ms)  # a branch is as old as the snapshot it points to
        snapshots = table.manage_snapshots()
        snapshots.create_branch(base.snapshot_id, branch, max_ref_age_ms=BRANCH_LIFE_MS + age).commit()
    else:  # only Spark can branch off a table that has no snapshot yet
        session.sql(f"ALTER TABLE {spark_name} CREATE BRANCH {quoted(branch)} RETAIN 1 DAYS")
        table.refresh()


def drop_branch(table: "Table", branch: str) -> None:
    if branch in table.metadata.refs:
        table.manage_snapshots().remove_branch(branch).commit()


def publish_branch(table: "Table", branch: str, base: int | None, result: int) -> None:
    """Move main to this snapshot of the branch and drop the branch, in one commit. It fails with
    CommitFailedException if main is not at `base` any more."""
    table.refresh()
    if base is not None and not _descends(table, result, base):
        raise BranchUnrelated(f"snapshot {result} of {'.'.join(table.name())} does not continue {base}. {UNCHANGED}")
    main = table.metadata.refs.get(MAIN_BRANCH)
    commit(
        table,
        (
            AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=base),
            AssertRefSnapshotId(ref=branch, snapshot_id=result),
        ),
        (
            SetSnapshotRefUpdate(
                ref_name=MAIN_BRANCH,
                type=SnapshotRefType.BRANCH,
                snapshot_id=result,
                max_ref_age_ms=main.max_ref_age_ms if main else None,
                max_snapshot_age_ms=main.max_snapshot_age_ms if main else None,
                min_snapshots_to_keep=main.min_snapshots_to_keep if main else None,
            ),
            RemoveSnapshotRefUpdate(ref_name=branch),
        ),
    )


UNCHANGED = "Nothing was published; the table is as it was."


def commit(table: "Table", requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]) -> None:
    """One attempt. Whoever lost a race gets CommitFailedException and decides what to do from the new state; what is
    tried again blindly may be built on something else than what was looked at."""
    try:
        table.catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid), *requirements), updates)
    except (RESTError, ValueError) as error:
        if LOST_RACE in str(error):
            raise CommitFailedException(str(error)) from error
        raise
    table.refresh()


def _descends(table: "Table", snapshot_id: int, ancestor: int) -> bool:
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in table.metadata.snapshots}
    current: int | None = snapshot_id
    while current is not None and current != ancestor:
        current = parents.get(current)
    return current == ancestor
