"""Read Parquet files with DuckDB and compare the rows with Arrow's: a second decoder for proofs.

A proof that is read by the decoder that wrote the rows shows no mistake of that decoder. Reading every byte twice costs
too much, so by default a sample of each run is read: some rows of each output and of one of its inputs.
"""

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.parquet
from typing_extensions import Buffer

from compaction_platform.errors import CompactionError
from compaction_platform.lake.parquet.int96 import int96_columns
from compaction_platform.lake.verification.canonical_form import TypeHasNoFingerprint, canonical_type, type_name
from compaction_platform.lake.verification.extent import Extent
from compaction_platform.lake.verification.fingerprint import Fingerprint, OrderedFingerprint

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SAMPLED_ROWS = 20_000
BATCH_ROWS = 1 << 16
MEMORY = "1GB"
ROW_NUMBER = "file_row_number"
UNITS = ("s", "ms", "us", "ns")


class SecondReaderRefused(CompactionError):
    """DuckDB does not read the values of a file."""


class ReadersDisagree(CompactionError):
    """Arrow and DuckDB read different values from one file."""


class NotJudged(CompactionError):
    """The file has a schema that DuckDB does not know. It says nothing about the values."""


@dataclass(frozen=True)
class RowRange:
    """Some rows of a file, one behind the other."""

    first: int
    count: int
    row_groups: tuple[int, ...]
    skipped: int = 0  # rows of the first row group that lie before them

    @classmethod
    def chosen(cls, metadata: pyarrow.parquet.FileMetaData, extent: Extent, seed: int) -> "RowRange":
        """All rows, or a sample: up to SAMPLED_ROWS rows of one row group. Other seeds choose other rows."""
        counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        filled = [number for number, count in enumerate(counts) if count]
        if extent == "none" or not filled:
            return cls(0, 0, ())
        if extent == "all":
            return cls(0, sum(counts), tuple(range(len(counts))))
        group = filled[seed % len(filled)]
        count = min(counts[group], SAMPLED_ROWS)
        skipped = (seed // len(filled)) % (counts[group] - count + 1)
        return cls(sum(counts[:group]) + skipped, count, (group,), skipped)


@contextmanager
def connected(place: Path) -> "Iterator[DuckDBPyConnection]":
    """Open a DuckDB for some reads: one thread, bounded memory, what is more in `place`, no extensions from the
    network."""
    import duckdb

    with duckdb.connect(
        config={
            "threads": 1,
            "memory_limit": MEMORY,
            "temp_directory": str(place),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
    ) as connection:
        connection.execute("SET enable_geoparquet_conversion = false")
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


def require_agreement(
    connection: "DuckDBPyConnection", path: Path, file: pyarrow.parquet.ParquetFile, rows: RowRange
) -> None:
    """Compare these rows of a file as both decoders read them, column by column.

    `file` is the file at `path`, opened by Arrow. Left out are columns whose types the two do not share, and INT96
    timestamps, which DuckDB is known to misread (`int96` judges them). Raises SecondReaderRefused, ReadersDisagree or
    NotJudged.
    """
    if not rows.count:
        return
    schema = file.schema_arrow
    stream = _by_duckdb(connection, path, schema, rows)
    int96 = {name.partition(".")[0] for name in int96_columns(file.metadata)}
    kinds = {
        place: common
        for place, (ours, theirs) in enumerate(zip(schema, stream.schema, strict=True))
        if ours.name not in int96 and (common := _common(ours.type, theirs.type)) is not None
    }
    if not kinds:
        raise NotJudged("DuckDB and Arrow have no type of a column in common")
    found = _fingerprint(_duckdb_batches(stream), kinds)
    expected = _fingerprint(_arrow_batches(file, rows), kinds)
    if found.rows != expected.rows:
        raise ReadersDisagree(f"Arrow reads {expected.rows:,} rows and DuckDB {found.rows:,} where {rows.count:,} are")
    others = dict(found.columns)
    if different := [schema.names[int(place)] for place, digest in expected.columns if others[place] != digest]:
        raise ReadersDisagree(f"Arrow and DuckDB read different values in {', '.join(different)}")


def require_same_rows(connection: "DuckDBPyConnection", parts: Iterable[Path], whole: Path) -> None:
    """Compare files, one behind the other, with the file that was made of them, as DuckDB reads them all. Raises
    SecondReaderRefused, ReadersDisagree or NotJudged."""
    stream = _all_by_duckdb(connection, whole)
    kinds = {place: kind for place, field in enumerate(stream.schema) if (kind := _common(field.type, field.type))}
    if not kinds:
        raise NotJudged("no column is of a type that can be compared")
    names = pyarrow.parquet.read_schema(whole).names
    found = _fingerprint(_duckdb_batches(stream), kinds)
    expected = _fingerprint(
        chain.from_iterable(_duckdb_batches(_all_by_duckdb(connection, each)) for each in parts), kinds
    )
    if found.rows != expected.rows:
        raise ReadersDisagree(f"it has {found.rows:,} rows, and what it was made of has {expected.rows:,}")
    others = dict(found.columns)
    if different := [names[int(place)] for place, digest in expected.columns if others[place] != digest]:
        raise ReadersDisagree(f"it has other values than what it was made of in {', '.join(different)}")


def _all_by_duckdb(connection: "DuckDBPyConnection", path: Path) -> pyarrow.RecordBatchReader:
    try:
        metadata = pyarrow.parquet.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
    except (OSError, ValueError, pyarrow.ArrowException) as unreadable:
        raise NotJudged(f"its schema cannot be read: {first_line(unreadable)}") from unreadable
    return _by_duckdb(connection, path, schema, RowRange(0, metadata.num_rows, ()))


def verify_sample(content: Buffer, name: str, extent: Extent) -> None:
    """Compare a file in memory as both decoders read it, all of it or a sample that its name chooses. Raises
    SecondReaderRefused or ReadersDisagree; what DuckDB does not know passes."""
    if extent == "none":
        return
    with tempfile.TemporaryDirectory(prefix="compaction-proof-") as folder, connected(Path(folder)) as connection:
        path = Path(folder) / "file.parquet"
        path.write_bytes(memoryview(content))
        with (
            pyarrow.parquet.ParquetFile(
                path, page_checksum_verification=True, coerce_int96_timestamp_unit="us"
            ) as file,
            suppress(NotJudged),
        ):
            require_agreement(connection, path, file, RowRange.chosen(file.metadata, extent, seed_of(name)))


def seed_of(name: str) -> int:
    """A number that chooses what is sampled: the same for the same name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def _by_duckdb(
    connection: "DuckDBPyConnection", path: Path, schema: pyarrow.Schema, rows: RowRange
) -> pyarrow.RecordBatchReader:
    import duckdb

    relation = f"read_parquet({quoted_text(path)}, {ROW_NUMBER} = true)"
    try:
        described = connection.sql(f"SELECT * EXCLUDE ({ROW_NUMBER}) FROM {relation}")
        columns = zip(described.columns, map(str, described.types), strict=True)
        if len(described.columns) != len(schema):
            raise NotJudged(f"DuckDB sees {len(described.columns)} columns, Arrow {len(schema)}")
        named = [f"{comparable(quoted_name(name), kind)} AS c{place}" for place, (name, kind) in enumerate(columns)]
        last = rows.first + rows.count
        return connection.sql(
            f"SELECT {', '.join(named)} FROM {relation} WHERE {ROW_NUMBER} >= {rows.first} AND {ROW_NUMBER} < {last}"
        ).to_arrow_reader(BATCH_ROWS)
    except duckdb.Error as unknown:
        # What a query reads first is read here already: only a schema that is not understood is no refusal.
        if "Invalid Input" in str(unknown) or "Corrupt" in str(unknown):
            raise SecondReaderRefused(f"DuckDB does not read it: {first_line(unknown)}") from unknown
        raise NotJudged(f"DuckDB does not know its schema: {first_line(unknown)}") from unknown


def require_no_exhaustion(error: Exception) -> None:
    """Raise NotJudged if the error tells of this machine (no memory, no space, no more open files), not of a file."""
    import duckdb

    text = str(error)
    exhausted = ("No space left", "Too many open files", "Out of Memory", "out of memory", "Disk quota")
    if isinstance(error, duckdb.OutOfMemoryException | MemoryError) or any(each in text for each in exhausted):
        raise NotJudged(f"the second reader had not enough room: {first_line(error)}") from error


def comparable(expression: str, kind: str) -> str:
    """A column as SQL that Arrow receives in the type that Parquet has: DuckDB hands out UUIDs as text."""
    return f"unhex(replace({expression}::VARCHAR, '-', ''))" if kind == "UUID" else expression


def _duckdb_batches(stream: pyarrow.RecordBatchReader) -> Iterator[pyarrow.RecordBatch]:
    import duckdb

    try:
        yield from stream
    except (duckdb.Error, pyarrow.ArrowException, OSError) as refused:
        require_no_exhaustion(refused)
        raise SecondReaderRefused(f"DuckDB does not read it: {first_line(refused)}") from refused


def _arrow_batches(file: pyarrow.parquet.ParquetFile, rows: RowRange) -> Iterator[pyarrow.RecordBatch]:
    start, end = rows.skipped, rows.skipped + rows.count
    place = 0
    for batch in file.iter_batches(BATCH_ROWS, row_groups=list(rows.row_groups), use_threads=False):
        first, last = max(start - place, 0), min(end - place, batch.num_rows)
        if first < last:
            yield batch.slice(first, last - first)
        place += batch.num_rows
        if place >= end:
            return


def _fingerprint(batches: Iterator[pyarrow.RecordBatch], kinds: dict[int, pyarrow.DataType]) -> Fingerprint:
    """The digest of these columns, by place."""
    digest = OrderedFingerprint(pyarrow.schema([(str(place), kind) for place, kind in kinds.items()]))
    for batch in batches:
        arrays = [in_type(batch.column(place), kind) for place, kind in kinds.items()]
        digest.update(pyarrow.RecordBatch.from_arrays(arrays, [str(place) for place in kinds]))
    return digest.finish()


def _common(ours: pyarrow.DataType, theirs: pyarrow.DataType) -> pyarrow.DataType | None:
    """The type in which a column is compared; None if one of the readers cannot hold all that the other can."""
    try:
        mine, other = canonical_type(ours), canonical_type(theirs)
        if type_name(mine) == type_name(other):
            return mine
        if "time" in type_name(mine) or "time" in type_name(other):
            return other if _unit(other) > _unit(mine) >= 0 else None
        if pyarrow.types.is_floating(other) and not pyarrow.types.is_floating(mine):
            return None  # wide decimals become doubles
        return mine if in_type(pyarrow.array([], theirs), mine) is not None else None
    except (pyarrow.ArrowException, TypeHasNoFingerprint):
        return None


def _unit(kind: pyarrow.DataType) -> int:
    return UNITS.index(kind.unit) if pyarrow.types.is_timestamp(kind) or pyarrow.types.is_time(kind) else -1


def in_type(array: pyarrow.Array, kind: pyarrow.DataType) -> pyarrow.Array:
    """The same values in a type that has the same meaning as this one."""
    wanted = canonical_type(kind)
    return array if type_name(canonical_type(array.type)) == type_name(wanted) else array.cast(wanted)


def quoted_text(text: object) -> str:
    """Text as a literal of DuckDB's SQL."""
    return "'" + str(text).replace("'", "''") + "'"


def quoted_name(name: str) -> str:
    """A name as DuckDB's SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
