"""How much of what is final is archived, and what needs a person."""

from collections.abc import Iterator

import dagster as dg

from compaction_platform.archive.chain.status import ChainStatus, chain_status, due_ranges
from compaction_platform.archive.component import ColdRanges
from compaction_platform.archive.config import ArchivedChain
from compaction_platform.archive.hot.snapshot import hot_url
from compaction_platform.lake.dagster.health import HealthRow, share_done, unknown_health
from compaction_platform.settings import Settings


def health_rows(tree: dg.ComponentTree, settings: Settings) -> Iterator[HealthRow]:
    for chain in tree.get_all_components(of_type=ColdRanges):
        what = f"chain {chain.chain_id}"
        try:
            archive = chain.archive()
            yield _row(what, archive, chain_status(archive, hot_url(archive, settings), remember=False))
        except Exception as error:  # noqa: BLE001 (one that cannot be looked at does not hide the others)
            yield unknown_health(what, error)


def _row(what: str, archive: ArchivedChain, standing: ChainStatus) -> HealthRow:
    files = [file for version in standing.live.values() for each in version.manifests.values() for file in each.files]
    due = due_ranges(archive, standing)
    invalid = [blocks.key for blocks, version in standing.live.items() if not version.is_valid]
    reasons = [f"{len(due):,} ranges are to be archived or purged"] if due else []
    reasons += [f"marked invalid: {', '.join(invalid)}"] if invalid else []
    if standing.observed.finalized is None:
        reasons.append(f"what is final cannot be told: {standing.observed.finality.why}")
    troubled = {*due, *(blocks for blocks, version in standing.live.items() if not version.is_valid)}
    count = len({*standing.final, *standing.live, *troubled})
    score = share_done(count - len(troubled), count) if standing.observed.finalized is not None else 0
    size = sum(file.size for file in files)
    return HealthRow(what, score, len(files), bytes=size, why="; ".join(reasons) or "all that is final is archived")
