"""Delete hot rows that are archived: file by file of the manifest, each in one transaction that is rolled back unless
what it deletes is, row for row, what the file holds.

If a table is range-partitioned and partitions cover exactly the range, they are detached and dropped instead, after the
same comparison.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.cold.manifest import Digest, ManifestFile, RangeManifest
from compaction_platform.archive.cold.paths import RangePaths
from compaction_platform.archive.config import ArchivedTable
from compaction_platform.archive.hot.drop_partition import Partition, partitions_that_are
from compaction_platform.archive.hot.foreign_keys import keys_to, purge_order, would_take_along
from compaction_platform.archive.hot.snapshot import ROW, digest_of, of_range, table_of
from compaction_platform.archive.jobs.reach import ArchiveContext
from compaction_platform.archive.ledger.lease import LeaseLost, RangeLease
from compaction_platform.archive.ledger.range_version import RangeVersion
from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage.object_store import ObjectMissing

LOCK_TIMEOUT = "5s"
AGAIN = (
    "Materialize the range again to archive the rows as they are now. If it is then kept as it is, because other files "
    "of it are purged already: `compaction archive restore` brings their rows back first."
)


class NotArchived(CompactionError):
    """There is no committed version of the range."""


class HotRowsDiffer(CompactionError):
    """The hot rows are not what is archived. They were not deleted."""


class ColdFileDiffers(CompactionError):
    """A cold file is not what the manifest says. Nothing was deleted."""


class WouldDeleteMore(CompactionError):
    """Deleting these rows would delete or change rows that are not archived."""


class TableBusy(CompactionError):
    """Others read the table, and its partitions cannot be dropped now."""


class NotTheirPartitions(Exception):
    """The rows are elsewhere than in the partitions that were dropped; it is undone."""


@dataclass(frozen=True)
class Purged:
    blocks: BlockRange
    version: int
    rows: dict[str, int] = field(default_factory=dict)  # deleted by this run, by dataset
    dropped: tuple[str, ...] = ()  # partitions
    why: str = ""


@dataclass(frozen=True)
class PurgeRun(ArchiveContext):
    say: Callable[[str], None] = lambda text: None
    owner: str = ""

    def run(self, blocks: BlockRange) -> Purged:
        self.ownership.require()
        version = self.ledger.live(blocks)
        if version is None:
            raise NotArchived(f"blocks {blocks.key} (end not included) are not archived. Nothing was deleted.")
        if version.invalid_because is not None:
            raise NotArchived(
                f"version {version.version} of blocks {blocks.key} (end not included) is marked invalid "
                f"({version.invalid_because}). Nothing was deleted. Archive the range again with a reason first."
            )
        if version.withheld_because is not None:
            raise NotArchived(
                f"the purge of blocks {blocks.key} (end not included) is withheld: {version.withheld_because}. Nothing "
                f"was deleted. `compaction archive believe {self.archive.chain} {blocks.key}` lets it go on."
            )
        if version.state == "purged":
            return Purged(blocks, version.version, why="purged already")
        claim = self.ledger.claim_purge(version, self.owner)
        try:
            self.ownership.announce("purge", blocks, version.version)
            done = self._purge(claim, version)
            claim.purged(lambda connection: self._require_nothing_left(connection, version))
        except LeaseLost:
            raise
        except BaseException as error:
            try:
                claim.let_go(f"{type(error).__name__}: {error}")
            except CompactionError:
                self.say("the hot database does not answer; the claim on the range ends by itself")
            raise
        self.say(f"purged {sum(done.rows.values()):,} hot rows of blocks {blocks.key} (end not included)")
        return done

    def _purge(self, claim: RangeLease, version: RangeVersion) -> Purged:
        done = self.ledger.purged_files(version)
        left = {
            name: [file for file in manifest.files if (name, file.name) not in done]
            for name, manifest in version.manifests.items()
        }
        for name, files in left.items():  # all of them, before the first row goes
            for file in files:
                self._require_cold(version.manifests[name], file)
        with claim.held() as connection:
            order = purge_order(connection, [each for each in self.archive.datasets if each.name in left])
        rows: dict[str, int] = {}
        dropped: list[str] = []
        for dataset in order:
            manifest = version.manifests[dataset.name]
            if left[dataset.name] == list(manifest.files):
                count, tables = self._drop(claim, dataset, manifest)
                if tables:
                    rows[dataset.name] = count
                    dropped += tables
                    continue
            for file in left[dataset.name]:
                rows[dataset.name] = rows.get(dataset.name, 0) + self._delete(claim, dataset, manifest, file)
        return Purged(version.blocks, version.version, rows, tuple(dropped))

    def _require_nothing_left(self, connection: Any, version: RangeVersion) -> None:
        """Rows that were added to blocks after those were deleted are in no cold file."""
        for dataset in self.archive.datasets:
            if dataset.name not in version.manifests:
                continue
            self._lock(connection, dataset.table, "SHARE")
            found = digest_of(connection, dataset, self.archive.chain_id, version.blocks)
            if found.rows:
                raise HotRowsDiffer(
                    f"{dataset.name} has {found.rows:,} new hot rows of blocks {version.blocks.key} (end not "
                    f"included), which were purged a moment ago. They were not deleted. {self._way_out(version)}"
                )

    def _way_out(self, version: RangeVersion) -> str:
        return (
            f"`compaction archive restore {self.archive.chain} {version.blocks.key}` brings back the rows that were "
            "deleted; then materialize the range again to archive all rows as they are now."
        )

    def _require_cold(self, manifest: RangeManifest, file: ManifestFile) -> None:
        """The cold file is still there, byte for byte: from now on it is the only copy."""
        key = RangePaths(self.archive.chain, manifest.dataset, manifest.blocks).visible(file.name)
        try:
            found = hashlib.sha256(self.store.read(key)).hexdigest()
        except ObjectMissing:
            found = "gone"
        if found != file.sha256:
            raise ColdFileDiffers(
                f"{self.store.uri}/{key} is not what was committed ({found[:12]} instead of {file.sha256[:12]}). No "
                "hot row of it was deleted. Archive the range again, giving a reason."
            )

    def _require_still_there(self, manifest: RangeManifest, file: ManifestFile) -> None:
        """A last look: it was read and compared a while ago."""
        key = RangePaths(self.archive.chain, manifest.dataset, manifest.blocks).visible(file.name)
        stored = self.store.stat(key)
        if stored is None or stored.size != file.size:
            raise ColdFileDiffers(
                f"{self.store.uri}/{key} was what was committed when the purge began, and is "
                f"{'gone' if stored is None else 'another'} now. No hot row of it was deleted. Archive the range "
                "again, giving a reason."
            )

    # ------------------------------------------------------------ rows

    def _delete(self, claim: RangeLease, dataset: ArchivedTable, manifest: RangeManifest, file: ManifestFile) -> int:
        with claim.held() as connection:
            self._require_still_there(manifest, file)
            self._require_nothing_else_goes(connection, dataset, file.blocks)
            expected = self._expected(connection, dataset, manifest, file.blocks, file.source)
            row = sql.Identifier(ROW)
            statement = sql.SQL(
                "WITH gone AS (DELETE FROM {table} AS {row} WHERE {condition} "
                "RETURNING hash_record_extended({row}, 0) AS hash) "
                "SELECT count(*), coalesce(sum(hash::numeric), 0) FROM gone"
            ).format(table=table_of(dataset), row=row, condition=of_range(dataset, self.archive.chain_id, file.blocks))
            count, total = connection.execute(statement).fetchone() or (0, 0)
            self._require_same(dataset, file.blocks, expected, Digest(rows=count, sum=str(total)))
            self._record(connection, claim, dataset, [file])
            self.ownership.require()
        return int(count)

    def _expected(
        self, connection: Any, dataset: ArchivedTable, manifest: RangeManifest, blocks: BlockRange, source: Digest
    ) -> Digest:
        """What the rows to go must be. PostgreSQL's digests hold within one major version: after an upgrade the rows
        cannot be compared this way, and stay."""
        server = connection.execute("SELECT current_setting('server_version_num')::int / 10000").fetchone()[0]
        if server != manifest.source.server:
            raise HotRowsDiffer(
                f"{dataset.name} {blocks.key} was archived from PostgreSQL {manifest.source.server}, this is {server}: "
                f"their row digests cannot be compared. Nothing of it was deleted. {AGAIN}"
            )
        return source

    def _require_same(self, dataset: ArchivedTable, blocks: BlockRange, expected: Digest, found: Digest) -> None:
        if found == expected:
            return
        what = (
            f"{found.rows:,} hot rows, {expected.rows:,} archived"
            if found.rows != expected.rows
            else f"{found.rows:,} rows on both sides, but not the same ones"
        )
        raise HotRowsDiffer(
            f"{dataset.name}, blocks {blocks.key} (end not included): {what}. A row was added, changed or deleted "
            f"after the copy. Nothing of these blocks was deleted. {AGAIN}"
        )

    def _record(
        self, connection: Any, claim: RangeLease, dataset: ArchivedTable, files: Sequence[ManifestFile]
    ) -> None:
        for file in files:
            connection.execute(
                "INSERT INTO compaction.archive_purged_files (range_id, version, dataset, file, rows) "
                "VALUES (%s, %s, %s, %s, %s)",
                (claim.range_id, claim.version, dataset.name, file.name, file.rows),
            )

    def _require_nothing_else_goes(self, connection: Any, dataset: ArchivedTable, blocks: BlockRange) -> None:
        """No foreign key deletes or changes other rows along with these."""
        for key in keys_to(connection, dataset):
            if not key.changes_rows:
                continue  # PostgreSQL itself refuses
            if not key.to_itself:
                self._lock(connection, key.table, "SHARE ROW EXCLUSIVE")
            query = would_take_along(key, dataset, self.archive.chain_id, blocks)
            if connection.execute(query).fetchone()[0]:
                raise WouldDeleteMore(
                    f"rows of {'.'.join(key.table)} refer to rows of {'.'.join(dataset.table)} in blocks {blocks.key} "
                    "(end not included), and would be deleted or changed along with them (ON DELETE CASCADE, SET NULL "
                    f"or SET DEFAULT). Nothing of these blocks was deleted. If they came late: {AGAIN} Otherwise "
                    "archive that table, too, or change its foreign key."
                )

    # ------------------------------------------------------------ partitions

    def _drop(self, claim: RangeLease, dataset: ArchivedTable, manifest: RangeManifest) -> tuple[int, list[str]]:
        """Drop the partitions that are the range, if there are such and they hold these rows and nothing else."""
        chain_id, blocks = self.archive.chain_id, manifest.blocks
        with claim.held() as connection:
            partitions = partitions_that_are(connection, dataset, chain_id, blocks)
            if not partitions:
                return 0, []
            self.ownership.require()  # not under the lock: the store may be slow
            for file in manifest.files:
                self._require_still_there(manifest, file)
            self._lock(connection, dataset.table, "ACCESS EXCLUSIVE")
            self._require_nothing_else_goes(connection, dataset, blocks)
            if any(self._holds_others(connection, dataset, blocks, each) for each in partitions):
                return 0, []
            expected = self._expected(connection, dataset, manifest, blocks, manifest.source.digest)
            found = digest_of(connection, dataset, chain_id, blocks)
            self._require_same(dataset, blocks, expected, found)
            try:
                with connection.transaction():
                    for partition in partitions:
                        table, parent = sql.Identifier(*partition.table), sql.Identifier(*partition.parent)
                        connection.execute(sql.SQL("ALTER TABLE {} DETACH PARTITION {}").format(parent, table))
                        connection.execute(sql.SQL("DROP TABLE {}").format(table))
                    if digest_of(connection, dataset, chain_id, blocks).rows:
                        raise NotTheirPartitions
            except NotTheirPartitions:
                return 0, []
            self._record(connection, claim, dataset, manifest.files)
        return found.rows, [partition.name for partition in partitions]

    def _holds_others(self, connection: Any, dataset: ArchivedTable, blocks: BlockRange, partition: Partition) -> bool:
        """Rows of another chain, or of blocks outside the range."""
        query = sql.SQL("SELECT EXISTS (SELECT 1 FROM {table} AS {row} WHERE ({condition}) IS NOT TRUE)").format(
            table=sql.Identifier(*partition.table),
            row=sql.Identifier(ROW),
            condition=of_range(dataset, self.archive.chain_id, blocks),
        )
        return bool(connection.execute(query).fetchone()[0])

    def _lock(self, connection: Any, table: tuple[str, str], mode: LiteralString) -> None:
        """Whoever waits for such a lock holds up all who come after, so it does not wait for long."""
        connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(LOCK_TIMEOUT)))
        try:
            connection.execute(sql.SQL("LOCK TABLE {} IN {} MODE").format(sql.Identifier(*table), sql.SQL(mode)))
        except psycopg.errors.LockNotAvailable:
            raise TableBusy(
                f"{'.'.join(table)} is in use by others, and could not be locked within {LOCK_TIMEOUT}. "
                "Nothing was deleted from it; run again later."
            ) from None
