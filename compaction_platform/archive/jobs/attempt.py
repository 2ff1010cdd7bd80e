"""One attempt at a range, and the manifests that come of it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.chain.continuity import BlockLink
from compaction_platform.archive.cold.manifest import (
    NOTHING,
    FinalityEvidence,
    ManifestColumn,
    ManifestFile,
    ManifestSource,
    RangeManifest,
    Superseded,
)
from compaction_platform.archive.cold.paths import attempt_name
from compaction_platform.archive.config import ArchivedChain, ArchivedTable
from compaction_platform.archive.hot.columns import HotColumn
from compaction_platform.archive.hot.snapshot import HotSnapshot
from compaction_platform.archive.ledger.lease import RangeLease
from compaction_platform.archive.ledger.range_version import RangeVersion


@dataclass(frozen=True)
class TableProgress:
    """One hot table's share of the range, in the snapshot."""

    columns: tuple[HotColumn, ...]
    rows: Mapping[int, int]  # by block


@dataclass(frozen=True)
class ArchiveAttempt:
    """One attempt at a range, from one moment of the hot database."""

    claim: RangeLease
    token: str
    ledger: str
    hot: HotSnapshot
    evidence: FinalityEvidence
    live: RangeVersion | None  # what is archived of the range already
    because: str | None
    links: Sequence[BlockLink]
    states: Mapping[str, TableProgress]

    @property
    def blocks(self) -> BlockRange:
        return self.claim.blocks

    @property
    def name(self) -> str:
        return attempt_name(self.claim.fence, self.token)

    @property
    def reason(self) -> str:
        return self.because or ("the hot rows changed" if self.live else "new")


def manifest_of(
    archive: ArchivedChain, attempt: ArchiveAttempt, dataset: ArchivedTable, files: Sequence[ManifestFile]
) -> RangeManifest:
    digest = NOTHING
    for file in files:
        digest = digest.plus(file.source)
    columns = tuple(
        ManifestColumn(name=each.name, source_type=each.source_type, type=str(each.kind))
        for each in attempt.states[dataset.name].columns
    )
    before = attempt.live.manifests.get(dataset.name) if attempt.live else None
    return RangeManifest(
        dataset_uuid=archive.dataset_uuid(dataset),
        dataset_version=attempt.claim.version,
        chain_id=archive.chain_id,
        dataset=dataset.name,
        partition_key=attempt.blocks.key,
        start_block=attempt.blocks.start,
        end_block=attempt.blocks.end,
        attempt=attempt.claim.fence,
        token=attempt.token,
        ledger=attempt.ledger,
        written_at=attempt.hot.now,
        finality=attempt.evidence,
        source=ManifestSource(table=".".join(dataset.table), server=attempt.hot.server, digest=digest),
        columns=columns,
        files=tuple(files),
        first_parent_hash=attempt.links[0].parent if attempt.links else None,
        last_block=attempt.links[-1].number if attempt.links else None,
        last_hash=attempt.links[-1].hash if attempt.links else None,
        config_hash=archive.config_hash(),
        schema_hash=hashlib.sha256(json.dumps([each.model_dump() for each in columns]).encode()).hexdigest(),
        supersedes=before
        and Superseded(dataset_version=before.dataset_version, manifest_sha256=before.sha256, because=attempt.reason),
    )
