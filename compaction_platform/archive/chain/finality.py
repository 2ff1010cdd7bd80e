"""Up to which block a chain is final, by its head, and whether that head can be believed. Pure.

A head that is old, goes backwards or contradicts what it said before stops the sensor: better to wait than to archive
blocks that a reorganisation may still replace.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

AHEAD = timedelta(hours=1)  # a head that says it is made later than so is not believed

Mode = Literal["depth", "tag", "both"]


@dataclass(frozen=True)
class Head:
    """What a source says about the tip of its chain."""

    number: int
    hash: str
    time: datetime  # of the block itself, by the chain
    finalized: int | None = None  # the block that a node calls final
    finalized_hash: str | None = None


@dataclass(frozen=True)
class FinalityRule:
    mode: Mode
    depth_blocks: int = 0
    max_head_age: timedelta | None = None


@dataclass(frozen=True)
class Finality:
    """The last final block, or why nobody can tell now."""

    finalized: int | None
    why: str
    is_new_tip: bool = False  # not to be believed now, but what later heads are compared with

    @property
    def is_known(self) -> bool:
        return self.finalized is not None


def judge(head: Head, rule: FinalityRule, before: Head | None, now: datetime) -> Finality:
    """`before` is the head that was believed last; `now` is the database's time."""
    if reason := _why_not_believed(head, rule, before, now):
        return Finality(None, reason)
    if before is not None and head.number == before.number and head.hash != before.hash:
        changed = f"block {head.number} was {before.hash} and is {head.hash} now: the chain is being reorganised"
        return Finality(None, changed, is_new_tip=True)
    by_depth = head.number - rule.depth_blocks
    if rule.mode == "depth":
        finalized, why = by_depth, f"head {head.number} less {rule.depth_blocks} blocks"
    elif head.finalized is None:
        return Finality(None, "the node does not say which block is final; is it in sync?")
    elif rule.mode == "tag":
        finalized, why = head.finalized, f"the node calls block {head.finalized} final"
    else:
        finalized = min(by_depth, head.finalized)
        why = f"the lower of head {head.number} less {rule.depth_blocks} blocks, and {head.finalized} by the node"
    if finalized < 0:
        return Finality(None, f"no block is final yet: {why}")
    return Finality(finalized, why)


def _why_not_believed(head: Head, rule: FinalityRule, before: Head | None, now: datetime) -> str | None:
    if head.number < 0:
        return f"the head says block {head.number}"
    if head.time - now > AHEAD:
        return f"the head (block {head.number}) is of {head.time:%Y-%m-%d %H:%M:%S} UTC, which is yet to come"
    if rule.max_head_age is not None and now - head.time > rule.max_head_age:
        return f"the head (block {head.number}) is of {head.time:%Y-%m-%d %H:%M:%S} UTC, older than {rule.max_head_age}"
    if head.finalized is not None and head.finalized > head.number:
        return f"the node calls block {head.finalized} final, but its head is {head.number}"
    if before is None:
        return None
    if head.number < before.number:
        return (
            f"the head went back from block {before.number} to {head.number}. If the chain was begun anew: `compaction "
            "archive forget-head`"
        )
    if before.finalized is not None and head.finalized is not None:
        if head.finalized < before.finalized:
            return f"the final block went back from {before.finalized} to {head.finalized}"
        known = before.finalized_hash is not None and head.finalized_hash is not None
        if known and head.finalized == before.finalized and head.finalized_hash != before.finalized_hash:
            return f"block {head.finalized} was final as {before.finalized_hash}, and is {head.finalized_hash} now"
    return None
