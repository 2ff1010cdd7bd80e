"""What a declaration says about merging one table, as one value. It travels into Spark tasks."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from compaction_platform.errors import CompactionError
from compaction_platform.lake.verification.extent import Extent
from compaction_platform.settings import Settings

OnNewColumn = Literal["add", "ignore", "reject"]
Cleanup = Literal["lifecycle", "archive", "delete"]

# Where each row came from. They break ties between rows that are equally new, so that the order in which files
# are merged does not matter, and they answer "which file brought this row?".
FILE_COLUMN = "_staged_file"
ROW_COLUMN = "_staged_row"
ORIGIN = (FILE_COLUMN, ROW_COLUMN)

TIME_UNITS = ("hour", "day", "month", "year")


@dataclass(frozen=True)
class PartitionField:
    column: str
    transform: str

    @property
    def time_unit(self) -> str | None:
        return self.transform if self.transform in TIME_UNITS else None


@dataclass(frozen=True)
class MergeRules:
    namespace: str
    table: str
    source: str
    glob: str
    key: tuple[str, ...]
    order_by: tuple[str, ...]
    keep_when_null: tuple[str, ...]
    partition_by: tuple[PartitionField, ...]
    on_new_column: OnNewColumn = "add"
    cleanup: Cleanup = "lifecycle"
    partition_may_change: bool = False
    arrival_grace: timedelta = timedelta(minutes=10)
    first_hour: str = "2024-01-01-00:00"
    second_reader: Extent = "sample"

    @property
    def identifier(self) -> tuple[str, str]:
        return self.namespace, self.table

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.table}"

    @property
    def order(self) -> tuple[str, ...]:
        """What makes one row of a batch newer than another of its key, most significant first."""
        return (*self.order_by, *ORIGIN)

    @property
    def order_across_batches(self) -> tuple[str, ...]:
        """The same against the table's row. Positions do not count: a file that was replaced has others."""
        return (*self.order_by, FILE_COLUMN)

    @property
    def required(self) -> tuple[str, ...]:
        """Columns a file must have: without them, it cannot be known which row of the table is meant."""
        partitions = () if self.partition_may_change else tuple(field.column for field in self.partition_by)
        return tuple(dict.fromkeys((*self.key, *partitions)))


class StagingPathsOverlap(CompactionError):
    """Our own files would be taken for staged ones."""


@dataclass(frozen=True)
class StagingPaths:
    """Where a table's files are kept. Ours are outside the staging area, whose rules the producer makes."""

    staging: str
    state: str
    quarantine: str
    archive: str

    @classmethod
    def of(cls, rules: MergeRules, settings: Settings) -> "StagingPaths":
        settings.require("lake_uri", purpose=f"merging {rules.full_name}")
        lake = str(settings.lake_uri).rstrip("/")
        places = cls(
            staging=settings.place(rules.source),
            state=f"{lake}/_compaction/merge/{rules.full_name}",
            quarantine=f"{lake}/quarantine/{rules.table}",
            archive=f"{lake}/archive/{rules.table}",
        )
        for ours in (places.state, places.quarantine, places.archive):
            if f"{ours}/".startswith(f"{places.staging}/"):
                raise StagingPathsOverlap(
                    f"{places.staging} cannot be the staging area of {rules.full_name}: {ours} lies inside it."
                )
        return places
