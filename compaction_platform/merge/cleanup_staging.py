"""After the merge: delete or archive the staged files it read, and nothing else.

Only versions (key and etag) that a receipt's manifest lists are touched, and of those only the ones whose rows are
certainly elsewhere: in a snapshot that main came from, in quarantine, or both. In doubt a file stays, with the reason.
Everything is looked at again right before each few files are removed; the version is looked at by the store itself.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow
import pyarrow.parquet
from pyiceberg.table import Table

from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.lake.iceberg.history import published
from compaction_platform.lake.parquet.fetch_footer import fetch_footer
from compaction_platform.lake.storage.conditional_delete import delete_unchanged, looks_at_versions
from compaction_platform.lake.storage.object_store import ObjectChanged, ObjectMissing, ObjectStore
from compaction_platform.merge.config import MergeRules, StagingPaths
from compaction_platform.merge.intake.hour_manifest import MergedFile, merged_files
from compaction_platform.merge.intake.staged_file_reader import FileReport, rejects_name, versioned_name
from compaction_platform.settings import Settings

CHUNK = 100
REPLACED = "it was replaced since it was merged"


@dataclass(frozen=True)
class CleanupReport:
    removed: tuple[str, ...]
    bytes: int
    kept: dict[str, str]  # key and the reason


@dataclass(frozen=True)
class StagingCleanup:
    rules: MergeRules
    settings: Settings
    say: Callable[[str], None]

    @property
    def places(self) -> StagingPaths:
        return StagingPaths.of(self.rules, self.settings)

    @property
    def staging(self) -> ObjectStore:
        return ObjectStore.at(self.places.staging, self.settings)

    @property
    def quarantine(self) -> ObjectStore:
        return ObjectStore.at(self.places.quarantine, self.settings)

    def table(self) -> Table:
        return open_catalog(self.settings).load_table(self.rules.identifier)

    def run(self, hours: Iterable[str]) -> CleanupReport:
        removed: list[FileReport] = []
        kept: dict[str, str] = {}
        files = merged_files(self.places, self.settings, self.table(), hours)
        set_aside = {stored.key for stored in self.quarantine.list()} if files else set()
        if files:
            self._tell_if_versions_are_not_looked_at()
        for start in range(0, len(files), CHUNK):
            gone, stays = self._remove(files[start : start + CHUNK], set_aside)
            removed += gone
            kept |= stays
        for report in removed:
            kept.pop(report.key, None)  # of an earlier version
        for key, reason in kept.items():
            self.say(f"{key} stays in staging: {reason}")
        return CleanupReport(tuple(report.key for report in removed), sum(report.size for report in removed), kept)

    def _tell_if_versions_are_not_looked_at(self) -> None:
        if not looks_at_versions(ObjectStore.at(self.places.state, self.settings)):
            self.say(
                "this store does not compare etags when it deletes: a file that is delivered again under its name in "
                "the moment before its deletion would be lost. Let producers write every file under a new name."
            )

    # ------------------------------------------------------------ few at a time

    def _remove(self, files: Sequence[MergedFile], set_aside: set[str]) -> tuple[list[FileReport], dict[str, str]]:
        kept: dict[str, str] = {}
        going = self._proven([file for file in files if self._is_there(file.report, kept)], set_aside, kept)
        if self.rules.cleanup == "archive":
            archived = [file for file in going if self._archive(file.report, kept)]
            going = self._proven(archived, set_aside, kept)  # that took a while
        reports = {file.report.key: file.report for file in going}
        versions = {key: report.etag for key, report in reports.items()}
        stays = delete_unchanged(self.staging, versions)
        return [report for key, report in reports.items() if key not in stays], {**kept, **stays}

    def _is_there(self, report: FileReport, kept: dict[str, str]) -> bool:
        now = self.staging.stat(report.key)
        if now is not None and now.etag != report.etag:
            kept[report.key] = REPLACED
        return now is not None and now.etag == report.etag

    def _proven(self, files: Sequence[MergedFile], set_aside: set[str], kept: dict[str, str]) -> list[MergedFile]:
        """Those whose rows are certainly elsewhere, as of now; why the others stay goes to `kept`."""
        table = self.table()
        in_main = published(table).known_ids
        proven = []
        for file in files:
            lacking = file.gave_rows and not file.snapshots & in_main
            reason = why_unproven(file, table) if lacking else self._why_not_set_aside(file.report, set_aside)
            if reason is None:
                proven.append(file)
            else:
                kept[file.report.key] = reason
        return proven

    def _archive(self, report: FileReport, kept: dict[str, str]) -> bool:
        try:
            content = self.staging.read(report.key, report.etag)
        except (ObjectChanged, ObjectMissing):
            kept[report.key] = REPLACED
            return False
        ObjectStore.at(self.places.archive, self.settings).write(versioned_name(report), content)
        return True

    def _why_not_set_aside(self, report: FileReport, set_aside: set[str]) -> str | None:
        """Why what is not in the table is not certain to be in quarantine."""
        if report.fate not in ("sound", "quarantined"):
            return f"its intake says neither sound nor quarantined, but {report.fate}"
        if report.fate == "quarantined":
            copy = self.quarantine.stat(versioned_name(report))
            if copy is None or copy.size != report.size:
                return "it is bad, and its copy in quarantine is missing or incomplete"
        elif versioned_name(report) in set_aside:
            return "it was once judged bad and copied to quarantine; when its rows are in the table, remove that copy"
        if report.rejected and rows_set_aside(self.quarantine, report) != report.rejected:
            return (
                f"it has {report.rejected} rows without a key, and {rejects_name(report)} in quarantine, where they "
                "were set aside, is missing or incomplete"
            )
        return None


def clean_up(rules: MergeRules, settings: Settings, hours: Iterable[str], say: Callable[[str], None]) -> CleanupReport:
    return StagingCleanup(rules, settings, say).run(hours)


def why_unproven(file: MergedFile, table: Table) -> str:
    again = "Materialize bronze and silver for its hour with `again: true`; then it can be removed"
    if file.was_rolled_back(table):
        return f"its merge was rolled back. {again}"
    return f"snapshots have expired, and whether its merge was rolled back cannot be told any more. {again}"


def rows_set_aside(quarantine: ObjectStore, report: FileReport) -> int | None:
    """How many rows without a key are in quarantine; None if they cannot be read."""
    stored = quarantine.stat(rejects_name(report))
    if stored is None:
        return None
    with suppress(ObjectChanged, ObjectMissing, pyarrow.ArrowException, OSError):
        footer = fetch_footer(quarantine, stored.key, stored.size, stored.etag)
        return int(pyarrow.parquet.read_metadata(pyarrow.BufferReader(pyarrow.py_buffer(footer))).num_rows)
    return None
