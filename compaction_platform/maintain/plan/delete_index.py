"""Which delete files apply to which data files, by the rules of the Iceberg specification, from metadata alone.

A position delete applies to files of its partition that are not younger than it; an equality delete to files of its
partition (of all, if it is not partitioned) that are older than it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform

PATH_FIELD = 2147483546  # reserved by the specification: the file_path of a position delete

Place = tuple[int, str]  # a partition spec and a partition of it


def place_of(file: DataFile) -> Place:
    return file.spec_id, repr([file.partition[number] for number in range(len(file.partition))])


def is_unpartitioned(spec: PartitionSpec) -> bool:
    """Also a spec all of whose fields were dropped."""
    return all(isinstance(field.transform, VoidTransform) for field in spec.fields)


def is_known(spec: PartitionSpec, schema: Schema) -> bool:
    """Whether the table still has the columns of this spec: without them its manifests cannot be written."""
    return all(schema.find_column_name(field.source_id) is not None for field in spec.fields)


def sequence_of(entry: ManifestEntry) -> int:
    return entry.sequence_number or 0


def is_position_delete(entry: ManifestEntry) -> bool:
    return entry.data_file.content == DataFileContent.POSITION_DELETES


def may_refer_to(delete: DataFile, path: str) -> bool:
    """Whether a position delete file can hold positions of this data file, as far as its bounds tell."""
    name = path.encode()
    lower, upper = (delete.lower_bounds or {}).get(PATH_FIELD), (delete.upper_bounds or {}).get(PATH_FIELD)
    return not (lower is not None and name[: len(lower)] < lower) and not (
        upper is not None and name[: len(upper)] > upper
    )


def only_file_of(delete: DataFile) -> str | None:
    """The one data file that a position delete file is about, if its bounds say so."""
    lower, upper = (delete.lower_bounds or {}).get(PATH_FIELD), (delete.upper_bounds or {}).get(PATH_FIELD)
    return lower.decode() if lower is not None and lower == upper and lower.endswith(b".parquet") else None


@dataclass(frozen=True)
class ApplicableDeletes:
    """The delete files that may apply to one data file."""

    positions: tuple[ManifestEntry, ...] = ()
    equalities: tuple[ManifestEntry, ...] = ()

    @property
    def entries(self) -> tuple[ManifestEntry, ...]:
        return (*self.positions, *self.equalities)


@dataclass(frozen=True)
class DeleteIndex:
    positions: Mapping[Place, tuple[ManifestEntry, ...]] = field(default_factory=dict)
    equalities: Mapping[Place, tuple[ManifestEntry, ...]] = field(default_factory=dict)
    everywhere: tuple[ManifestEntry, ...] = ()  # equality deletes that are not partitioned

    @classmethod
    def of(cls, entries: Iterable[ManifestEntry], specs: Mapping[int, PartitionSpec]) -> "DeleteIndex":
        positions: dict[Place, list[ManifestEntry]] = defaultdict(list)
        equalities: dict[Place, list[ManifestEntry]] = defaultdict(list)
        everywhere = []
        for entry in entries:
            place = place_of(entry.data_file)
            if is_position_delete(entry):
                positions[place].append(entry)
            elif is_unpartitioned(specs[entry.data_file.spec_id]):
                everywhere.append(entry)
            else:
                equalities[place].append(entry)
        return cls(
            {place: tuple(some) for place, some in positions.items()},
            {place: tuple(some) for place, some in equalities.items()},
            tuple(everywhere),
        )

    def applying_to(self, entry: ManifestEntry) -> ApplicableDeletes:
        place, path, age = place_of(entry.data_file), entry.data_file.file_path, sequence_of(entry)
        positions = [
            delete
            for delete in self.positions.get(place, ())
            if sequence_of(delete) >= age and may_refer_to(delete.data_file, path)
        ]
        equalities = [
            delete for delete in (*self.equalities.get(place, ()), *self.everywhere) if sequence_of(delete) > age
        ]
        return ApplicableDeletes(tuple(positions), tuple(equalities))
