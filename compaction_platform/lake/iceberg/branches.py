"""Branches of an Iceberg table: write where no reader looks, then publish in one atomic step."""

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException, RESTError
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage.identifiers import quoted

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
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


def append(
    table: "Table",
    branch: str,
    files: Iterable["DataFile"],
    properties: Mapping[str, str],
    written_for: "TableMetadata | None" = None,
) -> None:
    """Commit data files to a branch of the table as this `table` knows it. If the branch, or the columns or the
    partitioning that they were written for, have changed since, CommitFailedException; nothing is tried again."""
    written_for = written_for or table.metadata
    if _shape(table.metadata) != _shape(written_for):
        raise CommitFailedException("the table's columns or its partitioning changed")
    head = table.metadata.refs[branch].snapshot_id
    producer = table.transaction().update_snapshot(snapshot_properties=dict(properties), branch=branch).fast_append()
    for file in files:
        producer.append_data_file(file)
    added = producer._commit()[0][0]  # writes the manifests; it is we who commit
    if not isinstance(added, AddSnapshotUpdate) or added.snapshot.parent_snapshot_id != head:
        raise CommitFailedException(f"branch {branch} moved")
    commit(
        table,
        (
            AssertRefSnapshotId(ref=branch, snapshot_id=head),
            AssertDefaultSpecId(default_spec_id=table.metadata.default_spec_id),
            AssertCurrentSchemaId(current_schema_id=table.metadata.current_schema_id),
        ),
        (
            added,
            SetSnapshotRefUpdate(
                ref_name=branch,
                type=SnapshotRefType.BRANCH,
                snapshot_id=added.snapshot.snapshot_id,
                max_ref_age_ms=BRANCH_LIFE_MS,
                max_snapshot_age_ms=None,
                min_snapshots_to_keep=None,
            ),
        ),
    )


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
        requirements = (AssertTableUUID(uuid=table.metadata.table_uuid), *requirements)
        response = table.catalog.commit_table(table, requirements, updates)
    except (RESTError, ValueError) as error:
        if LOST_RACE in str(error):
            raise CommitFailedException(str(error)) from error
        raise
    table.metadata, table.metadata_location = response.metadata, response.metadata_location


def _descends(table: "Table", snapshot_id: int, ancestor: int) -> bool:
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in table.metadata.snapshots}
    current: int | None = snapshot_id
    while current is not None and current != ancestor:
        current = parents.get(current)
    return current == ancestor


def _shape(metadata: "TableMetadata") -> tuple[int, int]:
    return metadata.current_schema_id, metadata.default_spec_id
