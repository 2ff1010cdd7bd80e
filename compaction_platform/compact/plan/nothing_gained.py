"""Bins of which nothing could be made, because no two of their files go together: not tried again until they change."""

from collections.abc import Iterable
from dataclasses import dataclass

from compaction_platform.compact.plan.bin_packing import FileGroup, mark_of
from compaction_platform.compact.plan.schema_groups import Unify
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.persisted_names import NOTHING_GAINED_DIRECTORY


@dataclass(frozen=True)
class NothingGained:
    """The marks of one directory tree."""

    store: ObjectStore

    def known(self) -> frozenset[str]:
        return frozenset(stored.key.rpartition("/")[2] for stored in self.store.list(NOTHING_GAINED_DIRECTORY))

    def remember(self, bins: Iterable[FileGroup], unify: Unify) -> None:
        for each in bins:
            self.store.write(
                f"{NOTHING_GAINED_DIRECTORY}/{mark_of(each, unify)}", b"no two of these files go together\n"
            )
