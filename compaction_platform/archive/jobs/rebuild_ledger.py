"""Make a chain's ledger from its cold files: after a restore from a backup, or in a database that takes over.

The root is taken over first: from then on no other ledger, and no earlier state of this one, changes the cold files.
Whole ranges are entered as they are, with their cold files read and compared. Where a publication was under way, the
newest version of which all files exist is published once more under new names, as a process that is paused in the old
publication may still delete the old ones. Whether rows are purged is told by the hot tables themselves.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.cold.audit import AuditItem, ColdFileAudit
from compaction_platform.archive.cold.manifest import Digest, ManifestFile, RangeManifest
from compaction_platform.archive.cold.ownership import RootNotOurs
from compaction_platform.archive.cold.root_scan import Manifests, RangeFound, RootScan, place_of
from compaction_platform.archive.config import ArchivedTable
from compaction_platform.archive.hot.snapshot import HotSnapshot, hot_snapshot
from compaction_platform.archive.jobs.archive_range import ArchiveRun
from compaction_platform.archive.jobs.reach import ArchiveContext
from compaction_platform.archive.jobs.restage import content_of
from compaction_platform.archive.ledger.ledger import RangesOverlap
from compaction_platform.archive.ledger.range_version import LIVE
from compaction_platform.archive.ledger.rebuild import RangeState, enter_range, raise_fences
from compaction_platform.errors import CompactionError
from compaction_platform.lake.spark.parallel_map import ParallelMap

FileState = Literal["hot", "purged", "differs"]


@dataclass(frozen=True)
class Rebuilt:
    """What the ledger has now, and what a person must look at."""

    states: Mapping[str, int]  # number of ranges by state
    published_again: Sequence[BlockRange]
    problems: Sequence[str]


@dataclass(frozen=True)
class RebuildRun(ArchiveContext):
    spread: Callable[[], ParallelMap]
    say: Callable[[str], None] = lambda text: None
    owner: str = ""
    _problems: list[str] = field(default_factory=list, repr=False)

    def adopt(self) -> Rebuilt:
        """Take over the cold files of another ledger. It is refused from then on."""
        history = self.ownership.history()
        if history and history[-1].ledger == self.ledger.identity() and self._is_owner():
            raise CompactionError(
                f"the cold files of chain {self.archive.chain} belong to this ledger already; nothing was done. To "
                f"make its state from the cold files once more: `compaction archive rebuild {self.archive.chain}`."
            )
        return self._run("adopt")

    def rebuild(self) -> Rebuilt:
        """Make the state of this ledger from its cold files, after it was lost or set back."""
        history = self.ownership.history()
        if history and history[-1].ledger != self.ledger.identity():
            raise RootNotOurs(
                f"the cold files of chain {self.archive.chain} belong to ledger {history[-1].ledger} of the database "
                f"{history[-1].database}, this one is {self.ledger.identity()}. Nothing was changed. If this database "
                f"is to take over for good: `compaction archive adopt {self.archive.chain}`."
            )
        return self._run("rebuild")

    def _is_owner(self) -> bool:
        try:
            self.ownership.require()
        except RootNotOurs:
            return False
        return True

    def _run(self, act: Literal["adopt", "rebuild"]) -> Rebuilt:
        self.say("no other ledger changes the cold files from now on")
        entry = self.ownership.begin_taking_over(act)
        scan = RootScan.of(self.store, self.archive.chain, self.ownership.history(), self.ledger.versions())
        found = list(scan.ranges())
        self._problems.extend(problem for each in found for problem in each.unreadable)
        unfinished = [each.blocks for each in found if each.whole is None]
        if failures := self.store.delete(scan.attempts(without=unfinished)):
            raise CompactionError(f"{self.store.uri}/{next(iter(failures))} cannot be deleted. Run the same again.")
        manifests = [manifest for each in found for one in each.candidates for manifest in one.values()]
        raise_fences(self.ledger, max([scan.highest_fence, *(manifest.attempt for manifest in manifests)]))
        states: Counter[str] = Counter()
        damaged = self._damaged([each.whole for each in found if each.whole is not None])
        for each in found:
            states[self._enter(each, damaged)] += 1
        self._compare_with_ledger(found)
        self.ownership.end_taking_over(entry)
        again = [each.blocks for each in found if each.whole is None and self._publish_again(each)]
        return Rebuilt(states, again, self._problems)

    # ------------------------------------------------------------ the cold side

    def _damaged(self, whole: Sequence[Manifests]) -> dict[str, str]:
        """Read every file. Returns what is wrong, by key."""
        items = [
            AuditItem(place_of(manifest).visible(file.name), file)
            for manifests in whole
            for manifest in manifests.values()
            for file in manifest.files
        ]
        self.say(f"reading {len(items):,} cold files")
        outcomes = self.spread().run(ColdFileAudit(self.store), items, weight=lambda item: item.file.size)
        return {one.item.key: problem for one in outcomes if (problem := one.error or one.value)}

    def _enter(self, found: RangeFound, damaged: Mapping[str, str]) -> str:
        """Enter a range into the ledger; of one that is not whole, what its names belong to. Returns its state."""
        state = None
        wrong = []
        if found.whole is not None:
            keys = [place_of(each).visible(file.name) for each in found.whole.values() for file in each.files]
            wrong = [f"{self.store.uri}/{key} {damaged[key]}" for key in keys if key in damaged]
            self._problems.extend(wrong)
            state = replace(self._state(found.blocks, found.whole), invalid_because="; ".join(wrong)[:500] or None)
        try:
            enter_range(self.ledger, found.blocks, found.whole, state, found.candidates)
        except RangesOverlap as error:
            self._problems.append(str(error))
            return "not entered"
        return state.state if state is not None else "unfinished"

    def _compare_with_ledger(self, found: Sequence[RangeFound]) -> None:
        there = {each.blocks for each in found}
        for version in self.ledger.versions(states=LIVE):
            if version.blocks not in there:
                self._problems.append(
                    f"version {version.version} of blocks {version.blocks.key} (end not included) is {version.state} "
                    f"in the ledger, and has no files below {self.store.uri}. It was left as it is."
                )

    def _publish_again(self, found: RangeFound) -> bool:
        """The newest version of which every file is somewhere, under new names."""
        for manifests in found.candidates:
            number = max(manifest.dataset_version for manifest in manifests.values())
            missing = [
                f"{self.store.uri}/{place_of(manifest).visible(file.name)}"
                for manifest in manifests.values()
                for file in manifest.files
                if content_of(self.store, manifest, number, file) is None
            ]
            if missing:
                self.say(f"version {number} of blocks {found.blocks.key} cannot be completed: {missing[0]} is missing")
                continue
            run = ArchiveRun(self.archive, self.settings, self.spread, self.say, owner=self.owner)
            try:
                done = run.publish_again(found.blocks, number, manifests, "its publication was not finished")
            except CompactionError as error:
                self._problems.append(str(error))
                return False
            enter_range(self.ledger, found.blocks, done.manifests, self._state(found.blocks, done.manifests), [])
            return True
        self._problems.append(
            f"of blocks {found.blocks.key} (end not included) no version is whole, and none can be completed. Its "
            "files were left as they are. If the hot rows are there, move the files away and archive the range again."
        )
        return False

    # ------------------------------------------------------------ the hot side

    def _state(self, blocks: BlockRange, manifests: Manifests) -> RangeState:
        """Whether the rows of each file are hot, by the hot tables themselves."""
        declared = {dataset.name: dataset for dataset in self.archive.datasets}
        states: dict[tuple[str, str], FileState] = {}
        with hot_snapshot(self.archive, self.url) as hot:
            for name, manifest in manifests.items():
                for file in manifest.files if name in declared else ():
                    if file.rows:
                        states[name, file.name] = _file_state(hot, declared[name], manifest, file)
        purged = {file for file, state in states.items() if state == "purged"}
        differing = sorted(name for (name, _), state in states.items() if state == "differs")
        withheld = None
        if differing:
            withheld = f"entered from the cold files; hot rows of {', '.join(dict.fromkeys(differing))} are others"
        if states and len(purged) == len(states):
            everything = {(name, file.name) for name, each in manifests.items() for file in each.files}
            return RangeState("purged", everything, withheld)
        return RangeState("purging" if purged else "committed", purged, withheld)


def _file_state(hot: HotSnapshot, dataset: ArchivedTable, manifest: RangeManifest, file: ManifestFile) -> FileState:
    found: Digest = hot.digest(dataset, file.blocks)
    if found.rows == 0:
        return "purged"
    same = found == file.source if manifest.source.server == hot.server else found.rows == file.source.rows
    return "hot" if same else "differs"
