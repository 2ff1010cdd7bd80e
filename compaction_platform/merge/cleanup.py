"""After the merge: delete or archive the staged files it read, and nothing else.

Only versions (key and etag) that a receipt's manifest lists are touched. A file that was replaced since stays
for its own hour's merge; a quarantined one goes only if its copy in quarantine is complete.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pyiceberg.table import Table

from compaction_platform.lake.catalog import open_catalog
from compaction_platform.lake.history import published
from compaction_platform.lake.objects import ObjectChanged, ObjectMissing, Objects
from compaction_platform.lake.settings import Settings
from compaction_platform.merge.records import Manifest, Receipt, manifests_of, receipts_of, short_uuid
from compaction_platform.merge.rules import MergeRules, Places
from compaction_platform.merge.staged_files import FileReport, versioned_name

CHUNK = 50


@dataclass(frozen=True)
class Cleaned:
    removed: tuple[str, ...]
    bytes: int
    kept: dict[str, str]  # key and the reason


def clean_up(rules: MergeRules, settings: Settings, hours: Iterable[str], say: Callable[[str], None]) -> Cleaned:
    places = Places.of(rules, settings)
    staging = Objects.at(places.staging, settings)
    removable: dict[str, FileReport] = {}
    kept: dict[str, str] = {}
    table = open_catalog(settings).load_table(rules.identifier)
    for report in _merged_files(places, settings, table, hours):
        reason = _why_to_keep(report, staging, Objects.at(places.quarantine, settings))
        if reason is None:
            removable[report.key] = report
        elif reason:
            kept[report.key] = reason
    archive = Objects.at(places.archive, settings) if rules.cleanup == "archive" else None
    removed = []
    for chunk in _chunks(list(removable.values())):
        going, restless = _ready_to_go(staging, archive, chunk)
        failures = staging.delete(report.key for report in going)
        kept |= restless | failures
        removed += [report for report in going if report.key not in failures]
    for key, reason in kept.items():
        say(f"{key} stays in staging: {reason}")
    return Cleaned(tuple(report.key for report in removed), sum(report.size for report in removed), kept)


def _merged_files(places: Places, settings: Settings, table: Table, hours: Iterable[str]) -> Iterable[FileReport]:
    receipts, manifests = receipts_of(places, settings), manifests_of(places, settings)
    for hour in hours:
        valid = [receipt for receipt in map(Receipt.from_name, receipts.names(hour)) if _still_holds(receipt, table)]
        for digest in dict.fromkeys(receipt.digest for receipt in valid):
            text = manifests.get(hour, digest)
            if text is not None:
                yield from Manifest.from_json(text).files


def _still_holds(receipt: Receipt, table: Table) -> bool:
    """Not if the table was made anew since, or was rolled back to before the merge."""
    if receipt.table != short_uuid(table):
        return False
    history = published(table)
    ancestors = {snapshot.snapshot_id for snapshot in history.snapshots}
    return receipt.snapshot_id is None or receipt.snapshot_id in ancestors or not history.complete


def _why_to_keep(report: FileReport, staging: Objects, quarantine: Objects) -> str | None:
    """None: it may go. An empty reason: it is gone already."""
    now = staging.stat(report.key)
    if now is None:
        return ""
    if now.etag != report.etag:
        return "it was replaced since it was merged"
    if report.fate == "quarantined":
        copy = quarantine.stat(versioned_name(report))
        if copy is None or copy.size != report.size:
            return "it is bad, and its copy in quarantine is missing or incomplete"
    return None


def _chunks(reports: list[FileReport]) -> Iterable[list[FileReport]]:
    """Few at a time, so that little time passes between the last look at a file and its deletion."""
    return (reports[start : start + CHUNK] for start in range(0, len(reports), CHUNK))


def _ready_to_go(
    staging: Objects, archive: Objects | None, chunk: list[FileReport]
) -> tuple[list[FileReport], dict[str, str]]:
    """Those that are still the version that was merged (and safe in the archive, if one is wanted)."""
    going, restless = [], {}
    for report in chunk:
        try:
            if archive is not None:
                archive.write(versioned_name(report), staging.read(report.key, report.etag))
            now = staging.stat(report.key)
        except (ObjectChanged, ObjectMissing):
            now = None
        if now is not None and now.etag == report.etag:
            going.append(report)
        else:
            restless[report.key] = "it was replaced since it was merged"
    return going, restless
