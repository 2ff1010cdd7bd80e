"""What a plan would unify: the columns of planned files, read from their footers, in the groups a run would join."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow
import pyarrow.parquet

from compaction_platform.compact.plan.bin_packing import FileGroup
from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.compact.plan.schema_groups import Unify, differences, grouped
from compaction_platform.compact.rewrite.read_inputs import UNREADABLE
from compaction_platform.errors import CompactionError
from compaction_platform.lake.parquet.fetch_footer import fetch_footer
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.lake.storage.threads import map_concurrently

READS_AT_ONCE = 32
MOST_FILES = 5000  # whose footers are read for one plan
UNREADABLE_OR_MISSING: tuple[type[Exception], ...] = (CompactionError, *UNREADABLE)


@dataclass(frozen=True)
class ColumnGroup:
    """Files of one bin that become one, and the columns that some of them lack."""

    files: tuple[str, ...]
    columns: int
    lacking: Mapping[str, int]  # by column: how many files lack it; it is null in their rows


@dataclass(frozen=True)
class ColumnSurvey:
    """By output as planned: the groups of its files. Where there are several, several outputs are made."""

    groups: Mapping[str, tuple[ColumnGroup, ...]] = field(default_factory=dict)
    not_looked_at: int = 0  # files
    unread: int = 0

    @property
    def differing(self) -> dict[str, tuple[ColumnGroup, ...]]:
        """Bins whose files do not all have the same columns."""
        return {output: some for output, some in self.groups.items() if len(some) > 1 or some[0].lacking}


def survey_columns(store: ObjectStore, bins: Sequence[FileGroup], unify: Unify) -> ColumnSurvey:
    """Read the columns of the files of these bins, of the first MOST_FILES of them."""
    chosen: list[FileGroup] = []
    count = 0
    for each in bins:
        if count + len(each.inputs) <= MOST_FILES:
            chosen.append(each)
            count += len(each.inputs)

    def names(file: FileVersion) -> list[str] | None:
        try:
            footer = pyarrow.BufferReader(fetch_footer(store, file.key, file.size, file.etag))
            return list(pyarrow.parquet.read_schema(footer).names)
        except UNREADABLE_OR_MISSING:
            return None  # a run finds out, and tells why

    files = [file for each in chosen for file in each.inputs]
    columns = dict(zip((file.key for file in files), map_concurrently(names, files, READS_AT_ONCE), strict=True))
    groups: dict[str, tuple[ColumnGroup, ...]] = {}
    for each in chosen:
        known = {file.key: some for file in each.inputs if (some := columns[file.key]) is not None}
        if known:
            groups[each.output] = tuple(_group({key: known[key] for key in keys}) for keys in grouped(known, unify))
    unread = sum(some is None for some in columns.values())
    return ColumnSurvey(groups, sum(len(each.inputs) for each in bins) - count, unread)


def _group(columns: Mapping[str, list[str]]) -> ColumnGroup:
    return ColumnGroup(tuple(columns), len({name for some in columns.values() for name in some}), differences(columns))
