"""Is what a swap has published still there, as it was? All of it is read again; and where the originals still exist,
another Parquet decoder reads both."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow

from compaction_platform.compact.audit import AuditedOutput, OutputAudit
from compaction_platform.compact.glue.config import PartitionSurvey
from compaction_platform.compact.glue.plan.manifest import OutputFile
from compaction_platform.compact.glue.plan.partition_plan import missing_outputs
from compaction_platform.compact.plan.bin_packing import OWN_NAME
from compaction_platform.compact.plan.lineage import content_digest
from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.lake.parquet.second_reader import (
    NotJudged,
    ReadersDisagree,
    SecondReaderRefused,
    connected,
    require_same_rows,
)
from compaction_platform.lake.storage.object_store import ObjectChanged, ObjectMissing, ObjectStore

GONE = "it is gone, or is not the file that was published"


@dataclass(frozen=True)
class Published:
    """One file that a swap has published, and what it was made of: all of that, or nothing if some is gone."""

    place: str
    output: OutputFile
    originals: tuple[tuple[str, FileVersion], ...] = ()

    @property
    def path(self) -> str:
        return f"{self.place}/{self.output.name}"

    @property
    def size(self) -> int:
        return self.output.size + sum(file.size for _, file in self.originals)


@dataclass(frozen=True)
class AuditPublished:
    """It travels to where the work is done."""

    objects: ObjectStore  # at any address: its options lead to all others

    def __call__(self, item: Published) -> AuditedOutput:
        output = item.output
        file = FileVersion(output.name, output.size, output.etag)
        store = self._at(item.place)
        try:
            data = pyarrow.py_buffer(store.read(file.key, file.etag))
        except (ObjectChanged, ObjectMissing):
            return AuditedOutput()  # the listing has told, or it was compacted again meanwhile
        if output.content is not None and content_digest(data) != output.content:
            return AuditedOutput(output.rows or 0, "its bytes are not those that were published")
        if not OWN_NAME.fullmatch(file.key):
            return AuditedOutput(output.rows or 0)
        found = OutputAudit(store).judged(file, data)
        if found.problem is None and item.originals:
            found = replace(found, problem=self._differs(item, data))
        return found

    def _differs(self, item: Published, data: pyarrow.Buffer) -> str | None:
        with tempfile.TemporaryDirectory(prefix="compaction-audit-") as folder:
            whole = Path(folder) / "whole"
            whole.write_bytes(memoryview(data))
            parts = [Path(folder) / str(number) for number in range(len(item.originals))]
            try:
                for path, (place, file) in zip(parts, item.originals, strict=True):
                    path.write_bytes(memoryview(self._at(place).read(file.key, file.etag)))
                with connected(Path(folder)) as connection:
                    require_same_rows(connection, parts, whole)
            except (ObjectChanged, ObjectMissing, NotJudged):
                return None  # they are being removed; or the second reader cannot tell
            except (SecondReaderRefused, ReadersDisagree) as reason:
                return f"read again with the originals: {reason}"
        return None

    def _at(self, place: str) -> ObjectStore:
        return replace(self.objects, uri=place)


def published_files(surveyed: PartitionSurvey) -> Iterator[Published]:
    """What the version that the catalog leads to should be made of, as far as it is there."""
    manifest, current = surveyed.found.manifest, surveyed.found.current
    if manifest is None:
        return
    gone = set(missing_outputs(manifest, current))
    there = {(place.uri, *file.version): file for place in surveyed.found.old for file in place.data}
    versions = {file.name: (file.place, *file.listed.version) for file in manifest.inputs}
    for each in manifest.outputs:
        if each.name in gone:
            continue
        wanted = [versions[name] for name in each.inputs if name in versions]
        is_whole = len(wanted) == len(each.inputs) and all(version in there for version in wanted)
        originals = tuple((version[0], there[version]) for version in wanted) if is_whole else ()
        yield Published(current.uri, each, originals)


def gone_files(surveys: Sequence[PartitionSurvey]) -> dict[str, str]:
    """By address: files that a manifest lists and that are not where the catalog leads."""
    return {
        f"{each.found.current.uri}/{name}": GONE
        for each in surveys
        if each.found.manifest
        for name in missing_outputs(each.found.manifest, each.found.current)
    }
