"""Where the files of an archive are. What plain readers see is `<chain>/<dataset>/range=*/part-*.parquet` and nothing
else: names elsewhere do not end in .parquet, and their directories begin with an underscore."""

import secrets
from dataclasses import dataclass

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.persisted_names import RANGE_MANIFEST, RANGE_SUCCESS

NOT_DATA = (RANGE_MANIFEST, RANGE_SUCCESS)


@dataclass(frozen=True)
class RangePaths:
    """One dataset's files of one range, below the archive's address."""

    chain: str
    dataset: str
    blocks: BlockRange

    @property
    def _dataset(self) -> str:
        return f"{self.chain}/{self.dataset}"

    @property
    def directory(self) -> str:
        """What readers see."""
        return f"{self._dataset}/range={self.blocks.key}"

    def visible(self, name: str) -> str:
        return f"{self.directory}/{name}"

    @property
    def attempts(self) -> str:
        return f"{self._dataset}/_attempts/{self.blocks.key}"

    def staged(self, attempt: str, name: str) -> str:
        """In an attempt's directory: nobody reads it."""
        return f"{self.attempts}/{attempt}/{name}.staged"

    def superseded(self, version: int, name: str) -> str:
        return f"{self._dataset}/_superseded/{self.blocks.key}/v{version}/{name}.superseded"


def new_token() -> str:
    """Return what tells an attempt from all others, also from those of another ledger with the same fences."""
    return secrets.token_hex(8)


def attempt_name(fence: int, token: str) -> str:
    return f"{fence:08d}_{token}"


def file_name(number: int, attempt: str) -> str:
    """Never the same in two attempts: what a late worker does to its own files cannot touch another's."""
    return f"part-{number:05d}-{attempt}.parquet"
