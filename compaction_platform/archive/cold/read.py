"""Hot and cold as one: every row of a range of blocks exactly once, also while ranges are archived or purged.

    from compaction_platform.archive.cold.read import hot_and_cold

    with hot_and_cold(archive, settings, BlockRange(1_000_000, 1_030_000)) as rows:
        rows.dataframe(spark, "logs").groupBy("address").count().show()

What is committed is read from the cold files, the rest from the hot tables, as of one moment of the database: a purge
that runs meanwhile deletes only rows that are not read from there. The DataFrame is of use inside the `with` only.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.chain.cuts import FileCut, cut
from compaction_platform.archive.cold.paths import RangePaths
from compaction_platform.archive.config import ArchivedChain, ArchivedTable
from compaction_platform.archive.hot.columns import arrow_schema
from compaction_platform.archive.hot.snapshot import HotSnapshot, hot_snapshot, hot_url
from compaction_platform.archive.jobs.copy_file import CopyItem, in_key_order, read_rows
from compaction_platform.archive.ledger.ledger import Ledger
from compaction_platform.archive.ledger.range_version import LIVE, RangeVersion
from compaction_platform.errors import CompactionError
from compaction_platform.lake.iceberg.types import converted, holds, spark_columns
from compaction_platform.lake.storage.object_store import ObjectMissing, ObjectStore
from compaction_platform.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ColdFileGone(CompactionError):
    """A range was replaced while it was being read."""


@dataclass(frozen=True)
class ColdPart:
    """Rows of one cold file. While a newer version takes its place, it is among what was superseded."""

    key: str
    superseded: str
    blocks: BlockRange


@dataclass(frozen=True)
class HotPart:
    """Rows of the hot table: as many blocks as make about one file."""

    cut: FileCut


Part = ColdPart | HotPart


@dataclass(frozen=True)
class PartReader:
    """Reads parts of one dataset; travels into Spark tasks."""

    dataset: ArchivedTable
    schema: pyarrow.Schema
    columns: tuple[Any, ...]
    chain_id: int
    store: ObjectStore
    snapshot: str
    url: str = field(repr=False)

    def read(self, part: Part) -> pyarrow.Table:
        if isinstance(part, HotPart):
            item = CopyItem(self.dataset, self.columns, part.cut.blocks, part.cut)
            return in_key_order(self.dataset, read_rows(self.url, self.snapshot, self.chain_id, item)[0])
        content = pyarrow.py_buffer(self._content(part))
        rows = pyarrow.parquet.read_table(pyarrow.BufferReader(content), page_checksum_verification=True)
        numbers = rows[self.dataset.block]
        within = pyarrow.compute.and_(
            pyarrow.compute.greater_equal(numbers, part.blocks.start), pyarrow.compute.less(numbers, part.blocks.end)
        )
        return self._fitted(rows.filter(within))

    def _content(self, part: ColdPart) -> Any:
        for key in (part.key, part.superseded):
            with suppress(ObjectMissing):
                return self.store.read(key)
        raise ColdFileGone(
            f"{self.store.uri}/{part.key} is not there; if it was replaced while it was read, read again."
        )

    def _fitted(self, rows: pyarrow.Table) -> pyarrow.Table:
        """As the hot table is now: a column that came later is null in older files."""
        arrays = []
        for column in self.schema:
            if column.name not in rows.column_names:
                arrays.append(pyarrow.nulls(rows.num_rows, column.type))
                continue
            values = rows[column.name]
            if not holds(column.type, values.type):
                raise ColdFileGone(
                    f"{self.dataset.name}.{column.name} is {values.type} in cold files and {column.type} in the hot "
                    "table; they cannot be read as one."
                )
            arrays.append(converted(values, column.type))
        return pyarrow.Table.from_arrays(arrays, schema=self.schema)


@dataclass(frozen=True)
class HotAndCold:
    """A range of blocks, as of one moment."""

    archive: ArchivedChain
    hot: HotSnapshot
    store: ObjectStore
    blocks: BlockRange
    live: Sequence[RangeVersion]

    def parts(self, dataset: str) -> list[Part]:
        """What is read from where, in the order of blocks."""
        parts: list[Part] = []
        start = self.blocks.start
        for version in self.live:
            if dataset not in version.manifests:  # it was declared later
                continue
            within = _overlap(version.blocks, self.blocks)
            parts += self._hot(dataset, start, within.start)
            place = RangePaths(self.archive.chain, dataset, version.blocks)
            parts += [
                ColdPart(
                    place.visible(file.name),
                    place.superseded(version.version, file.name),
                    _overlap(file.blocks, within),
                )
                for file in version.manifests[dataset].files
                if file.start_block < within.end and within.start < file.end_block
            ]
            start = within.end
        return parts + self._hot(dataset, start, self.blocks.end)

    def _hot(self, dataset: str, start: int, end: int) -> list[Part]:
        if start >= end:
            return []
        blocks = BlockRange(start, end)
        rows = self.hot.rows_per_block(self.archive.dataset(dataset), blocks)
        cuts = cut(blocks, list(rows), list(rows.values()), self.archive.chunk_rows)
        return [HotPart(each) for each in cuts if each.rows]

    def _reader(self, dataset: str) -> PartReader:
        declared = self.archive.dataset(dataset)
        columns = self.hot.columns([declared])[dataset]
        schema = arrow_schema(columns)
        return PartReader(declared, schema, columns, self.archive.chain_id, self.store, self.hot.name, self.hot.url)

    def arrow(self, dataset: str) -> pyarrow.Table:
        """All rows, here, sorted by the dataset's key."""
        reader = self._reader(dataset)
        return pyarrow.concat_tables([reader.schema.empty_table(), *map(reader.read, self.parts(dataset))])

    def dataframe(self, session: "SparkSession", dataset: str) -> "DataFrame":
        """All rows, read by Spark's tasks when the DataFrame is used."""
        reader, parts = self._reader(dataset), self.parts(dataset)
        numbers = session.range(0, len(parts), 1, max(1, len(parts)))
        return numbers.mapInArrow(partial(_rows_of, reader, parts), spark_columns(reader.schema))


def _rows_of(reader: PartReader, parts: Sequence[Part], batches: Iterable[Any]) -> Iterable[Any]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from reader.read(parts[number]).to_batches(max_chunksize=1 << 16)


@contextmanager
def hot_and_cold(archive: ArchivedChain, settings: Settings, blocks: BlockRange) -> Iterator[HotAndCold]:
    """Read a range of blocks as of one moment: committed ranges from cold files, the rest from the hot tables.

    The context manager keeps a snapshot of the hot database open; use what it gives inside the `with`.

    Raises:
        HotUnreachable: the hot database does not answer.
    """
    url = hot_url(archive, settings)
    store = ObjectStore.at(settings.place(archive.uri), settings)
    with hot_snapshot(archive, url) as hot:
        # What is committed is asked for in the same snapshot as the rows.
        versions = Ledger(url, archive.chain_id).versions_in(hot.connection, blocks, LIVE)
        cold = [each for each in versions if each.is_valid or each.state != "committed"]  # else the hot rows are better
        yield HotAndCold(archive, hot, store, blocks, cold)


def _overlap(one: BlockRange, two: BlockRange) -> BlockRange:
    return BlockRange(max(one.start, two.start), min(one.end, two.end))
