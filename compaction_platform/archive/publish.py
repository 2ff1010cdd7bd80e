"""What was staged becomes what readers see.

Every step is a copy out of the attempt's own directory, a deletion of files that an earlier version's manifest lists,
or a commit that fails if another came first. All of them may be done again. When a publication is complete its
attempt's directory is deleted: a worker that was paused in the middle and goes on later finds nothing to copy.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from compaction_platform.archive.cold_table import ColdTable
from compaction_platform.archive.layout import MANIFEST, NOT_DATA, SUCCESS, Place
from compaction_platform.archive.manifest import Manifest, ManifestFile
from compaction_platform.archive.version import Version
from compaction_platform.lake.errors import CompactionError
from compaction_platform.lake.objects import ObjectMissing, Objects

COPIES_AT_ONCE = 8


class StagedFilesMissing(CompactionError):
    """Files that were staged and verified are gone."""


class NotRemoved(CompactionError):
    """The store does not delete what must be gone. Run again."""


class ForeignFile(CompactionError):
    """A file lies where only the archive's own should."""


@dataclass(frozen=True)
class Publication:
    """One version of a range, all datasets."""

    store: Objects
    manifests: Mapping[str, Manifest]
    earlier: Sequence[Version]  # older versions of the range
    tables: Mapping[str, ColdTable]  # none where there is no catalog
    still_ours: Callable[[], None]  # raises if another run took over

    def publish(self) -> None:
        """For plain readers the old version's files go before the new ones come: never two at a time. Iceberg's readers
        see one version all the time: while files move, the table refers to the staged ones."""
        for manifest in self.manifests.values():
            clear_attempts(self.store, manifest, before=manifest.attempt)
        if any(version.is_live for version in self.earlier):
            try:
                self._register(lambda manifest, file: _place(manifest).staged(manifest.attempt, file.name))
            except ObjectMissing as missing:
                self.still_ours()
                raise StagedFilesMissing(f"a file that was staged and verified is gone: {missing}") from missing
        for manifest in self.manifests.values():
            self.still_ours()
            self._show(manifest)
        self._register(lambda manifest, file: _place(manifest).visible(file.name))

    def clean_up(self) -> None:
        """The attempt's own directory: nothing in it is needed any more."""
        for manifest in self.manifests.values():
            clear_attempts(self.store, manifest, before=manifest.attempt + 1)

    def take_back(self) -> list[str]:
        """Staged files are gone: what was shown of them leaves again, and the version before comes back. Returns what
        could not be brought back."""
        live = next((version for version in self.earlier if version.is_live), None)
        before_version = live.version if live else 0
        problems = []
        for name, manifest in self.manifests.items():
            self.still_ours()
            place = _place(manifest)
            before = live.manifests.get(name) if live else None
            there = self._visible(place)
            self._delete([place.visible(file.name) for file in manifest.files if file.name in there])
            files = before.files if before else ()
            for file in files:
                if there.get(file.name) != file.size:
                    try:
                        kept = place.superseded(before_version, file.name)
                        self.store.copy(kept, place.visible(file.name), overwrite=True)
                    except ObjectMissing:
                        problems.append(
                            f"{self.store.uri}/{place.visible(file.name)}, and what was kept of it, are gone"
                        )
            self._delete([place.visible(each) for each in NOT_DATA if each in there])
            if before is not None:
                write_marks(self.store, before)
            if name in self.tables:
                visible = self._visible(place)
                keys = {place.visible(file.name): file.size for file in files if file.rows and file.name in visible}
                self.tables[name].replace(manifest.blocks, keys, self.still_ours)
        return problems

    def _delete(self, keys: Sequence[str]) -> None:
        if failures := self.store.delete(keys):
            key, reason = next(iter(failures.items()))
            raise NotRemoved(f"{self.store.uri}/{key} could not be removed ({reason}); run again.")

    def _register(self, key_of: Callable[[Manifest, ManifestFile], str]) -> None:
        for name, table in self.tables.items():
            manifest = self.manifests[name]
            keys = {key_of(manifest, file): file.size for file in manifest.files if file.rows}
            table.replace(manifest.blocks, keys, self.still_ours)

    def _show(self, manifest: Manifest) -> None:
        place = _place(manifest)
        wanted = {file.name: file.size for file in manifest.files}
        there = self._visible(place)
        old = [name for name in there if name not in wanted and name not in NOT_DATA]
        if old and SUCCESS in there:  # from here on the directory is not whole
            self._delete([place.visible(SUCCESS)])
        self._set_aside(place, old)
        missing = [name for name, size in wanted.items() if there.get(name) != size]
        with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
            list(pool.map(lambda name: self._copy(place, manifest, name), missing))
        for name in NOT_DATA:
            self._copy(place, manifest, name)
        if (now := self._visible(place)) != wanted | {name: now.get(name) for name in NOT_DATA}:
            raise ForeignFile(
                f"{self.store.uri}/{place.directory} holds {sorted(now)} after publishing {sorted(wanted)}; is "
                "something else writing there? Nothing was purged."
            )

    def _visible(self, place: Place) -> dict[str, int]:
        return {stored.key.rpartition("/")[2]: stored.size for stored in self.store.list_directory(place.directory)}

    def _copy(self, place: Place, manifest: Manifest, name: str) -> None:
        staged = place.staged(manifest.attempt, name)
        try:
            self.store.copy(staged, place.visible(name), overwrite=True)
        except ObjectMissing as missing:
            self.still_ours()  # another run has published it and cleaned up
            if name in NOT_DATA and is_marked(self.store, manifest):
                return
            raise StagedFilesMissing(
                f"{self.store.uri}/{staged} was staged and verified, and is gone. The hot rows are untouched."
            ) from missing

    def _set_aside(self, place: Place, names: Sequence[str]) -> None:
        """Files of an earlier version leave, but are kept until retention."""
        owners = {
            file.name: (version.version, file)
            for version in self.earlier
            if place.dataset in version.manifests
            for file in version.manifests[place.dataset].files
        }
        if foreign := [name for name in names if name not in owners]:
            raise ForeignFile(
                f"{self.store.uri}/{place.directory} holds {', '.join(sorted(foreign)[:5])}, which no manifest of this "
                "range lists. It was not touched, and nothing was published. Move it away, then run again."
            )
        for name in names:
            version, file = owners[name]
            kept = place.superseded(version, name)
            self.store.copy(place.visible(name), kept, overwrite=True)
            stored = self.store.stat(kept)
            if stored is None or stored.size != file.size:
                raise NotRemoved(f"{self.store.uri}/{kept} is not what was copied there; nothing was removed.")
        self._delete([place.visible(name) for name in names])


def clear_attempts(store: Objects, manifest: Manifest, before: int) -> None:
    """Delete the directories of attempts with a lower number: they are over. If one of their workers is only paused, it
    finds nothing to copy when it goes on."""
    place = _place(manifest)
    keys = [stored.key for stored in store.list(place.attempts)]
    failures = store.delete(key for key in keys if _attempt_of(place, key) < before)
    if failures:
        key, reason = next(iter(failures.items()))
        raise NotRemoved(f"{store.uri}/{key} of an attempt that is over cannot be deleted: {reason}.")


def stage_manifest(store: Objects, manifest: Manifest) -> None:
    place = _place(manifest)
    key = place.staged(manifest.attempt, MANIFEST)
    store.write(key, manifest.to_bytes())
    if bytes(store.read(key)) != manifest.to_bytes():
        raise StagedFilesMissing(f"{store.uri}/{key} reads back as something else than was written.")
    store.write(place.staged(manifest.attempt, SUCCESS), success_mark(manifest))


def write_marks(store: Objects, manifest: Manifest) -> None:
    """What stands beside the files of a range that is whole."""
    place = _place(manifest)
    store.write(place.visible(MANIFEST), manifest.to_bytes())
    store.write(place.visible(SUCCESS), success_mark(manifest))


def is_marked(store: Objects, manifest: Manifest) -> bool:
    try:
        return bytes(store.read(_place(manifest).visible(SUCCESS))) == success_mark(manifest)
    except ObjectMissing:
        return False


def success_mark(manifest: Manifest) -> bytes:
    """It names the manifest that all files of the directory belong to."""
    return f"version {manifest.dataset_version} manifest {manifest.sha256}\n".encode()


def _place(manifest: Manifest) -> Place:
    return Place(str(manifest.chain_id), manifest.dataset, manifest.blocks)


def _attempt_of(place: Place, key: str) -> int:
    number = key.removeprefix(f"{place.attempts}/").partition("/")[0]
    return int(number) if number.isdigit() else 2**63
