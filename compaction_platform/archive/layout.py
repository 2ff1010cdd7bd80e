"""Where the files of an archive are. What plain readers see is `<chain>/<dataset>/range=*/part-*.parquet` and nothing
else: names elsewhere do not end in .parquet, and their directories begin with an underscore."""

from dataclasses import dataclass

from compaction_platform.archive.ranges import BlockRange

MANIFEST = "_manifest.json"
SUCCESS = "_SUCCESS"
NOT_DATA = (MANIFEST, SUCCESS)


@dataclass(frozen=True)
class Place:
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

    def staged(self, attempt: int, name: str) -> str:
        """In an attempt's directory: nobody reads it."""
        return f"{self.attempts}/{attempt}/{name}.staged"

    def superseded(self, version: int, name: str) -> str:
        return f"{self._dataset}/_superseded/{self.blocks.key}/v{version}/{name}.superseded"


def file_name(number: int, attempt: int) -> str:
    """Never the same in two attempts: what a late worker does to its own files cannot touch another's."""
    return f"part-{number:05d}-{attempt:08d}.parquet"
