"""One group of data files becomes few, inside a task: read with all deletes applied, written, read back from the store
and compared. Nothing refers to the new files yet; whoever does not commit them discards them."""

import errno
import tempfile
import time
import uuid
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pyarrow
import pyarrow.parquet
from pyiceberg.manifest import DataFile
from pyiceberg.table.locations import load_location_provider
from pyiceberg.typedef import Record

from compaction_platform.errors import VerificationFailed
from compaction_platform.lake.iceberg.data_file_reader import DataFileDamaged, DataFileReader, key_of
from compaction_platform.lake.iceberg.data_file_writer import data_file
from compaction_platform.lake.parquet.external_sort import by_columns, by_z_curve, sorted_row_groups
from compaction_platform.lake.parquet.second_reader import NotJudged
from compaction_platform.lake.parquet.stitch.errors import StitchFailed, StitchUnsupported, unsupported_if_unreadable
from compaction_platform.lake.parquet.stitch.stitch_plan import ColumnChoice
from compaction_platform.lake.parquet.stitch.stitch_writer import Stitched
from compaction_platform.lake.parquet.stitch.verify import verify_stitched
from compaction_platform.lake.parquet.writer import ParquetOutput, WriterOptions, row_groups
from compaction_platform.lake.storage.prefetch import fetch_all
from compaction_platform.lake.storage.staged_upload import StagedUpload
from compaction_platform.lake.verification.extent import Extent
from compaction_platform.lake.verification.fingerprint import (
    Fingerprint,
    OrderedFingerprint,
    OrderedFingerprintByColumn,
    UnorderedFingerprint,
)
from compaction_platform.lake.verification.timer import Timer
from compaction_platform.maintain.operations import stitch as stitching
from compaction_platform.maintain.operations.apply_deletes import EqualityDelete, is_left, positions_in
from compaction_platform.maintain.operations.second_reader import (
    FileWithDeletes,
    look_at_input,
    look_at_output,
    read_in_sql,
)
from compaction_platform.maintain.plan.file_groups import DataFileGroup, RewritePolicy
from compaction_platform.persisted_names import COMPACTED_FILE_PREFIX

FETCHED_AHEAD = 8
FETCHED_AHEAD_BYTES = 64 << 20


@dataclass(frozen=True)
class RewriteTask:
    """A group of the plan with all that a task must know of its files."""

    group: DataFileGroup
    inputs: tuple[FileWithDeletes, ...]
    spec_id: int
    partition: Record
    directory: str  # of the partition, below the table's place for data


@dataclass(frozen=True)
class RewrittenGroup:
    outputs: tuple[DataFile, ...] = ()
    rows_read: int = 0  # deleted ones included
    rows: int = 0
    digest: str = ""
    # data files that each delete file that was read holds positions of
    referred_to: Mapping[str, frozenset[str]] = field(default_factory=dict)
    engine: Literal["stitch", "re-encode", "sort", "none"] = "none"
    reason: str = ""  # for the engine
    columns: tuple[ColumnChoice, ...] = ()  # how each was made, where that differs
    seconds: float = 0.0
    proof_seconds: float = 0.0  # of those
    stitch_failure: str | None = None  # stitching was tried, and has a defect
    damaged: Mapping[str, str] = field(default_factory=dict)  # an input that cannot be read: nothing was made


@dataclass
class _Progress:
    total: int  # bytes of the inputs
    read: int = 0
    written: int = 0
    rows: int | None = None  # where all were read before the first is written
    rows_written: int = 0

    @property
    def still_to_come(self) -> float:
        """Bytes that will be written yet, judged by what is written."""
        if self.rows is not None:
            return (self.rows - self.rows_written) * (self.written / max(1, self.rows_written))
        return (self.total - self.read) * (self.written / self.read if self.read else 1.0)


@dataclass(frozen=True)
class RewriteGroup:
    """All that a task needs. It travels to where the work is done."""

    reader: DataFileReader
    policy: RewritePolicy
    encoding: WriterOptions
    second_reader: Extent = "sample"

    def __call__(self, work: RewriteTask) -> RewrittenGroup:
        try:
            return self._rewritten(work)
        except DataFileDamaged as damaged:
            if damaged.path not in {each.file.file_path for each in work.inputs}:
                raise
            return RewrittenGroup(damaged={damaged.path: str(damaged)})

    def _rewritten(self, work: RewriteTask) -> RewrittenGroup:
        began = time.monotonic()
        reason, defect = self._why_not_stitched(work), None
        if reason is None:
            try:
                return replace(self._stitched(work), seconds=time.monotonic() - began)
            except StitchUnsupported as cannot:
                reason, defect = str(cannot), str(cannot) if isinstance(cannot, StitchFailed) else None
        made = self._encoded_anew(work)
        return replace(made, reason=reason, stitch_failure=defect, seconds=time.monotonic() - began)

    def _why_not_stitched(self, work: RewriteTask) -> str | None:
        if self._sort_columns:
            return f"sorted by {', '.join(self._sort_columns)}"
        if any(each.positions or each.equalities for each in work.inputs):
            return "rows are deleted from these files"
        return None

    def _stitched(self, work: RewriteTask) -> RewrittenGroup:
        """Pages are joined as they are, and proved before an upload ends. What is stored must be the same bytes."""
        digest = OrderedFingerprintByColumn(self.reader.schema)
        proof = Timer()
        outputs: list[DataFile] = []
        reasons: list[str] = []
        columns: tuple[ColumnChoice, ...] = ()
        try:
            with tempfile.TemporaryDirectory(prefix="compaction-rewrite-") as spool:
                for files in stitching.cut([each.file for each in work.inputs], self.policy):
                    path = Path(spool) / f"{uuid.uuid4()}.parquet"
                    output, reason, ways = self._stitched_into(path, files, digest, work, proof)
                    outputs.append(output)
                    reasons.append(reason)
                    columns = columns or ways
                    with proof:
                        is_stored = self._is_stored(output.file_path, path)
                    if not is_stored:
                        raise VerificationFailed(f"{output.file_path} is not what was stored. The table is as it was.")
                    path.unlink()
        except BaseException:
            self.discard(outputs)
            raise
        found = digest.finish()
        return RewrittenGroup(
            tuple(outputs),
            rows_read=found.rows,
            rows=found.rows,
            digest=found.digest,
            engine="stitch",
            reason="; ".join(dict.fromkeys(reasons)),
            columns=columns,
            proof_seconds=proof.seconds,
        )

    def _stitched_into(
        self, path: Path, files: Sequence[DataFile], digest: OrderedFingerprintByColumn, work: RewriteTask, proof: Timer
    ) -> tuple[DataFile, str, tuple[ColumnChoice, ...]]:
        """Inputs take room until this returns, not longer. A large output goes to the store while it is made; it is
        there when it is proved, and not before."""
        contents = self._contents(files)
        location = self._location(path.name, work)
        store = self.reader.store(location)
        made: Stitched | None = None
        try:
            with StagedUpload(path, store, key_of(location)) as sink:
                made = stitching.stitched(files, contents, self.reader.schema, self.encoding, sink)
                with unsupported_if_unreadable(), proof:
                    look_at_input(files, contents, self.second_reader)
                    found = verify_stitched(made.plan, made.choices, sink.mapped(), also=digest)
                    made.publish(found.bounds)
                    self._require_readable(path)
                if not sink.complete():
                    store.create_from(key_of(location), path)
            return self._described(path, location, work), made.told(), made.columns
        except BaseException:
            if made is not None:  # the upload may have been completed
                store.delete([key_of(location)])
            raise

    def _contents(self, files: Sequence[DataFile]) -> list[pyarrow.Buffer]:
        def read(file: DataFile) -> pyarrow.Buffer:
            return self.reader.fetch(file.file_path)

        try:
            found = fetch_all(read, files, lambda file: file.file_size_in_bytes)
        except OSError as problem:
            if problem.errno != errno.ENOSPC:
                raise
            raise StitchUnsupported("there is no room for the inputs in the temporary directory") from problem
        return [content for content in found if content is not None]

    def _is_stored(self, path: str, file: Path) -> bool:
        """Whether the store has, byte for byte, what is in this file."""
        store, key = self.reader.store(path), key_of(path)
        there = store.stat(key)
        if there is None or there.size != file.stat().st_size:
            return False
        with file.open("rb") as here:
            return all(here.read(len(piece)) == piece for piece in store.pieces(key, there.size, there.etag))

    def _encoded_anew(self, work: RewriteTask) -> RewrittenGroup:
        rows = _Rows(self.reader, work)
        outputs: list[DataFile] = []
        try:
            with tempfile.TemporaryDirectory(prefix="compaction-rewrite-") as spool:
                digest = self._digest()
                tables = self._sorted(rows, digest) if self._sort_columns else self._in_order(rows, digest)
                for path in self._written(tables, rows.progress, Path(spool)):
                    outputs.append(self._stored(path, work))
            expected = digest.finish()
            with Timer() as proof:
                problems = expected.differences(self._read_back(outputs))
                problems += self._second_look(work, rows, expected)
            if expected.rows != rows.left:
                problems.append(f"{rows.left} rows were read, {expected.rows} were to be written")
            if problems:
                raise VerificationFailed(
                    f"{work.group.partition or 'the table'}: what was written is not what was read "
                    f"({'; '.join(problems)}). It was discarded; the table is as it was."
                )
        except BaseException:
            self.discard(outputs)
            raise
        return RewrittenGroup(
            tuple(outputs),
            rows_read=rows.read,
            rows=expected.rows,
            digest=expected.digest,
            referred_to=rows.referred_to,
            engine="sort" if self._sort_columns else "re-encode",
            proof_seconds=proof.seconds,
        )

    def discard(self, files: Iterable[DataFile]) -> None:
        """Remove files that no snapshot refers to."""
        for file in files:
            self.reader.store(file.file_path).delete([key_of(file.file_path)])

    # ------------------------------------------------------------ rows

    @property
    def _sort_columns(self) -> tuple[str, ...]:
        return self.policy.z_order_by or self.policy.sort_by

    def _digest(self) -> OrderedFingerprint | UnorderedFingerprint:
        return (UnorderedFingerprint if self._sort_columns else OrderedFingerprint)(self.reader.schema)

    def _in_order(self, rows: "_Rows", digest: OrderedFingerprint | UnorderedFingerprint) -> Iterator[pyarrow.Table]:
        """Row groups as they are to be written."""
        batches = (batch for some in rows for batch in some.to_batches())
        for group in row_groups(batches, self.reader.schema, self.encoding.row_group_bytes):
            digest.update(group)  # few large ones: much faster than many small ones
            yield group

    def _sorted(self, rows: "_Rows", digest: OrderedFingerprint | UnorderedFingerprint) -> Iterator[pyarrow.Table]:
        is_second = False

        def batches() -> Iterator[pyarrow.RecordBatch]:
            """Called twice: for the keys, then for the rows."""
            nonlocal is_second
            for some in rows:
                if is_second:
                    digest.update(some)
                yield from some.to_batches()
            is_second, rows.progress.rows = True, rows.left

        encoding = WriterOptions(row_group_bytes=self.encoding.row_group_bytes, sort_by=self._sort_columns)
        order = by_z_curve if self.policy.z_order_by else by_columns
        return sorted_row_groups(batches, self.reader.schema, encoding, order)

    # ------------------------------------------------------------ files

    def _written(self, tables: Iterator[pyarrow.Table], progress: _Progress, spool: Path) -> Iterator[Path]:
        """Files of about the target size, one after the other. A rest that would be small again stays in the last."""
        rest = next(tables, None)
        while rest is not None:
            path = spool / f"{uuid.uuid4()}.parquet"
            with path.open("wb") as sink, ParquetOutput(self.reader.schema, self.encoding, sink) as output:
                size = 0
                while rest is not None:
                    output.write([rest])
                    progress.written += sink.tell() - size
                    progress.rows_written += rest.num_rows
                    size = sink.tell()
                    rest = next(tables, None)
                    is_full = size >= self.policy.target_bytes
                    if is_full and progress.still_to_come >= self.policy.smallest_rest:
                        break
            yield path
            path.unlink()

    def _stored(self, spooled: Path, work: RewriteTask) -> DataFile:
        location = self._location(spooled.name, work)
        store = self.reader.store(location)
        self._require_readable(spooled)
        try:
            store.create_from(key_of(location), spooled)
            return self._described(spooled, location, work)
        except BaseException:
            store.delete([key_of(location)])
            raise

    def _location(self, name: str, work: RewriteTask) -> str:
        """Where a new data file of that partition goes."""
        table = self.reader.metadata
        inside = "/".join(part for part in (work.directory, f"{COMPACTED_FILE_PREFIX}{name}") if part)
        return load_location_provider(table.location, table.properties).new_data_location(inside)

    def _described(self, spooled: Path, location: str, work: RewriteTask) -> DataFile:
        footer = pyarrow.parquet.read_metadata(spooled)
        size = spooled.stat().st_size
        return data_file(location, size, footer, self.reader.metadata, work.spec_id, work.partition)

    def _require_readable(self, spooled: Path) -> None:
        if problem := look_at_output(spooled, self.second_reader):
            raise VerificationFailed(f"{spooled.name}: {problem}. It was not published; the table is as it was.")

    def _second_look(self, work: RewriteTask, rows: "_Rows", expected: Fingerprint) -> list[str]:
        """What is different in the inputs' rows as the second reader reads them."""
        if self.second_reader == "none":
            return []
        if self.second_reader == "sample" and not rows.need_logic:
            file = work.inputs[_some(work)].file
            look_at_input([file], [self.reader.fetch(file.file_path)], "sample")
            return []
        digest = self._digest()
        try:
            read_in_sql(self.reader, work.inputs, digest, self.reader.schema)
        except NotJudged as unknown:
            return [f"rows that need deletes or other columns cannot be proved by a second reader: {unknown}"]
        return [f"a second reader finds: {problem}" for problem in digest.finish().differences(expected)]

    def _read_back(self, outputs: Iterable[DataFile]) -> Fingerprint:
        digest = self._digest()
        for file in outputs:
            for rows in self.reader.row_groups(file, self.reader.fetch(file.file_path)):
                digest.update(rows)
        return digest.finish()


class _Rows:
    """The rows that are left in the files of a group, in their order."""

    def __init__(self, reader: DataFileReader, work: RewriteTask) -> None:
        self._reader, self._work = reader, work
        self.read = 0  # deleted ones included
        self.left = 0
        self.need_logic = any(each.positions or each.equalities for each in work.inputs)
        self.progress = _Progress(work.group.bytes)
        positions = {delete.file_path: delete for each in work.inputs for delete in each.positions}
        equalities = {delete.file_path: delete for each in work.inputs for delete in each.equalities}
        self._positions = {path: positions_in(delete, reader) for path, delete in positions.items()}
        self._equalities = {path: EqualityDelete(delete, reader) for path, delete in equalities.items()}
        self.referred_to = {path: frozenset(found) for path, found in self._positions.items()}

    def _has_table_columns(self, file: DataFile, content: pyarrow.Buffer) -> bool:
        try:
            return self._reader.has_table_columns(content)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataFileDamaged(file.file_path, f"cannot be read: {str(error).splitlines()[0]}") from error

    def __iter__(self) -> Iterator[pyarrow.Table]:
        self.read = self.left = self.progress.read = 0
        contents = _fetched(self._reader, [each.file for each in self._work.inputs])
        for each, (_, content) in zip(self._work.inputs, contents, strict=True):
            first = 0
            self.need_logic = self.need_logic or not self._has_table_columns(each.file, content)
            positions = [self._positions[one.file_path].get(each.file.file_path) for one in each.positions]
            about_it = [some for some in positions if some is not None]
            for rows in self._reader.row_groups(each.file, content):
                left = is_left(rows, first, about_it)
                for delete in each.equalities:
                    left &= self._equalities[delete.file_path].is_left(rows)
                first += rows.num_rows
                self.left += int(left.sum())
                yield rows if left.all() else rows.filter(pyarrow.array(left))
            self.read += first
            self.progress.read += each.file.file_size_in_bytes


def _some(work: RewriteTask) -> int:
    """One of the inputs, another for each group."""
    return zlib.crc32(work.inputs[0].file.file_path.encode()) % len(work.inputs)


def _fetched(reader: DataFileReader, files: Iterable[DataFile]) -> Iterator[tuple[DataFile, pyarrow.Buffer]]:
    """The files with their content, some of it fetched ahead."""
    waiting = deque(files)
    on_the_way: deque[tuple[DataFile, Future[pyarrow.Buffer]]] = deque()
    size = 0
    with ThreadPoolExecutor(FETCHED_AHEAD) as pool:
        while waiting or on_the_way:
            while waiting and (not on_the_way or (len(on_the_way) < FETCHED_AHEAD and size < FETCHED_AHEAD_BYTES)):
                file = waiting.popleft()
                size += file.file_size_in_bytes
                on_the_way.append((file, pool.submit(reader.fetch, file.file_path)))
            file, content = on_the_way.popleft()
            size -= file.file_size_in_bytes
            yield file, content.result()
