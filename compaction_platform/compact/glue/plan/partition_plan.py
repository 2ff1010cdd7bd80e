"""What is to be done with one partition of a table: pure, from listings and a manifest. A dry run shows this value."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from compaction_platform.compact.glue.plan.manifest import ManifestInput, VersionManifest
from compaction_platform.compact.plan.bin_packing import OWN_NAME, FileGroup, PackingPolicy, bins, digest_of, is_own
from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.persisted_names import GLUE_SWAPPED

COPIED = re.compile(r"(?P<stem>.*?)\.copied-(?P<digest>[0-9a-f]{24})(?P<ending>(\.parquet)?)", re.DOTALL)
VERSION = re.compile(r"(?P<digest>v-[0-9a-f]{16})-[0-9a-f]{8}([0-9a-f]{8})?")
LONGEST_STEM = 120
NO_DIGEST = "0" * 24
LARGEST_COPY = 5_000_000_000  # bytes; what S3 takes in one step

NO_LOCATION = "the catalog tells no location for it"
NOT_S3 = "its location is not on S3"
ODD_LOCATION = "its location has an empty segment, . or .. in it"
NO_FILES = "no files: it is empty, or its files are gone"
BELOW = "it has files in directories below: engines disagree on whether they are part of it"
YOUNG = "files in it changed just now; it is left to its writers"
GOOD = "compact already: too few small files to make a larger one"
LARGE_OR_ALONE = "large already, or no other small file to go with"
OVERWRITTEN = "a file was overwritten, or delivered again, at the old location after its rows were compacted"
DAMAGED = "files that its swap has published are not there as they were"
STRAY = "it holds a compacted file that its swap did not publish; its rows may be there twice"
TOO_LARGE = "it has a file of more than 5 GB, which cannot be copied in one step; in_place is for such partitions"


@dataclass(frozen=True)
class PartitionRules:
    """How the partitions of one table are compacted."""

    policy: PackingPolicy = field(default_factory=PackingPolicy)
    delete_originals: bool = False
    grace: timedelta = timedelta(days=1)
    quiet_for: timedelta = timedelta()


@dataclass(frozen=True)
class PartitionLocation:
    """A location of files and what lies there; names are relative to it."""

    uri: str
    files: tuple[FileVersion, ...] = ()  # all, hidden ones too
    is_ours: bool = False  # a directory that we made

    @property
    def data(self) -> list[FileVersion]:
        """What readers read: everything but names that begin with _ or . and files without a byte."""
        return [file for file in self.files if file.size > 0 and not _is_hidden(file.key)]

    @property
    def below(self) -> list[FileVersion]:
        return [file for file in self.data if "/" in file.key]

    def find(self, name: str) -> FileVersion | None:
        return next((file for file in self.files if file.key == name), None)

    def digest(self, file: FileVersion) -> str:
        return version_digest(self.uri, file.key, file.stamp)

    def identity(self, file: FileVersion) -> str:
        """Which version of which file this is, or is a copy of."""
        copied = COPIED.fullmatch(file.key) if self.is_ours else None
        return copied["digest"] if copied else self.digest(file)


@dataclass(frozen=True)
class PartitionFiles:
    """What was found out about a partition."""

    current: PartitionLocation
    manifest: VersionManifest | None = None  # if the catalog leads to a version that we made
    old: tuple[
        PartitionLocation, ...
    ] = ()  # where it was before, if so: the home of its writers, and what the swap replaced


@dataclass(frozen=True)
class LateFiles:
    """A file at an old location that is not in the partition: to be copied into it."""

    place: str
    file: FileVersion
    identity: str


@dataclass(frozen=True)
class PartitionPlan:
    """What to do, in this order; `why_not` says why nothing is compacted."""

    late: tuple[LateFiles, ...] = ()
    bins: tuple[FileGroup, ...] = ()
    copies: tuple[FileVersion, ...] = ()  # carried over as they are, if anything is compacted
    version: str = ""  # the digest of all inputs
    notes_swap: bool = False  # a run died between the swap and its note
    removable: tuple[ManifestInput, ...] = ()  # replaced, and the grace is over
    problem: str | None = None  # for a person
    why_not: str | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.late or self.bins or self.notes_swap or self.removable)

    @property
    def inputs(self) -> int:
        return sum(len(each.inputs) for each in self.bins)


def version_digest(place: str, name: str, stamp: str) -> str:
    """Of one version of a file; `stamp` is its etag and the second of its change (`Listed.stamp`)."""
    return digest_of([(place, ""), (name, stamp)])


def copied_name(digest: str, name: str) -> str:
    """What a file is called where it is carried over as it is."""
    before = COPIED.fullmatch(name)
    stem, ending = (before["stem"], before["ending"]) if before else (name, "")
    if stem.endswith(".parquet"):
        stem, ending = stem.removesuffix(".parquet"), ".parquet"
    while len(stem.encode()) > LONGEST_STEM:
        stem = stem[:-1]
    return f"{stem}.copied-{digest}{ending}"


def absorbed(found: PartitionFiles) -> set[str]:
    """Digests of all versions, at any place, whose rows are in the partition's files."""
    current = found.current
    names = [COPIED.fullmatch(file.key) for file in current.data] if current.is_ours else []
    copies = [name["digest"] for name in names if name]
    known = {*(found.manifest.absorbed if found.manifest else ()), *copies}
    return known | _known_by_etag(found, known)


def _known_by_etag(found: PartitionFiles, known: Set[str]) -> set[str]:
    """In a manifest of the first format, digests are of etags alone: those of the same files as they are now."""
    if found.manifest is None or found.manifest.format_version > 1:
        return set()
    return {
        place.digest(file)
        for place in found.old
        for file in place.data
        if version_digest(place.uri, file.key, file.etag) in known
    }


def plan_partition(found: PartitionFiles, rules: PartitionRules, now: datetime) -> PartitionPlan:
    if why := _why_not_touched(found):
        return PartitionPlan(problem=why, why_not=why)
    late = late_files(found)
    plan = PartitionPlan(
        late=tuple(late),
        notes_swap=found.manifest is not None and found.current.find(GLUE_SWAPPED) is None,
        removable=tuple(_removable(found, rules, now)),
    )
    files = sorted(found.current.data)
    if late:
        return plan  # first they become part of it; then it is looked at again
    if not files:
        return replace(plan, why_not=NO_FILES)
    if any(_is_young(file, rules, now) for file in files):
        return replace(plan, why_not=YOUNG)
    return _with_bins(plan, found, files, rules.policy)


def _with_bins(
    plan: PartitionPlan, found: PartitionFiles, files: Sequence[FileVersion], policy: PackingPolicy
) -> PartitionPlan:
    """Files of a version that we made are taken again only together with enough new ones: the next plan is empty."""
    made_before = {each.name for each in found.manifest.outputs} if found.manifest else set()
    small = [file for file in files if file.size < policy.small_bytes]
    new = [file for file in small if file.key not in made_before and not is_own(file, policy)]
    fresh = {file.key for file in new}
    own = [file for file in small if file.key not in fresh and file.size * 2 < policy.target_bytes]
    made = bins(new, own, policy, max(2, policy.min_files))
    if not made:
        return replace(plan, why_not=GOOD)
    if any(file.size > LARGEST_COPY for file in files):
        return replace(plan, why_not=TOO_LARGE)
    joined = {file.key for each in made for file in each.inputs}
    versions = [(found.current.uri, ""), *(file.version for file in files), ("policy", repr(policy))]
    return replace(
        plan,
        bins=tuple(made),
        copies=tuple(file for file in files if file.key not in joined),
        version=f"v-{digest_of(versions)[:16]}",
    )


def late_files(found: PartitionFiles) -> list[LateFiles]:
    """Files that came to an old location when the catalog did not lead there any more; each of them once."""
    known = absorbed(found)
    late: dict[str, LateFiles] = {}
    for place in found.old:
        for file in place.data:
            identity = place.identity(file)
            if not known & {identity, place.digest(file)}:
                late.setdefault(identity, LateFiles(place.uri, file, identity))
    return list(late.values())


def _why_not_touched(found: PartitionFiles) -> str | None:
    """Why a person has to look first."""
    if below := found.current.below:
        return f"{BELOW} ({below[0].key})"
    manifest = found.manifest
    if manifest is None:
        return None
    if lost := missing_outputs(manifest, found.current):
        return f"{DAMAGED} ({lost[0]}). Its location before was {manifest.replaces}"
    if stray := _stray(found.current, manifest):
        return f"{STRAY} ({stray}). Look at it, and delete it if all of its rows are in the others"
    copied = {_without_digest(file.key) for file in found.current.data if COPIED.fullmatch(file.key)}
    known = absorbed(found)
    for place in found.old:
        if not place.is_ours and place.below:
            return f"{BELOW}, now at the old location ({place.uri}/{place.below[0].key})"
        names = set(manifest.known.get(place.uri, ()))
        for file in place.data:
            if known & {place.identity(file), place.digest(file)}:
                continue
            if file.key in names or (not place.is_ours and _without_digest(copied_name(NO_DIGEST, file.key)) in copied):
                return (
                    f"{OVERWRITTEN} ({place.uri}/{file.key}). Its rows of before are in the partition, those of now "
                    "are not. If they are the same, delete the file; if they are more, put it under another name"
                )
    return None


def _stray(current: PartitionLocation, manifest: VersionManifest) -> str | None:
    """A file of ours that was written to the place after the swap, by a task that was thought dead."""
    published = {each.name for each in manifest.outputs}
    taken = set(manifest.absorbed)
    for file in current.data:
        copied = COPIED.fullmatch(file.key)
        if file.key not in published and (OWN_NAME.fullmatch(file.key) or (copied and copied["digest"] in taken)):
            return file.key
    return None


def _without_digest(name: str) -> str:
    copied = COPIED.fullmatch(name)
    return f"{copied['stem']}{copied['ending']}" if copied else name


def missing_outputs(manifest: VersionManifest, current: PartitionLocation) -> list[str]:
    there = {file.key: (file.etag, file.size) for file in current.files}
    return [each.name for each in manifest.outputs if there.get(each.name) != (each.etag, each.size)]


def _removable(found: PartitionFiles, rules: PartitionRules, now: datetime) -> Iterator[ManifestInput]:
    """Versions whose rows are in the partition's files, at places that were replaced long enough ago: always what we
    had made ourselves; what writers had, if that is wanted."""
    if found.manifest is None:
        return
    noted = found.current.find(GLUE_SWAPPED)
    swapped_at = noted.changed_at if noted else None
    known = absorbed(found)
    for place in found.old:
        since = found.manifest.old_places.get(place.uri) or swapped_at
        if since is None or now < since + rules.grace:
            continue
        for file in place.data:
            ours = place.is_ours and (OWN_NAME.fullmatch(file.key) or COPIED.fullmatch(file.key))
            if (ours or rules.delete_originals) and known & {place.identity(file), place.digest(file)}:
                yield file_at(place.uri, file)


def file_at(place: str, file: FileVersion) -> ManifestInput:
    return ManifestInput(place=place, name=file.key, etag=file.etag, size=file.size, changed_at=file.changed_at)


def _is_young(file: FileVersion, rules: PartitionRules, now: datetime) -> bool:
    if not rules.quiet_for or file.changed_at is None or COPIED.fullmatch(file.key) or is_own(file, rules.policy):
        return False
    return now - file.changed_at < rules.quiet_for


def _is_hidden(key: str) -> bool:
    return any(part.startswith(("_", ".")) for part in key.split("/"))


def why_location_unusable(location: str | None) -> str | None:
    if not location:
        return NO_LOCATION
    scheme, _, rest = location.partition("://")
    if scheme not in ("s3", "s3a", "s3n") or not rest.strip("/"):
        return f"{NOT_S3} ({location})"
    if any(part in ("", ".", "..") for part in rest.removesuffix("/").split("/")):
        return f"{ODD_LOCATION} ({location})"
    return None


def place_of(location: str) -> str:
    """The location as one address has it: s3, without a slash at the end."""
    return f"s3://{location.partition('://')[2].removesuffix('/')}"


def overlap(one: str, two: str) -> bool:
    """Whether one of two places lies inside the other."""
    return f"{one}/".startswith(f"{two}/") or f"{two}/".startswith(f"{one}/")


def overlapping(locations: Mapping[str, str]) -> dict[str, str]:
    """By partition: why its files are not its own. `locations` are those of all partitions."""
    found: dict[str, str] = {}
    ordered = sorted((place_of(location) + "/", name) for name, location in locations.items())
    above: list[tuple[str, str]] = []
    for place, name in ordered:
        while above and not place.startswith(above[-1][0]):
            above.pop()
        if above:
            other_place, other = above[-1]
            same = "shares its location with" if other_place == place else "lies inside the location of"
            found.setdefault(name, f"it {same} partition {other}")
            found.setdefault(other, f"partition {name} lies in its location, too")
        above.append((place, name))
    return found
