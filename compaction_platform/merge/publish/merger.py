"""Merge staged rows into the table: write to a branch, audit it, publish it in one atomic step.

Readers see main only. A merge starts from one snapshot of main, and main moves to the result only if it is
still at that snapshot; otherwise the branch is dropped and the merge is done again from the new main. So two
merges at once, or maintenance in between, cost time and nothing else.
"""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow
from pyiceberg.exceptions import CommitFailedException

from compaction_platform.errors import CompactionError
from compaction_platform.lake.iceberg.branches import append, create_branch, drop_branch, publish_branch
from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.lake.iceberg.data_file_writer import NotWritable
from compaction_platform.lake.iceberg.history import published
from compaction_platform.lake.iceberg.table_scan import NotReadable, TableRows
from compaction_platform.lake.iceberg.types import arrow_schema
from compaction_platform.lake.spark.session import qualified_name
from compaction_platform.lake.storage.identifiers import quoted
from compaction_platform.lake.storage.retry import attempts
from compaction_platform.merge.config import MergeRules
from compaction_platform.merge.intake.intake import IntakeResult
from compaction_platform.merge.plan.partition_bounds import Bounds, bounds_of
from compaction_platform.merge.publish import sql
from compaction_platform.merge.publish.audit import (
    AuditFailed,
    MergeAudit,
    audit_of_appended,
    audit_of_merged,
    hashes_without,
)
from compaction_platform.merge.publish.batch import StagedBatch, staged_batch
from compaction_platform.persisted_names import MERGE_RUN, MERGED_BATCHES

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from compaction_platform.settings import Settings

ATTEMPTS = 5
SHOWN_ROWS = 20
ROWS_READ_HERE = 20_000_000  # of touched partitions, by this process instead of Spark: a few seconds
# What Spark says when Iceberg's own attempts to commit are used up. (SeaweedFS calls a lost race a bad request.)
CONFLICT_SIGNS = ("CommitFailedException", "CommitStateUnknownException", "last sequence number")


class TargetUnfit(CompactionError):
    """The table is kept in a way a merge cannot be counted in."""


class MergeConflict(CompactionError):
    """Others kept changing the table while we merged. Nothing was published."""


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
    audit: MergeAudit | None = None
    partitions: int = 0

    @property
    def unchanged(self) -> int:
        return self.keys - self.inserted - self.updated


def merged_batches(table: "Table") -> set[tuple[str, str]]:
    """Hour and digest of every batch in main's history."""
    return {
        (hour, digest)
        for text in published(table).properties(MERGED_BATCHES)
        for hour, digest in json.loads(text).items()
    }


@dataclass(frozen=True)
class MergeAttempt:
    """One merge of a batch, from one state of main."""

    batch: StagedBatch
    table: "Table"
    bounds: Bounds
    before: TableRows  # in the partitions the batch is about
    number: int
    properties: Mapping[str, str]

    @property
    def base(self) -> int | None:
        return self.before.snapshot_id


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

    def merge(self, taken: IntakeResult, batches: Mapping[str, str], *, dry_run: bool = False) -> Merged:
        """Merge these rows, the batches (digest by hour) of the table's history-to-be."""
        from pyspark.errors import PySparkException

        if taken.count == 0:
            self.say("no row to merge")
            return Merged(self.load_table().metadata.current_snapshot_id)
        properties = {MERGED_BATCHES: json.dumps(batches), MERGE_RUN: self.run_id}
        with self._batch(taken) as batch:
            for number in attempts(ATTEMPTS):
                table = self.load_table()
                self._require_merge_on_read(table)
                try:
                    bounds = self._bounds(batch, table)
                    before = TableRows(table, table.metadata.current_snapshot_id, bounds.as_filter())
                    attempt = MergeAttempt(batch, table, bounds, before, number, properties)
                    return self._effect(attempt) if dry_run else self._merge_once(attempt)
                except (CommitFailedException, PySparkException) as failed:
                    if not _is_conflict(failed):
                        raise
                    self.say(f"the table changed while we merged (attempt {number}); starting again from its new state")
        raise MergeConflict(
            f"{self.rules.full_name} changed during each of {ATTEMPTS} attempts to merge. Nothing was published and "
            "nothing is lost; run again when the other writer is done."
        )

    def missing_or_wrong(self, taken: IntakeResult) -> list[dict[str, Any]]:
        """Staged keys that are not in the published table with their content or a newer one, a few of them."""
        with self._batch(taken) as batch:
            bounds = self._bounds(batch, self.load_table())
            query = sql.missing_or_wrong(
                self.rules, batch.columns, result=self.name, staged=batch.view, bounds=bounds, limit=SHOWN_ROWS
            )
            return [row.asDict() for row in self.session.sql(query, bounds.values).collect()]

    @contextmanager
    def _batch(self, taken: IntakeResult) -> Iterator[StagedBatch]:
        table = self.load_table()
        with (
            staged_batch(self.rules, self.settings, self.session, self.slots, taken, table) as batch,
            self._configured(batch.spark_settings),
        ):
            yield batch

    def _require_merge_on_read(self, table: "Table") -> None:
        modes = {table.properties.get(f"write.{verb}.mode") for verb in ("merge", "update", "delete")}
        if modes != {"merge-on-read"}:
            settings = ", ".join(f"'write.{verb}.mode'='merge-on-read'" for verb in ("merge", "update", "delete"))
            raise TargetUnfit(
                f"{self.rules.full_name} rewrites whole files when rows change; merging wants merge-on-read. Nothing "
                f"was changed. Set it with: ALTER TABLE {self.name} SET TBLPROPERTIES ({settings})"
            )

    def _bounds(self, batch: StagedBatch, table: "Table") -> Bounds:
        """Literal limits on the partition columns, so that Iceberg opens only the partitions the batch is about."""
        partitions = batch.partitions
        if self.rules.partition_may_change and table.metadata.current_snapshot_id is not None:
            moved_from = f"LEFT SEMI JOIN {batch.view} s ON {sql.same_key(self.rules)}"
            query = sql.partitions_of(self.rules, self.name, moved_from)
            partitions = [*partitions, *(tuple(row) for row in self.session.sql(query).collect())]
        return bounds_of(self.rules, batch.columns, partitions)

    # ------------------------------------------------------------ what is done

    def _merge_once(self, attempt: MergeAttempt) -> Merged:
        hashes_before = self._hashes_if_all_keys_are_new(attempt)
        files = self._data_files(attempt) if hashes_before is not None else None
        if files is None and not published(attempt.table).complete:
            effect = self._effect(attempt)
            if effect.inserted + effect.updated == 0:
                return effect
        branch = f"merge_{secrets.token_hex(6)}"
        try:
            result = (
                self._merge_on_spark(attempt, branch)
                if files is None
                else self._append(attempt, branch, files, hashes_before)
            )
            if result.inserted + result.updated == 0:
                self.say("every staged row is in the table already; nothing to publish")
                drop_branch(attempt.table, branch)
                return replace(result, snapshot_id=attempt.base)
            self._publish(attempt, branch, result)
        except BaseException:
            with suppress(Exception):
                drop_branch(self.load_table(), branch)
            raise
        self.say(f"published snapshot {result.snapshot_id}")
        return replace(result, published=True)

    def _hashes_if_all_keys_are_new(self, attempt: MergeAttempt) -> Any | None:
        """The hashes of the keys in the touched partitions, if none of the batch is there; None if one may be."""
        hashes = attempt.batch.key_hashes
        if hashes is None or not attempt.batch.makes_good_files or self.rules.partition_may_change:
            return None
        kinds = [attempt.batch.columns.field(name).type for name in self.rules.key]
        now = arrow_schema(attempt.table.schema().select(*self.rules.key))
        if kinds != [now.field(name).type for name in self.rules.key] or any(map(pyarrow.types.is_floating, kinds)):
            return None  # equal keys of two types have different hashes, and there are two zeros
        try:
            if attempt.before.rows_at_most > ROWS_READ_HERE:
                return None
            return hashes_without(self.rules, attempt.before, hashes)
        except NotReadable:
            return None

    def _data_files(self, attempt: MergeAttempt) -> "list[DataFile] | None":
        try:
            return attempt.batch.data_files(attempt.table)
        except NotWritable:
            return None

    def _append(self, attempt: MergeAttempt, branch: str, files: "list[DataFile]", hashes_before: Any) -> Merged:
        """Every key is new: the batch becomes data files of the table as it is."""
        written_for = attempt.table.metadata
        try:
            create_branch(attempt.table, branch, self.session, self.name)
            append(attempt.table, branch, files, attempt.properties, written_for)
        except CommitFailedException:
            attempt.batch.take_back(files)  # nothing refers to them
            raise
        result = self._counted(attempt, branch)
        self.say(f"appended to a branch: {result.inserted:,} rows, all of new keys; auditing")
        return self._audited(
            attempt,
            branch,
            result,
            lambda: self._audit_of_appended(attempt, branch, files, hashes_before),
        )

    def _audit_of_appended(
        self, attempt: MergeAttempt, branch: str, files: "list[DataFile]", hashes_before: Any
    ) -> MergeAudit:
        hashes: Any = attempt.batch.key_hashes
        try:
            return audit_of_appended(self._after(attempt, branch), files, hashes_before, hashes)
        except NotReadable:
            return self._audit_on_spark(attempt, branch, len(hashes_before))

    def _merge_on_spark(self, attempt: MergeAttempt, branch: str) -> Merged:
        batch, bounds = attempt.batch, attempt.bounds
        create_branch(attempt.table, branch, self.session, self.name)
        statement = sql.merge(self.rules, batch.columns, into=self._in_branch(branch), staged=batch.view, bounds=bounds)
        with self._stamped(attempt.properties), ThreadPoolExecutor(1) as beside:
            counted_before = beside.submit(self._rows_before, attempt)
            self.session.sql(statement, bounds.values).collect()
            rows_before = counted_before.result()
        attempt.table.refresh()
        result = self._counted(attempt, branch)
        self.say(f"merged into a branch: {result.inserted:,} rows inserted, {result.updated:,} updated; auditing")
        return self._audited(attempt, branch, result, lambda: self._audit_of_merged(attempt, branch, rows_before))

    # ------------------------------------------------------------ the branch

    def _in_branch(self, branch: str) -> str:
        return f"{self.name}.{quoted(f'branch_{branch}')}"

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

    def _publish(self, attempt: MergeAttempt, branch: str, result: Merged) -> None:
        assert result.snapshot_id is not None  # noqa: S101 (for the type checker: `_counted` has seen it)
        publish_branch(attempt.table, branch, attempt.base, result.snapshot_id)

    # ------------------------------------------------------------ the proof

    def _counted(self, attempt: MergeAttempt, branch: str) -> Merged:
        """What the merge wrote, as its own snapshot tells; the audit counts again for itself."""
        snapshot = attempt.table.snapshot_by_name(branch)
        if snapshot is None or snapshot.snapshot_id == attempt.base or snapshot.summary is None:
            raise CompactionError(f"the merge into {self.rules.full_name} left no snapshot. Nothing was published.")
        summary = snapshot.summary.additional_properties
        added = int(summary.get("added-records", 0))
        # Iceberg writes a data file's earlier deletes again, together with the new ones.
        updated = int(summary.get("added-position-deletes", 0)) - int(summary.get("removed-position-deletes", 0))
        return Merged(
            snapshot_id=snapshot.snapshot_id,
            keys=attempt.batch.keys,
            inserted=added - updated,
            updated=updated,
            bytes_written=int(summary.get("added-files-size", 0)),
            attempts=attempt.number,
            partitions=len(attempt.batch.partitions),
        )

    def _after(self, attempt: MergeAttempt, branch: str) -> TableRows:
        """What a reader of the branch sees now."""
        attempt.table.refresh()
        return replace(attempt.before, snapshot_id=attempt.table.metadata.refs[branch].snapshot_id)

    def _rows_before(self, attempt: MergeAttempt) -> int:
        """Rows in the partitions that will be touched; asked for while the merge runs."""
        if attempt.base is None:
            return 0
        try:
            return attempt.before.count()
        except NotReadable:
            query = sql.count_rows(f"{self.name} VERSION AS OF {attempt.base}", attempt.bounds)
            return int(self.session.sql(query, attempt.bounds.values).collect()[0].n)

    def _audit_of_merged(self, attempt: MergeAttempt, branch: str, rows_before: int) -> MergeAudit:
        batch = attempt.batch
        if batch.rows is not None and batch.key_hashes is not None:
            with suppress(NotReadable, pyarrow.ArrowNotImplementedError):
                after = self._after(attempt, branch)
                if after.rows_at_most <= ROWS_READ_HERE:
                    audit = audit_of_merged(self.rules, after, batch.rows, batch.key_hashes, rows_before)
                    if not audit.unsure:
                        return audit
                    self.say("the audit wants a second look; Spark counts again")
        return self._audit_on_spark(attempt, branch, rows_before)

    def _audit_on_spark(self, attempt: MergeAttempt, branch: str, rows_before: int) -> MergeAudit:
        batch = attempt.batch
        query = sql.audit(
            self.rules, batch.columns, result=self._in_branch(branch), staged=batch.view, bounds=attempt.bounds
        )
        (row,) = self.session.sql(query, attempt.bounds.values).collect()
        counts: dict[str, Any] = {name: int(value) for name, value in row.asDict().items()}
        return MergeAudit(rows_before=rows_before, **counts)

    def _audited(
        self, attempt: MergeAttempt, branch: str, result: Merged, take_audit: Callable[[], MergeAudit]
    ) -> Merged:
        audit = take_audit()
        if problems := audit.problems(result.inserted, attempt.batch.keys):
            rows = self._evidence(attempt, branch)
            raise AuditFailed(
                f"the merge into {self.rules.full_name} did not pass its audit: {'; '.join(problems)}. Nothing was "
                f"published; the table is as it was. Rows: {rows[:5]}",
                audit,
                rows,
            )
        return replace(result, audit=audit)

    def _evidence(self, attempt: MergeAttempt, branch: str) -> list[dict[str, Any]]:
        batch, bounds, result = attempt.batch, attempt.bounds, self._in_branch(branch)
        wrong = sql.missing_or_wrong(
            self.rules, batch.columns, result=result, staged=batch.view, bounds=bounds, limit=SHOWN_ROWS
        )
        doubled = sql.doubled_keys(self.rules, result=result, bounds=bounds, limit=SHOWN_ROWS)
        return [row.asDict() for query in (wrong, doubled) for row in self.session.sql(query, bounds.values).collect()]

    def _effect(self, attempt: MergeAttempt) -> Merged:
        """What a merge would do."""
        batch, table = attempt.batch, attempt.table
        to_add = [name for name in batch.columns.names if name not in table.schema().column_names]  # in a dry run
        query = sql.effect(
            self.rules, batch.columns, result=self.name, staged=batch.view, bounds=attempt.bounds, to_add=to_add
        )
        (row,) = self.session.sql(query, attempt.bounds.values).collect()
        return Merged(
            attempt.base,
            keys=batch.keys,
            inserted=row.inserted,
            updated=row.updated,
            partitions=len(batch.partitions),
        )


def _is_conflict(failed: Exception) -> bool:
    """Whether a commit to our branch, or of it, met another commit. The branch is ours alone and is dropped, so doing
    it all again is safe even where it is not known what became of the commit."""
    return isinstance(failed, CommitFailedException) or any(sign in str(failed) for sign in CONFLICT_SIGNS)
