"""`CompactedDirectory` as users write it in YAML. Checks what can be checked without touching anything."""

from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Literal

import dagster as dg
from pydantic import AfterValidator, Field, model_validator

from compaction_platform.compact.config import CompactedDataset
from compaction_platform.compact.dagster.assets import compact_job, compacted_asset
from compaction_platform.compact.dagster.schedules import compact_schedule
from compaction_platform.compact.dagster.sensors import late_files_sensor
from compaction_platform.compact.job import DirectoryConfig
from compaction_platform.compact.layout import Layout
from compaction_platform.compact.plan.bin_packing import PackingPolicy
from compaction_platform.compact.plan.schema_groups import Unify
from compaction_platform.lake.dagster.component_base import (
    ComponentBase,
    Cron,
    Duration,
    Name,
    SecondReader,
    as_timedelta,
)
from compaction_platform.lake.parquet.writer import WriterOptions
from compaction_platform.lake.storage.sizes import MB


def _layout(text: str) -> str:
    Layout(text)
    return text


def _day(text: str) -> str:
    try:
        date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a day; example: 2026-01-01") from None
    return text


Template = Annotated[str, AfterValidator(_layout)]
Day = Annotated[str, AfterValidator(_day)]
Megabytes = Annotated[int, Field(ge=1, le=4096)]


class CompactedDirectory(ComponentBase):
    """A directory of small Parquet files becomes few large ones, hour by hour, with the same rows."""

    name: Annotated[Name, Field(description="Name of the dataset; its asset is warehouse/<name>.")]
    uri: Annotated[
        str, Field(description="s3://bucket/prefix, a path, or a prefix below COMPACTION_LAKE_URI such as clicks.")
    ]
    layout: Annotated[
        Template | None,
        Field(
            description="Directories below it, in UTC: year={year}/month={month}/day={day}/hour={hour}, "
            "dt={date}/hour={hour}, dt={date}. {hour:d} is an hour without leading zero. Directories further down are "
            "compacted each by itself. Without a layout all of it is one partition."
        ),
    ] = None
    first_day: Annotated[Day, Field(description="The first day of data; partitions begin here.")] = "2024-01-01"
    grace: Annotated[
        Duration,
        Field(
            description="How long after its end an hour (or day) is left to its writers. Without a layout: how long a "
            "file must not have changed."
        ),
    ] = "10m"
    target_file_size_mb: Annotated[Megabytes, Field(description="About how large files become.")] = 128
    max_file_size_mb: Annotated[Megabytes, Field(description="How large a file may become at most.")] = 256
    small_file_mb: Annotated[
        Megabytes | None, Field(description="Files under this are small; default: three quarters of the target.")
    ] = None
    min_files: Annotated[
        int, Field(ge=2, le=10_000, description="Fewer small files than this are left as they are.")
    ] = 2
    max_files_per_run: Annotated[
        int | None, Field(ge=2, description="A run takes no more small files than this; the next one goes on.")
    ] = None
    originals: Annotated[
        Literal["delete", "trash", "keep"],
        Field(
            description="What becomes of small files once their rows are in a large one. trash: moved to "
            "_compaction/trash and deleted later. keep: they stay; only with a target_uri of its own."
        ),
    ] = "delete"
    trash_hours: Annotated[int, Field(ge=1, description="How long the trash keeps what is moved there.")] = 72
    target_uri: Annotated[
        str | None, Field(description="Where large files go, with the same layout; default: beside the small ones.")
    ] = None
    schedule: Annotated[Cron, Field(description="When to look for hours that are over; a cron, in UTC.")] = "15 * * * *"
    enabled: Annotated[bool, Field(description="No: neither schedule nor sensor; a person can still materialize.")] = (
        True
    )
    verify: Annotated[
        Literal["full", "pages"],
        Field(
            description="How row groups that are copied as they are get proved. full: every value is decoded. pages: "
            "where every page bears a checksum, the checksums are enough; several times faster."
        ),
    ] = "full"
    second_reader: SecondReader = "sample"
    unify: Annotated[
        Unify,
        Field(
            description="How columns may differ between files that become one. additions: one has columns that the "
            "other lacks (null there), not the other way round as well. columns: any, as long as half of them are the "
            "same. What does not go together is left alone, or joined among itself."
        ),
    ] = "additions"
    row_group_mb: Annotated[Megabytes, Field(description="Size of row groups, of decoded rows.")] = 64
    compression: Annotated[
        Literal["zstd", "snappy", "lz4", "gzip", "none"],
        Field(description="Compression of files that are encoded anew."),
    ] = "zstd"
    compression_level: Annotated[
        int | None, Field(description="Level of zstd or gzip; default: 1 for zstd, the library's own for gzip.")
    ] = None
    sort_by: Annotated[
        list[str],
        Field(
            description="Sort the rows of each new file by these columns (nulls first). Without it, rows keep their "
            "order, and large row groups are copied as they are.",
            default_factory=list,
        ),
    ]

    @model_validator(mode="after")
    def _makes_sense(self) -> "CompactedDirectory":
        if self.max_file_size_mb < self.target_file_size_mb:
            raise ValueError(f"max_file_size_mb: {self.max_file_size_mb} is less than the target")
        if self.small_file_mb is not None and self.small_file_mb > self.target_file_size_mb:
            raise ValueError(f"small_file_mb: {self.small_file_mb} is more than the target")
        if self.max_files_per_run is not None and self.max_files_per_run < self.min_files:
            raise ValueError(f"max_files_per_run: {self.max_files_per_run} is less than min_files")
        if self.originals == "keep" and self.target_uri is None:
            raise ValueError("originals: keep needs a target_uri, or all rows would be there twice")
        if self.target_uri is not None:
            ours, theirs = f"{self.target_uri.rstrip('/')}/", f"{self.uri.rstrip('/')}/"
            if ours.startswith(theirs) or theirs.startswith(ours):
                raise ValueError("target_uri: it and uri must not lie inside one another")
        if self.compression_level is not None and self.compression not in ("zstd", "gzip"):
            raise ValueError(f"compression_level: {self.compression} has no levels")
        if len(set(self.sort_by)) != len(self.sort_by):
            raise ValueError("sort_by: a column is named twice")
        return self

    def dataset(self) -> CompactedDataset:
        target = self.target_file_size_mb * MB
        level = 1 if self.compression == "zstd" and self.compression_level is None else self.compression_level
        return CompactedDataset(
            name=self.name,
            directory=DirectoryConfig(
                uri=self.uri,
                policy=PackingPolicy(
                    target_bytes=target,
                    max_bytes=self.max_file_size_mb * MB,
                    small_bytes=target * 3 // 4 if self.small_file_mb is None else self.small_file_mb * MB,
                    min_files=self.min_files,
                    max_files=self.max_files_per_run,
                    unify=self.unify,
                ),
                encoding=WriterOptions(self.compression, level, self.row_group_mb * MB, tuple(self.sort_by)),
                originals=self.originals,
                target_uri=self.target_uri,
                trash_for=timedelta(hours=self.trash_hours),
                verify=self.verify,
                second_reader=self.second_reader,
            ),
            layout=None if self.layout is None else Layout(self.layout),
            first=datetime.combine(date.fromisoformat(self.first_day), time(), UTC),
            grace=as_timedelta(self.grace),
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return self.definitions()

    def definitions(self) -> dg.Definitions:
        dataset = self.dataset()
        job = compact_job(dataset)
        automated = self.enabled
        return dg.Definitions(
            assets=[compacted_asset(dataset)],
            jobs=[job],
            schedules=[compact_schedule(dataset, job, self.schedule)] if automated else [],
            sensors=[late_files_sensor(dataset, dataset.layout, job)] if automated and dataset.layout else [],
        )
