"""Find staged rows that are neither in the table nor anywhere else: damage that no run reports."""

from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg.table import Table

from compaction_platform.lake.iceberg.history import published
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.merge.cleanup_staging import rows_set_aside
from compaction_platform.merge.config import StagingPaths
from compaction_platform.merge.intake.hour_manifest import MergedFile, merged_files, receipts_of
from compaction_platform.merge.intake.staged_file_reader import versioned_name
from compaction_platform.settings import Settings


@dataclass(frozen=True)
class Whereabouts:
    """The files of the hours that were merged last, and the places where they may be."""

    places: StagingPaths
    settings: Settings
    table: Table
    hours: int

    def files(self) -> list[MergedFile]:
        hours = sorted(receipts_of(self.places, self.settings).all(), reverse=True)[: self.hours]
        return merged_files(self.places, self.settings, self.table, hours)

    def rolled_back_and_gone(self) -> list[str]:
        """Files whose merge was rolled back, and that are neither staged nor archived."""
        return [file.report.key for file in self._gone() if file.was_rolled_back(self.table)]

    def set_aside_and_gone(self) -> list[str]:
        """Files that were bad or had rows without a key, and are gone, while quarantine lacks what was set aside."""
        quarantine = ObjectStore.at(self.places.quarantine, self.settings)
        lacking = []
        for file in self._gone():
            report = file.report
            copy = quarantine.stat(versioned_name(report)) if report.fate == "quarantined" else None
            is_bad = report.fate == "quarantined" and (copy is None or copy.size != report.size)
            if is_bad or (report.rejected and rows_set_aside(quarantine, report) != report.rejected):
                lacking.append(report.key)
        return lacking

    def _gone(self) -> Iterator[MergedFile]:
        """Those that are neither staged nor archived, and were not delivered again under their name."""
        staged = {stored.key for stored in ObjectStore.at(self.places.staging, self.settings).list()}
        archive = ObjectStore.at(self.places.archive, self.settings)
        files = self.files()
        in_main = published(self.table).known_ids
        merged = [file for file in files if file.snapshots & in_main]
        latest = {file.report.key: file for file in sorted(merged, key=lambda file: file.report.arrived)}
        for file in files:
            report = file.report
            later = latest.get(report.key)
            is_replaced = later is not None and later.report.arrived > report.arrived
            if report.key not in staged and not is_replaced:
                copy = archive.stat(versioned_name(report))
                if copy is None or copy.size != report.size:
                    yield file
