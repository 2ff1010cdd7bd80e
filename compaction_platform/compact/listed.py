"""A file as a listing tells it."""

from dataclasses import dataclass, field
from datetime import datetime

Version = tuple[str, str]  # a file's name inside its directory, and its etag


@dataclass(frozen=True, order=True)
class Listed:
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
    def version(self) -> Version:
        return self.name, self.etag

    @property
    def is_hidden(self) -> bool:
        return any(part.startswith(("_", ".")) for part in self.key.split("/") if "=" not in part)
