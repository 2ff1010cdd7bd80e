"""Archive one range: copy it out of one snapshot, prove the copy, and let readers see it.

list (the ledger, the hot rows) → plan (checks of the source, cuts) → spread (one file a task) → verify (in the tasks)
→ commit (stage, publish, commit in the ledger) → clean up.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from compaction_platform.archive.chain.block_range import BlockRange, is_final, uncovered
from compaction_platform.archive.chain.cuts import cut
from compaction_platform.archive.chain.head_tracker import observe_head
from compaction_platform.archive.chain.source import SourceUnfit, require_whole
from compaction_platform.archive.cold.iceberg_table import ColdTable, schema_of
from compaction_platform.archive.cold.manifest import (
    FinalityEvidence,
    ManifestFile,
    RangeManifest,
)
from compaction_platform.archive.cold.paths import RangePaths, new_token
from compaction_platform.archive.cold.publish import (
    Publication,
    StagedFilesMissing,
    clear_attempts,
    is_marked,
    mark_again,
    stage_manifest,
)
from compaction_platform.archive.config import ArchivedTable
from compaction_platform.archive.hot.columns import arrow_schema
from compaction_platform.archive.hot.snapshot import HotSnapshot, hot_snapshot
from compaction_platform.archive.jobs.attempt import ArchiveAttempt, TableProgress, manifest_of
from compaction_platform.archive.jobs.copy_file import CopyItem, CopyTask
from compaction_platform.archive.jobs.reach import ArchiveContext
from compaction_platform.archive.jobs.restage import stage_again
from compaction_platform.archive.ledger.lease import LeaseLost, RangeLease
from compaction_platform.archive.ledger.range_version import LIVE, RangeVersion
from compaction_platform.errors import CompactionError
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.persisted_names import RANGE_MANIFEST

BYTES_PER_ROW = 300  # a guess, for sharing work out


class NotFinal(CompactionError):
    """Blocks of the range may still change."""


class CopyFailed(CompactionError):
    """Files could not be copied or proved. Nothing was committed."""


@dataclass(frozen=True)
class Archived:
    """What became of a range."""

    blocks: BlockRange
    version: int
    manifests: Mapping[str, RangeManifest] = field(repr=False)
    outcome: str  # archived | replaced | finished | unchanged | kept
    why: str
    was_there: RangeVersion | None = field(default=None, repr=False)  # if nothing was done
    seconds: float = 0.0


@dataclass(frozen=True)
class ArchiveRun(ArchiveContext):
    spread: Callable[[], ParallelMap]
    say: Callable[[str], None] = lambda text: None
    owner: str = ""

    def range_of(self, key: str) -> BlockRange:
        """One of the aligned ranges; one that exists, with its own size; or what those have left of an aligned one."""
        found = BlockRange.parsed(key)
        versions = self.ledger.versions(found)
        if any(version.blocks == found and (version.is_live or version.state == "staged") for version in versions):
            return found
        size = self.archive.range_size
        around = BlockRange(found.start // size * size, found.start // size * size + size)
        live = [version.blocks for version in self.ledger.versions(around, LIVE)]
        return found if live and found in uncovered(around, live) else self.archive.range_of(key)

    def tables(self, blocks: BlockRange) -> dict[str, ColdTable]:
        """The Iceberg tables to keep; none for a range that is not one of their partitions."""
        if self.archive.namespace is None or self.settings.catalog_warehouse is None:
            return {}
        size = self.archive.range_size
        if blocks.start % size or blocks.blocks != size:
            self.say(f"{blocks.key} is not one of the ranges of {size:,} blocks; it is not in the Iceberg tables")
            return {}
        store = self.store
        return {each.name: ColdTable(self.archive, each, self.settings, store) for each in self.archive.datasets}

    def run(self, blocks: BlockRange, because: str | None = None) -> Archived:
        """`because` is the reason for replacing what is archived, whatever it is."""
        began = time.monotonic()
        self.ownership.require()
        evidence = self._require_final(blocks)
        claim = self.ledger.claim(blocks, self.owner, because)
        staged = claim.look()
        if staged.state == "staged":
            self.say(f"finishing what an earlier run has staged (version {staged.version})")
            done = self._publish(claim, staged.manifests, "finished", "an earlier run had staged and verified it")
            if because is None:
                return _timed(done, began)
            claim = self.ledger.claim(blocks, self.owner, because)
        try:
            return _timed(self._archive(claim, evidence, because), began)
        except LeaseLost:
            raise
        except BaseException as error:
            self._give_up(claim, error)
            raise

    def _give_up(self, claim: RangeLease, error: BaseException) -> None:
        try:
            claim.fail(f"{type(error).__name__}: {error}")
        except CompactionError:  # the claim ends by itself
            self.say("the hot database does not answer; the claim on the range ends by itself")

    def preview(self, blocks: BlockRange, because: str | None = None) -> Archived | dict[str, dict[str, Any]]:
        """What a run would do: leave what is there, or write so many files. Refuses as a run would; changes nothing."""
        self._require_final(blocks, remember=False)
        with hot_snapshot(self.archive, self.url) as hot:
            live = self.ledger.live(blocks)
            if live is not None and because is None and (kept := self._nothing_to_do(hot, live)):
                return kept
            states = self._table_states(hot, blocks)
            require_whole(self.archive, self.ledger, hot, blocks, hot.links(blocks), states)
        shown = {}
        for name, state in states.items():
            cuts = cut(blocks, list(state.rows), list(state.rows.values()), self.archive.chunk_rows)
            shown[name] = {
                "rows": sum(state.rows.values()),
                "files": len(cuts),
                "replaces_version": live.version if live else 0,
            }
        return shown

    def _require_final(self, blocks: BlockRange, *, remember: bool = True) -> FinalityEvidence:
        seen = observe_head(self.archive, self.url, self.ledger, remember=remember)
        if seen.finalized is None or seen.evidence is None:
            raise NotFinal(
                f"whether blocks {blocks.key} (end not included) are final cannot be told: {seen.finality.why}. "
                "Nothing was archived."
            )
        if not is_final(blocks, seen.finalized):
            raise NotFinal(
                f"blocks {blocks.key} (end not included) are not final: their last block is {blocks.last}, the last "
                f"final block is {seen.finalized} ({seen.finality.why}). Nothing was archived."
            )
        self.say(f"final up to block {seen.finalized}: {seen.finality.why}")
        return seen.evidence

    # ------------------------------------------------------------ one attempt

    def _archive(self, claim: RangeLease, evidence: FinalityEvidence, because: str | None) -> Archived:
        live = self.ledger.live(claim.blocks)
        with hot_snapshot(self.archive, self.url) as hot:
            if live is not None and because is None and (kept := self._nothing_to_do(hot, live)):
                self._tidy(claim, live)
                claim.release()
                return kept
            if live is not None:
                self._require_not_purged(live)
            states = self._table_states(hot, claim.blocks)
            links, ledger = hot.links(claim.blocks), self.ledger.identity()
            attempt = ArchiveAttempt(claim, new_token(), ledger, hot, evidence, live, because, links, states)
            require_whole(self.archive, self.ledger, hot, claim.blocks, attempt.links, states)
            for name, table in self.tables(claim.blocks).items():
                table.prepare(arrow_schema(states[name].columns))
            files = self._copy(attempt)
        manifests = {
            dataset.name: manifest_of(self.archive, attempt, dataset, files[dataset.name])
            for dataset in self.archive.datasets
        }
        for manifest in manifests.values():
            stage_manifest(self.store, manifest)
        claim.stage(evidence, manifests)
        rows = sum(manifest.rows for manifest in manifests.values())
        self.say(f"staged and verified {rows:,} rows in {sum(len(each.files) for each in manifests.values())} files")
        return self._publish(claim, manifests, "replaced" if live else "archived", attempt.reason)

    def _nothing_to_do(self, hot: HotSnapshot, live: RangeVersion) -> Archived | None:
        """Why the version that is there stays: it is what the hot rows are, or more than they are."""
        if self.ledger.purged_files(live):
            why = f"its hot rows were purged{'' if live.state == 'purged' else ', a part of them'}"
            return Archived(live.blocks, live.version, live.manifests, "kept", why, live)
        unchanged = True
        for dataset in self.archive.datasets:
            manifest = live.manifests.get(dataset.name)
            if manifest is None:
                raise SourceUnfit(
                    f"version {live.version} of blocks {live.blocks.key} (end not included) has no dataset "
                    f"{dataset.name}. To archive the range again with it, give a reason (invalidate_because)."
                )
            now = hot.digest(dataset, live.blocks)
            if now.rows < manifest.source.digest.rows:
                why = (
                    f"{dataset.name} has {now.rows:,} hot rows, {manifest.source.digest.rows:,} are archived: fewer "
                    "rows never replace what is archived"
                )
                if live.state == "committed":
                    why += "; if they should, give a reason (invalidate_because)"
                return Archived(live.blocks, live.version, live.manifests, "kept", why, live)
            same_server = manifest.source.server == hot.server
            unchanged = unchanged and now == manifest.source.digest and same_server
        if unchanged:
            why = "the hot rows are what is archived"
            return Archived(live.blocks, live.version, live.manifests, "unchanged", why, live)
        return None

    def _require_not_purged(self, live: RangeVersion) -> None:
        """A range of which rows were purged is not archived again from what is left of it, whatever the reason."""
        if self.ledger.purged_files(live):
            raise SourceUnfit(
                f"blocks {live.blocks.key} (end not included) were purged, wholly or in part: what is hot is not the "
                f"whole range. Nothing was changed. `compaction archive restore {self.archive.chain} "
                f"{live.blocks.key}` brings the rows back; then run again with the reason."
            )

    def _table_states(self, hot: HotSnapshot, blocks: BlockRange) -> dict[str, TableProgress]:
        columns = hot.columns(self.archive.datasets)
        return {
            dataset.name: TableProgress(columns[dataset.name], hot.rows_per_block(dataset, blocks))
            for dataset in self.archive.datasets
        }

    # ------------------------------------------------------------ the copy

    def _copy(self, attempt: ArchiveAttempt) -> dict[str, list[ManifestFile]]:
        items = [item for dataset in self.archive.datasets for item in self._items(attempt, dataset)]
        task = CopyTask(attempt.hot.url, attempt.hot.name, self.archive.chain_id, self.store, attempt.name)
        task = replace(task, second_reader=self.archive.second_reader)
        files: dict[str, list[ManifestFile]] = {dataset.name: [] for dataset in self.archive.datasets}
        problems = []
        outcomes = self.spread().run(task, items, weight=lambda item: item.cut.rows * BYTES_PER_ROW)
        with closing(outcomes):  # nobody goes on copying for a run that is over
            for outcome in outcomes:
                attempt.claim.renew()
                if outcome.value is None:
                    problems.append(f"{outcome.item.dataset.name} {outcome.item.cut.blocks.key}: {outcome.error}")
                    continue
                files[outcome.item.dataset.name].append(outcome.value)
        if problems:
            listed = "\n".join(f"- {problem}" for problem in sorted(problems)[:20])
            raise CopyFailed(
                f"{len(problems)} of {len(items)} files of blocks {attempt.blocks.key} (end not included) could not be "
                f"archived:\n{listed}\nNothing was committed, nothing deleted."
            )
        return {name: sorted(made, key=lambda file: file.start_block) for name, made in files.items()}

    def _items(self, attempt: ArchiveAttempt, dataset: ArchivedTable) -> list[CopyItem]:
        state = attempt.states[dataset.name]
        cuts = cut(attempt.blocks, list(state.rows), list(state.rows.values()), self.archive.chunk_rows)
        if dataset.is_blocks or dataset.hash is None:
            return [CopyItem(dataset, state.columns, attempt.blocks, each) for each in cuts]
        return [
            CopyItem(dataset, state.columns, attempt.blocks, each, attempt.hot.block_hashes(each.blocks))
            for each in cuts
        ]

    # ------------------------------------------------------------ commit

    def _publish(self, claim: RangeLease, manifests: Mapping[str, RangeManifest], outcome: str, why: str) -> Archived:
        publication = self._publication(claim, manifests)
        try:
            return self._publish_once(claim, publication, outcome, why)
        except StagedFilesMissing as error:
            live = next((version for version in publication.earlier if version.is_live), None)
            if live is not None:
                self._bring_back(claim, live, error)
            raise

    def _publish_once(self, claim: RangeLease, publication: Publication, outcome: str, why: str) -> Archived:
        try:
            publication.publish()
            claim.commit()
        except LeaseLost:
            raise
        except StagedFilesMissing as error:
            claim.give_up_staged(str(error))
            publication.clean_up()  # first: nobody copies out of it what was hidden
            publication.hide()
            raise
        except BaseException as error:
            try:
                claim.let_go(f"{type(error).__name__}: {error}")
            except CompactionError:
                self.say("the hot database does not answer; the claim on the range ends by itself")
            raise
        publication.clean_up()
        self._forget_expired()
        self.say(f"committed version {claim.version} of blocks {claim.blocks.key} (end not included)")
        return Archived(claim.blocks, claim.version, publication.manifests, outcome, why)

    def _publication(self, claim: RangeLease, manifests: Mapping[str, RangeManifest]) -> Publication:
        earlier = [each for each in self.ledger.versions(claim.blocks) if each.version != claim.version]
        tables = {name: table for name, table in self.tables(claim.blocks).items() if name in manifests}

        def announce() -> None:
            self.ownership.announce("publish", claim.blocks, claim.version, manifests)

        def still_ours() -> None:
            claim.renew()
            self.ownership.require()

        return Publication(self.store, manifests, earlier, tables, announce, still_ours)

    def _bring_back(self, given_up: RangeLease, live: RangeVersion, error: StagedFilesMissing) -> None:
        """What the version before held is published again, under new names: deletions of the old ones may yet come."""
        because = f"version {given_up.version} could not be published: {error}"
        try:
            self.publish_again(live.blocks, live.version, live.manifests, because)
        except CompactionError as problem:
            self.say(f"version {live.version} could not be brought back: {problem}")

    def publish_again(
        self, blocks: BlockRange, number: int, manifests: Mapping[str, RangeManifest], because: str
    ) -> Archived:
        """Publish the files of a version once more, under new names, as a version of its own."""
        claim = self.ledger.claim(blocks, self.owner, because)
        try:
            staged = stage_again(self.store, manifests, number, claim.version, claim.fence, because)
            claim.stage(manifests[self.archive.blocks.name].finality, staged)
        except CompactionError as problem:
            self._give_up(claim, problem)
            raise
        return self._publish_once(claim, self._publication(claim, staged), "replaced", because)

    def _tidy(self, claim: RangeLease, live: RangeVersion) -> None:
        """What a run that committed and then died has left undone; and tables that were asked for later."""
        tables = self.tables(live.blocks)
        still_ours = self._publication(claim, live.manifests).still_ours
        for name, manifest in live.manifests.items():
            clear_attempts(self.store, manifest, before=manifest.attempt + 1)
            if not is_marked(self.store, manifest):
                mark_again(self.store, manifest, claim.fence, still_ours)
            if name in tables:
                place = RangePaths(self.archive.chain, name, live.blocks)
                keys = {place.visible(file.name): file.size for file in manifest.files if file.rows}
                if keys:
                    tables[name].prepare(schema_of(self.store, *next(iter(keys.items()))))
                    tables[name].replace(live.blocks, keys, claim.renew)

    def _forget_expired(self) -> None:
        """Files of superseded versions, once they were kept long enough."""
        for version in self.ledger.expired(self.archive.retention):
            self.ownership.require()
            keys = [
                RangePaths(self.archive.chain, name, version.blocks).superseded(version.version, file_name)
                for name, manifest in version.manifests.items()
                for file_name in (RANGE_MANIFEST, *(file.name for file in manifest.files))
            ]
            if not self.store.delete(keys):
                self.ledger.forget(version)


def _timed(archived: Archived, began: float) -> Archived:
    return replace(archived, seconds=time.monotonic() - began)
