"""What is archived, as values: a chain, its tables in the hot database, and the rules for them."""

import hashlib
import json
import uuid
from dataclasses import asdict, dataclass
from datetime import timedelta

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.chain.finality import FinalityRule
from compaction_platform.lake.verification.extent import Extent

UUIDS = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # RFC 4122's namespace for URLs


@dataclass(frozen=True)
class ArchivedTable:
    """One table of the hot database. Names are as the database knows them; they are quoted, never pasted."""

    name: str
    table: tuple[str, str]  # schema and table
    key: tuple[str, ...]  # rows are sorted by it, and none is there twice; it begins with the block
    chain: str = "chain_id"
    block: str = "block_number"
    hash: str | None = None  # of the block that the row belongs to
    parent_hash: str | None = None  # in the dataset of the blocks themselves
    time: str | None = None  # likewise
    counted_by: str | None = None  # the blocks' column that says how many of these rows a block has
    dense: bool = False  # the last column of the key counts 0, 1, 2 … in each block

    @property
    def is_blocks(self) -> bool:
        return self.parent_hash is not None


@dataclass(frozen=True)
class ArchivedChain:
    """A chain whose final ranges become cold."""

    chain_id: int
    uri: str
    datasets: tuple[ArchivedTable, ...]  # the one with the blocks first
    finality: FinalityRule
    range_size: int = 10_000
    chunk_rows: int = 500_000
    gaps_allowed: bool = False
    purge: bool = False
    retention: timedelta = timedelta(days=7)
    namespace: str | None = "cold"  # of the Iceberg tables; None: none
    ranges_per_tick: int = 5
    max_lag: timedelta = timedelta(days=1)
    hot_variable: str | None = None  # names of environment variables
    node_variable: str | None = None
    second_reader: Extent = "sample"

    @property
    def chain(self) -> str:
        return str(self.chain_id)

    @property
    def blocks(self) -> ArchivedTable:
        return self.datasets[0]

    @property
    def subject(self) -> str:
        return f"archive_{self.chain}"

    def dataset(self, name: str) -> ArchivedTable:
        return next(each for each in self.datasets if each.name == name)

    def range_of(self, key: str) -> BlockRange:
        return BlockRange.from_key(key, self.range_size)

    def dataset_uuid(self, dataset: ArchivedTable) -> str:
        """The same for as long as the dataset lives in its place."""
        return str(uuid.uuid5(UUIDS, f"{self.uri.rstrip('/')}/{self.chain}/{dataset.name}"))

    def config_hash(self) -> str:
        """Of everything that decides what is written."""
        deciding = {
            "chain_id": self.chain_id,
            "datasets": [asdict(each) for each in self.datasets],
            "range_size": self.range_size,
            "chunk_rows": self.chunk_rows,
            "gaps_allowed": self.gaps_allowed,
        }
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()
