"""One version of one range of blocks, as the ledger has it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, LiteralString

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.cold.manifest import RangeManifest

WORKING = ("planned", "claimed", "staged")
LIVE = ("committed", "purging", "purged")

VERSION_QUERY: LiteralString = """
    SELECT v.range_id, lower(r.blocks), upper(r.blocks), v.version, v.state, v.fence, v.owner,
           v.lease_until > now() AS is_leased, v.manifests, v.invalid_because, v.withheld_because, v.error
    FROM compaction.archive_versions v JOIN compaction.archive_ranges r ON r.id = v.range_id
    WHERE r.chain_id = %s"""


@dataclass(frozen=True)
class RangeVersion:
    """One version of one range, as the ledger has it."""

    range_id: int
    blocks: BlockRange
    version: int
    state: str
    fence: int
    owner: str
    is_leased: bool
    manifests: Mapping[str, RangeManifest] = field(repr=False)
    invalid_because: str | None
    withheld_because: str | None  # its hot rows are not to be deleted
    error: str | None

    @property
    def is_live(self) -> bool:
        return self.state in LIVE

    @property
    def is_valid(self) -> bool:
        return self.is_live and self.invalid_because is None


def version_from(row: Sequence[Any]) -> RangeVersion:
    range_id, start, end, number, state, fence, owner, is_leased, manifests, *rest = row
    read = {name: RangeManifest.model_validate(each) for name, each in (manifests or {}).items()}
    return RangeVersion(range_id, BlockRange(start, end), number, state, fence, owner, is_leased, read, *rest)
