"""What lies below a chain's cold root, range by range: which version is whole, and which was being published."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.cold.manifest import RangeManifest, RangeManifestUnreadable
from compaction_platform.archive.cold.ownership import LogEntry
from compaction_platform.archive.cold.paths import NOT_DATA, RangePaths
from compaction_platform.archive.cold.publish import is_marked
from compaction_platform.archive.ledger.range_version import RangeVersion
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.persisted_names import RANGE_MANIFEST

READS_AT_ONCE = 16
VISIBLE = re.compile(r"[^/]+/(?P<dataset>[^/]+)/range=(?P<range>\d+-\d+)/(?P<name>[^/]+)")
MANIFESTS = re.compile(
    r"[^/]+/(?P<dataset>[^/]+)/(range=|_attempts/|_superseded/)(?P<range>\d+-\d+)/([^/]+/)?"
    + re.escape(RANGE_MANIFEST)
    + ".*"
)
ATTEMPT = re.compile(r"[^/]+/[^/]+/_attempts/(?P<range>\d+-\d+)/(?P<fence>\d+)[_/].*")

Manifests = Mapping[str, RangeManifest]  # of one version, by dataset


@dataclass(frozen=True)
class RangeFound:
    """One range as the store has it."""

    blocks: BlockRange
    whole: Manifests | None  # nothing else is visible, and nothing else was being published
    candidates: Sequence[Manifests]  # otherwise: what it may be made of, the newest first
    unreadable: Sequence[str] = ()


@dataclass(frozen=True)
class RootScan:
    """The listing of a chain's cold root, and its log."""

    store: ObjectStore
    chain: str
    history: Sequence[LogEntry]
    known: Sequence[RangeVersion]  # what the ledger has
    keys: Sequence[str] = field(default=(), repr=False)

    @classmethod
    def of(
        cls, store: ObjectStore, chain: str, history: Sequence[LogEntry], known: Sequence[RangeVersion]
    ) -> "RootScan":
        return cls(store, chain, history, known, [stored.key for stored in store.list(chain)])

    @property
    def highest_fence(self) -> int:
        """Of attempts that have a directory now; those of manifests are added by the caller."""
        return max((int(match["fence"]) for match in _matches(ATTEMPT, self.keys)), default=0)

    def attempts(self, without: Iterable[BlockRange]) -> list[str]:
        """Files of attempts at all ranges but these."""
        kept = {blocks.key for blocks in without}
        return [match.string for match in _matches(ATTEMPT, self.keys) if match["range"] not in kept]

    def ranges(self) -> Iterator[RangeFound]:
        visible: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for match in _matches(VISIBLE, self.keys):
            visible[match["range"]][match["dataset"]].add(match["name"])
        manifest_keys: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for match in _matches(MANIFESTS, self.keys):
            manifest_keys[match["range"]].append((match["dataset"], match.string))
        published: dict[str, list[LogEntry]] = defaultdict(list)
        for entry in self.history:
            if entry.act == "publish" and entry.blocks is not None:
                published[entry.blocks].append(entry)
        for key in sorted({*visible, *published}, key=BlockRange.parsed):
            yield self._range(BlockRange.parsed(key), visible[key], manifest_keys[key], published[key])

    def _range(
        self,
        blocks: BlockRange,
        visible: Mapping[str, set[str]],
        keys: Sequence[tuple[str, str]],
        published: Sequence[LogEntry],
    ) -> RangeFound:
        pool, unreadable = self._read(blocks, keys)
        by_sha = {(manifest.dataset, manifest.sha256): manifest for manifest in pool}
        candidates: list[Manifests] = []
        for entry in reversed(published):
            found = {name: by_sha.get((name, sha)) for name, sha in entry.manifests.items()}
            if all(found.values()):
                candidates.append({name: manifest for name, manifest in found.items() if manifest is not None})
        candidates += [each for each in _by_version(pool) if each not in candidates]
        newest = candidates[0] if candidates else None
        announced = not published or newest is None or self._is(published[-1], newest)
        if newest is not None and announced and self._is_whole(blocks, newest, visible):
            return RangeFound(blocks, newest, candidates, unreadable)
        return RangeFound(blocks, None, candidates, unreadable)

    def _is(self, entry: LogEntry, manifests: Manifests) -> bool:
        return dict(entry.manifests) == {name: manifest.sha256 for name, manifest in manifests.items()}

    def _is_whole(self, blocks: BlockRange, manifests: Manifests, visible: Mapping[str, set[str]]) -> bool:
        if {name for name, names in visible.items() if names} != set(manifests):
            return False
        return all(
            visible[name] == {file.name for file in manifest.files} | set(NOT_DATA) and is_marked(self.store, manifest)
            for name, manifest in manifests.items()
        )

    def _read(self, blocks: BlockRange, keys: Sequence[tuple[str, str]]) -> tuple[list[RangeManifest], list[str]]:
        """All manifests of a range that there are, in the store and in the ledger."""
        manifests, unreadable = [], []

        def read(key: str) -> RangeManifest | str:
            try:
                return RangeManifest.from_bytes(bytes(self.store.read(key)), f"{self.store.uri}/{key}")
            except RangeManifestUnreadable as error:
                return str(error)

        with ThreadPoolExecutor(READS_AT_ONCE) as threads:
            for (dataset, key), found in zip(keys, threads.map(read, [key for _, key in keys]), strict=True):
                if isinstance(found, str):
                    unreadable.append(found)
                elif (found.dataset, found.blocks, str(found.chain_id)) != (dataset, blocks, self.chain):
                    unreadable.append(f"{self.store.uri}/{key} is the manifest of another range or dataset")
                else:
                    manifests.append(found)
        for version in self.known:
            if version.blocks == blocks:
                manifests += version.manifests.values()
        return manifests, unreadable


def place_of(manifest: RangeManifest) -> RangePaths:
    return RangePaths(str(manifest.chain_id), manifest.dataset, manifest.blocks)


def _by_version(pool: Iterable[RangeManifest]) -> list[Manifests]:
    """Manifests of one attempt belong together. Without a log nothing else says so."""
    groups: dict[tuple[int, str], dict[str, RangeManifest]] = defaultdict(dict)
    for manifest in pool:
        groups[manifest.dataset_version, manifest.attempt_name][manifest.dataset] = manifest
    most = max((len(group) for group in groups.values()), default=0)
    return [group for _, group in sorted(groups.items(), reverse=True) if len(group) == most]


def _matches(pattern: re.Pattern[str], keys: Iterable[str]) -> Iterator[re.Match[str]]:
    return (match for key in keys if (match := pattern.fullmatch(key)))
