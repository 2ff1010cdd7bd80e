"""Locations whose files something else lists by name, as `own_lists` finds them: a partition there is left alone."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from compaction_platform.compact.glue.plan.partition_plan import PartitionLocation
from compaction_platform.compact.plan.own_lists import VERSION_OF_GLUE, kind_at, list_above, lists_in, refusal
from compaction_platform.lake.storage.object_store import ObjectStore, StoreRefused
from compaction_platform.settings import Settings


@dataclass(frozen=True)
class Lists:
    """Each directory is asked once: partitions share those above them."""

    settings: Settings
    _known: dict[str, str | None] = field(default_factory=dict, repr=False, compare=False)

    def refuse(self, uri: str) -> None:
        """Raise KeptByAList if a list is at an address, or above it."""
        if found := list_above(uri, (), self.settings):
            raise refusal(*found)

    def why_not_above(self, uri: str) -> str | None:
        """Why files at an address must not be joined: a list in a directory above it."""
        bucket, _, path = uri.removeprefix("s3://").partition("/")
        parts = path.split("/")
        above = ["/".join(parts[:depth]) for depth in range(len(parts))] if path else []
        return next((why for each in above if (why := self._why_not(bucket, each))), None)

    def _why_not(self, bucket: str, directory: str) -> str | None:
        uri = f"s3://{bucket}/{directory}".rstrip("/")
        if uri not in self._known:
            try:
                kind = kind_at(ObjectStore.at(f"s3://{bucket}", self.settings), directory)
            except StoreRefused:
                kind = None  # a guest need not see what is above
            self._known[uri] = str(refusal(uri, kind)) if kind else None
        return self._known[uri]


def why_not_in(places: Iterable[PartitionLocation]) -> str | None:
    """Why files at these places must not be joined: a list among them. What we list ourselves at the top of a version
    is judged by its manifest."""
    for place in places:
        for root, kind in sorted(lists_in(file.key for file in place.files).items(), key=lambda each: each[0]):
            if root or kind.name != VERSION_OF_GLUE:
                return str(refusal("/".join(part for part in (place.uri, root) if part), kind))
    return None
