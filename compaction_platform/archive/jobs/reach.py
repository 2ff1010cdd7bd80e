"""What every run on a chain reaches: its hot database, the ledger there, and its cold files."""

from dataclasses import dataclass
from functools import cached_property

from compaction_platform.archive.cold.ownership import Ownership
from compaction_platform.archive.config import ArchivedChain
from compaction_platform.archive.hot.snapshot import hot_url
from compaction_platform.archive.ledger.ledger import Ledger
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.settings import Settings


@dataclass(frozen=True)
class ArchiveContext:
    archive: ArchivedChain
    settings: Settings

    @cached_property
    def url(self) -> str:
        return hot_url(self.archive, self.settings)

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.url, self.archive.chain_id)

    @cached_property
    def store(self) -> ObjectStore:
        return ObjectStore.at(self.settings.place(self.archive.uri), self.settings)

    @cached_property
    def ownership(self) -> Ownership:
        """The right of this ledger to change the cold files."""
        return Ownership(self.ledger, self.store)
