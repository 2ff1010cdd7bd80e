"""What an archive needs before it can work."""

from dataclasses import dataclass

from compaction_platform.archive.hot.snapshot import url_of
from compaction_platform.archive.ledger.ledger import Ledger
from compaction_platform.settings import Settings


@dataclass(frozen=True)
class ArchiveTables:
    """The tables that keep the state of ranges, in the hot database."""

    variable: str | None = None

    @property
    def description(self) -> str:
        return "the tables compaction.archive_* in the hot database"

    def ensure(self, settings: Settings) -> bool:
        return Ledger(url_of(self.variable, settings), 0).create_tables()
