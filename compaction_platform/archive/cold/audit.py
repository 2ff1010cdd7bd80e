"""Cold files read again, long after they were committed: in Spark tasks, every byte and every value."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow
import pyarrow.parquet

from compaction_platform.archive.chain.continuity import BlockLink
from compaction_platform.archive.cold.manifest import ManifestFile, RangeManifest
from compaction_platform.archive.cold.paths import NOT_DATA, RangePaths
from compaction_platform.archive.cold.publish import is_marked
from compaction_platform.archive.config import ArchivedChain, ArchivedTable
from compaction_platform.archive.hot.snapshot import as_text, as_time
from compaction_platform.archive.jobs.copy_file import fingerprint_of_file
from compaction_platform.archive.ledger.ledger import Ledger
from compaction_platform.archive.ledger.range_version import WORKING, RangeVersion
from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage.object_store import ObjectMissing, ObjectStore
from compaction_platform.persisted_names import RANGE_MANIFEST, RANGE_SUCCESS

BYTES_READ_ALONE = 1 << 30  # of a dataset, in one check without a run
EVERY_DAY = 7919  # a prime number: in time the beginning falls on every range


class ColdFileUnreadable(CompactionError):
    """A cold file is gone or damaged."""


@dataclass(frozen=True)
class AuditItem:
    key: str
    file: ManifestFile


@dataclass(frozen=True)
class ColdFileAudit:
    """What is wrong with a file, or None."""

    store: ObjectStore

    def __call__(self, item: AuditItem) -> str | None:
        try:
            content = self.store.read(item.key)
        except ObjectMissing:
            return "is gone"
        if hashlib.sha256(content).hexdigest() != item.file.sha256:
            return f"is not the file that was committed: its sha256 is not {item.file.sha256[:12]}…"
        if fingerprint_of_file(content).digest != item.file.fingerprint:
            return "decodes to other values than were committed"
        return None


def audit_items(archive: ArchivedChain, version: RangeVersion, dataset: ArchivedTable) -> list[AuditItem]:
    place = RangePaths(archive.chain, dataset.name, version.blocks)
    return [AuditItem(place.visible(file.name), file) for file in version.manifests[dataset.name].files]


def chosen_for_reading(
    versions: Sequence[RangeVersion], newest: Sequence[RangeVersion], name: str, ledger: Ledger
) -> list[RangeVersion]:
    """The newest, and as many others as BYTES_READ_ALONE allow, beginning somewhere else every day."""
    older = [version for version in versions if version not in newest]
    chosen, size = list(newest), 0
    if older:
        first = ledger.now().toordinal() * EVERY_DAY % len(older)
        for version in older[first:] + older[:first]:
            size += version.manifests[name].size
            if size > BYTES_READ_ALONE:
                break
            chosen.append(version)
    return chosen


def listing_problems(
    archive: ArchivedChain,
    store: ObjectStore,
    live: Sequence[RangeVersion],
    known: Sequence[RangeVersion],
    dataset: ArchivedTable,
) -> list[str]:
    """What one listing of the dataset tells of all its ranges: files that are gone, of another size, or not listed in
    the manifest that the ledger has."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for stored in store.list(f"{archive.chain}/{dataset.name}"):
        directory, _, file_name = stored.key.rpartition("/")
        if "/range=" in directory:
            found[directory][file_name] = stored.size
    problems = []
    working = {version.blocks for version in known if version.state in WORKING}
    for version in live:
        directory = RangePaths(archive.chain, dataset.name, version.blocks).directory
        there = found.pop(directory, {})
        if version.blocks in working:  # its files may be on the move right now
            continue
        wanted = {file.name: file.size for file in version.manifests[dataset.name].files}
        for name in sorted(wanted.keys() | there.keys()):
            if name in NOT_DATA:
                continue
            key = f"{store.uri}/{directory}/{name}"
            if name not in there:
                problems.append(f"{key} is gone")
            elif name not in wanted:
                problems.append(f"{key} is not in the manifest")
            elif there[name] != wanted[name]:
                problems.append(f"{key} has {there[name]:,} bytes, {wanted[name]:,} were committed")
    mine = {RangePaths(archive.chain, dataset.name, blocks).directory for blocks in working}
    for directory in sorted(found.keys() - mine):
        problems.append(f"{store.uri}/{directory} is there, and the ledger has no such committed range")
    return problems


def mark_problems(store: ObjectStore, manifest: RangeManifest) -> list[str]:
    """Whether the manifest beside the files is the one that the ledger has, and `_SUCCESS` names it."""
    if is_marked(store, manifest):
        return []
    directory = RangePaths(str(manifest.chain_id), manifest.dataset, manifest.blocks).directory
    problem = (
        f"{store.uri}/{directory} is not marked as version {manifest.dataset_version} of the ledger: {RANGE_MANIFEST} "
        f"or {RANGE_SUCCESS} is missing, or belongs to another version. If its files are right, materializing the "
        "range puts both back"
    )
    return [problem]


def cold_links(archive: ArchivedChain, store: ObjectStore, version: RangeVersion) -> list[BlockLink]:
    """The blocks of a range as the cold files have them."""
    dataset = archive.blocks
    names = [dataset.block, str(dataset.hash), str(dataset.parent_hash)]
    return [
        BlockLink(number, as_text(own), as_text(parent))
        for item in audit_items(archive, version, dataset)
        for number, own, parent in zip(*(column.to_pylist() for column in _columns(store, item, names)), strict=True)
    ]


def last_block_time(archive: ArchivedChain, store: ObjectStore, version: RangeVersion) -> datetime | None:
    for item in reversed(audit_items(archive, version, archive.blocks)):
        if item.file.rows:
            (times,) = _columns(store, item, [str(archive.blocks.time)])
            return as_time(times[-1].as_py())
    return None


def _columns(store: ObjectStore, item: AuditItem, names: Sequence[str]) -> list[pyarrow.ChunkedArray]:
    try:
        content = pyarrow.BufferReader(pyarrow.py_buffer(store.read(item.key)))
        rows = pyarrow.parquet.read_table(content, columns=list(names), page_checksum_verification=True)
    except (pyarrow.ArrowException, OSError, CompactionError) as error:
        raise ColdFileUnreadable(f"{store.uri}/{item.key} cannot be read: {str(error).splitlines()[0]}") from error
    return [rows[name] for name in names]
