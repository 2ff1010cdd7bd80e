"""What is written down about each hour: the manifest of its intake, and the receipt of its merge.

Both are kept beside the lake's data under a hidden prefix. A manifest is named by its batch's digest and lists
every file with its fate; a merge that comes later, and the sensor, find it there.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from compaction_platform.lake.iceberg.history import published
from compaction_platform.lake.storage.object_store import ObjectMissing, ObjectStore
from compaction_platform.merge.config import MergeRules, StagingPaths
from compaction_platform.merge.intake.staged_file_reader import FileReport
from compaction_platform.merge.plan.staged_hours import Batch, StagedFile, batches, is_data

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from compaction_platform.settings import Settings


@dataclass(frozen=True)
class HourManifest:
    """What the intake found in one hour."""

    hour: str
    digest: str
    files: tuple[FileReport, ...]

    @property
    def sound(self) -> tuple[FileReport, ...]:
        return tuple(file for file in self.files if file.fate == "sound")

    @property
    def quarantined(self) -> tuple[FileReport, ...]:
        return tuple(file for file in self.files if file.fate == "quarantined")

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def rejected(self) -> int:
        return sum(file.rejected for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "HourManifest":
        values = json.loads(text)
        files = tuple(FileReport.from_json(json.dumps(file)) for file in values["files"])
        return cls(values["hour"], values["digest"], files)


@dataclass(frozen=True)
class MergeReceipt:
    """An hour's batch was merged into this table (by uuid), which was then at this snapshot.

    All of it is in the name, so that a listing tells.
    """

    digest: str
    table: str
    snapshot_id: int | None

    @property
    def name(self) -> str:
        return f"{self.digest}-{self.table}-{self.snapshot_id if self.snapshot_id is not None else 'none'}"

    def is_for(self, other: "MergeReceipt") -> bool:
        """Whether both are of the same batch and table."""
        return (self.digest, self.table) == (other.digest, other.table)

    @classmethod
    def from_name(cls, name: str) -> "MergeReceipt":
        digest, table, snapshot = name.split("-")
        return cls(digest, table, None if snapshot == "none" else int(snapshot))


def short_uuid(table: "Table") -> str:
    return table.metadata.table_uuid.hex[:12]


@dataclass(frozen=True)
class HourStore:
    """The manifests or receipts of one table, `<kind>/<hour>/<name>.json`."""

    store: ObjectStore
    kind: str

    def put(self, hour: str, name: str, text: str) -> None:
        self.store.write(self._key(hour, name), text.encode())

    def get(self, hour: str, name: str) -> str | None:
        try:
            return bytes(self.store.read(self._key(hour, name))).decode()
        except ObjectMissing:
            return None

    def names(self, hour: str) -> list[str]:
        """What is there for an hour, the latest first, by the store's clock."""
        found = sorted(self.store.list(f"{self.kind}/{_as_path(hour)}"), key=lambda stored: stored.last_modified)
        return [stored.key.rsplit("/", 1)[-1].removesuffix(".json") for stored in reversed(found)]

    def all(self) -> dict[str, list[str]]:
        """The names of every hour."""
        found: dict[str, list[str]] = {}
        for stored in self.store.list(self.kind):
            path, _, name = stored.key.rpartition("/")
            hour = path.rpartition("/")[-1]
            found.setdefault(f"{hour[:-2]}:{hour[-2:]}", []).append(name.removesuffix(".json"))
        return found

    def _key(self, hour: str, name: str) -> str:
        return f"{self.kind}/{_as_path(hour)}/{name}.json"


def _as_path(hour: str) -> str:
    return hour.replace(":", "")


def manifests_of(places: StagingPaths, settings: "Settings") -> HourStore:
    return HourStore(ObjectStore.at(places.state, settings), "intake")


def receipts_of(places: StagingPaths, settings: "Settings") -> HourStore:
    return HourStore(ObjectStore.at(places.state, settings), "merged")


def staged_files(rules: MergeRules, places: StagingPaths, settings: "Settings") -> Iterator[StagedFile]:
    """Every data file in the staging area, with the store's own time of arrival."""
    for stored in ObjectStore.at(places.staging, settings).list():
        if is_data(stored.key, rules.glob):
            yield StagedFile(stored.key, stored.size, stored.etag, stored.last_modified)


def staged_batches(rules: MergeRules, places: StagingPaths, settings: "Settings", hours: Iterable[str]) -> list[Batch]:
    """What is staged for these hours now; an hour in which nothing arrived has an empty batch."""
    wanted = set(hours)
    found = batches(file for file in staged_files(rules, places, settings) if file.hour in wanted)
    return [found.get(hour, Batch(hour, ())) for hour in sorted(wanted)]


def batch_of(manifest: HourManifest) -> Batch:
    """The sound files of an earlier intake."""
    return Batch(
        manifest.hour,
        tuple(
            StagedFile(file.key, file.size, file.etag, datetime.fromisoformat(file.arrived)) for file in manifest.sound
        ),
    )


@dataclass(frozen=True)
class MergedFile:
    """One version of a staged file, and the snapshots that merges of it have left in a table."""

    report: FileReport
    snapshots: frozenset[int | None]

    @property
    def gave_rows(self) -> bool:
        return self.report.fate == "sound" and self.report.rows > self.report.rejected

    def was_rolled_back(self, table: "Table") -> bool:
        """Whether it gave rows, and none of its merges is part of main any more. False also if that cannot be told."""
        there = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
        can_be_told = self.snapshots <= there or published(table).complete
        return self.gave_rows and can_be_told and not self.snapshots & published(table).known_ids


def merged_files(places: StagingPaths, settings: "Settings", table: "Table", hours: Iterable[str]) -> list[MergedFile]:
    """Every version of a staged file that receipts for this very table list, once."""
    receipts, manifests = receipts_of(places, settings), manifests_of(places, settings)
    files: dict[tuple[str, str], MergedFile] = {}
    for hour in hours:
        merges: dict[str, set[int | None]] = {}
        for receipt in map(MergeReceipt.from_name, receipts.names(hour)):
            if receipt.table == short_uuid(table):
                merges.setdefault(receipt.digest, set()).add(receipt.snapshot_id)
        for digest, snapshots in merges.items():
            text = manifests.get(hour, digest)
            for report in HourManifest.from_json(text).files if text is not None else ():
                version = (report.key, report.etag)
                before = files[version].snapshots if version in files else frozenset()
                files[version] = MergedFile(report, before | snapshots)
    return list(files.values())
