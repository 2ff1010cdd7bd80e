"""One bin becomes one verified file, inside a task: fetch, judge, write, verify, commit, remove the originals.

The upload is the commit: the output is named by the digest of its inputs and lists them in its own metadata, so
whatever dies afterwards, the next run knows what is left to do. Doing a bin twice changes nothing.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow
import pyarrow.parquet

from compaction_platform.compact.commit.decisions import Decisions
from compaction_platform.compact.commit.delete_inputs import InputDeletion, ReplacementCheck
from compaction_platform.compact.plan.bin_packing import NOT_ALIKE, FileGroup
from compaction_platform.compact.plan.lineage import in_directory, read_recorded_inputs
from compaction_platform.compact.rewrite.compatible_inputs import JoinOptions, compatible_inputs, groups_of
from compaction_platform.compact.rewrite.read_inputs import SourceFile, fetch
from compaction_platform.compact.rewrite.result import NOTHING_CHANGED, Engine
from compaction_platform.errors import CompactionError, VerificationFailed
from compaction_platform.lake.parquet.stitch.stitch_plan import ColumnChoice
from compaction_platform.lake.storage.object_store import ObjectExists, ObjectStore
from compaction_platform.lake.storage.staged_upload import StagedUpload
from compaction_platform.lake.verification.fingerprint import OrderedFingerprint

ANOTHER_RUNS = "another run has made the very same file"


class OutputsConflict(CompactionError):
    """Two compacted files hold the same rows, and neither can be taken back without losing others."""


@dataclass(frozen=True)
class CompactedGroup:
    """What became of a bin."""

    made_of: FileGroup  # without what could not be part of it; as it was planned if nothing was made
    output: str | None = None
    bytes: int = 0
    rows: int = 0
    engine: Engine = "none"
    reason: str = ""  # for the engine, or why nothing was made
    columns: tuple[ColumnChoice, ...] = ()  # how each was made, where that differs
    stitch_failure: str | None = None  # stitching was tried, and has a defect
    set_aside: Mapping[str, str] = field(default_factory=dict)  # keys of files that stay, with the reason
    changed: Mapping[str, str] = field(default_factory=dict)
    not_removed: Mapping[str, str] = field(default_factory=dict)
    is_somebody_elses: bool = False
    beside: tuple[
        "CompactedGroup", ...
    ] = ()  # of other files of the same bin, whose columns do not go together with these
    seconds: float = 0.0
    proof_seconds: float = 0.0  # of those


@dataclass(frozen=True)
class CompactGroup:
    """All that a task needs. It travels to where the work is done."""

    source: ObjectStore
    target: ObjectStore
    how: JoinOptions
    removal: InputDeletion
    settled: frozenset[str] = frozenset()  # compacted files that have nothing in common with this run's bins

    def __call__(self, planned: FileGroup) -> CompactedGroup:
        fetched = fetch(self.source, planned.inputs)
        groups = groups_of(fetched.inputs, self.how)
        first, *others = [self._made_of(planned, some, alone=len(groups) == 1) for some in groups or [[]]]
        return replace(first, changed={**fetched.changed, **first.changed}, beside=tuple(others))

    def _made_of(self, planned: FileGroup, inputs: Sequence[SourceFile], *, alone: bool) -> CompactedGroup:
        """One file of those inputs of a bin that go together. `alone`: these are all of the bin."""
        began = time.monotonic()
        fewest = 2 if self.source.uri == self.target.uri else 1
        with compatible_inputs(inputs, self.how, fewest, planned.output) as found:
            made_of = planned.without({file.key for file in planned.inputs} - {each.file.key for each in found.inputs})
            result = CompactedGroup(made_of, set_aside=found.set_aside, changed=found.passed_over)
            if found.written is None or found.file is None:
                too_few = "too few files are left that could become one" if alone else NOT_ALIKE
                return replace(result, made_of=planned, reason=too_few)
            size = found.file.size
            made_of = self._with_free_name(made_of)
            is_ours = self._commit(made_of, found.file)
        if not is_ours:
            return replace(result, made_of=planned, reason=ANOTHER_RUNS, is_somebody_elses=True)
        finished = self._finish(planned, made_of)
        if finished.taken_back:
            return replace(result, made_of=planned, reason=finished.taken_back, is_somebody_elses=True)
        return replace(
            result,
            made_of=made_of,
            output=made_of.output,
            bytes=size,
            rows=found.written.rows,
            engine=found.written.engine,
            reason=found.written.reason,
            columns=found.written.columns,
            stitch_failure=found.written.stitch_failure,
            not_removed=finished.not_removed,
            seconds=time.monotonic() - began,
            proof_seconds=found.written.proof_seconds,
        )

    @property
    def decisions(self) -> Decisions:
        return Decisions(self.target)

    # ------------------------------------------------------------ commit

    def _with_free_name(self, made_of: FileGroup) -> FileGroup:
        """The bin under a name that no withdrawn output had: whoever withdrew that one may delete it at any time."""
        while self.decisions.of(made_of.output) == "withdrawn":
            made_of = replace(made_of, generation=made_of.generation + 1)
        return made_of

    def _commit(self, made_of: FileGroup, output: StagedUpload) -> bool:
        """One atomic step. If the very file is there already, another run has made it: it is not ours to finish."""
        try:
            output.flush()
            self.target.create_from(made_of.output, output.path)
        except ObjectExists:
            there = pyarrow.py_buffer(self.target.read(made_of.output))
            if not same_rows(there, output.mapped()):
                raise VerificationFailed(
                    f"{self.target.uri}/{made_of.output} exists and has other rows. {NOTHING_CHANGED}"
                ) from None
            return False
        return True

    def _finish(self, planned: FileGroup, made_of: FileGroup) -> "_Finished":
        """Keep the output and remove the originals, if all of them are still there and in no other compacted file.
        Otherwise another run, or a writer, was faster: the output is withdrawn, and nothing is removed. Of two runs
        that share a file, the one that looks later sees the other; if both see each other, both withdraw theirs."""
        files = in_directory(self.target, made_of.directory)
        ours = {file.key: file for file in files}.get(made_of.output)
        if ours is None:
            raise OutputsConflict(f"{made_of.output} is gone as soon as it was made. Nothing was removed.")
        # If this is not what was planned, an earlier attempt may have made just that.
        unknown = [file for file in files if file.key not in self.settled or file.key == planned.output]
        told = read_recorded_inputs(self.target, [file for file in unknown if file.key != ours.key])
        if told.untold:
            return _Finished(not_removed=dict(told.untold))
        versions = {file.version for file in made_of.inputs}
        same_place = self.source.uri == self.target.uri
        there = {file.version for file in (files if same_place else in_directory(self.source, made_of.directory))}
        sharing = [key for key, inputs in told.inputs.items() if versions.intersection(inputs)]
        withdrawn = {key for key, decision in self.decisions.of_all(sharing).items() if decision == "withdrawn"}
        if versions <= there and withdrawn.issuperset(sharing) and self._keeps(ours.key):
            proof = ReplacementCheck(self.target, {file.key: ours for file in made_of.inputs})
            return _Finished(self.removal.remove(self.source, made_of.inputs, proof))
        if not self.decisions.withdraw(ours.key):
            return _Finished(taken_back="another run has decided to keep it, and removes its inputs")
        if failures := self.target.delete_versions([(ours.key, ours.etag)]):
            return _Finished(taken_back=f"withdrawn; the next run deletes it: {'; '.join(failures.values())}")
        return _Finished(taken_back="inputs were removed, replaced or compacted by somebody else meanwhile; taken back")

    def _keeps(self, output: str) -> bool:
        """Whether its inputs may be removed. Where they stay in any case, nothing has to be decided."""
        return self.removal.originals == "keep" or self.decisions.keep(output)


@dataclass(frozen=True)
class _Finished:
    not_removed: Mapping[str, str] = field(default_factory=dict)
    taken_back: str | None = None


def same_rows(one: pyarrow.Buffer, other: pyarrow.Buffer) -> bool:
    tables = [pyarrow.parquet.ParquetFile(pyarrow.BufferReader(each)).schema_arrow for each in (one, other)]
    digests = []
    for each, schema in zip((one, other), tables, strict=True):
        digest = OrderedFingerprint(schema)
        for batch in pyarrow.parquet.ParquetFile(pyarrow.BufferReader(each)).iter_batches():
            digest.update(batch)
        digests.append(digest.finish())
    return digests[0] == digests[1]
