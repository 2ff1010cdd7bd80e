"""Files of a partition on their way to a new location, inside a task: joined where that can be, or copied as they are.

Doing a piece of work twice changes nothing: what it makes is named by the digest of its inputs.
"""

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow
import xxhash

from compaction_platform.compact.glue.plan.manifest import OutputFile
from compaction_platform.compact.glue.plan.partition_plan import copied_name, version_digest
from compaction_platform.compact.plan.bin_packing import FileGroup
from compaction_platform.compact.plan.lineage import OutputUnreadable, content_digest, footer_of, inputs_told
from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.compact.rewrite.compatible_inputs import (
    CompatibleInputs,
    JoinOptions,
    compatible_inputs,
    in_one_line,
    kind_of,
)
from compaction_platform.compact.rewrite.read_inputs import UNREADABLE, SourceFile, fetch
from compaction_platform.compact.rewrite.result import NOTHING_CHANGED
from compaction_platform.compact.rewrite.rewrite_bin import same_rows
from compaction_platform.errors import CompactionError, VerificationFailed
from compaction_platform.lake.storage.object_store import ObjectChanged, ObjectExists, ObjectMissing, ObjectStore


class InputsChanged(CompactionError):
    """Files of the partition are not what they were when it was planned."""


@dataclass(frozen=True)
class PartitionTask:
    """Files of one partition, as names below its location: several that are to become one, or one to be copied."""

    partition: str
    source: str
    target: str
    inputs: tuple[FileVersion, ...]
    target_mb: int = 0
    reason: str = ""  # why it is copied
    earlier: tuple[str, ...] = ()  # directories in which a run that did not end may have made the same

    @property
    def size(self) -> int:
        return sum(file.size for file in self.inputs)


@dataclass(frozen=True)
class RewritePartition:
    """All that a task needs. It travels to where the work is done."""

    objects: ObjectStore  # at any address: its options lead to all others
    how: JoinOptions

    def at(self, uri: str) -> ObjectStore:
        return replace(self.objects, uri=uri)

    def __call__(self, work: PartitionTask) -> tuple[OutputFile, ...]:
        if len(work.inputs) == 1:
            return (self.copy(work.source, work.target, work.inputs[0], work.reason),)
        if before := self._made_before(work):
            return (before,)
        fetched = fetch(self.at(work.source), work.inputs)
        if fetched.changed:
            raise InputsChanged("; ".join(fetched.changed.values()))
        return tuple(self._joined(work, fetched.inputs))

    # ------------------------------------------------------------ several become one

    def _joined(self, work: PartitionTask, inputs: Sequence[SourceFile]) -> Iterator[OutputFile]:
        groups, unread = _of_one_kind(inputs)
        for group in groups:
            alone = {each.file.key: "no other file has exactly its columns" for each in group}
            if len(group) > 1:
                with compatible_inputs(group, self.how, 2, work.partition) as found:
                    if found.written is not None:
                        yield self._published(work, found)
                    taken = {each.file.key for each in found.inputs} if found.written else set()
                    alone = {key: why for key, why in alone.items() if key not in taken} | dict(found.set_aside)
            unread |= alone
        for file in work.inputs:
            if file.key in unread:
                yield self.copy(work.source, work.target, file, unread[file.key])

    def _made_before(self, work: PartitionTask) -> OutputFile | None:
        """What a run that did not end has made of these very versions. It was proved before it was uploaded."""
        name = FileGroup(work.inputs, work.target_mb).output
        wanted = {file.version for file in work.inputs}
        for place in work.earlier:
            source = self.at(place)
            stored = source.stat(name)
            if stored is None:
                continue
            file = FileVersion(name, stored.size, stored.etag)
            try:
                footer = footer_of(source, file)
                if footer is None or not wanted <= set(inputs_told(footer)):
                    continue
                made = self.copy(place, work.target, file, "a run that did not end had made it", name)
            except (OutputUnreadable, InputsChanged):
                continue  # it is being removed
            return made.model_copy(update={"how": "resumed", "inputs": tuple(each.key for each in work.inputs)})
        return None

    def _published(self, work: PartitionTask, found: CompatibleInputs) -> OutputFile:
        assert found.written is not None and found.file is not None  # noqa: S101 (for the type checker)
        files = tuple(each.file for each in found.inputs)
        name = FileGroup(files, work.target_mb).output
        target = self.at(work.target)
        try:
            target.create_from(name, found.file.path)
        except ObjectExists:
            there = pyarrow.py_buffer(target.read(name))
            if not same_rows(there, found.file.mapped()):
                raise VerificationFailed(f"{work.target}/{name} exists and has other rows. {NOTHING_CHANGED}") from None
        stored = target.stat(name)
        if stored is None:
            raise ObjectMissing(f"{work.target}/{name} is gone as soon as it was made. {NOTHING_CHANGED}")
        written = found.written
        return OutputFile(
            name=name,
            etag=stored.etag,
            size=stored.size,
            rows=written.rows,
            how=written.engine,
            reason=written.reason,
            inputs=tuple(file.key for file in files),
            content=content_digest(found.file.mapped()),
        )

    # ------------------------------------------------------------ one is copied

    def copy(self, place: str, to: str, file: FileVersion, reason: str, name: str | None = None) -> OutputFile:
        """Byte for byte: it reads, or fails to read, as before."""
        source, target = self.at(place), self.at(to)
        name = name or copied_name(version_digest(place, file.key, file.stamp), file.key)
        is_new = False
        try:
            with tempfile.NamedTemporaryFile() as spool:
                expected, content = hashlib.sha256(), xxhash.xxh3_64()
                for piece in source.pieces(file.key, file.size, file.etag):
                    expected.update(piece)
                    content.update(piece)
                    spool.write(piece)
                spool.flush()
                rows = _rows(file, spool.name)
                with suppress(ObjectExists):  # by an earlier attempt, or another run; it is compared as any other
                    target.create_from(name, Path(spool.name))
                    is_new = True
        except (ObjectChanged, ObjectMissing) as changed:
            raise InputsChanged(str(changed)) from None
        stored = target.stat(name)
        found = hashlib.sha256()
        if stored is not None:
            for piece in target.pieces(name, stored.size, stored.etag):
                found.update(piece)
        if stored is None or found.digest() != expected.digest():
            if is_new:
                target.delete_versions([(name, stored.etag)] if stored is not None else [])
            raise VerificationFailed(f"{to}/{name} is not what was copied there. {NOTHING_CHANGED}")
        return OutputFile(
            name=name,
            etag=stored.etag,
            size=stored.size,
            rows=rows,
            how="copy",
            reason=reason,
            inputs=(file.key,),
            content=content.hexdigest(),
        )


def _of_one_kind(inputs: Sequence[SourceFile]) -> tuple[list[list[SourceFile]], dict[str, str]]:
    """Inputs by their exact columns; and why some cannot be read at all."""
    groups: dict[object, list[SourceFile]] = {}
    unread: dict[str, str] = {}
    for each in inputs:
        try:
            groups.setdefault(kind_of(each), []).append(each)
        except UNREADABLE as reason:
            unread[each.file.key] = in_one_line(reason)
    return list(groups.values()), unread


def _rows(file: FileVersion, path: str) -> int | None:
    try:
        return int(SourceFile(file, pyarrow.memory_map(path).read_buffer()).metadata.num_rows)
    except UNREADABLE:
        return None
