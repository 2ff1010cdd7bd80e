"""Expire snapshots: we choose which, Iceberg's own procedure removes them and the files only they need."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from pyiceberg.table.refs import MAIN_BRANCH

from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage.identifiers import checked_identifier
from compaction_platform.maintain.plan.snapshot_retention import KnownSnapshot, Ref, Retention, to_expire

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql import SparkSession

    from compaction_platform.settings import Settings


def due(metadata: "TableMetadata", retention: Retention, now: datetime) -> list[int]:
    snapshots = [
        KnownSnapshot(each.snapshot_id, each.parent_snapshot_id, _moment(each.timestamp_ms))
        for each in metadata.snapshots
    ]
    refs = {
        name: Ref(
            ref.snapshot_id,
            ref.min_snapshots_to_keep or 1,
            None if ref.max_snapshot_age_ms is None else timedelta(milliseconds=ref.max_snapshot_age_ms),
        )
        for name, ref in metadata.refs.items()
    }
    log = [(entry.snapshot_id, entry.timestamp_ms) for entry in metadata.snapshot_log]
    until = {one: _moment(ended) for (one, _), (_, ended) in pairwise(log)}  # the latest time counts
    return to_expire(snapshots, refs, MAIN_BRANCH, retention, now, until)


def _moment(stamp_ms: int) -> datetime:
    return datetime.fromtimestamp(stamp_ms / 1000, UTC)


class OwnRetention(CompactionError):
    """A branch has a retention of its own, which Iceberg would follow instead of ours."""


def require_no_own_retention(metadata: "TableMetadata") -> None:
    """Iceberg's procedure prefers what a branch says to what it is told, and goes by the time of the commit: it would
    also take snapshots that were current a moment ago."""
    own = [name for name, ref in metadata.refs.items() if ref.max_snapshot_age_ms is not None]
    if own:
        raise OwnRetention(
            f"branch {', '.join(sorted(own))} has a snapshot retention of its own (max-snapshot-age-ms), which Iceberg "
            "would follow instead of the declared one. No snapshot was expired. Take it away (ALTER TABLE … REPLACE "
            "BRANCH), or set snapshots.expire to false and expire by hand."
        )


def expire(session: "SparkSession", settings: "Settings", name: str, snapshot_ids: Sequence[int]) -> None:
    """Iceberg refuses a snapshot that a branch or tag has begun to point to meanwhile."""
    namespace, table = (checked_identifier(part) for part in name.split("."))
    ids = ", ".join(str(int(each)) for each in snapshot_ids)
    session.sql(
        f"CALL `{settings.catalog_name}`.system.expire_snapshots(table => '{namespace}.{table}', "
        # Only what was chosen: without this, Iceberg adds all that are older than five days.
        f"older_than => TIMESTAMP '1970-01-02 00:00:00', snapshot_ids => ARRAY({ids}), stream_results => true)"
    ).collect()
