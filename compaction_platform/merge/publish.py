"""Merge staged rows into the table: write to a branch, audit it, publish it in one atomic step.

Readers see main only. A merge starts from one snapshot of main, and main moves to the result only if it is
still at that snapshot; otherwise the branch is dropped and the merge is done again from the new main. So two
merges at once, or maintenance in between, cost time and nothing else.
"""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow
from pyiceberg.exceptions import CommitFailedException

from compaction_platform.lake.catalog import open_catalog
from compaction_platform.lake.errors import CompactionError
from compaction_platform.lake.history import published
from compaction_platform.lake.spark import qualified_name
from compaction_platform.merge import sql
from compaction_platform.merge.intake import REPORT_COLUMN, TakenIn
from compaction_platform.merge.newest import newest_of_each_key, partitions_of
from compaction_platform.merge.rules import MergeRules
from compaction_platform.merge.sql import Bounds, quoted

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from compaction_platform.lake.settings import Settings
ATTEMPTS = 5
SHOWN_ROWS = 20
ROWS_HELD_HERE = 20_000_000
# What Spark says when Iceberg's own attempts to commit are used up. (SeaweedFS calls a lost race a bad request.)
CONFLICT_SIGNS = ("CommitFailedException", "CommitStateUnknownException", "last sequence number")
BRANCH_LIFE_MS = 24 * 3600 * 1000  # a branch left by a killed run goes with the next expiry of snapshots
BATCHES_PROPERTY = "compaction.batches"
RUN_PROPERTY = "compaction.run-id"


class AuditFailed(CompactionError):
    """The merged branch is not what it should be. Nothing was published."""

    def __init__(self, message: str, audit: "Audit", rows: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(message)
        self.audit, self.rows = audit, rows


class StagedRowsLost(CompactionError):
    """What Spark holds of the staged files is not what was read from them."""


class TableUnfit(CompactionError):
    """The table is kept in a way a merge cannot be counted in."""


class MergeConflict(CompactionError):
    """Others kept changing the table while we merged. Nothing was published."""


@dataclass(frozen=True)
class Audit:
    """What was counted in the partitions a merge touched, before it was published."""

    rows_before: int = 0
    rows_after: int = 0
    staged_keys: int = 0
    staged_keys_found: int = 0
    wrong_rows: int = 0
    doubled_keys: int = 0

    def problems(self, inserted: int, expected_keys: int) -> list[str]:
        found = []
        if self.staged_keys != expected_keys:
            found.append(f"{expected_keys} staged keys became {self.staged_keys} while merging")
        if self.staged_keys_found != self.staged_keys:
            found.append(f"{self.staged_keys - self.staged_keys_found} staged keys are missing")
        if self.wrong_rows:
            found.append(f"{self.wrong_rows} rows are neither the staged ones nor newer")
        if self.doubled_keys:
            found.append(f"{self.doubled_keys} keys are there more than once")
        if self.rows_before + inserted != self.rows_after:
            found.append(f"{self.rows_before} rows + {inserted} inserted are not {self.rows_after}")
        return found


@dataclass(frozen=True)
class Merged:
    """What a merge did, or in a dry run would do."""

    snapshot_id: int | None
    keys: int = 0
    inserted: int = 0
    updated: int = 0
    bytes_written: int = 0
    published: bool = False
    attempts: int = 0
    audit: Audit | None = None
    partitions: int = 0

    @property
    def unchanged(self) -> int:
        return self.keys - self.inserted - self.updated


def merged_batches(table: "Table") -> set[tuple[str, str]]:
    """Hour and digest of every batch in main's history."""
    return {
        (hour, digest)
        for text in published(table).properties(BATCHES_PROPERTY)
        for hour, digest in json.loads(text).items()
    }


@dataclass(frozen=True)
class Merger:
    """One table, and the Spark session to merge with."""

    rules: MergeRules
    settings: "Settings"
    session: "SparkSession"
    slots: int = 2
    run_id: str = ""
    say: Callable[[str], None] = lambda text: None

    def load_table(self) -> "Table":
        return open_catalog(self.settings).load_table(self.rules.identifier)

    @property
    def name(self) -> str:
        return qualified_name(self.settings, *self.rules.identifier)

    def merge(self, taken: TakenIn, batches: Mapping[str, str], *, dry_run: bool = False) -> Merged:
        """Merge these rows, the batches (digest by hour) of the table's history-to-be."""
        from pyspark.errors import PySparkException

        if taken.count == 0:
            self.say("no row to merge")
            return Merged(self.load_table().metadata.current_snapshot_id)
        with self._staged(taken) as staged:
            for attempt in range(1, ATTEMPTS + 1):
                table = self.load_table()
                self._require_merge_on_read(table)
                bounds = self._bounds(staged, table)
                if dry_run or not published(table).complete:
                    effect = self._effect(staged, bounds, table)
                    if dry_run or effect.inserted + effect.updated == 0:
                        return effect
                try:
                    return self._merge_once(staged, bounds, table, batches, attempt)
                except (CommitFailedException, PySparkException) as failed:
                    if not _is_conflict(failed):
                        raise
                    self.say(
                        f"the table changed while we merged (attempt {attempt}); starting again from its new state"
                    )
        raise MergeConflict(
            f"{self.rules.full_name} changed during each of {ATTEMPTS} attempts to merge. Nothing was published and "
            "nothing is lost; run again when the other writer is done."
        )

    def _require_merge_on_read(self, table: "Table") -> None:
        modes = {table.properties.get(f"write.{verb}.mode") for verb in ("merge", "update", "delete")}
        if modes != {"merge-on-read"}:
            settings = ", ".join(f"'write.{verb}.mode'='merge-on-read'" for verb in ("merge", "update", "delete"))
            raise TableUnfit(
                f"{self.rules.full_name} rewrites whole files when rows change; merging wants merge-on-read. Nothing "
                f"was changed. Set it with: ALTER TABLE {self.name} SET TBLPROPERTIES ({settings})"
            )

    def _merge_once(
        self, staged: "Staged", bounds: Bounds, table: "Table", batches: Mapping[str, str], attempt: int
    ) -> Merged:
        base = table.metadata.current_snapshot_id
        branch = f"merge_{secrets.token_hex(6)}"
        into = f"{self.name}.{quoted(f'branch_{branch}')}"
        self._create_branch(table, branch)
        try:
            with (
                self._stamped({BATCHES_PROPERTY: json.dumps(batches), RUN_PROPERTY: self.run_id}),
                ThreadPoolExecutor(1) as beside,
            ):
                counted_before = beside.submit(self._rows_before, base, bounds)
                if self._has_only_new_keys(staged, bounds, base, counted_before):
                    statement = sql.insert(staged.columns, into=into, staged=staged.view)
                else:
                    statement = sql.merge(self.rules, staged.columns, into=into, staged=staged.view, bounds=bounds)
                self.session.sql(statement, dict(bounds.values)).collect()
                rows_before = counted_before.result()
            table.refresh()
            result = self._counted(table, branch, base, staged, attempt)
            self.say(f"merged into a branch: {result.inserted:,} rows inserted, {result.updated:,} updated; auditing")
            audit = self._audited(staged, bounds, into, rows_before, result)
            if result.inserted + result.updated == 0:
                self.say("every staged row is in the table already; nothing to publish")
                self._drop_branch(table, branch)
                return replace(result, snapshot_id=base, audit=audit)
            self._publish(table, branch, base)
        except BaseException:
            with suppress(Exception):
                self._drop_branch(self.load_table(), branch)
            raise
        self.say(f"published snapshot {result.snapshot_id}")
        return replace(result, published=True, audit=audit)

    # ------------------------------------------------------------ the batch

    @contextmanager
    def _staged(self, taken: TakenIn) -> Iterator["Staged"]:
        """The batch with one row for each key, as a view that lasts until the merge is over."""
        view = f"staged_{secrets.token_hex(6)}"
        if taken.table is not None:
            with self._staged_here(taken.table, taken.columns, view) as staged:
                yield staged
            return
        from pyspark import StorageLevel

        rows_view = f"{view}_rows"
        rows = taken.rows.where(f"{REPORT_COLUMN} IS NULL").drop(REPORT_COLUMN)
        rows.createOrReplaceTempView(rows_view)
        hashes = self._key_hashes(rows_view) if taken.count <= ROWS_HELD_HERE else None
        there = len(hashes) if hashes is not None else rows.count()
        if there != taken.count:
            raise StagedRowsLost(
                f"{taken.count:,} rows were read, {there:,} are left: Spark lost some of them and could not read their "
                "files again. Nothing was merged; run again."
            )
        if hashes is not None and not _has_doubles(hashes):
            newest = rows
        else:
            query = sql.newest_of_each_key(self.rules, taken.columns, rows_view)
            newest = self.session.sql(query).persist(StorageLevel.DISK_ONLY)
        newest.createOrReplaceTempView(view)
        try:
            partitions = self._rows(sql.partitions_of(self.rules, view))
            yield Staged(view, taken.columns, partitions, key_hashes=hashes)
        finally:
            if newest is not rows:
                newest.unpersist()  # while the view it reads from is still known
            self.session.catalog.dropTempView(view)
            self.session.catalog.dropTempView(rows_view)

    def _key_hashes(self, rows: str, bounds: Bounds = sql.NO_BOUNDS) -> Any:
        """A hash of every row's key, sorted. Equal keys have equal hashes."""
        hashes = self.session.sql(sql.key_hashes(self.rules, rows, bounds), dict(bounds.values)).toArrow()
        return numpy.sort(hashes["key_hash"].to_numpy())

    def _has_only_new_keys(
        self, staged: "Staged", bounds: Bounds, base: int | None, rows_before: "Future[int]"
    ) -> bool:
        """Whether a large batch has nothing in common with the table: appending is then much less work."""
        if staged.key_hashes is None:
            return False
        if base is None or rows_before.result() == 0:
            return not _has_doubles(staged.key_hashes)
        if rows_before.result() > ROWS_HELD_HERE or _has_doubles(staged.key_hashes):
            return False
        there = self._key_hashes(f"{self.name} VERSION AS OF {base}", bounds)
        return len(numpy.intersect1d(there, staged.key_hashes)) == 0

    @contextmanager
    def _staged_here(self, rows: pyarrow.Table, columns: pyarrow.Schema, view: str) -> Iterator["Staged"]:
        """A small batch: this process finds the newest rows, and Spark is asked about the table only."""
        newest = newest_of_each_key(self.rules, rows)
        self.session.createDataFrame(newest).createOrReplaceTempView(view)
        partitions = partitions_of(self.rules, newest)
        if partitions is None:
            partitions = self._rows(sql.partitions_of(self.rules, view))
        try:
            with self._configured(
                {
                    "spark.sql.shuffle.partitions": str(self.slots),
                    # The table's side of the join is then not sorted; it is by far the larger one.
                    "spark.sql.join.preferSortMergeJoin": "false",
                    "spark.sql.adaptive.enabled": "false",  # nothing to adapt to that is not known already
                }
            ):
                yield Staged(view, columns, partitions)
        finally:
            self.session.catalog.dropTempView(view)

    def _bounds(self, staged: "Staged", table: "Table") -> Bounds:
        """Literal limits on the partition columns, so that Iceberg opens only the partitions the batch is about."""
        partitions = staged.partitions
        if self.rules.partition_may_change and table.metadata.current_snapshot_id is not None:
            moved_from = f"LEFT SEMI JOIN {staged.view} s ON {sql.same_key(self.rules)}"
            partitions = [*partitions, *self._rows(sql.partitions_of(self.rules, self.name, moved_from))]
        return sql.bounds_of(self.rules, staged.columns, partitions)

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.session.sql(query).collect()]

    # ------------------------------------------------------------ the branch

    def _create_branch(self, table: "Table", branch: str) -> None:
        base = table.metadata.current_snapshot_id
        if base is not None:
            table.manage_snapshots().create_branch(base, branch, max_ref_age_ms=BRANCH_LIFE_MS).commit()
        else:  # only Spark can branch off a table that has no snapshot yet
            self.session.sql(f"ALTER TABLE {self.name} CREATE BRANCH {quoted(branch)} RETAIN 1 DAYS")

    def _drop_branch(self, table: "Table", branch: str) -> None:
        if branch in table.metadata.refs:
            table.manage_snapshots().remove_branch(branch).commit()

    @contextmanager
    def _stamped(self, properties: Mapping[str, str]) -> Iterator[None]:
        """Snapshots written inside carry these properties in their summary."""
        names = {f"spark.sql.iceberg.snapshot-property.{name}": value for name, value in properties.items()}
        with self._configured(names):
            yield

    @contextmanager
    def _configured(self, values: Mapping[str, str]) -> Iterator[None]:
        conf: Any = self.session.conf  # its types do not know that there may be nothing
        before = {name: conf.get(name, None) for name in values}
        for name, value in values.items():
            self.session.conf.set(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    self.session.conf.unset(name)
                else:
                    self.session.conf.set(name, value)

    def _publish(self, table: "Table", branch: str, base: int | None) -> None:
        """Move main to the branch and drop the branch, in one commit that fails if main is not at `base` any more."""
        table.refresh()
        if table.metadata.current_snapshot_id != base:
            raise CommitFailedException("main moved")
        result = table.metadata.refs[branch].snapshot_id
        table.manage_snapshots().set_current_snapshot(result).remove_branch(branch).commit()

    # ------------------------------------------------------------ the proof

    def _counted(self, table: "Table", branch: str, base: int | None, staged: "Staged", attempt: int) -> Merged:
        """What the merge wrote, as its own snapshot tells; the audit counts again for itself."""
        snapshot = table.snapshot_by_name(branch)
        if snapshot is None or snapshot.snapshot_id == base or snapshot.summary is None:
            raise CompactionError(f"the merge into {self.rules.full_name} left no snapshot. Nothing was published.")
        summary = snapshot.summary.additional_properties
        added = int(summary.get("added-records", 0))
        # Iceberg writes a data file's earlier deletes again, together with the new ones.
        updated = int(summary.get("added-position-deletes", 0)) - int(summary.get("removed-position-deletes", 0))
        return Merged(
            snapshot_id=snapshot.snapshot_id,
            keys=staged.keys,
            inserted=added - updated,
            updated=updated,
            bytes_written=int(summary.get("added-files-size", 0)),
            attempts=attempt,
            partitions=len(staged.partitions),
        )

    def _rows_before(self, base: int | None, bounds: Bounds) -> int:
        """Rows in the partitions that will be touched; asked for while the merge runs."""
        if base is None:
            return 0
        query = sql.count_rows(f"{self.name} VERSION AS OF {base}", bounds)
        return int(self.session.sql(query, dict(bounds.values)).collect()[0].n)

    def _audited(self, staged: "Staged", bounds: Bounds, into: str, rows_before: int, result: Merged) -> Audit:
        audit = None
        if rows_before + staged.keys <= ROWS_HELD_HERE:
            audit = self._audit_here(staged, bounds, into, rows_before)
        if audit is None or audit.doubled_keys:
            audit = self._audit_on_spark(staged, bounds, into, rows_before)
        if problems := audit.problems(result.inserted, staged.keys):
            rows = self._evidence(staged, bounds, into)
            raise AuditFailed(
                f"the merge into {self.rules.full_name} did not pass its audit: {'; '.join(problems)}. Nothing was "
                f"published; the table is as it was. Rows: {rows[:5]}",
                audit,
                rows,
            )
        return audit

    def _audit_here(self, staged: "Staged", bounds: Bounds, into: str, rows_before: int) -> Audit:
        """Count from one scan, without a shuffle. Two keys of one hash count as doubled: then Spark looks closer."""
        query = sql.audit_rows(self.rules, staged.columns, result=into, staged=staged.view, bounds=bounds)
        rows = self.session.sql(query, dict(bounds.values)).toArrow()
        hashes = numpy.sort(rows["key_hash"].to_numpy())
        is_staged = rows["staged"].to_numpy()
        right = rows["right"].fill_null(False).to_numpy()
        return Audit(
            rows_before=rows_before,
            rows_after=rows.num_rows,
            staged_keys=staged.keys,
            staged_keys_found=int(is_staged.sum()),
            wrong_rows=int((is_staged & ~right).sum()),
            doubled_keys=_doubles(hashes),
        )

    def _audit_on_spark(self, staged: "Staged", bounds: Bounds, into: str, rows_before: int) -> Audit:
        query = sql.audit(self.rules, staged.columns, result=into, staged=staged.view, bounds=bounds)
        (row,) = self.session.sql(query, dict(bounds.values)).collect()
        return Audit(rows_before=rows_before, **{name: int(value) for name, value in row.asDict().items()})

    def _evidence(self, staged: "Staged", bounds: Bounds, into: str) -> list[dict[str, Any]]:
        arguments = dict(bounds.values)
        wrong = sql.missing_or_wrong(
            self.rules, staged.columns, result=into, staged=staged.view, bounds=bounds, limit=SHOWN_ROWS
        )
        doubled = sql.doubled_keys(self.rules, result=into, bounds=bounds, limit=SHOWN_ROWS)
        rows = [*self.session.sql(wrong, arguments).collect(), *self.session.sql(doubled, arguments).collect()]
        return [row.asDict() for row in rows]

    def missing_or_wrong(self, taken: TakenIn) -> list[dict[str, Any]]:
        """Staged keys that are not in the published table with their content or a newer one, a few of them."""
        with self._staged(taken) as staged:
            bounds = self._bounds(staged, self.load_table())
            query = sql.missing_or_wrong(
                self.rules, staged.columns, result=self.name, staged=staged.view, bounds=bounds, limit=SHOWN_ROWS
            )
            return [row.asDict() for row in self.session.sql(query, dict(bounds.values)).collect()]

    def _effect(self, staged: "Staged", bounds: Bounds, table: "Table") -> Merged:
        to_add = [name for name in staged.columns.names if name not in table.schema().column_names]  # in a dry run
        query = sql.effect(
            self.rules, staged.columns, result=self.name, staged=staged.view, bounds=bounds, to_add=to_add
        )
        (row,) = self.session.sql(query, dict(bounds.values)).collect()
        return Merged(
            table.metadata.current_snapshot_id,
            keys=staged.keys,
            inserted=row.inserted,
            updated=row.updated,
            partitions=len(staged.partitions),
        )


@dataclass(frozen=True)
class Staged:
    """A batch with one row for each key."""

    view: str
    columns: pyarrow.Schema
    partitions: list[tuple[Any, ...]]  # see sql.partitions_of; the last value is the number of keys
    key_hashes: Any | None = None  # of all rows of a large batch, sorted

    @property
    def keys(self) -> int:
        return sum(row[-1] for row in self.partitions)


def _is_conflict(failed: Exception) -> bool:
    """Whether a commit to our branch, or of it, met another commit. The branch is ours alone and is dropped, so doing
    it all again is safe even where it is not known what became of the commit."""
    return isinstance(failed, CommitFailedException) or any(sign in str(failed) for sign in CONFLICT_SIGNS)


def _doubles(ordered: Any) -> int:
    return int((ordered[1:] == ordered[:-1]).sum())


def _has_doubles(ordered: Any) -> bool:
    return _doubles(ordered) > 0
