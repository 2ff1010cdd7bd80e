"""Up to which block a chain is final now: what the hot database and the node say, against what they said before."""

from dataclasses import dataclass, replace

from compaction_platform.archive.chain.finality import Finality, Head, judge
from compaction_platform.archive.chain.rpc_node import Node, same_hash
from compaction_platform.archive.cold.manifest import FinalityEvidence
from compaction_platform.archive.config import ArchivedChain
from compaction_platform.archive.hot.snapshot import HotSnapshot, hot_snapshot
from compaction_platform.archive.ledger.ledger import Ledger


@dataclass(frozen=True)
class HeadObservation:
    """The head, and what follows from it."""

    head: Head | None
    first_hot: int | None
    finality: Finality
    evidence: FinalityEvidence | None = None

    @property
    def finalized(self) -> int | None:
        return self.finality.finalized


def observe_head(archive: ArchivedChain, url: str, ledger: Ledger, *, remember: bool = True) -> HeadObservation:
    """Ask, judge, and remember the head if it is believed."""
    before = ledger.head()
    with hot_snapshot(archive, url) as hot:
        first, last = hot.edge(last=False), hot.edge(last=True)
        if first is None or last is None:
            return HeadObservation(None, None, Finality(None, f"there is no hot block of chain {archive.chain}"))
        node = Node.of(archive) if archive.finality.mode != "depth" else None
        head = node.head() if node else last
        finality = judge(head, archive.finality, before, hot.now)
        if finality.finalized is not None:
            finality = _against_history(ledger, hot, last, node, before, finality)
        evidence = None
        if finality.finalized is not None:
            known = replace(head, finalized=finality.finalized, finalized_hash=hot.hash_at(finality.finalized))
            evidence = FinalityEvidence(
                mode=archive.finality.mode,
                why=finality.why,
                finalized=finality.finalized,
                finalized_hash=known.finalized_hash,
                head=head.number,
                head_hash=head.hash,
                head_time=head.time,
                judged_at=hot.now,
            )
        elif finality.is_new_tip and before is not None:
            known = replace(head, finalized=before.finalized, finalized_hash=before.finalized_hash)
        else:
            return HeadObservation(head, first.number, finality)
    if remember:
        ledger.remember_head(known)
    return HeadObservation(head, first.number, finality, evidence)


def _against_history(
    ledger: Ledger, hot: HotSnapshot, last: Head, node: Node | None, before: Head | None, finality: Finality
) -> Finality:
    """No further than the hot database is, and only if it, the node and what was final before agree."""
    archive, finalized = hot.archive, finality.finalized or 0
    if finalized > last.number:
        finalized = last.number
        finality = Finality(finalized, f"{finality.why}; the hot database has blocks up to {finalized}")
    if not archive.gaps_allowed and hot.hash_at(finalized) is None and not ledger.live_at(finalized):
        return Finality(
            None, f"block {finalized} should be final ({finality.why}), but is not there: is the head real?"
        )
    if before is not None and before.finalized is not None and before.finalized_hash is not None:
        now = hot.hash_at(before.finalized)
        if now is not None and now != before.finalized_hash:
            return Finality(
                None,
                f"block {before.finalized} was final as {before.finalized_hash}, and is {now} in the hot database now: "
                "a reorganisation deeper than finality, or another chain. Look at the check no_reorg_after_archiving; "
                f"then `compaction archive forget-head {archive.chain}`",
            )
    if node is not None:
        ours, theirs = hot.hash_at(finalized), node.block(finalized)
        if ours is not None and (theirs is None or not same_hash(theirs.hash, ours)):
            return Finality(
                None,
                f"block {finalized} is {ours} in the hot database, but "
                f"{theirs.hash if theirs else 'unknown'} at the node",
            )
    return finality
