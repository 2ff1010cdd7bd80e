"""The checks on a chain's cold ranges. Three belong to a run and block what comes after it, above all the purge; alone,
as in CI, they look at the newest ranges again. The others look at the chain as a whole."""

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from typing import Any

import dagster as dg

from compaction_platform.archive.chain.block_range import is_final
from compaction_platform.archive.chain.continuity import RangeBoundary, problems_of
from compaction_platform.archive.chain.head_tracker import observe_head
from compaction_platform.archive.chain.reorg import how_to_mend, look_for_reorgs
from compaction_platform.archive.chain.status import ChainStatus, chain_status, rows_still_hot, tip_time
from compaction_platform.archive.cold.audit import (
    ColdFileAudit,
    ColdFileUnreadable,
    audit_items,
    chosen_for_reading,
    cold_links,
    last_block_time,
    listing_problems,
    mark_problems,
)
from compaction_platform.archive.cold.ownership import RootNotOurs
from compaction_platform.archive.config import ArchivedChain, ArchivedTable
from compaction_platform.archive.hot.snapshot import hot_snapshot, hot_url
from compaction_platform.archive.jobs.archive_range import Archived, ArchiveRun
from compaction_platform.archive.ledger.range_version import LIVE, RangeVersion
from compaction_platform.errors import CompactionError
from compaction_platform.lake.dagster.resources import LakeResource

FINAL = "range_is_final"
CONTIGUOUS = "blocks_are_contiguous"
EQUAL = "cold_equals_source"
MISSING = "no_range_missing_below_the_tip"
RETENTION = "hot_retention"
LAG = "finality_lag"
REORG = "no_reorg_after_archiving"

SHOWN = 20
CHECKED_ALONE = 3  # ranges, the newest


def cold_key(archive: ArchivedChain, dataset: str) -> dg.AssetKey:
    return dg.AssetKey(["cold", archive.chain, dataset])


def purged_key(archive: ArchivedChain) -> dg.AssetKey:
    return dg.AssetKey(["purged", archive.chain])


def check_specs(archive: ArchivedChain) -> list[dg.AssetCheckSpec]:
    blocks = cold_key(archive, archive.blocks.name)
    return [
        dg.AssetCheckSpec(FINAL, asset=blocks, blocking=True, description="No block of the range can change any more."),
        dg.AssetCheckSpec(
            CONTIGUOUS,
            asset=blocks,
            blocking=True,
            description="No gap, no block twice, every parent hash is the hash before it, over the range's seams, too.",
        ),
        *(
            dg.AssetCheckSpec(
                EQUAL,
                asset=cold_key(archive, dataset.name),
                blocking=True,
                description="The cold files hold exactly the rows of the hot table. In a run: read back from the store "
                "before the commit. Alone: the newest ranges, and others in turn, read again; all listed and counted.",
            )
            for dataset in archive.datasets
        ),
    ]


def results_after_a_run(
    archive: ArchivedChain, done: Archived, wanted: Collection[dg.AssetCheckKey]
) -> Iterator[dg.AssetCheckResult]:
    blocks = done.manifests[archive.blocks.name]
    evidence = blocks.finality
    final = {"last_block": done.blocks.last, "finalized": evidence.finalized, "why": evidence.why}
    yield from _if_wanted(wanted, _result(archive, FINAL, [], final))
    contiguous = {"blocks": blocks.rows, "last_hash": str(blocks.last_hash)}
    yield from _if_wanted(wanted, _result(archive, CONTIGUOUS, [], contiguous))
    there = done.was_there
    differing = [done.why] if there is not None and done.outcome == "kept" and there.state == "committed" else []
    invalid = there.invalid_because if there is not None else None
    if invalid is not None:
        differing = [f"version {done.version} is marked invalid: {invalid}"]
    severity = dg.AssetCheckSeverity.WARN if differing and invalid is None else dg.AssetCheckSeverity.ERROR
    for name, manifest in done.manifests.items():
        figures = {"rows": manifest.rows, "files": len(manifest.files), "fingerprint": manifest.fingerprint}
        yield from _if_wanted(wanted, _result(archive, EQUAL, differing, figures, dataset=name, severity=severity))


def result_of_a_failure(
    archive: ArchivedChain, check: str, error: Exception, wanted: Collection[dg.AssetCheckKey]
) -> Iterator[dg.AssetCheckResult]:
    yield from _if_wanted(wanted, _result(archive, check, [str(error)], {}))


def results_alone(run: ArchiveRun, wanted: Collection[dg.AssetCheckKey]) -> Iterator[dg.AssetCheckResult]:
    """What the newest committed ranges are now."""
    archive = run.archive
    versions = run.ledger.versions(states=LIVE)
    newest = versions[-CHECKED_ALONE:]
    figures = {"ranges": [version.blocks.key for version in newest]}
    names = {(key.asset_key, key.name) for key in wanted}
    if not versions:
        for asset, name in names:
            problems = _unlisted(run, asset.path[-1]) if name == EQUAL else []
            yield _result(archive, name, problems, {"why": "nothing is archived yet"}, dataset=asset.path[-1])
        return
    blocks = cold_key(archive, archive.blocks.name)
    if (blocks, FINAL) in names:
        yield _result(archive, FINAL, _not_final(run, newest), figures)
    if (blocks, CONTIGUOUS) in names:
        yield _result(archive, CONTIGUOUS, _broken(run, versions, newest), figures)
    for dataset in archive.datasets:
        if (cold_key(archive, dataset.name), EQUAL) in names:
            problems = _unequal(run, versions, newest, dataset.name)
            yield _result(archive, EQUAL, problems, figures, dataset=dataset.name)


def _not_final(run: ArchiveRun, versions: Sequence[RangeVersion]) -> list[str]:
    seen = observe_head(run.archive, run.url, run.ledger, remember=False)
    if seen.finalized is None:
        return [] if seen.first_hot is None else [f"whether they are final cannot be told: {seen.finality.why}"]
    return [
        f"{version.blocks.key} (end not included) is archived, but only block {seen.finalized} is final"
        for version in versions
        if not is_final(version.blocks, seen.finalized)
    ]


def _broken(run: ArchiveRun, versions: Sequence[RangeVersion], newest: Sequence[RangeVersion]) -> list[str]:
    archive, problems = run.archive, []
    ends = {version.blocks.end: version for version in versions if version.is_valid}
    for version in versions:
        before = ends.get(version.blocks.start)
        first = version.manifests[archive.blocks.name].first_parent_hash
        if before is not None and version.is_valid and first is not None:
            told = before.manifests[archive.blocks.name].last_hash
            if told is not None and told != first:
                problems.append(f"{version.blocks.key} begins after {first}, {before.blocks.key} ends with {told}")
    for version in newest:
        try:
            links = cold_links(archive, run.store, version)
        except ColdFileUnreadable as error:
            problems.append(str(error))
            continue
        told = version.manifests[archive.blocks.name].last_hash
        after = RangeBoundary(told, "its manifest") if told is not None else None
        found = problems_of(version.blocks, links, gaps_allowed=archive.gaps_allowed, after=after)
        problems += [f"{version.blocks.key}: {problem}" for problem in found]
    return problems


def _unequal(run: ArchiveRun, versions: Sequence[RangeVersion], newest: Sequence[RangeVersion], name: str) -> list[str]:
    """Of all ranges, what a listing and a count tell. Of the newest, and of some older ones in turn, every byte."""
    archive = run.archive
    dataset = archive.dataset(name)
    versions = [version for version in versions if name in version.manifests]
    problems = _not_ours(run) + listing_problems(archive, run.store, versions, run.ledger.versions(), dataset)
    read = chosen_for_reading(versions, [version for version in newest if name in version.manifests], name, run.ledger)
    problems += [problem for version in read for problem in mark_problems(run.store, version.manifests[name])]
    items = [item for version in read for item in audit_items(archive, version, dataset)]
    for outcome in run.spread().run(ColdFileAudit(run.store), items, weight=lambda item: item.file.size):
        if problem := outcome.error or outcome.value:
            problems.append(f"{run.store.uri}/{outcome.item.key} {problem}")
    return problems + _hot_problems(run, versions, read, dataset)


def _unlisted(run: ArchiveRun, name: str) -> list[str]:
    """What lies below the root of a ledger that has no committed range."""
    dataset = run.archive.dataset(name)
    return _not_ours(run) + listing_problems(run.archive, run.store, [], run.ledger.versions(), dataset)


def _not_ours(run: ArchiveRun) -> list[str]:
    try:
        run.ownership.require()
    except RootNotOurs as error:
        return [str(error)]
    return []


def _hot_problems(
    run: ArchiveRun, versions: Sequence[RangeVersion], read: Sequence[RangeVersion], dataset: ArchivedTable
) -> list[str]:
    """Rows of purged ranges that are hot, and rows that changed after they were archived."""
    archive, name, problems = run.archive, dataset.name, []
    with hot_snapshot(archive, run.url) as hot:
        purged = [version.blocks for version in versions if version.state == "purged"]
        for blocks, rows in sorted(hot.rows_in(dataset, purged).items()):
            problems.append(
                f"{blocks.key} (end not included) is purged, and {rows:,} rows of {name} are hot: they were added "
                "after the purge, or were never deleted. Nothing deletes them by itself: compare them with cold files"
            )
        for version in read:
            source = version.manifests[name].source
            if version.state == "committed" and version.is_valid and source.server == hot.server:
                now = hot.digest(dataset, version.blocks)
                if now.rows >= source.digest.rows and now != source.digest:
                    problems.append(
                        f"{version.blocks.key} (end not included): the hot rows were changed after they were archived "
                        f"({now.rows:,} hot, {source.digest.rows:,} cold); materialize the partition again"
                    )
    return problems


def chain_checks(archive: ArchivedChain) -> dg.AssetChecksDefinition:
    """Checks on the chain as a whole."""
    blocks = cold_key(archive, archive.blocks.name)
    specs = [
        dg.AssetCheckSpec(MISSING, asset=blocks, description="Every final range below the tip is archived."),
        dg.AssetCheckSpec(
            LAG,
            asset=blocks,
            description=f"The newest archived block is at most {archive.max_lag} behind the tip, by the chain's time.",
        ),
        dg.AssetCheckSpec(
            REORG,
            asset=blocks,
            description="What is archived is still the chain: the cold tail fits the hot blocks, and what a node says.",
        ),
    ]

    @dg.multi_asset_check(name=f"check_chain_{archive.chain}", specs=specs, can_subset=True)
    def check_chain(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> Iterator[dg.AssetCheckResult]:
        wanted = {key.name for key in context.selected_asset_check_keys}
        run = ArchiveRun(archive, lake.settings(), _no_spread, context.log.info)
        try:
            standing = chain_status(archive, run.url)
        except CompactionError as error:  # no tables yet, no node: nothing that a purge would have to stop for
            for name in wanted:
                yield _result(archive, name, [str(error)], {}, severity=dg.AssetCheckSeverity.WARN)
            return
        results: dict[str, Callable[[], dg.AssetCheckResult]] = {
            MISSING: lambda: _missing(archive, standing),
            LAG: lambda: _lag(archive, run, standing),
            REORG: lambda: _reorg(archive, run),
        }
        for name, result in results.items():
            if name in wanted:
                yield result()

    return check_chain


def retention_check(archive: ArchivedChain) -> dg.AssetChecksDefinition:
    """After the purge, where there is one."""
    asset = purged_key(archive) if archive.purge else cold_key(archive, archive.blocks.name)

    @dg.asset_check(name=RETENTION, asset=asset, description="Ranges that are archived are not hot any more.")
    def hot_retention(lake: LakeResource) -> dg.AssetCheckResult:
        url = hot_url(archive, lake.settings())
        try:
            return _retention(archive, url, chain_status(archive, url, remember=False), asset)
        except CompactionError as error:
            return dg.AssetCheckResult(
                passed=False, severity=dg.AssetCheckSeverity.WARN, description=str(error), asset_key=asset
            )

    return hot_retention


def _missing(archive: ArchivedChain, standing: ChainStatus) -> dg.AssetCheckResult:
    problems = [f"{blocks.key} (end not included) is final and not archived" for blocks in standing.missing]
    figures = {"final_ranges": len(standing.final), "archived": len(standing.live)}
    return _result(archive, MISSING, problems, figures, severity=dg.AssetCheckSeverity.WARN)


def _retention(archive: ArchivedChain, url: str, standing: ChainStatus, asset: dg.AssetKey) -> dg.AssetCheckResult:
    problems = []
    for blocks, counts in rows_still_hot(archive, url, standing).items():
        told = ", ".join(f"{count:,} of {name}" for name, count in counts.items())
        if standing.live[blocks].state == "purged":
            told += "; they were added after the purge, and are in no cold file"
        problems.append(f"{blocks.key} (end not included) is archived, and rows of it are hot: {told}")
    figures = {"archived": len(standing.live), "delete_after_compact": archive.purge}
    found = _result(archive, RETENTION, problems, figures, severity=dg.AssetCheckSeverity.WARN)
    return found._replace(asset_key=asset)


def _lag(archive: ArchivedChain, run: ArchiveRun, standing: ChainStatus) -> dg.AssetCheckResult:
    newest = max(standing.live, default=None)
    tip = tip_time(archive, run.url)
    if newest is None or tip is None:
        return _result(archive, LAG, [], {"why": "nothing is archived yet, or no block is hot"})
    try:
        last = last_block_time(archive, run.store, standing.live[newest])
    except ColdFileUnreadable as error:
        return _result(archive, LAG, [str(error)], {}, severity=dg.AssetCheckSeverity.WARN)
    lag = tip - last if last else timedelta(0)
    problems = [f"the tip is of {tip:%Y-%m-%d %H:%M:%S}, the newest archived block of {last:%Y-%m-%d %H:%M:%S}"]
    figures = {"lag_seconds": lag.total_seconds(), "allowed_seconds": archive.max_lag.total_seconds()}
    return _result(
        archive, LAG, problems if lag > archive.max_lag else [], figures, severity=dg.AssetCheckSeverity.WARN
    )


def _reorg(archive: ArchivedChain, run: ArchiveRun) -> dg.AssetCheckResult:
    seen = look_for_reorgs(archive, run.url, run.ledger)
    problems = [f"{mismatch.version.blocks.key} (end not included): {mismatch.told}" for mismatch in seen.mismatches]
    invalid = [
        f"{version.blocks.key} (end not included) is marked invalid: {version.invalid_because}"
        for version in run.ledger.versions(states=LIVE)
        if version.invalid_because is not None
        and version.blocks not in {each.version.blocks for each in seen.mismatches}
    ]
    figures: dict[str, Any] = {"compared": seen.compared}
    if seen.mismatches:
        figures["what_to_do"] = how_to_mend(seen.mismatches)
    return _result(archive, REORG, [*problems, *invalid], figures)


def _no_spread() -> Any:
    from compaction_platform.lake.spark.parallel_map import ParallelMap

    return ParallelMap(None, 2)


def _if_wanted(wanted: Collection[dg.AssetCheckKey], result: dg.AssetCheckResult) -> Iterator[dg.AssetCheckResult]:
    if any((key.asset_key, key.name) == (result.asset_key, result.check_name) for key in wanted):
        yield result


def _result(
    archive: ArchivedChain,
    name: str,
    problems: Sequence[str],
    figures: dict[str, Any],
    *,
    dataset: str | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
) -> dg.AssetCheckResult:
    rows = [dg.TableRecord({"problem": problem}) for problem in problems[:SHOWN]]
    first = f"{problems[0]}{f' (and {len(problems) - 1} more)' if len(problems) > 1 else ''}" if problems else None
    return dg.AssetCheckResult(
        asset_key=cold_key(archive, dataset or archive.blocks.name),
        check_name=name,
        passed=not problems,
        severity=severity,
        description=first,
        metadata={**figures, **({"problems": dg.MetadataValue.table(rows)} if rows else {})},
    )
