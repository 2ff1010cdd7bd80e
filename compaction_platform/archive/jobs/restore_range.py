"""Bring purged rows back from their cold files: a purge can be undone for as long as those exist.

File by file, each in one transaction that is rolled back unless what it inserts is, row for row, what was deleted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow
import pyarrow.parquet
from psycopg import sql

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.cold.manifest import ManifestFile, RangeManifest
from compaction_platform.archive.cold.paths import RangePaths
from compaction_platform.archive.config import ArchivedTable
from compaction_platform.archive.hot.foreign_keys import purge_order
from compaction_platform.archive.hot.snapshot import ROW, digest_of, of_range, table_of
from compaction_platform.archive.jobs.purge_range import NotArchived
from compaction_platform.archive.jobs.reach import ArchiveContext
from compaction_platform.archive.ledger.lease import LeaseLost, RangeLease
from compaction_platform.archive.ledger.range_version import RangeVersion
from compaction_platform.errors import CompactionError


class NotRestored(CompactionError):
    """The rows could not be brought back as they were. Nothing of this file was inserted."""


@dataclass(frozen=True)
class RestoreRun(ArchiveContext):
    say: Callable[[str], None] = lambda text: None
    owner: str = ""

    def run(self, blocks: BlockRange) -> int:
        """How many rows came back."""
        version = self.ledger.live(blocks)
        if version is None or version.state == "committed":
            raise NotArchived(f"nothing of blocks {blocks.key} (end not included) was purged; nothing was done.")
        claim = self.ledger.claim_purge(version, self.owner, states=("purging", "purged"))
        try:
            rows = self._restore(claim, version, self.ledger.purged_files(version))
            claim.restored()
        except LeaseLost:
            raise
        except BaseException as error:
            claim.let_go(f"{type(error).__name__}: {error}")
            raise
        self.say(
            f"{rows:,} rows of blocks {blocks.key} (end not included) are hot again. They are not purged until a new "
            f"version is committed, or `compaction archive believe {self.archive.chain} {blocks.key}` says so."
        )
        return rows

    def _restore(self, claim: RangeLease, version: RangeVersion, purged: set[tuple[str, str]]) -> int:
        rows = 0
        with claim.held(deleting=False) as connection:
            order = purge_order(connection, self.archive.datasets)
        for dataset in reversed(order):  # what others refer to first
            if dataset.name not in version.manifests:
                continue
            manifest = version.manifests[dataset.name]
            for file in manifest.files:
                if (dataset.name, file.name) in purged:
                    rows += self._insert(claim, dataset, manifest, file)
        return rows

    def _insert(self, claim: RangeLease, dataset: ArchivedTable, manifest: RangeManifest, file: ManifestFile) -> int:
        key = RangePaths(self.archive.chain, dataset.name, manifest.blocks).visible(file.name)
        content = pyarrow.BufferReader(pyarrow.py_buffer(self.store.read(key)))
        rows = pyarrow.parquet.read_table(content, page_checksum_verification=True)
        names = rows.column_names
        with claim.held(deleting=False) as connection:
            before = digest_of(connection, dataset, self.archive.chain_id, file.blocks, names)
            try:
                self._copy_in(connection, dataset, rows)
            except (psycopg.errors.UndefinedColumn, psycopg.errors.IntegrityError) as error:
                raise NotRestored(
                    f"{dataset.name} {file.blocks.key} (end not included) does not go back into "
                    f"{'.'.join(dataset.table)}: {error.diag.message_primary}."
                ) from error
            after = digest_of(connection, dataset, self.archive.chain_id, file.blocks, names)
            if after != before.plus(file.source):
                raise NotRestored(
                    f"{dataset.name} {file.blocks.key} (end not included): the inserted rows are not the ones that "
                    "were deleted. They were not kept. Was a column dropped or changed, or PostgreSQL upgraded, since?"
                )
            self._require_once(connection, dataset, file)
            connection.execute(
                "DELETE FROM compaction.archive_purged_files "
                "WHERE range_id = %s AND version = %s AND dataset = %s AND file = %s",
                (claim.range_id, claim.version, dataset.name, file.name),
            )
        return file.rows

    def _require_once(self, connection: Any, dataset: ArchivedTable, file: ManifestFile) -> None:
        query = sql.SQL(
            "SELECT count(*) FROM "
            "(SELECT 1 FROM {table} AS {row} WHERE {condition} GROUP BY {key} HAVING count(*) > 1) twice"
        ).format(
            table=table_of(dataset),
            row=sql.Identifier(ROW),
            condition=of_range(dataset, self.archive.chain_id, file.blocks),
            key=sql.SQL(", ").join(sql.Identifier(name) for name in dataset.key),
        )
        twice = connection.execute(query).fetchone()[0]
        if twice:
            raise NotRestored(
                f"{dataset.name} {file.blocks.key} (end not included): {twice:,} of the rows to restore are hot "
                "already, written again by somebody. Nothing of this file was inserted. Delete those hot rows first."
            )

    def _copy_in(self, connection: Any, dataset: ArchivedTable, rows: pyarrow.Table) -> None:
        generated = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attgenerated <> ''",
            (table_of(dataset).as_string(None),),
        ).fetchall()
        rows = rows.drop_columns([name for (name,) in generated if name in rows.column_names])
        columns = sql.SQL(", ").join(sql.Identifier(name) for name in rows.column_names)
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(table_of(dataset), columns)
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for batch in rows.to_batches(max_chunksize=10_000):
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    copy.write_row(row)
