"""What is to be done with one partition of a table: pure, from listings and a manifest. A dry run shows this value."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from compaction_platform.compact.glue.manifest import SWAPPED, File, Manifest
from compaction_platform.compact.listed import Listed
from compaction_platform.compact.plan import Bin, Policy, bins, digest_of, is_own

COPIED = re.compile(r"(?P<stem>.*?)\.copied-(?P<digest>[0-9a-f]{24})(?P<ending>(\.parquet)?)", re.DOTALL)
VERSION = re.compile(r"v-[0-9a-f]{16}")
LONGEST_STEM = 120

NO_LOCATION = "the catalog tells no location for it"
NOT_S3 = "its location is not on S3"
ODD_LOCATION = "its location has an empty segment, . or .. in it"
NO_FILES = "no files: it is empty, or its files are gone"
BELOW = "it has files in directories below: engines disagree on whether they are part of it"
YOUNG = "files in it changed just now; it is left to its writers"
GOOD = "compact already: too few small files to make a larger one"
LARGE_OR_ALONE = "large already, or no other small file to go with"
OVERWRITTEN = "a file was overwritten at the old location after its rows were compacted"
DAMAGED = "files that its swap has published are not there as they were"


@dataclass(frozen=True)
class Rules:
    """How the partitions of one table are compacted."""

    policy: Policy = field(default_factory=Policy)
    delete_originals: bool = False
    grace: timedelta = timedelta(days=1)
    quiet_for: timedelta = timedelta()


@dataclass(frozen=True)
class Place:
    """A location of files and what lies right there; names are relative to it."""

    uri: str
    files: tuple[Listed, ...] = ()  # all, hidden ones too

    @property
    def data(self) -> list[Listed]:
        """What readers read: everything but names that begin with _ or . and files without a byte."""
        return [file for file in self.files if file.size > 0 and not _is_hidden(file.key)]

    @property
    def below(self) -> list[Listed]:
        return [file for file in self.data if "/" in file.key]

    def find(self, name: str) -> Listed | None:
        return next((file for file in self.files if file.key == name), None)

    def digest(self, name: str, etag: str) -> str:
        return version_digest(self.uri, name, etag)


@dataclass(frozen=True)
class Found:
    """What was found out about a partition."""

    current: Place
    manifest: Manifest | None = None  # if the catalog leads to a version that we made
    old: tuple[Place, ...] = ()  # where it was before, if so: the home of its writers, and what the swap replaced


@dataclass(frozen=True)
class PartitionPlan:
    """What to do, in this order; `why_not` says why nothing is compacted."""

    late: tuple[File, ...] = ()  # at an old location, not in the partition: to be copied into it
    bins: tuple[Bin, ...] = ()
    copies: tuple[Listed, ...] = ()  # carried over as they are, if anything is compacted
    version: str = ""  # the directory that the files go to
    notes_swap: bool = False  # a run died between the swap and its note
    removable: tuple[File, ...] = ()  # replaced, and the grace is over
    problem: str | None = None  # for a person
    why_not: str | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.late or self.bins or self.notes_swap or self.removable)

    @property
    def inputs(self) -> int:
        return sum(len(each.inputs) for each in self.bins)


def version_digest(place: str, name: str, etag: str) -> str:
    return digest_of([(place, ""), (name, etag)])


def copied_name(digest: str, name: str) -> str:
    """What a file is called where it is carried over as it is."""
    before = COPIED.fullmatch(name)
    stem, ending = (before["stem"], before["ending"]) if before else (name, "")
    if stem.endswith(".parquet"):
        stem, ending = stem.removesuffix(".parquet"), ".parquet"
    while len(stem.encode()) > LONGEST_STEM:
        stem = stem[:-1]
    return f"{stem}.copied-{digest}{ending}"


def absorbed(found: Found) -> set[str]:
    """Digests of all versions, at any place, whose rows are in the partition's files."""
    copies = [match["digest"] for file in found.current.data if (match := COPIED.fullmatch(file.key))]
    return {*(found.manifest.absorbed if found.manifest else ()), *copies}


def plan_partition(found: Found, rules: Rules, now: datetime) -> PartitionPlan:
    if why := _why_not_touched(found):
        return PartitionPlan(problem=why, why_not=why)
    late = late_files(found)
    plan = PartitionPlan(
        late=tuple(late),
        notes_swap=found.manifest is not None and found.current.find(SWAPPED) is None,
        removable=tuple(_removable(found, rules)) if _grace_is_over(found, rules, now) else (),
    )
    files = sorted(found.current.data)
    if late:
        return plan  # first they become part of it; then it is looked at again
    if not files:
        return replace(plan, why_not=NO_FILES)
    if any(_is_young(file, rules, now) for file in files):
        return replace(plan, why_not=YOUNG)
    return _with_bins(plan, found, files, rules.policy)


def _with_bins(plan: PartitionPlan, found: Found, files: Sequence[Listed], policy: Policy) -> PartitionPlan:
    """Files of a version that we made are taken again only together with enough new ones: the next plan is empty."""
    made_before = {each.name for each in found.manifest.outputs} if found.manifest else set()
    small = [file for file in files if file.size < policy.small_bytes]
    new = [file for file in small if file.key not in made_before and not is_own(file, policy)]
    own = [file for file in small if file not in new and file.size * 2 < policy.target_bytes]
    made = bins(new, own, policy, max(2, policy.min_files))
    if not made:
        return replace(plan, why_not=GOOD)
    joined = {file.key for each in made for file in each.inputs}
    versions = [(found.current.uri, ""), *(file.version for file in files), ("policy", repr(policy))]
    return replace(
        plan,
        bins=tuple(made),
        copies=tuple(file for file in files if file.key not in joined),
        version=f"v-{digest_of(versions)[:16]}",
    )


def late_files(found: Found) -> list[File]:
    """Files that came to an old location when the catalog did not lead there any more."""
    known = absorbed(found)
    return [
        File(place=place.uri, name=file.key, etag=file.etag, size=file.size)
        for place in found.old
        for file in place.data
        if "/" not in file.key and place.digest(file.key, file.etag) not in known
    ]


def _why_not_touched(found: Found) -> str | None:
    if below := found.current.below:
        return f"{BELOW} ({below[0].key})"
    if found.manifest is None:
        return None
    if lost := missing_outputs(found.manifest, found.current):
        return f"{DAMAGED} ({lost[0]}). Its location before was {found.manifest.replaces}"
    known = absorbed(found)
    for place in found.old:
        names = found.manifest.known.get(place.uri, ())
        for file in place.data:
            if file.key in names and place.digest(file.key, file.etag) not in known:
                return (
                    f"{OVERWRITTEN} ({place.uri}/{file.key}). Its old rows are in the partition, its new ones are not. "
                    "Put the new ones under another name, or set the partition's location back"
                )
    return None


def missing_outputs(manifest: Manifest, current: Place) -> list[str]:
    there = {file.key: file.etag for file in current.files}
    return [each.name for each in manifest.outputs if there.get(each.name) != each.etag]


def _grace_is_over(found: Found, rules: Rules, now: datetime) -> bool:
    swapped = found.current.find(SWAPPED)
    return swapped is not None and swapped.changed_at is not None and now >= swapped.changed_at + rules.grace


def _removable(found: Found, rules: Rules) -> Iterator[File]:
    """Versions whose rows are in the partition's files, where they were before: always what we had made ourselves; what
    writers had, if that is wanted."""
    known = absorbed(found)
    for place in found.old:
        if rules.delete_originals or is_version(place.uri):
            for file in place.data:
                if place.digest(file.key, file.etag) in known:
                    yield File(place=place.uri, name=file.key, etag=file.etag, size=file.size)


def is_version(uri: str) -> bool:
    """Whether this is a directory that we made."""
    return VERSION.fullmatch(uri.rpartition("/")[2]) is not None


def _is_young(file: Listed, rules: Rules, now: datetime) -> bool:
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
