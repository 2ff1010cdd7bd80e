"""Branches of an Iceberg table: write where no reader looks, then publish in one atomic step."""

from typing import TYPE_CHECKING

from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotRefUpdate, SetSnapshotRefUpdate

from compaction_platform.lake.names import quoted

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

BRANCH_LIFE_MS = 24 * 3600 * 1000  # a branch left by a killed run goes with the next expiry of snapshots


def create_branch(table: "Table", branch: str, session: "SparkSession", spark_name: str) -> None:
    """A branch of main as this `table` knows it."""
    base = table.metadata.current_snapshot_id
    if base is not None:
        table.manage_snapshots().create_branch(base, branch, max_ref_age_ms=BRANCH_LIFE_MS).commit()
    else:  # only Spark can branch off a table that has no snapshot yet
        session.sql(f"ALTER TABLE {spark_name} CREATE BRANCH {quoted(branch)} RETAIN 1 DAYS")
        table.refresh()


def drop_branch(table: "Table", branch: str) -> None:
    if branch in table.metadata.refs:
        table.manage_snapshots().remove_branch(branch).commit()


def publish_branch(table: "Table", branch: str, base: int | None) -> None:
    """Move main to the branch and drop the branch, in one commit that fails if main is not at `base` any more."""
    table.refresh()
    main, result = table.metadata.refs.get(MAIN_BRANCH), table.metadata.refs[branch].snapshot_id
    kept = main.model_dump(include={"max_ref_age_ms", "max_snapshot_age_ms", "min_snapshots_to_keep"}) if main else {}
    table.catalog.commit_table(
        table,
        (
            AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=base),
            AssertRefSnapshotId(ref=branch, snapshot_id=result),
        ),
        (
            SetSnapshotRefUpdate(ref_name=MAIN_BRANCH, type=SnapshotRefType.BRANCH, snapshot_id=result, **kept),
            RemoveSnapshotRefUpdate(ref_name=branch),
        ),
    )
    table.refresh()
