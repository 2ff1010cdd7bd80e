"""The second reader looks at a group: DuckDB reads its files by field id and applies its deletes in SQL.

Where rows are read through our own logic (deletes, columns that have changed since), all of them are read again that
way. Where files are taken as they are, only the Parquet decoder is shared, and a sample is enough.
"""

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow
import pyarrow.parquet
from pyiceberg.manifest import DataFile

from compaction_platform.lake.iceberg.data_file_reader import DataFileDamaged, DataFileReader
from compaction_platform.lake.iceberg.projection import opened, partition_constants
from compaction_platform.lake.iceberg.second_table_reader import LocalFile, SecondTableReader
from compaction_platform.lake.parquet.second_reader import (
    NotJudged,
    ReadersDisagree,
    RowRange,
    SecondReaderRefused,
    connected,
    require_agreement,
    seed_of,
    verify_sample,
)
from compaction_platform.lake.verification.extent import Extent
from compaction_platform.lake.verification.fingerprint import OrderedFingerprint, UnorderedFingerprint


@dataclass(frozen=True)
class FileWithDeletes:
    """A data file and the delete files that apply to it."""

    file: DataFile
    positions: tuple[DataFile, ...] = ()
    equalities: tuple[DataFile, ...] = ()


def read_in_sql(
    reader: DataFileReader,
    files: Iterable[FileWithDeletes],
    digest: OrderedFingerprint | UnorderedFingerprint,
    types: pyarrow.Schema,
) -> None:
    """Add the rows that are left in these files to a digest, one file after the other. Raises NotJudged for what DuckDB
    does not know, and DataFileDamaged for a file that it refuses."""
    with tempfile.TemporaryDirectory(prefix="compaction-proof-") as folder, connected(Path(folder)) as connection:
        tables = SecondTableReader(connection, reader.metadata)
        copies = _Copies(reader, Path(folder))
        for each in files:
            local = copies.of(each)
            try:
                for batch in tables.batches(local, types):
                    digest.update(batch)
            except SecondReaderRefused as refused:
                raise DataFileDamaged(each.file.file_path, f"is refused by a second reader: {refused}") from refused
            finally:
                local.path.unlink()


@dataclass
class _Copies:
    """Files of a table on the local disk. Delete files stay: several data files have them."""

    reader: DataFileReader
    place: Path
    _deletes: dict[str, Path] = field(default_factory=dict)

    def of(self, each: FileWithDeletes) -> LocalFile:
        path = self.place / "data.parquet"
        path.write_bytes(memoryview(self.reader.fetch(each.file.file_path)))
        return LocalFile(
            path,
            each.file.file_path,
            partition_constants(self.reader.metadata.specs()[each.file.spec_id], each.file),
            tuple(self._delete(delete) for delete in each.positions),
            tuple((self._delete(delete), tuple(delete.equality_ids or ())) for delete in each.equalities),
        )

    def _delete(self, delete: DataFile) -> Path:
        if delete.file_path not in self._deletes:
            path = self.place / f"delete-{len(self._deletes)}.parquet"
            path.write_bytes(memoryview(self.reader.fetch(delete.file_path)))
            self._deletes[delete.file_path] = path
        return self._deletes[delete.file_path]


# ---------------------------------------------------------------- samples


def look_at_input(files: Sequence[DataFile], contents: Sequence[pyarrow.Buffer], extent: Extent) -> None:
    """Compare one of these files, or all, as Arrow and DuckDB read them. Raises DataFileDamaged."""
    if extent == "none" or not files:
        return
    for number in range(len(files)) if extent == "all" else [seed_of(files[0].file_path) % len(files)]:
        path = files[number].file_path
        try:
            verify_sample(contents[number], path, extent)
        except (SecondReaderRefused, ReadersDisagree) as reason:
            raise DataFileDamaged(path, f"is not read alike: {reason}") from reason


def look_at_output(path: Path, extent: Extent) -> str | None:
    """Compare a file that is not published yet as Arrow and DuckDB read it: what is wrong, or None."""
    if extent == "none":
        return None
    with connected(path.parent) as connection, opened(path) as file:
        try:
            require_agreement(connection, path, file, RowRange.chosen(file.metadata, extent, seed_of(path.name)))
        except NotJudged:
            return None
        except (SecondReaderRefused, ReadersDisagree) as reason:
            return str(reason)
    return None
