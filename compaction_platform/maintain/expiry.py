"""Expire snapshots: we choose which, Iceberg's own procedure removes them and the files only they need."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyiceberg.table.refs import MAIN_BRANCH

from compaction_platform.lake.names import checked_identifier
from compaction_platform.maintain.snapshots import Known, Retention, to_expire

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql import SparkSession

    from compaction_platform.lake.settings import Settings


def due(metadata: "TableMetadata", retention: Retention, now: datetime) -> list[int]:
    snapshots = [
        Known(each.snapshot_id, each.parent_snapshot_id, datetime.fromtimestamp(each.timestamp_ms / 1000, UTC))
        for each in metadata.snapshots
    ]
    refs = {name: ref.snapshot_id for name, ref in metadata.refs.items()}
    return to_expire(snapshots, refs, refs.get(MAIN_BRANCH), retention, now)


def expire(session: "SparkSession", settings: "Settings", name: str, snapshot_ids: Sequence[int]) -> None:
    """Iceberg refuses a snapshot that a branch or tag has begun to point to meanwhile."""
    namespace, table = (checked_identifier(part) for part in name.split("."))
    ids = ", ".join(str(int(each)) for each in snapshot_ids)
    session.sql(
        f"CALL `{settings.catalog_name}`.system.expire_snapshots(table => '{namespace}.{table}', "
        # Only what was chosen: without this, Iceberg adds all that are older than five days.
        f"older_than => TIMESTAMP '1970-01-02 00:00:00', snapshot_ids => ARRAY({ids}), stream_results => true)"
    ).collect()
