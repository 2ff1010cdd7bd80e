"""The second reader looks at a group: DuckDB reads its files by field id and applies its deletes in SQL.

Where rows are read through our own logic (deletes, columns that have changed since), all of them are read again that
way. Where files are taken as they are, only the Parquet decoder is shared, and a sample is enough.
"""

import hashlib
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.parquet
from pyiceberg.manifest import DataFile

from compaction_platform.lake.data_file_rows import DataFileDamaged, DataFileRows
from compaction_platform.lake.fingerprint import AnyOrder, InOrder
from compaction_platform.lake.projection import opened, partition_constants
from compaction_platform.lake.second_reader import (
    Extent,
    NotJudged,
    ReadersDisagree,
    Rows,
    SecondReaderRefused,
    connected,
    require_agreement,
)
from compaction_platform.lake.second_reader_tables import LocalFile, TableReader

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@dataclass(frozen=True)
class FileWithDeletes:
    """A data file and the delete files that apply to it."""

    file: DataFile
    positions: tuple[DataFile, ...] = ()
    equalities: tuple[DataFile, ...] = ()


def read_in_sql(
    reader: DataFileRows, files: Iterable[FileWithDeletes], digest: InOrder | AnyOrder, types: pyarrow.Schema
) -> None:
    """Add the rows that are left in these files to a digest, one file after the other. Raises NotJudged for what DuckDB
    does not know, and DataFileDamaged for a file that it refuses."""
    with tempfile.TemporaryDirectory(prefix="compaction-proof-") as folder, connected(Path(folder)) as connection:
        tables = TableReader(connection, reader.metadata)
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

    reader: DataFileRows
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
    seed = _seed(files[0].file_path)
    chosen = range(len(files)) if extent == "all" else [seed % len(files)]
    with tempfile.TemporaryDirectory(prefix="compaction-proof-") as folder, connected(Path(folder)) as connection:
        path = Path(folder) / "data.parquet"
        for number in chosen:
            path.write_bytes(memoryview(contents[number]))
            try:
                _require_agreement(connection, path, extent, seed)
            except (SecondReaderRefused, ReadersDisagree) as reason:
                raise DataFileDamaged(files[number].file_path, f"is not read alike: {reason}") from reason


def look_at_output(path: Path, extent: Extent) -> str | None:
    """Compare a file that is not published yet as Arrow and DuckDB read it: what is wrong, or None."""
    if extent == "none":
        return None
    with connected(path.parent) as connection:
        try:
            _require_agreement(connection, path, extent, _seed(path.name))
        except (SecondReaderRefused, ReadersDisagree) as reason:
            return str(reason)
    return None


def _require_agreement(connection: "DuckDBPyConnection", path: Path, extent: Extent, seed: int) -> None:
    file = opened(path)
    try:
        require_agreement(connection, path, file, Rows.chosen(file.metadata, extent, seed))
    except NotJudged:
        return
    finally:
        file.close()


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
