"""How a table is to be kept healthy, as users write it in YAML: in a MaintainedTable, or below another declaration's
`maintenance`. The verb `maintain` reads it."""

from typing import Annotated, Literal, Protocol, runtime_checkable

import dagster as dg
from pydantic import AfterValidator, Field, model_validator

from compaction_platform.lake.dagster.component_base import Cron, Duration, Name, SecondReader
from compaction_platform.lake.dagster.time_window import Window
from compaction_platform.lake.storage.sizes import LARGEST_MB

Megabytes = Annotated[int, Field(ge=1, le=LARGEST_MB)]


def _window(text: str) -> str:
    Window.parsed(text)
    return text


def _filter(text: str) -> str:
    from pyiceberg.expressions.parser import parse

    try:
        parse(text)
    except Exception:  # noqa: BLE001 (PyIceberg has many; each is about this text)
        raise ValueError(f"{text!r} is not a filter; example: event_time >= '2026-01-01T00:00:00+00:00'") from None
    return text


class WriteFields(dg.Model, dg.Resolvable):
    """How writers are to write: kept as table properties."""

    target_file_size_mb: Annotated[Megabytes, Field(description="About how large files become.")] = 128
    codec: Annotated[
        Literal["zstd", "snappy", "lz4", "gzip", "uncompressed"], Field(description="Compression of data files.")
    ] = "zstd"
    row_group_mb: Annotated[Megabytes, Field(description="Size of row groups.")] = 64
    distribution_mode: Annotated[
        Literal["hash", "range", "none"],
        Field(description="How Spark shares out rows before it writes. hash: each partition's rows to one task."),
    ] = "hash"


class CompactionFields(dg.Model, dg.Resolvable):
    """When data files are rewritten."""

    enabled: Annotated[bool, Field(description="No: files are looked at and left as they are.")] = True
    small_file_threshold_mb: Annotated[Megabytes, Field(description="Files under this are small.")] = 64
    min_files_to_compact: Annotated[
        int | None,
        Field(
            ge=2,
            description="A partition with fewer small files is left alone. Default by profile: development 3, staging "
            "15, production 20.",
        ),
    ] = None
    opportunistic_check_interval: Annotated[
        int | None,
        Field(
            ge=1,
            description="The sensor looks after so many commits. Default by profile: development 5, staging 75, "
            "production 100.",
        ),
    ] = None
    max_files_per_compaction: Annotated[
        int, Field(ge=2, description="A run takes no more files than this; the next one goes on.")
    ] = 100
    max_delete_files: Annotated[
        int, Field(ge=1, description="A data file that so many delete files apply to is rewritten, whatever its size.")
    ] = 5
    max_deleted_share: Annotated[
        float, Field(gt=0, le=1, description="A data file of which this share of rows is deleted is rewritten.")
    ] = 0.3
    sort_by: Annotated[
        list[str], Field(description="Sort the rows of each rewritten group by these columns.", default_factory=list)
    ]
    z_order_by: Annotated[
        list[str],
        Field(
            description="Put rows that are alike in all these columns near each other; instead of sort_by.",
            default_factory=list,
        ),
    ]
    leave_to_writers_for: Annotated[
        Duration,
        Field(description="A partition is left alone for so long after a commit to it, e.g. 10m. force ignores it."),
    ] = "0m"

    @model_validator(mode="after")
    def _one_order(self) -> "CompactionFields":
        if self.sort_by and self.z_order_by:
            raise ValueError("compaction: give sort_by or z_order_by, not both")
        return self


class SnapshotsFields(dg.Model, dg.Resolvable):
    """How long earlier states can be read."""

    expire: Annotated[bool, Field(description="No: no snapshot is ever taken away.")] = True
    retention_hours: Annotated[
        int, Field(ge=1, description="A snapshot stays for so long after another took its place.")
    ] = 168
    keep_at_least: Annotated[int, Field(ge=1, description="So many are kept, however old.")] = 1


class OrphansFields(dg.Model, dg.Resolvable):
    """Files that nothing refers to."""

    enabled: Annotated[bool, Field(description="Look for them, and move them to quarantine.")] = True
    older_than_hours: Annotated[
        int, Field(ge=24, description="Younger ones may be what a writer is about to commit.")
    ] = 72
    quarantine_hours: Annotated[
        int, Field(ge=1, description="How long they stay in quarantine before they are deleted.")
    ] = 72


class ManifestsFields(dg.Model, dg.Resolvable):
    """The lists of files that every query plan reads."""

    merge_from: Annotated[
        int, Field(ge=0, description="So many small manifests of a kind are merged into few; 0: never.")
    ] = 50


class MaintenanceConfig(dg.Model, dg.Resolvable):
    """How a table is kept healthy."""

    name: Annotated[
        Name | None, Field(description="Name of its asset, maintenance/<name>; default: the table's own name.")
    ] = None
    automatic: Annotated[
        bool, Field(description="Yes: the sensor asks for a run when it recommends one. No: it only recommends.")
    ] = False
    write: Annotated[WriteFields, Field(description="How writers are to write.", default_factory=WriteFields)]
    compaction: Annotated[
        CompactionFields, Field(description="When data files are rewritten.", default_factory=CompactionFields)
    ]
    snapshots: Annotated[
        SnapshotsFields, Field(description="How long earlier states can be read.", default_factory=SnapshotsFields)
    ]
    orphans: Annotated[OrphansFields, Field(description="Files that nothing refers to.", default_factory=OrphansFields)]
    manifests: Annotated[ManifestsFields, Field(description="The lists of files.", default_factory=ManifestsFields)]
    window: Annotated[
        Annotated[str, AfterValidator(_window)] | None,
        Field(description="When it may run, in UTC: 22:00-06:00, or sat,sun 00:00-23:59. force ignores it."),
    ] = None
    partition_filter: Annotated[
        Annotated[str, AfterValidator(_filter)] | None,
        Field(description="Only partitions that may hold such rows, e.g. event_time >= '2026-01-01T00:00:00+00:00'."),
    ] = None
    second_reader: SecondReader = "sample"
    schedule: Annotated[
        Cron | None, Field(description="A cron for regular runs, in UTC, e.g. `0 3 * * *`; for expiry and orphans.")
    ] = None

    @model_validator(mode="after")
    def _sizes_fit(self) -> "MaintenanceConfig":
        small, target = self.compaction.small_file_threshold_mb, self.write.target_file_size_mb
        if small > target:
            raise ValueError(f"compaction.small_file_threshold_mb: {small} is more than write.target_file_size_mb")
        return self


@runtime_checkable
class MaintainedCatalogTable(Protocol):
    """A declaration of another verb that switches maintenance of its table on."""

    def maintained(self) -> "tuple[str, MaintenanceConfig] | None":
        """The table (namespace.name) and how it is kept."""
