"""The inputs of one bin, inside a task: fetched many at a time, each judged by itself.

A file that cannot be read, or does not go together with the others, is set aside with a reason; it never stops them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow
import pyarrow.parquet
from typing_extensions import Buffer

from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.errors import CompactionError
from compaction_platform.lake.parquet.footer import Footer, FooterReader
from compaction_platform.lake.parquet.int96 import int96_columns, why_not_exact
from compaction_platform.lake.parquet.schema_elements import columns_of
from compaction_platform.lake.parquet.thrift_compact import ThriftInvalid
from compaction_platform.lake.storage.object_store import ObjectChanged, ObjectMissing, ObjectStore
from compaction_platform.lake.storage.prefetch import fetch_all
from compaction_platform.lake.verification.value_validity import invalid_values

ROWS_PER_BATCH = 1 << 16
BATCH_BYTES = 16 << 20
LONG_VALUE = 32  # bytes, what is reckoned for one of a kind that may be of any length
ENCRYPTED = b"PARE"


_FOOTERS = FooterReader()


class InputUnusable(CompactionError):
    """A file that has to stay as it is."""


# Whatever pyarrow may say about a file that is not what it seems.
UNREADABLE: tuple[type[Exception], ...] = (
    InputUnusable,
    ThriftInvalid,
    pyarrow.ArrowException,
    OSError,
    ValueError,
    NotImplementedError,
)


UNREADABLE_OR_TOO_LARGE: tuple[type[Exception], ...] = (*UNREADABLE, MemoryError)


def refuse_exhaustion(error: Exception) -> None:
    """Raise the error again if it tells of this machine (no memory, no space, no more open files), not of a file.

    What Arrow says of a damaged file are OSErrors, too, but without a number of the system.
    """
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None):
        raise error


@dataclass(frozen=True)
class SourceFile:
    """One file, all of its bytes."""

    file: FileVersion
    data: pyarrow.Buffer = field(repr=False)

    @cached_property
    def metadata(self) -> pyarrow.parquet.FileMetaData:
        if self.data.slice(max(0, self.data.size - 4)).to_pybytes() == ENCRYPTED:
            raise InputUnusable("it is encrypted")
        return self.opened.metadata

    @cached_property
    def schema(self) -> pyarrow.Schema:
        return self.opened.schema_arrow

    @cached_property
    def has_int96(self) -> bool:
        return bool(int96_columns(self.metadata))

    @cached_property
    def footer(self) -> Footer:
        """As the format has it; raises ThriftInvalid."""
        return _FOOTERS.read(self.data)

    def decoded(self) -> Iterator[pyarrow.RecordBatch]:
        """All rows, every page with its checksum."""
        rows = 0
        for batch in self.opened.iter_batches(self._rows_per_batch, use_threads=False):
            rows += batch.num_rows
            if (problem := invalid_values(batch)) is not None:
                raise InputUnusable(f"its {problem}")
            yield batch
        claimed = sum(self.metadata.row_group(number).num_rows for number in range(self.metadata.num_row_groups))
        if rows != claimed:
            raise InputUnusable(f"its row groups claim {claimed} rows, {rows} are there")

    @property
    def _rows_per_batch(self) -> int:
        """Fewer where rows are wide: a thousand columns in which nothing but zeros are take little space on disk."""
        width = sum(_width(kind) for kind in _leaves(self.schema))
        return int(max(256, min(ROWS_PER_BATCH, BATCH_BYTES // max(1, width))))

    def judge(self) -> None:
        """Raise one of UNREADABLE if the rows could not be written again just as they are."""
        if self.has_int96:
            self._judge_int96()
        if len(set(self.schema.names)) != len(self.schema.names):
            raise InputUnusable("two of its columns have the same name")
        self._judge_footer()

    def _judge_footer(self) -> None:
        """A footer bears no checksum, but it says some things twice."""
        try:
            repeats = {leaf.path: leaf.repetition > 0 for leaf in columns_of(self.footer.schema)}
        except ThriftInvalid:
            return  # nothing is known about it here; Arrow decides whether it can be read
        for group in self.footer.row_groups:
            for chunk in group.chunks:
                if chunk.path not in repeats:
                    raise InputUnusable("its footer contradicts itself about the names of columns")
                if chunk.values != group.rows and not repeats[chunk.path]:
                    raise InputUnusable(
                        f"a row group claims {group.rows} rows, its column {'.'.join(chunk.path)} has {chunk.values}"
                    )

    def _judge_int96(self) -> None:
        others = [column for column in _leaves(self.schema) if pyarrow.types.is_timestamp(column)]
        if len(others) != len(int96_columns(self.metadata)):
            raise InputUnusable("it has timestamps of two kinds, INT96 and others")
        if reason := why_not_exact(self.data):
            raise InputUnusable(reason)

    @cached_property
    def opened(self) -> pyarrow.parquet.ParquetFile:
        return pyarrow.parquet.ParquetFile(
            pyarrow.BufferReader(self.data),
            page_checksum_verification=True,
            coerce_int96_timestamp_unit="us",  # nanoseconds, the default, wrap around in silence
        )


def _width(kind: pyarrow.DataType) -> int:
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return LONG_VALUE


def _leaves(schema: pyarrow.Schema) -> Iterator[pyarrow.DataType]:
    waiting = [column.type for column in schema]
    while waiting:
        kind = waiting.pop()
        if pyarrow.types.is_nested(kind):
            waiting += [kind.field(number).type for number in range(kind.num_fields)]
        else:
            yield kind


@dataclass(frozen=True)
class FetchedInputs:
    inputs: tuple[SourceFile, ...]
    changed: Mapping[str, str]  # by key: what is not there any more in the version that was listed


def fetch(store: ObjectStore, files: Sequence[FileVersion]) -> FetchedInputs:
    """The bytes of these very versions, in their order."""
    changed: dict[str, str] = {}

    def read(file: FileVersion) -> Buffer | None:
        try:
            return store.read(file.key, file.etag)
        except (ObjectChanged, ObjectMissing) as gone:
            changed[file.key] = str(gone)
            return None

    found = fetch_all(read, files, lambda file: file.size)
    return FetchedInputs(
        tuple(SourceFile(file, data) for file, data in zip(files, found, strict=True) if data is not None), changed
    )
