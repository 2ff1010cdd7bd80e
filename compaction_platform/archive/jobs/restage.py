"""The rows of a version that was published before, staged once more under names that were never used.

Wanted where deletions of its old names may yet come, by a process that is only paused.
"""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from compaction_platform.archive.cold.manifest import ManifestFile, RangeManifest, Superseded
from compaction_platform.archive.cold.paths import RangePaths, attempt_name, file_name, new_token
from compaction_platform.archive.cold.publish import StagedFilesMissing, stage_manifest
from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage.object_store import ObjectMissing, ObjectStore

COPIES_AT_ONCE = 4  # each file is in memory


class ColdFilesMissing(CompactionError):
    """Files of a version are nowhere to be found as they were committed."""


def stage_again(
    store: ObjectStore, manifests: Mapping[str, RangeManifest], before: int, number: int, fence: int, because: str
) -> dict[str, RangeManifest]:
    """Stage all files of version `before` as version `number`. Returns the new manifests; they are staged, too.

    Raises ColdFilesMissing if a file is nowhere as its manifest says.
    """
    token = new_token()
    staged = {}
    for name, manifest in manifests.items():
        files = _stage_files(store, manifest, before, attempt_name(fence, token))
        superseded = Superseded(
            dataset_version=manifest.dataset_version, manifest_sha256=manifest.sha256, because=because
        )
        staged[name] = manifest.model_copy(
            update={
                "dataset_version": number,
                "attempt": fence,
                "token": token,
                "files": files,
                "supersedes": superseded,
            }
        )
    for manifest in staged.values():
        stage_manifest(store, manifest)
    return staged


def content_of(store: ObjectStore, manifest: RangeManifest, version: int, file: ManifestFile) -> Any:
    """Return a file's content from wherever it is; None if it is nowhere as it was committed."""
    place = RangePaths(str(manifest.chain_id), manifest.dataset, manifest.blocks)
    names = (
        place.visible(file.name),
        place.superseded(version, file.name),
        place.staged(manifest.attempt_name, file.name),
        place.superseded(version, file.name),  # once more: it may have been moved there right now
    )
    for key in names:
        try:
            content = store.read(key)
        except ObjectMissing:
            continue
        if hashlib.sha256(content).hexdigest() == file.sha256:
            return content
    return None


def _stage_files(store: ObjectStore, manifest: RangeManifest, version: int, attempt: str) -> tuple[ManifestFile, ...]:
    place = RangePaths(str(manifest.chain_id), manifest.dataset, manifest.blocks)

    def stage(number: int, file: ManifestFile) -> ManifestFile:
        content = content_of(store, manifest, version, file)
        if content is None:
            raise ColdFilesMissing(f"{store.uri}/{place.visible(file.name)}, and what was kept of it, are gone")
        name = file_name(number, attempt)
        store.create(place.staged(attempt, name), content)
        if hashlib.sha256(store.read(place.staged(attempt, name))).hexdigest() != file.sha256:
            raise StagedFilesMissing(f"{store.uri}/{place.staged(attempt, name)} reads back as something else.")
        return file.model_copy(update={"name": name})

    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        return tuple(pool.map(stage, range(len(manifest.files)), manifest.files))
