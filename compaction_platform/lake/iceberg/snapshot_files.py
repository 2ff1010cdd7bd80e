"""The files an Iceberg snapshot is made of, from its manifests alone: no data is read, no JVM is needed.

Manifests never change, so each is read once however many snapshots share it.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyiceberg.manifest import DataFileContent, ManifestEntry, ManifestEntryStatus, ManifestFile

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table.snapshots import Snapshot

READ_AT_ONCE = 8


@dataclass(frozen=True)
class SnapshotFiles:
    """What readers of one snapshot see: data files, the delete files that apply to them, and the manifests."""

    data: dict[str, ManifestEntry] = field(default_factory=dict)  # by path
    deletes: dict[str, ManifestEntry] = field(default_factory=dict)
    manifests: tuple[ManifestFile, ...] = ()


@dataclass
class Manifests:
    """A reader of manifests that remembers what it has read."""

    io: "FileIO"
    _read: dict[str, tuple[ManifestEntry, ...]] = field(default_factory=dict)

    def forget_others(self, manifests: Iterable[ManifestFile]) -> None:
        """Keep what was read of these."""
        paths = {manifest.manifest_path for manifest in manifests}
        self._read = {path: entries for path, entries in self._read.items() if path in paths}

    def live(self, manifest: ManifestFile) -> tuple[ManifestEntry, ...]:
        """The entries of files that are there."""
        return tuple(entry for entry in self.entries(manifest) if entry.status != ManifestEntryStatus.DELETED)

    def entries(self, manifest: ManifestFile) -> tuple[ManifestEntry, ...]:
        """All entries, those of files that were taken out included."""
        if manifest.manifest_path not in self._read:
            found = tuple(manifest.fetch_manifest_entry(self.io, discard_deleted=False))
            for entry in found:
                entry.data_file.spec_id = manifest.partition_spec_id
            self._read[manifest.manifest_path] = found
        return self._read[manifest.manifest_path]

    def of(self, snapshot: "Snapshot | None") -> SnapshotFiles:
        if snapshot is None:
            return SnapshotFiles()
        manifests = tuple(snapshot.manifests(self.io))
        files = SnapshotFiles(manifests=manifests)
        for entry in self._all_live(manifests):
            of_kind = files.data if entry.data_file.content == DataFileContent.DATA else files.deletes
            of_kind[entry.data_file.file_path] = entry
        return files

    def changes_of(self, snapshot: "Snapshot") -> tuple[list[ManifestEntry], list[ManifestEntry]]:
        """The entries that this very snapshot added, and those that it took out."""
        added: list[ManifestEntry] = []
        removed: list[ManifestEntry] = []
        for manifest in snapshot.manifests(self.io):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            for entry in self.entries(manifest):
                if entry.snapshot_id == snapshot.snapshot_id and entry.status == ManifestEntryStatus.ADDED:
                    added.append(entry)
                elif entry.snapshot_id == snapshot.snapshot_id and entry.status == ManifestEntryStatus.DELETED:
                    removed.append(entry)
        return added, removed

    def _all_live(self, manifests: Iterable[ManifestFile]) -> Iterator[ManifestEntry]:
        with ThreadPoolExecutor(READ_AT_ONCE) as pool:
            for entries in pool.map(self.live, manifests):
                yield from entries
