"""Delete hot rows that are archived: file by file of the manifest, each in one transaction that is rolled back unless
what it deletes is, row for row, what the file holds.

If a table is range-partitioned and partitions cover exactly the range, they are detached and dropped instead, after the
same comparison.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from compaction_platform.archive.chain import Archive, Dataset
from compaction_platform.archive.hot import ROW, digest_of, hot_url, of_range, table_of
from compaction_platform.archive.layout import Place
from compaction_platform.archive.ledger import Claim, FenceLost, Ledger, Version
from compaction_platform.archive.manifest import Digest, Manifest, ManifestFile
from compaction_platform.archive.partition_drop import Partition, partitions_that_are
from compaction_platform.archive.ranges import BlockRange
from compaction_platform.lake.errors import CompactionError
from compaction_platform.lake.objects import ObjectMissing, Objects
from compaction_platform.lake.settings import Settings

DROP_LOCK_TIMEOUT = "5s"


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


@dataclass(frozen=True)
class Purged:
    blocks: BlockRange
    version: int
    rows: dict[str, int] = field(default_factory=dict)  # deleted by this run, by dataset
    dropped: tuple[str, ...] = ()  # partitions
    why: str = ""


@dataclass(frozen=True)
class PurgeRun:
    archive: Archive
    settings: Settings
    say: Callable[[str], None] = lambda text: None
    owner: str = ""

    @property
    def url(self) -> str:
        return hot_url(self.archive, self.settings)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.url, self.archive.chain_id)

    @property
    def store(self) -> Objects:
        return Objects.at(self.settings.place(self.archive.uri), self.settings)

    def run(self, blocks: BlockRange) -> Purged:
        version = self.ledger.live(blocks)
        if version is None:
            raise NotArchived(f"blocks {blocks.key} (end not included) are not archived. Nothing was deleted.")
        if version.invalid_because is not None:
            raise NotArchived(
                f"version {version.version} of blocks {blocks.key} (end not included) is marked invalid "
                f"({version.invalid_because}). Nothing was deleted. Archive the range again with a reason first."
            )
        if version.state == "purged":
            return Purged(blocks, version.version, why="purged already")
        claim = self.ledger.claim_purge(version, self.owner)
        try:
            done = self._purge(claim, version)
            claim.purged()
        except FenceLost:
            raise
        except BaseException as error:
            try:
                claim.let_go(f"{type(error).__name__}: {error}")
            except CompactionError:
                self.say("the hot database does not answer; the claim on the range ends by itself")
            raise
        self.say(f"purged {sum(done.rows.values()):,} hot rows of blocks {blocks.key} (end not included)")
        return done

    def _purge(self, claim: Claim, version: Version) -> Purged:
        rows: dict[str, int] = {}
        dropped: list[str] = []
        done = self.ledger.purged_files(version)
        # Those that refer to blocks first: the other way round, foreign keys would refuse or, worse, cascade.
        for dataset in reversed(self.archive.datasets):
            manifest = version.manifests.get(dataset.name)
            if manifest is None:
                continue
            left = [file for file in manifest.files if (dataset.name, file.name) not in done]
            for file in left:
                self._require_cold(manifest, file)
            if left == list(manifest.files) and (partitions := self._droppable(claim, dataset, manifest)):
                rows[dataset.name] = self._drop(claim, dataset, manifest, partitions)
                dropped += [partition.name for partition in partitions]
                continue
            for file in left:
                rows[dataset.name] = rows.get(dataset.name, 0) + self._delete(claim, dataset, manifest, file)
        return Purged(version.blocks, version.version, rows, tuple(dropped))

    def _require_cold(self, manifest: Manifest, file: ManifestFile) -> None:
        """The cold file is still there, byte for byte: from now on it is the only copy."""
        key = Place(self.archive.chain, manifest.dataset, manifest.blocks).visible(file.name)
        try:
            found = hashlib.sha256(self.store.read(key)).hexdigest()
        except ObjectMissing:
            found = "gone"
        if found != file.sha256:
            raise ColdFileDiffers(
                f"{self.store.uri}/{key} is not what was committed ({found[:12]} instead of {file.sha256[:12]}). No "
                "hot row of it was deleted. Archive the range again, giving a reason."
            )

    # ------------------------------------------------------------ rows

    def _delete(self, claim: Claim, dataset: Dataset, manifest: Manifest, file: ManifestFile) -> int:
        with claim.held() as connection:
            self._require_nothing_else_goes(connection, dataset)
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
        return int(count)

    def _expected(
        self, connection: Any, dataset: Dataset, manifest: Manifest, blocks: BlockRange, source: Digest
    ) -> Digest:
        """What the rows to go must be. PostgreSQL's digests hold within one major version: after an upgrade the rows
        cannot be compared this way, and stay."""
        server = connection.execute("SELECT current_setting('server_version_num')::int / 10000").fetchone()[0]
        if server != manifest.source.server:
            raise HotRowsDiffer(
                f"{dataset.name} {blocks.key} was archived from PostgreSQL {manifest.source.server}, this is {server}: "
                "their row digests cannot be compared. Nothing was deleted. Materialize the range again: "
                "it takes a fresh digest."
            )
        return source

    def _require_same(self, dataset: Dataset, blocks: BlockRange, expected: Digest, found: Digest) -> None:
        if found == expected:
            return
        what = (
            f"{found.rows:,} hot rows, {expected.rows:,} archived"
            if found.rows != expected.rows
            else f"{found.rows:,} rows on both sides, but not the same ones"
        )
        raise HotRowsDiffer(
            f"{dataset.name}, blocks {blocks.key} (end not included): {what}. A row was added, changed or deleted "
            "after the copy. Nothing of these blocks was deleted. Materialize the range again to archive the rows as "
            "they are now; if rows are missing on purpose, give a reason."
        )

    def _record(self, connection: Any, claim: Claim, dataset: Dataset, files: Sequence[ManifestFile]) -> None:
        for file in files:
            connection.execute(
                "INSERT INTO compaction.archive_purged_files (range_id, version, dataset, file, rows) "
                "VALUES (%s, %s, %s, %s, %s)",
                (claim.range_id, claim.version, dataset.name, file.name, file.rows),
            )

    def _require_nothing_else_goes(self, connection: Any, dataset: Dataset) -> None:
        """No table that is not archived has a foreign key that would delete or change its rows along with ours."""
        archived = [".".join(each.table) for each in self.archive.datasets]
        found = connection.execute(
            """
            SELECT DISTINCT n.nspname || '.' || c.relname
            FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE k.contype = 'f' AND k.confrelid = %s::regclass AND k.confdeltype IN ('c', 'n', 'd')
              AND NOT c.relispartition AND n.nspname || '.' || c.relname <> ALL(%s)""",
            (table_of(dataset).as_string(None), archived),
        ).fetchall()
        if found:
            raise WouldDeleteMore(
                f"{', '.join(name for (name,) in found)} refers to {'.'.join(dataset.table)} with ON DELETE CASCADE or "
                "SET NULL, and is not archived: deleting would take its rows along. Nothing was deleted. Archive that "
                "table, too, or change its foreign key."
            )

    # ------------------------------------------------------------ partitions

    def _droppable(self, claim: Claim, dataset: Dataset, manifest: Manifest) -> list[Partition]:
        with claim.held() as connection:
            return partitions_that_are(connection, dataset, self.archive.chain_id, manifest.blocks)

    def _drop(self, claim: Claim, dataset: Dataset, manifest: Manifest, partitions: Sequence[Partition]) -> int:
        with claim.held() as connection:
            self._lock(connection, dataset, partitions)
            expected = self._expected(connection, dataset, manifest, manifest.blocks, manifest.source.digest)
            found = digest_of(connection, dataset, self.archive.chain_id, manifest.blocks)
            self._require_same(dataset, manifest.blocks, expected, found)
            others = sum(_count(connection, partition) for partition in partitions) - found.rows
            if others:
                raise WouldDeleteMore(
                    f"the partitions of {'.'.join(dataset.table)} for blocks {manifest.blocks.key} (end not included) "
                    f"hold {others:,} rows of other chains. Nothing was dropped."
                )
            for partition in partitions:
                table, parent = sql.Identifier(*partition.table), sql.Identifier(*partition.parent)
                connection.execute(sql.SQL("ALTER TABLE {} DETACH PARTITION {}").format(parent, table))
                connection.execute(sql.SQL("DROP TABLE {}").format(table))
            self._record(connection, claim, dataset, manifest.files)
        return found.rows

    def _lock(self, connection: Any, dataset: Dataset, partitions: Sequence[Partition]) -> None:
        """Nobody reads or writes these partitions while they are compared and dropped. Whoever waits for such a lock
        holds up all who come after, so it does not wait for long."""
        connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(DROP_LOCK_TIMEOUT)))
        try:
            connection.execute(sql.SQL("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE").format(table_of(dataset)))
            for partition in partitions:
                table = sql.Identifier(*partition.table)
                connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(table))
        except psycopg.errors.LockNotAvailable:
            raise TableBusy(
                f"{'.'.join(dataset.table)} is being read by others, and its partitions cannot be dropped under them. "
                "Nothing was dropped; run again later."
            ) from None


def _count(connection: Any, partition: Partition) -> int:
    query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(*partition.table))
    return int((connection.execute(query).fetchone() or (0,))[0])
