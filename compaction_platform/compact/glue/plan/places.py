"""Everything on S3, by address. A bucket is opened once: looking at 50,000 places must not cost as many connections."""

from dataclasses import dataclass, field, replace

from compaction_platform.compact.glue.plan.partition_plan import PartitionLocation
from compaction_platform.compact.plan.lineage import listed
from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.lake.storage.object_store import ObjectStore


@dataclass(frozen=True)
class PartitionLocations:
    objects: ObjectStore  # at any address: its options lead to all others
    _buckets: dict[str, ObjectStore] = field(default_factory=dict, repr=False, compare=False)

    def at(self, uri: str) -> ObjectStore:
        return replace(self.objects, uri=uri)

    def look(self, uri: str, *, is_ours: bool = False) -> PartitionLocation:
        """All that lies below an address."""
        bucket, prefix = self._bucket(uri)
        files = [
            replace(file, key=file.key.removeprefix(f"{prefix}/"))
            for file in listed(bucket, prefix)
            if file.key != prefix  # some stores list an empty directory as an object of its own name
        ]
        return PartitionLocation(uri, tuple(files), is_ours)

    def read(self, uri: str, name: str) -> bytes:
        bucket, prefix = self._bucket(uri)
        return bytes(bucket.read(f"{prefix}/{name}" if prefix else name))

    def _bucket(self, uri: str) -> tuple[ObjectStore, str]:
        name, _, prefix = uri.removeprefix("s3://").partition("/")
        if name not in self._buckets:
            self._buckets[name] = self.at(f"s3://{name}")
        return self._buckets[name], prefix


def by_directory(base: str, files: tuple[FileVersion, ...]) -> dict[str, tuple[FileVersion, ...]]:
    """What lies in the directories right below an address, by theirs."""
    found: dict[str, list[FileVersion]] = {}
    for file in files:
        directory, slash, name = file.key.partition("/")
        if slash:
            found.setdefault(f"{base}/{directory}", []).append(replace(file, key=name))
    return {uri: tuple(some) for uri, some in found.items()}
