"""After the merge: delete or archive the staged files it read, and nothing else.

Only versions (key and etag) that a receipt's manifest lists are touched. A file that was replaced since stays
for its own hour's merge; a quarantined one goes only if its copy in quarantine is complete.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from compaction_platform.lake.objects import Objects
from compaction_platform.lake.settings import Settings
from compaction_platform.merge.intake import Manifest, manifests_of, receipts_of
from compaction_platform.merge.rules import MergeRules, Places
from compaction_platform.merge.staged_files import FileReport, versioned_name


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
    for report in _merged_files(places, settings, hours):
        reason = _why_to_keep(report, staging, Objects.at(places.quarantine, settings))
        if reason is None:
            removable[report.key] = report
        elif reason:
            kept[report.key] = reason
    if rules.cleanup == "archive":
        _archive(staging, Objects.at(places.archive, settings), removable.values())
    going = list(_unchanged(staging, removable.values()))
    failures = staging.delete(going)
    kept |= failures
    removed = [removable[key] for key in going if key not in failures]
    for key, reason in kept.items():
        say(f"{key} stays in staging: {reason}")
    return Cleaned(tuple(report.key for report in removed), sum(report.size for report in removed), kept)


def _merged_files(places: Places, settings: Settings, hours: Iterable[str]) -> Iterable[FileReport]:
    receipts, manifests = receipts_of(places, settings), manifests_of(places, settings)
    for hour in hours:
        for digest in receipts.digests(hour):
            text = manifests.get(hour, digest)
            if text is not None:
                yield from Manifest.from_json(text).files


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


def _archive(staging: Objects, archive: Objects, reports: Iterable[FileReport]) -> None:
    for report in reports:
        archive.write(versioned_name(report), staging.read(report.key, report.etag))


def _unchanged(staging: Objects, reports: Iterable[FileReport]) -> Iterable[str]:
    """Asked once more, right before each is deleted."""
    for report in reports:
        now = staging.stat(report.key)
        if now is not None and now.etag == report.etag:
            yield report.key
