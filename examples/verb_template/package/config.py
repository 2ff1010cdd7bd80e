"""What is declared, as a value."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NewVerbConfig:
    """A directory of Parquet files. Its asset is new_verb/<name>."""

    name: str
    uri: str
