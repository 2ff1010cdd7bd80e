"""A directory that is kept compact: what its declaration says, as plain values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from compaction_platform.compact.job import CompactRun, DirectoryConfig
from compaction_platform.compact.layout import Layout
from compaction_platform.errors import CompactionError
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.settings import Settings


class PartitionStillOpen(CompactionError):
    """Writers may still add files to this hour or day."""


class TargetOverlapsSource(CompactionError):
    """Compacted files would be compacted again, and again."""


@dataclass(frozen=True)
class CompactedDataset:
    name: str
    directory: DirectoryConfig  # its addresses may be relative to the lake
    layout: Layout | None  # None: one directory, not partitioned by time
    first: datetime
    grace: timedelta

    @property
    def subject(self) -> str:
        return f"warehouse.{self.name}"

    def run(self, settings: Settings, spread: Callable[[], ParallelMap], say: Callable[[str], None]) -> CompactRun:
        source = settings.place(self.directory.uri)
        target = None if self.directory.target_uri is None else settings.place(self.directory.target_uri)
        if target is not None and (f"{target}/".startswith(f"{source}/") or f"{source}/".startswith(f"{target}/")):
            raise TargetOverlapsSource(f"{self.name}: target_uri ({target}) and uri ({source}) lie inside one another.")
        directory = replace(
            self.directory,
            uri=source,
            target_uri=target,
            grace=timedelta() if self.layout else self.grace,
        )
        return CompactRun(directory, settings, spread, say)

    def prefixes(self, partitions: Sequence[str]) -> list[str]:
        return [self.layout.prefix(each) for each in partitions] if self.layout else [""]

    def require_closed(self, partitions: Sequence[str], now: datetime) -> None:
        if self.layout is None:
            return
        still_open = [each for each in partitions if not self.layout.is_closed(each, now, self.grace)]
        if still_open:
            raise PartitionStillOpen(
                f"{', '.join(still_open)}: not over yet (with a grace of {self.grace}) by the store's clock, which "
                f"says {now:%Y-%m-%d %H:%M:%S} UTC. Nothing was done. Choose partitions that end before, or wait."
            )
