"""Delete files that delete nothing any more."""

from collections.abc import Callable, Iterable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import FileFormat

from compaction_platform.lake.iceberg.data_file_reader import DataFileReader
from compaction_platform.lake.iceberg.replace_files import FileChange, commit_change
from compaction_platform.lake.storage.retry import attempts
from compaction_platform.maintain.operations.apply_deletes import positions_in
from compaction_platform.maintain.plan.delete_index import (
    Place,
    is_known,
    is_position_delete,
    is_unpartitioned,
    only_file_of,
    place_of,
    sequence_of,
)
from compaction_platform.maintain.table_state import TableState
from compaction_platform.persisted_names import COMMIT_KIND

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from compaction_platform.settings import Settings

DANGLING = "dangling deletes"
COMMIT_ATTEMPTS = 10
READ_AT_ONCE = 8


def dangling(
    look: TableState,
    referred_to: Mapping[str, Set[str]],
    without: Set[str] = frozenset(),
    added: Iterable[tuple[Place, int]] = (),
) -> set[str]:
    """Paths of delete files that apply to no data file, once `without` are gone and files of these partitions and ages
    are `added`. `referred_to` tells for delete files that were read which data files they are about; of the others
    only what metadata proves is in the answer."""
    ages = {path: sequence_of(entry) for path, entry in look.files.data.items() if path not in without}
    staying = [(place_of(look.files.data[path].data_file), age) for path, age in ages.items()]
    oldest: dict[Place, int] = {}
    for place, age in (*staying, *added):
        oldest[place] = min(age, oldest.get(place, age))
    oldest_of_all = min(oldest.values(), default=None)
    specs, schema = look.metadata.specs(), look.metadata.schema()
    found = set()
    for path, entry in look.files.deletes.items():
        if not is_known(specs[entry.data_file.spec_id], schema):
            continue  # its manifest cannot be written
        place, age = place_of(entry.data_file), sequence_of(entry)
        if is_position_delete(entry):
            only = only_file_of(entry.data_file)
            about = referred_to.get(path, {only} if only else None)
            if about is not None:
                applies = any(each in ages and ages[each] <= age for each in about)
            else:
                applies = place in oldest and oldest[place] <= age
        else:
            everywhere = is_unpartitioned(specs[entry.data_file.spec_id])
            first = oldest_of_all if everywhere else oldest.get(place)
            applies = first is not None and first < age
        if not applies:
            found.add(path)
    return found


def dangling_deletes(table: "Table", settings: "Settings") -> set[str]:
    """Delete files that apply to nothing; those that may be about several files are read."""
    look = TableState.at(table)
    return dangling(look, referred_to(look, settings, {}))


def referred_to(look: TableState, settings: "Settings", known: dict[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """For position delete files whose bounds do not tell: the data files they are about. Files never change, so what is
    `known` is not read again, and what is read is put there."""
    reader = DataFileReader(look.metadata, settings)
    unknown = [
        entry.data_file
        for path, entry in look.files.deletes.items()
        if is_position_delete(entry)
        and path not in known
        and entry.data_file.file_format == FileFormat.PARQUET
        and only_file_of(entry.data_file) is None
    ]
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        for file, positions in zip(unknown, pool.map(lambda file: positions_in(file, reader), unknown), strict=True):
            known[file.file_path] = frozenset(positions)
    return known


def remove_dangling(
    table: "Table", settings: "Settings", known: dict[str, frozenset[str]], say: Callable[[str], None]
) -> int:
    """Take delete files that delete nothing out of the table; how many."""
    for _ in attempts(COMMIT_ATTEMPTS):
        now = TableState.at(table)
        gone = dangling(now, referred_to(now, settings, known))
        if not gone:
            return 0
        change = FileChange(removed=frozenset(gone), properties={COMMIT_KIND: DANGLING})
        try:
            snapshot_id = commit_change(table, change, now.manifests)
        except CommitFailedException:
            table.refresh()
            continue
        say(f"snapshot {snapshot_id}: {len(gone)} delete files that deleted nothing are gone")
        return len(gone)
    say("others kept committing; delete files are left for the next run")
    return 0
