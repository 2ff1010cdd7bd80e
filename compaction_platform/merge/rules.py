"""What a declaration says about merging one table, as one value. It travels into Spark tasks."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from compaction_platform.lake.settings import Settings

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

    @property
    def identifier(self) -> tuple[str, str]:
        return self.namespace, self.table

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.table}"

    @property
    def order(self) -> tuple[str, ...]:
        """What makes one row of a key newer than another, most significant first."""
        return (*self.order_by, *ORIGIN)


@dataclass(frozen=True)
class Places:
    """Where a table's files are kept. Ours are outside the staging area, whose rules the producer makes."""

    staging: str
    state: str
    quarantine: str
    archive: str

    @classmethod
    def of(cls, rules: MergeRules, settings: Settings) -> "Places":
        settings.require("lake_uri", purpose=f"merging {rules.full_name}")
        lake = str(settings.lake_uri).rstrip("/")
        own = "://" in rules.source or rules.source.startswith("/")
        return cls(
            staging=rules.source.rstrip("/") if own else f"{lake}/{rules.source.strip('/')}",
            state=f"{lake}/_compaction/merge/{rules.full_name}",
            quarantine=f"{lake}/quarantine/{rules.table}",
            archive=f"{lake}/archive/{rules.table}",
        )
