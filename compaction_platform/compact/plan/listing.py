"""A file as a listing tells it."""

from dataclasses import dataclass, field
from datetime import datetime

Version = tuple[str, str]  # a file's name inside its directory, and what tells its versions apart


@dataclass(frozen=True, order=True)
class FileVersion:
    key: str
    size: int
    etag: str
    changed_at: datetime | None = field(default=None, compare=False)

    @property
    def directory(self) -> str:
        return self.key.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def stamp(self) -> str:
        """The etag and the second of the last change: the same bytes that are delivered again have the same etag."""
        return self.etag if self.changed_at is None else f"{self.etag}@{int(self.changed_at.timestamp())}"

    @property
    def version(self) -> Version:
        return self.name, self.stamp

    @property
    def is_hidden(self) -> bool:
        return any(part.startswith(("_", ".")) for part in self.key.split("/") if "=" not in part)


@dataclass(frozen=True)
class Ancestor:
    """A file whose rows are in a compacted one."""

    name: str
    stamp: str
    size: int
    content: str  # the digest of its bytes

    @property
    def version(self) -> Version:
        return self.name, self.stamp
