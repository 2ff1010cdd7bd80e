"""What was staged becomes what readers see.

Every name below `range=*` that holds rows is created once, on the condition that nothing is there, and is never used
again after it was deleted: whoever was paused before a deletion deletes nothing that counts. What is created is a copy
out of the attempt's own directory. It is checked that the attempt is still the one to be published after its directory
was written, and whoever takes over deletes the directory before publishing anything: a worker that was paused in the
middle and goes on later finds nothing to copy.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from compaction_platform.archive.cold.iceberg_table import ColdTable
from compaction_platform.archive.cold.manifest import ManifestFile, RangeManifest
from compaction_platform.archive.cold.paths import NOT_DATA, RangePaths, attempt_name, new_token
from compaction_platform.archive.ledger.range_version import RangeVersion
from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage.object_store import ObjectExists, ObjectMissing, ObjectStore
from compaction_platform.lake.storage.threads import map_concurrently
from compaction_platform.persisted_names import RANGE_MANIFEST, RANGE_SUCCESS

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

    store: ObjectStore
    manifests: Mapping[str, RangeManifest]
    earlier: Sequence[RangeVersion]  # older versions of the range
    tables: Mapping[str, ColdTable]  # none where there is no catalog
    announce: Callable[[], None]  # raises if the cold files belong to another ledger
    still_ours: Callable[[], None]  # raises if another run took over, or another ledger

    def publish(self) -> None:
        """For plain readers the old version's files go before the new ones come: never two at a time. Iceberg's readers
        see one version all the time: while files move, the table refers to the staged ones."""
        self.announce()
        self.still_ours()
        for manifest in self.manifests.values():
            clear_attempts(self.store, manifest, before=manifest.attempt)
        if any(version.is_live for version in self.earlier):
            try:
                self._register(lambda manifest, file: _place(manifest).staged(manifest.attempt_name, file.name))
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

    def hide(self) -> None:
        """Delete what was shown of a version that was given up. Its names are never used again."""
        for manifest in self.manifests.values():
            place = _place(manifest)
            there = self._visible(place)
            gone = [file.name for file in manifest.files if file.name in there]
            marks = {RANGE_MANIFEST: manifest.to_bytes(), RANGE_SUCCESS: success_mark(manifest)}
            gone += [
                name for name, mark in marks.items() if sha256_of(self.store, place.visible(name)) == _sha256(mark)
            ]
            self._delete([place.visible(name) for name in gone])

    def _delete(self, keys: Sequence[str]) -> None:
        if failures := self.store.delete(keys):
            key, reason = next(iter(failures.items()))
            raise NotRemoved(f"{self.store.uri}/{key} could not be removed ({reason}); run again.")

    def _register(self, key_of: Callable[[RangeManifest, ManifestFile], str]) -> None:
        for name, table in self.tables.items():
            manifest = self.manifests[name]
            keys = {key_of(manifest, file): file.size for file in manifest.files if file.rows}
            table.replace(manifest.blocks, keys, self.still_ours)

    def _show(self, manifest: RangeManifest) -> None:
        place = _place(manifest)
        wanted = {file.name: file.size for file in manifest.files}
        there = self._visible(place)
        old = [name for name in there if name not in wanted and name not in NOT_DATA]
        if old and RANGE_SUCCESS in there:  # from here on the directory is not whole
            self._delete([place.visible(RANGE_SUCCESS)])
        self._set_aside(place, old)
        map_concurrently(lambda file: self._copy(place, manifest, file), manifest.files, COPIES_AT_ONCE)
        for name in NOT_DATA:
            self._mark(place, manifest, name)
        if (now := self._visible(place)) != wanted | {name: now.get(name) for name in NOT_DATA}:
            raise ForeignFile(
                f"{self.store.uri}/{place.directory} holds {sorted(now)} after publishing {sorted(wanted)}; is "
                "something else writing there? Nothing was purged."
            )

    def _visible(self, place: RangePaths) -> dict[str, int]:
        return {stored.key.rpartition("/")[2]: stored.size for stored in self.store.list_directory(place.directory)}

    def _copy(self, place: RangePaths, manifest: RangeManifest, file: ManifestFile) -> None:
        """One data file, if nothing has its name; what has it must have its content."""
        staged, visible = place.staged(manifest.attempt_name, file.name), place.visible(file.name)
        try:
            self.store.copy(staged, visible)
        except ObjectMissing as missing:
            self.still_ours()  # another run has published it and cleaned up
            if sha256_of(self.store, visible) == file.sha256:
                return
            raise self._staged_is_gone(staged) from missing
        except ObjectExists:
            if sha256_of(self.store, visible) != file.sha256:
                raise ForeignFile(
                    f"{self.store.uri}/{visible} exists and is not what was verified (its sha256 is not "
                    f"{file.sha256[:12]}…). It was not changed, and nothing was committed or purged. Move it away, "
                    "then run again."
                ) from None

    def _mark(self, place: RangePaths, manifest: RangeManifest, name: str) -> None:
        staged = place.staged(manifest.attempt_name, name)
        try:
            self.store.copy(staged, place.visible(name), overwrite=True)
        except ObjectMissing as missing:
            self.still_ours()
            if is_marked(self.store, manifest):
                return
            raise self._staged_is_gone(staged) from missing

    def _staged_is_gone(self, staged: str) -> StagedFilesMissing:
        return StagedFilesMissing(
            f"{self.store.uri}/{staged} was staged and verified, and is gone. The hot rows are untouched."
        )

    def _set_aside(self, place: RangePaths, names: Sequence[str]) -> None:
        """Files of an earlier version leave, but are kept until retention; those of one that was given up are not."""
        owners = {
            file.name: (version, file)
            for version in self.earlier
            if place.dataset in version.manifests
            for file in version.manifests[place.dataset].files
        }
        if foreign := [name for name in names if name not in owners]:
            raise ForeignFile(
                f"{self.store.uri}/{place.directory} holds {', '.join(sorted(foreign)[:5])}, which no manifest of this "
                "range lists. It was not touched, and nothing was published. Move it away, then run again. If this "
                "database was set back to a backup: `compaction archive rebuild`."
            )
        for name in names:
            version, file = owners[name]
            if version.state != "failed":
                self._keep(place, version, file)
        self._delete([place.visible(name) for name in names])

    def _keep(self, place: RangePaths, version: RangeVersion, file: ManifestFile) -> None:
        visible, kept = place.visible(file.name), place.superseded(version.version, file.name)
        manifest_key = place.superseded(version.version, RANGE_MANIFEST)
        try:
            self.store.copy(visible, kept)
        except ObjectExists:
            pass  # by a run that died
        except ObjectMissing:
            self.still_ours()  # another run has set it aside
        found = sha256_of(self.store, kept)
        if found != file.sha256 and (found is None or found != sha256_of(self.store, visible)):
            raise NotRemoved(
                f"{self.store.uri}/{kept} is not what lies at {visible}; nothing was removed. Compare the two, move "
                "the wrong one away, then run again."
            )
        with suppress(ObjectExists):
            self.store.create(manifest_key, version.manifests[place.dataset].to_bytes())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def sha256_of(store: ObjectStore, key: str) -> str | None:
    """Return the sha256 of an object's content; None if it is not there."""
    try:
        return hashlib.sha256(store.read(key)).hexdigest()
    except ObjectMissing:
        return None


def clear_attempts(store: ObjectStore, manifest: RangeManifest, before: int) -> None:
    """Delete the directories of attempts with a lower number: they are over. If one of their workers is only paused, it
    finds nothing to copy when it goes on."""
    place = _place(manifest)
    keys = [stored.key for stored in store.list(place.attempts)]
    failures = store.delete(key for key in keys if _attempt_of(place, key) < before)
    if failures:
        key, reason = next(iter(failures.items()))
        raise NotRemoved(f"{store.uri}/{key} of an attempt that is over cannot be deleted: {reason}.")


def stage_manifest(store: ObjectStore, manifest: RangeManifest) -> None:
    place = _place(manifest)
    key = place.staged(manifest.attempt_name, RANGE_MANIFEST)
    store.create(key, manifest.to_bytes())
    if bytes(store.read(key)) != manifest.to_bytes():
        raise StagedFilesMissing(f"{store.uri}/{key} reads back as something else than was written.")
    store.create(place.staged(manifest.attempt_name, RANGE_SUCCESS), success_mark(manifest))


def mark_again(store: ObjectStore, manifest: RangeManifest, fence: int, still_ours: Callable[[], None]) -> None:
    """Put the marks of a committed version back. They are written to a directory of their own first, then it is checked
    that nobody took over, then they are copied: whoever takes over later deletes the directory."""
    place, attempt = _place(manifest), attempt_name(fence, new_token())
    for name, content in ((RANGE_MANIFEST, manifest.to_bytes()), (RANGE_SUCCESS, success_mark(manifest))):
        store.create(place.staged(attempt, name), content)
    still_ours()
    for name in NOT_DATA:
        store.copy(place.staged(attempt, name), place.visible(name), overwrite=True)
    store.delete([place.staged(attempt, name) for name in NOT_DATA])


def is_marked(store: ObjectStore, manifest: RangeManifest) -> bool:
    """Whether what stands beside the files of a range is this manifest, and says that the range is whole."""
    place = _place(manifest)
    try:
        return (
            bytes(store.read(place.visible(RANGE_SUCCESS))) == success_mark(manifest)
            and bytes(store.read(place.visible(RANGE_MANIFEST))) == manifest.to_bytes()
        )
    except ObjectMissing:
        return False


def success_mark(manifest: RangeManifest) -> bytes:
    """It names the manifest that all files of the directory belong to."""
    return f"version {manifest.dataset_version} manifest {manifest.sha256}\n".encode()


def _place(manifest: RangeManifest) -> RangePaths:
    return RangePaths(str(manifest.chain_id), manifest.dataset, manifest.blocks)


def _attempt_of(place: RangePaths, key: str) -> int:
    number = key.removeprefix(f"{place.attempts}/").partition("/")[0].partition("_")[0]
    return int(number) if number.isdigit() else 2**63
