"""Whether what is archived is still what the chain is: the cold tail against the hot seam, and against a node."""

from collections.abc import Sequence
from dataclasses import dataclass

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.chain.rpc_node import Node, same_hash
from compaction_platform.archive.config import ArchivedChain
from compaction_platform.archive.hot.snapshot import hot_snapshot
from compaction_platform.archive.ledger.ledger import Ledger
from compaction_platform.archive.ledger.range_version import LIVE, RangeVersion

SAMPLED_RANGES = 8  # older ones, whose last blocks a node is asked for each time
MOST_QUESTIONS = 64  # to a node, in one look


@dataclass(frozen=True)
class Mismatch:
    version: RangeVersion
    told: str


@dataclass(frozen=True)
class ReorgLook:
    compared: int
    mismatches: tuple[Mismatch, ...]


def look_for_reorgs(archive: ArchivedChain, url: str, ledger: Ledger) -> ReorgLook:
    """Compare and mark as invalid what does not fit. A range's last hash stands for all of its blocks."""
    versions = [version for version in ledger.versions(states=LIVE) if version.is_valid]
    compared, found = _against_hot(archive, url, versions)
    _mark(ledger, found)  # whatever the node will say, or not
    node = Node.of(archive)
    if node is not None:
        known = {mismatch.version.blocks for mismatch in found}
        asked, differing = _against_node(
            archive, node, [version for version in versions if version.blocks not in known]
        )
        _mark(ledger, differing)
        compared, found = compared + asked, [*found, *differing]
    return ReorgLook(compared, tuple(found))


def _mark(ledger: Ledger, mismatches: Sequence[Mismatch]) -> None:
    for mismatch in mismatches:
        ledger.mark_invalid(mismatch.version, mismatch.told)


def how_to_mend(mismatches: Sequence[Mismatch]) -> str:
    keys = ", ".join(mismatch.version.blocks.key for mismatch in mismatches)
    return (
        f"Blocks {keys} (ends not included) are marked invalid and are not purged. When the indexer has the right "
        "blocks in the hot tables, materialize the partition with the configuration `invalidate_because: <why>`: a new "
        "version replaces the old one, which is kept for the retention time. If the range was purged, `compaction "
        "archive restore` brings its rows back first. If the head is not believed any more, `compaction archive "
        "forget-head`. If it is the source or the node that was wrong, `compaction archive believe`."
    )


def _tail(archive: ArchivedChain, version: RangeVersion) -> tuple[int, str] | None:
    """Number and hash of the range's last block."""
    manifest = version.manifests[archive.blocks.name]
    if manifest.last_block is None or manifest.last_hash is None:
        return None
    return manifest.last_block, manifest.last_hash


def _against_hot(archive: ArchivedChain, url: str, versions: Sequence[RangeVersion]) -> tuple[int, list[Mismatch]]:
    """A range's own last block where it is still hot, and the block right behind it."""
    compared, found = 0, []
    archived = {version.blocks.start for version in versions}
    with hot_snapshot(archive, url) as hot:
        for version in versions:
            tail = _tail(archive, version)
            if tail is None:
                continue
            number, own = tail
            now = hot.hash_at(number)
            # Where numbers are skipped, the nearest hot block may be far away, with others yet to come between.
            behind = None if archive.gaps_allowed else hot.neighbour(version.blocks, "behind")
            compared += (now is not None) + (behind is not None)
            if now is not None and now != own:
                found.append(Mismatch(version, f"block {number} is archived as {own}, and is {now} in the hot table"))
            elif behind is not None and behind.parent != own and version.blocks.end not in archived:
                told = f"hot block {behind.number} says its parent is {behind.parent}, but {own} is archived"
                found.append(Mismatch(version, told))
    return compared, found


def _against_node(archive: ArchivedChain, node: Node, versions: Sequence[RangeVersion]) -> tuple[int, list[Mismatch]]:
    """From the newest range back, until one fits: what is before that one is chained to it. And some older ones."""
    found: list[Mismatch] = []
    asked: set[BlockRange] = set()

    def differs(version: RangeVersion) -> bool:
        tail = _tail(archive, version)
        if tail is None or version.blocks in asked or len(asked) >= MOST_QUESTIONS:
            return False
        asked.add(version.blocks)
        number, own = tail
        there = node.block(number)
        if there is None or same_hash(there.hash, own):
            return False
        found.append(Mismatch(version, f"block {number} is archived as {own}, but the node says {there.hash}"))
        return True

    for version in reversed(versions):
        if not differs(version):
            break
    for version in versions[:: max(1, len(versions) // SAMPLED_RANGES)]:
        differs(version)
    return len(asked), found
