"""How one table is kept: its declaration, and what one run is asked for, as plain values. Loads no table library."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from compaction_platform.errors import CompactionError
from compaction_platform.lake.dagster.time_window import Window
from compaction_platform.lake.storage.sizes import LARGEST_MB, MB
from compaction_platform.lake.verification.extent import Extent
from compaction_platform.maintain.plan.file_groups import RewritePolicy
from compaction_platform.maintain.plan.snapshot_retention import Retention
from compaction_platform.settings import Profile

if TYPE_CHECKING:
    from compaction_platform.lake.parquet.writer import WriterOptions

FEWEST = 2  # files that become one
# Where nothing else is declared: commits between two looks, and small files that are worth a run.
CHECK_INTERVAL = {Profile.development: 5, Profile.staging: 75, Profile.production: 100}
MIN_FILES = {Profile.development: 3, Profile.staging: 15, Profile.production: 20}


class MaintenanceRequestInvalid(CompactionError):
    """The request asks for something that cannot be meant. Nothing was done."""


@dataclass(frozen=True)
class WriteRules:
    target_file_size_mb: int = 128
    codec: str = "zstd"
    row_group_mb: int = 64
    distribution_mode: str = "hash"

    def properties(self) -> dict[str, str]:
        return {
            "write.target-file-size-bytes": str(self.target_file_size_mb * MB),
            "write.parquet.compression-codec": self.codec,
            "write.parquet.row-group-size-bytes": str(self.row_group_mb * MB),
            "write.distribution-mode": self.distribution_mode,
        }

    def encoding(self) -> "WriterOptions":
        from compaction_platform.lake.parquet.writer import WriterOptions

        compression = "none" if self.codec == "uncompressed" else self.codec
        return WriterOptions(compression, 1 if self.codec == "zstd" else None, self.row_group_mb * MB)


@dataclass(frozen=True)
class OrphanRules:
    enabled: bool = True
    older_than: timedelta = timedelta(hours=72)
    quarantined_for: timedelta = timedelta(hours=72)


@dataclass(frozen=True)
class TableMaintenance:
    """How one table is kept: its declaration as plain values."""

    table: str  # namespace.name
    name: str
    policy: RewritePolicy = field(default_factory=RewritePolicy)
    write: WriteRules = field(default_factory=WriteRules)
    retention: Retention = field(default_factory=Retention)
    expire_snapshots: bool = True
    orphans: OrphanRules = field(default_factory=OrphanRules)
    manifests_from: int = 50
    check_interval: int = 5
    partition_filter: str | None = None
    window: Window | None = None
    automatic: bool = False
    second_reader: Extent = "sample"


@dataclass(frozen=True)
class MaintenanceRequest:
    """What a person, or the service, asks of one run. What is None is as declared."""

    force: bool = False
    target_file_size_mb: int | None = None
    max_files: int | None = None
    partition_filter: str | None = None
    expire_snapshots: bool | None = None
    snapshot_retention_hours: int | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.target_file_size_mb is not None and not 1 <= self.target_file_size_mb <= LARGEST_MB:
            raise MaintenanceRequestInvalid(
                f"target_file_size_mb: {self.target_file_size_mb} is not between 1 and {LARGEST_MB}."
            )
        if self.max_files is not None and self.max_files < FEWEST:
            raise MaintenanceRequestInvalid(
                f"max_files: {self.max_files} is too few: two files are the least that become one."
            )
        hours = self.snapshot_retention_hours
        if hours is not None and (hours < 0 or (hours == 0 and not self.force)):
            raise MaintenanceRequestInvalid(
                f"snapshot_retention_hours: {hours} would take away the snapshots that running readers use, and every "
                "way back. Say how many hours to keep; 0 only together with force. Nothing was done."
            )
