"""Read one staged file completely: every page decoded with its checksum, every row in the table's columns.

Runs inside Spark tasks. A file is judged before any of its rows is given out: one that cannot be read, or does
not fit the table, is copied to quarantine with the reason beside it and gives no rows at all. Rows without a
key go to a rejects file there. Both are named by the file's version, so doing it twice changes nothing.
"""

import contextlib
import hashlib
import json
import mmap
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Literal

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from compaction_platform.errors import CompactionError
from compaction_platform.lake.iceberg.types import TypeUnsupported, converted, holds, iceberg_type
from compaction_platform.lake.parquet.fetch_footer import fetch_footer
from compaction_platform.lake.parquet.int96 import int96_columns, why_not_exact
from compaction_platform.lake.parquet.second_reader import ReadersDisagree, SecondReaderRefused, seed_of, verify_sample
from compaction_platform.lake.storage.identifiers import checked_identifier
from compaction_platform.lake.storage.object_store import ObjectChanged, ObjectMissing, ObjectStore
from compaction_platform.lake.verification.canonical_form import is_list
from compaction_platform.lake.verification.extent import Extent
from compaction_platform.lake.verification.value_validity import invalid_values
from compaction_platform.merge.config import FILE_COLUMN, ROW_COLUMN, OnNewColumn
from compaction_platform.merge.plan.staged_hours import StagedFile

HELD_IN_MEMORY_BYTES = 64 << 20
ROWS_PER_BATCH = 1 << 16
SAMPLED_ONE_IN = 64  # staged files

Fate = Literal["sound", "quarantined", "changed"]


class FileUnfit(CompactionError):
    """A staged file cannot become rows of the table."""


@dataclass(frozen=True)
class FileReport:
    """What became of one staged file."""

    key: str
    etag: str
    size: int
    arrived: str
    fate: Fate
    reason: str = ""
    rows: int = 0
    rejected: int = 0
    columns: dict[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "FileReport":
        values = json.loads(text)
        return cls(**{**values, "ignored": tuple(values["ignored"])})


@dataclass(frozen=True)
class Reading:
    """All that is needed to read staged files. Without a quarantine (a dry run), nothing is written."""

    staging: ObjectStore
    quarantine: ObjectStore | None
    columns: pyarrow.Schema  # the table's own, without where rows came from
    key: tuple[str, ...]
    required: tuple[str, ...]
    on_new_column: OnNewColumn
    fetched: dict[tuple[str, str], bytes] = field(default_factory=dict, repr=False)  # by key and etag
    second_reader: Extent = "sample"  # how many of the files another Parquet decoder reads, too

    @property
    def output(self) -> pyarrow.Schema:
        """The columns of the rows that are given out."""
        origin = [pyarrow.field(FILE_COLUMN, pyarrow.string()), pyarrow.field(ROW_COLUMN, pyarrow.int64())]
        return pyarrow.schema([*self.columns, *origin])

    def read(self, file: StagedFile) -> tuple[FileReport, Iterable[pyarrow.RecordBatch]]:
        """The file's fate, and the rows it gives."""
        report = FileReport(file.key, file.etag, file.size, file.arrived.isoformat(), "sound")
        with contextlib.ExitStack() as open_until_read:
            try:
                source = open_until_read.enter_context(self._source(file))
            except (ObjectChanged, ObjectMissing) as gone:
                return replace(report, fate="changed", reason=str(gone)), []
            try:
                report, batches = self._judge_twice_if_memory_is_short(report, source)
            except pyarrow.ArrowCancelled:
                raise
            except (FileUnfit, pyarrow.ArrowException, OSError, ValueError, NotImplementedError) as unfit:
                report = replace(report, fate="quarantined", reason=_in_one_line(unfit))
                self._set_aside(report, source)
                return report, []
            return report, _keeping_open(batches, open_until_read.pop_all())

    @contextlib.contextmanager
    def _source(self, file: StagedFile) -> Iterator[Any]:
        """This very version of the file: in memory if it is small, else on the local disk."""
        if (file.key, file.etag) in self.fetched:
            yield self.fetched[file.key, file.etag]
        elif file.size <= HELD_IN_MEMORY_BYTES:
            yield self.staging.read(file.key, file.etag)
        else:
            with tempfile.TemporaryFile() as spool:
                spool.writelines(self.staging.pieces(file.key, file.size, file.etag))
                spool.flush()
                with mmap.mmap(spool.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                    yield mapped

    def _judge_twice_if_memory_is_short(self, report: FileReport, source: Any) -> Any:
        """A corrupt file may claim to need any amount of memory; a sound one is read at the second attempt."""
        try:
            return self._judge(report, source)
        except MemoryError:
            return self._judge(report, source)

    def _judge(self, report: FileReport, source: Any) -> tuple[FileReport, Iterable[pyarrow.RecordBatch]]:
        """Decode everything once. Rows of a small file are kept; those of a large one are decoded again when
        they are asked for."""
        schema = _schema(source)
        with _opened(source) as file:
            if int96_columns(file.metadata) and (reason := why_not_exact(source)):
                raise FileUnfit(reason)
        self._require_agreement(report, source)
        fit = fit_columns(schema, self.columns, self.required, self.on_new_column)
        report = replace(report, columns={each.name: str(each.type) for each in schema}, ignored=fit.ignored)
        rejects = _Rejects(self.output)
        kept: list[pyarrow.RecordBatch] | None = []
        kept_bytes = rows = 0
        for batch in self._decoded(report.key, source, fit):
            rows += batch.num_rows
            sound = rejects.taken_from(batch, self.key)
            kept_bytes += sound.nbytes
            if kept is not None and kept_bytes <= HELD_IN_MEMORY_BYTES:
                kept.append(sound)
            else:
                kept = None
        if rejects.rows:
            self._write_rejects(report, rejects)
        report = replace(report, rows=rows, rejected=rejects.rows)
        if kept is not None:
            return report, kept
        return report, (_with_key(batch, self.key) for batch in self._decoded(report.key, source, fit))

    def _require_agreement(self, report: FileReport, source: Any) -> None:
        """Raise FileUnfit for a file that a second Parquet decoder refuses, or reads otherwise."""
        version = f"{report.key} {report.etag}"
        if self.second_reader == "sample" and seed_of(version) % SAMPLED_ONE_IN:
            return
        try:
            verify_sample(source, version, self.second_reader)
        except (SecondReaderRefused, ReadersDisagree) as reason:
            raise FileUnfit(str(reason)) from reason

    def _decoded(self, key: str, source: Any, fit: "Fit") -> Iterator[pyarrow.RecordBatch]:
        row = 0
        with _opened(source) as file:
            names = [name for name in fit.sources.values() if name is not None]
            for batch in file.iter_batches(ROWS_PER_BATCH, use_threads=False):
                if (problem := invalid_values(batch)) is not None:
                    raise FileUnfit(problem)
                held = {name: batch.column(batch.schema.get_field_index(name)) for name in names}
                arrays = [
                    converted(held[name], column.type) if name is not None else pyarrow.nulls(len(batch), column.type)
                    for column, name in zip(self.columns, fit.sources.values(), strict=True)
                ]
                positions = pyarrow.array(numpy.arange(row, row + len(batch), dtype="int64"))
                origin = [pyarrow.repeat(pyarrow.scalar(key, pyarrow.string()), len(batch)), positions]
                row += len(batch)
                yield pyarrow.RecordBatch.from_arrays([*arrays, *origin], schema=self.output)
            claimed = sum(file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups))
        if row != claimed:
            raise FileUnfit(f"the row groups claim {claimed} rows, {row} are there")

    def _set_aside(self, report: FileReport, source: Any) -> None:
        if self.quarantine is not None:
            name = versioned_name(report)
            self.quarantine.write(name, source)
            self.quarantine.write(f"{name}.reason.json", report.to_json().encode())

    def set_aside_unread(self, file: StagedFile, reason: str) -> FileReport:
        """For a file that kills who reads it."""
        report = FileReport(file.key, file.etag, file.size, file.arrived.isoformat(), "quarantined", reason[:500])
        with self._source(file) as source:
            self._set_aside(report, source)
        return report

    def _write_rejects(self, report: FileReport, rejects: "_Rejects") -> None:
        if self.quarantine is not None:
            reason = f"{rejects.rows} rows have no {' or no '.join(self.key)}"
            self.quarantine.write(rejects_name(report), rejects.as_parquet(reason))


def versioned_name(report: FileReport) -> str:
    """By day of arrival; the version is part of the name, so that a replaced file does not replace this one."""
    path = PurePosixPath(report.key)
    version = hashlib.sha256(report.etag.encode()).hexdigest()[:12]
    return str(PurePosixPath(report.arrived[:10]) / path.parent / f"{path.stem}-{version}{path.suffix}")


def rejects_name(report: FileReport) -> str:
    """Where in quarantine the rows without a key are."""
    return f"{versioned_name(report)}.rejects.parquet"


@dataclass(frozen=True)
class Fit:
    """For each column of the table, the file's column that fills it; and the file's columns that are left over."""

    sources: dict[str, str | None]
    ignored: tuple[str, ...]


def fit_columns(
    file: pyarrow.Schema, table: pyarrow.Schema, required: Iterable[str], on_new_column: OnNewColumn
) -> Fit:
    """How the file's columns become the table's; raises FileUnfit if they cannot."""
    by_name = _by_lower_name(file)
    sources = {column.name: by_name.pop(column.name, None) for column in table}
    if missing := [name for name in required if sources[name] is None]:
        raise FileUnfit(f"the column {missing[0]} is missing; the file has {', '.join(file.names) or 'none'}")
    for column in table:
        source = sources[column.name]
        if source is not None and not holds(column.type, kind := file.field(source).type):
            raise FileUnfit(f"column {source} is {kind}, which does not fit into {column.type} without loss")
    left_over = [name for name in by_name.values() if not pyarrow.types.is_null(file.field(name).type)]
    if left_over and on_new_column == "reject":
        raise FileUnfit(f"column {left_over[0]} is not in the table, and new columns are rejected (on_new_column)")
    if left_over and on_new_column == "add":
        raise FileUnfit(f"column {left_over[0]} is new and could not be added: {why_not_a_column(file, left_over[0])}")
    return Fit(sources, tuple(left_over))


def why_not_a_column(file: pyarrow.Schema, name: str) -> str:
    try:
        new_column(file.field(name))
    except CompactionError as reason:
        return str(reason)
    return "another file of the batch has it with a type that does not agree"


def new_column(column: pyarrow.Field) -> tuple[str, Any]:
    """Name and Iceberg type under which a new column of a file would be added to the table."""
    name = column.name.lower()
    if name.startswith("_"):
        raise TypeUnsupported(f"{column.name} begins with an underscore, as only columns of the platform do")
    for inner in _names_inside(column.type):
        checked_identifier(inner.lower())
    return checked_identifier(name), iceberg_type(column.type)


def _names_inside(kind: pyarrow.DataType) -> Iterator[str]:
    if pyarrow.types.is_struct(kind):
        for field_inside in kind:
            yield field_inside.name
            yield from _names_inside(field_inside.type)
    elif pyarrow.types.is_map(kind):
        yield from _names_inside(kind.item_type)
    elif is_list(kind):
        yield from _names_inside(kind.value_type)


def _by_lower_name(file: pyarrow.Schema) -> dict[str, str]:
    names: dict[str, str] = {}
    for name in file.names:
        if name.lower() in names:
            raise FileUnfit(f"columns {names[name.lower()]} and {name} differ in case only, or not at all")
        names[name.lower()] = name
    return names


def survey(staging: ObjectStore, file: StagedFile, held: bytes | None = None) -> pyarrow.Schema | None:
    """The columns a file claims to have; None if it cannot even say that: reading it whole will tell why."""
    try:
        return _schema(held if held is not None else fetch_footer(staging, file.key, file.size, file.etag))
    except (FileUnfit, pyarrow.ArrowException, OSError, ValueError, ObjectChanged, ObjectMissing):
        return None


def _schema(source: Any) -> pyarrow.Schema:
    with _opened(source) as file:
        return file.schema_arrow


def _opened(source: Any) -> pyarrow.parquet.ParquetFile:
    if len(source) == 0:
        raise FileUnfit("the file is empty: 0 bytes, not even a footer")
    return pyarrow.parquet.ParquetFile(
        pyarrow.BufferReader(pyarrow.py_buffer(source)),
        page_checksum_verification=True,
        coerce_int96_timestamp_unit="us",  # nanoseconds, the default, wrap around in silence
    )


def _keeping_open(batches: Iterable[pyarrow.RecordBatch], source: contextlib.ExitStack) -> Iterator[Any]:
    with source:
        yield from batches


def _with_key(batch: pyarrow.RecordBatch, key: Iterable[str]) -> pyarrow.RecordBatch:
    lacking = _lacks_key(batch, key)
    return batch if lacking is None else batch.filter(pyarrow.compute.invert(lacking))


def _lacks_key(batch: pyarrow.RecordBatch, key: Iterable[str]) -> Any | None:
    """A mask of the rows with a null in the key; None if there is no such row."""
    mask = None
    for name in key:
        column = batch.column(name)
        if column.null_count:
            mask = column.is_null() if mask is None else pyarrow.compute.or_(mask, column.is_null())
    return mask


class _Rejects:
    """Rows that are not merged because they have no key."""

    def __init__(self, schema: pyarrow.Schema) -> None:
        self.schema = schema
        self.batches: list[pyarrow.RecordBatch] = []

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def taken_from(self, batch: pyarrow.RecordBatch, key: Iterable[str]) -> pyarrow.RecordBatch:
        """The batch without the rows that lack a key; those are kept here."""
        lacking = _lacks_key(batch, key)
        if lacking is None:
            return batch
        self.batches.append(batch.filter(lacking))
        return batch.filter(pyarrow.compute.invert(lacking))

    def as_parquet(self, reason: str) -> pyarrow.Buffer:
        rows = pyarrow.Table.from_batches(self.batches, self.schema)
        rows = rows.append_column("reason", pyarrow.repeat(pyarrow.scalar(reason), rows.num_rows))
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(rows, sink, compression="zstd", write_page_checksum=True)
        return sink.getvalue()


def _in_one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return (text if isinstance(error, FileUnfit) else f"{type(error).__name__}: {text}")[:500]
