"""Rewrite the groups of a plan and commit them as they come, each only if nothing it was made of has changed.

Concurrent writers win: a group whose files were removed, or got new position deletes, is discarded and planned again
from what the writer left.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestEntry

from compaction_platform.errors import VerificationFailed
from compaction_platform.lake.iceberg.data_file_reader import DataFileReader
from compaction_platform.lake.iceberg.history import published
from compaction_platform.lake.iceberg.replace_files import AddedFile, CommitUnknown, FileChange, commit_change
from compaction_platform.lake.parquet.stitch.stitch_plan import ColumnStrategies, column_strategies
from compaction_platform.lake.parquet.writer import WriterOptions
from compaction_platform.lake.spark.parallel_map import ParallelMap, TaskResult
from compaction_platform.lake.storage.retry import attempts
from compaction_platform.lake.verification.extent import Extent
from compaction_platform.maintain.operations.remove_dangling_deletes import COMMIT_ATTEMPTS, dangling
from compaction_platform.maintain.operations.rewrite_data_files import RewriteGroup, RewriteTask, RewrittenGroup
from compaction_platform.maintain.operations.second_reader import FileWithDeletes
from compaction_platform.maintain.plan.delete_index import is_position_delete, may_refer_to, place_of
from compaction_platform.maintain.plan.file_groups import DataFileGroup, RewritePlan, RewritePolicy
from compaction_platform.maintain.table_state import TableState
from compaction_platform.persisted_names import COMMIT_KIND, MAINTENANCE_RUN

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

    from compaction_platform.settings import Settings

COMPACTION = "compaction"


@dataclass(frozen=True)
class Committed:
    """A group that is in the table."""

    group: DataFileGroup
    result: RewrittenGroup
    snapshot_id: int
    delete_files_removed: int = 0


@dataclass(frozen=True)
class CommittedGroups:
    """What became of the groups of one plan."""

    committed: tuple[Committed, ...] = ()
    conflicts: Mapping[str, str] = field(default_factory=dict)  # partition → what a writer did
    failed: Mapping[str, str] = field(default_factory=dict)  # first file of the group → error
    unproved: frozenset[str] = frozenset()  # those of them that were made and did not pass the proof
    stitch_failures: Mapping[str, str] = field(default_factory=dict)  # first file of the group → the defect
    damaged: Mapping[str, str] = field(default_factory=dict)  # files that cannot be read
    unknown: str | None = None
    busy: str | None = None


@dataclass
class GroupCommits:
    """Carries out one plan on the table as `look` saw it."""

    look: TableState
    policy: RewritePolicy
    encoding: WriterOptions
    settings: "Settings"
    run_id: str
    say: Callable[[str], None]
    referred_to: dict[str, frozenset[str]] = field(default_factory=dict)
    second_reader: Extent = "sample"

    def run(self, plan: RewritePlan, spread: ParallelMap) -> CommittedGroups:
        reader = DataFileReader(lean(self.look.metadata), self.settings)
        rewrite = RewriteGroup(reader, self.policy, self.encoding, self.second_reader)
        works = [self._work(group) for group in plan.groups]
        done = CommittedGroups()
        with closing(spread.run_together(rewrite, works, weight=lambda work: work.group.bytes)) as outcomes:
            for some in outcomes:  # what is ready at one time shares a commit
                done = self._commit(some, rewrite, done)
                if done.unknown or done.busy:
                    break
        return done

    def _work(self, group: DataFileGroup) -> RewriteTask:
        entries = [self.look.files.data[file.path] for file in group.files]
        first = entries[0].data_file
        spec = self.look.metadata.specs()[first.spec_id]
        directory = spec.partition_to_path(first.partition, self.look.metadata.schema())
        return RewriteTask(
            group, tuple(self._input(each) for each in entries), first.spec_id, first.partition, directory
        )

    def _input(self, entry: ManifestEntry) -> FileWithDeletes:
        applying = self.look.applying[entry.data_file.file_path]
        return FileWithDeletes(
            entry.data_file,
            tuple(each.data_file for each in applying.positions),
            tuple(each.data_file for each in applying.equalities),
        )

    # ------------------------------------------------------------ commit

    def _commit(
        self, outcomes: Sequence[TaskResult[RewriteTask, RewrittenGroup]], rewrite: RewriteGroup, done: CommittedGroups
    ) -> CommittedGroups:
        failed = {each.item.group.files[0].path: str(each.error) for each in outcomes if each.failed}
        unproved = {
            each.item.group.files[0].path for each in outcomes if each.failed and each.has_raised(VerificationFailed)
        }
        for path, error in failed.items():
            self.say(f"{path} and what was to be joined to it are left as they are: {error}")
        ready = {each.item: each.value for each in outcomes if each.value is not None and not each.value.damaged}
        damaged = {path: why for each in outcomes if each.value for path, why in each.value.damaged.items()}
        for why in damaged.values():
            self.say(why)
        for result in ready.values():
            self.referred_to |= result.referred_to
        self._tell_columns(ready)
        defects = {
            work.group.files[0].path: result.stitch_failure for work, result in ready.items() if result.stitch_failure
        }
        for path, defect in defects.items():
            self.say(f"warning: {path} and others could not be stitched because of a defect: {defect}")
        done = replace(
            done,
            failed={**done.failed, **failed},
            unproved=done.unproved | unproved,
            damaged={**done.damaged, **damaged},
            stitch_failures={**done.stitch_failures, **defects},
        )
        for _ in attempts(COMMIT_ATTEMPTS):
            self.look.table.refresh()
            now = TableState.at(self.look.table, self.look.manifests)
            ready, conflicts = self._without_conflicts(now, ready, rewrite)
            done = replace(done, conflicts={**done.conflicts, **conflicts})
            if not ready:
                return done
            removed = {each.file.file_path for work in ready for each in work.inputs}
            gone = self._without_use(now, ready, removed)
            try:
                snapshot_id = commit_change(now.table, self._change(ready, removed | gone), now.manifests)
            except CommitFailedException as lost:
                self.say(f"another commit came first ({lost}); looking again")
                continue
            except CommitUnknown as unknown:
                return replace(done, unknown=str(unknown))
            except Exception:  # nothing was committed
                self._discard(ready, rewrite)
                raise
            new = [Committed(work.group, result, snapshot_id) for work, result in ready.items()]
            new[0] = replace(new[0], delete_files_removed=len(gone))
            made = sum(len(result.outputs) for result in ready.values())
            self.say(
                f"snapshot {snapshot_id}: {len(removed):,} files became {made:,}; {len(gone):,} delete files removed"
            )
            return replace(done, committed=(*done.committed, *new))
        self._discard(ready, rewrite)
        busy = (
            f"others committed during each of {COMMIT_ATTEMPTS} attempts. What was committed before stands; nothing is "
            "lost. Run again when the table is less busy, or declare a window."
        )
        self.say(busy)
        return replace(done, busy=busy)

    def _tell_columns(self, ready: Mapping[RewriteTask, RewrittenGroup]) -> None:
        """How columns were made: once for all groups in which they were made in the same ways."""
        told: set[ColumnStrategies] = set()
        for work, result in ready.items():
            ways = column_strategies(result.columns)
            if ways and ways not in told:
                told.add(ways)
                self.say(f"columns of {work.group.partition or 'the table'}: {'; '.join(map(str, result.columns))}")

    @staticmethod
    def _discard(ready: Mapping[RewriteTask, RewrittenGroup], rewrite: RewriteGroup) -> None:
        for result in ready.values():
            rewrite.discard(result.outputs)

    @property
    def _age(self) -> int | None:
        """New files are as old as what they were made from: a delete that others commit meanwhile applies to them."""
        base = self.look.snapshot
        return base.sequence_number if base else None

    def _change(self, ready: Mapping[RewriteTask, RewrittenGroup], removed: set[str]) -> FileChange:
        return FileChange(
            added=[AddedFile(file, self._age) for result in ready.values() for file in result.outputs],
            removed=frozenset(removed),
            properties={MAINTENANCE_RUN: self.run_id, COMMIT_KIND: COMPACTION},
        )

    def _without_use(self, now: TableState, ready: Mapping[RewriteTask, RewrittenGroup], removed: set[str]) -> set[str]:
        """Delete files that delete nothing any more once this is committed."""
        added = [(place_of(file), self._age or 0) for result in ready.values() for file in result.outputs]
        return dangling(now, self.referred_to, without=removed, added=added)

    def _without_conflicts(
        self, now: TableState, ready: Mapping[RewriteTask, RewrittenGroup], rewrite: RewriteGroup
    ) -> tuple[dict[RewriteTask, RewrittenGroup], dict[str, str]]:
        staying, conflicts = {}, {}
        for work, result in ready.items():
            reason = self._conflict(now, work)
            if reason is None:
                staying[work] = result
            else:
                conflicts[work.group.partition] = reason
                self.say(f"{work.group.partition or 'the table'}: {reason}; its files are planned again")
                rewrite.discard(file for file in result.outputs if file.file_path not in now.files.data)
        return staying, conflicts

    def _conflict(self, now: TableState, work: RewriteTask) -> str | None:
        """What a writer did that makes this group's result wrong."""
        if now.metadata.current_schema_id != self.look.metadata.current_schema_id:
            return "the table's columns changed"
        base = self.look.snapshot
        if base is not None and base.snapshot_id not in {each.snapshot_id for each in published(now.table).snapshots}:
            return "the table was rolled back"
        paths = {each.file.file_path for each in work.inputs}
        if gone := paths - now.files.data.keys():
            return f"a writer removed {len(gone)} of its files"
        place = place_of(work.inputs[0].file)
        for path, delete in now.files.deletes.items():
            if path in self.look.files.deletes or not is_position_delete(delete):
                continue  # an equality delete applies to the new files as it did to the old ones: they keep their age
            if place_of(delete.data_file) == place and any(may_refer_to(delete.data_file, each) for each in paths):
                return "a writer deleted rows of its files"
        return None


def lean(metadata: "TableMetadata") -> "TableMetadata":
    """Without the history, which can be large and which tasks do not need."""
    return metadata.model_copy(
        update={"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}, "current_snapshot_id": None}
    )
