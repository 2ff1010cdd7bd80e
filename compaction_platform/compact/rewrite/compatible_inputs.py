"""Inputs become one proved file, not published yet; those that cannot be part of it are told apart, with the reason."""

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from compaction_platform.compact.plan.schema_groups import Unify, grouped
from compaction_platform.compact.rewrite import reencode
from compaction_platform.compact.rewrite.read_inputs import (
    UNREADABLE,
    UNREADABLE_OR_TOO_LARGE,
    InputUnusable,
    SourceFile,
    refuse_exhaustion,
)
from compaction_platform.compact.rewrite.result import Verify, WrittenOutput
from compaction_platform.compact.rewrite.second_reader import refused_inputs, require_output
from compaction_platform.compact.rewrite.unify_schema import Unified, fitted
from compaction_platform.errors import CompactionError
from compaction_platform.lake.parquet.writer import WriterOptions
from compaction_platform.lake.storage.staged_upload import StagedUpload
from compaction_platform.lake.verification.extent import Extent
from compaction_platform.lake.verification.timer import Timer

ParquetSchema = tuple[tuple[Any, ...], ...]
SPARK = b"org.apache.spark."
FROM_CONVERTED = re.compile(r", (is_from_converted_type|force_set_converted_type)=\w+")  # how it is told, not what
# Whatever a damaged footer may lead to, before any row is read.
UNFIT: tuple[type[Exception], ...] = (*UNREADABLE, TypeError, AttributeError, LookupError, ArithmeticError)
CHANGED = "encoded anew, its columns would be of other Parquet types"


@dataclass(frozen=True)
class CompatibleInputs:
    """What was written, of which inputs; `set_aside` by key: why others are not part of it."""

    inputs: tuple[SourceFile, ...]
    set_aside: Mapping[str, str]
    passed_over: Mapping[str, str] = field(default_factory=dict)  # for this run only, and why
    written: WrittenOutput | None = None  # None: too few could be part of it
    file: StagedUpload | None = None


@dataclass(frozen=True)
class JoinOptions:
    """How files are joined. `exactly`: only files of the very same Parquet schema, into one of that schema."""

    encoding: WriterOptions
    verify: Verify = "full"
    exactly: bool = False
    second_reader: Extent = "sample"
    unify: Unify = "additions"

    def encoding_for(self, first: SourceFile) -> WriterOptions:
        return (
            replace(self.encoding, decimals_as_integers=has_integer_decimals(first)) if self.exactly else self.encoding
        )


def groups_of(inputs: Sequence[SourceFile], how: JoinOptions) -> list[list[SourceFile]]:
    """Inputs whose columns go together. What cannot be read at all is looked at with the largest group."""
    columns: dict[str, list[str]] = {}
    unread: list[SourceFile] = []
    for each in inputs:
        try:
            columns[each.file.key] = each.schema.names
        except UNREADABLE_OR_TOO_LARGE:
            unread.append(each)
    by_key = {each.file.key: each for each in inputs}
    groups = [[by_key[key] for key in keys] for keys in grouped(columns, how.unify)] or ([[]] if unread else [])
    if unread:
        groups[0] = sorted([*groups[0], *unread], key=lambda each: each.file)
    return groups


@contextmanager
def compatible_inputs(
    inputs: Sequence[SourceFile], how: JoinOptions, fewest: int, called: str
) -> Iterator[CompatibleInputs]:
    """One file of as many of these inputs as go together, for as long as the context lasts."""
    usable, unified, set_aside = _going_together(inputs, how.exactly)
    passed_over: dict[str, str] = {}
    while len(usable) >= fewest:
        with (
            tempfile.TemporaryDirectory(prefix="compaction-join-") as place,
            StagedUpload(Path(place) / "output") as spool,
        ):
            second = Timer()
            with second:
                refused = refused_inputs(usable, how.second_reader, called, Path(place))
            if refused:
                set_aside |= refused
                usable, unified, apart = _going_together(
                    [each for each in usable if each.file.key not in refused], how.exactly
                )
                set_aside |= apart
                continue
            try:
                written = reencode.write(usable, unified, how.encoding_for(usable[0]), spool, how.verify)
                with second:
                    require_output(spool.path, SourceFile(usable[0].file, spool.mapped()), how.second_reader, called)
                written = replace(written, proof_seconds=written.proof_seconds + second.seconds)
            except UNREADABLE_OR_TOO_LARGE as failed:
                bad, too_large = _unreadable(usable, unified.schema)
                if not bad and not too_large:
                    refuse_exhaustion(failed)
                    raise CompactionError(f"{called}: {in_one_line(failed)}") from failed
                passed_over |= too_large
                left_out = bad.keys() | too_large.keys()
                usable, unified, apart = _going_together(
                    [each for each in usable if each.file.key not in left_out], how.exactly
                )
                set_aside = {**set_aside, **bad, **apart}
                continue
            if how.exactly and _is_changed(usable[0], spool.mapped()):
                set_aside = {**set_aside, **{each.file.key: CHANGED for each in usable}}
                usable = []
                break
            yield CompatibleInputs(tuple(usable), set_aside, passed_over, written, spool)
            return
    yield CompatibleInputs(tuple(usable), set_aside, passed_over)


def _going_together(inputs: Sequence[SourceFile], exactly: bool) -> tuple[list[SourceFile], Unified, dict[str, str]]:
    """The inputs that can become one file, their common schema, and why the others cannot. Where they disagree, the
    schema that most of them have decides."""
    sound: list[SourceFile] = []
    apart: dict[str, str] = {}
    kinds: dict[str, Any] = {}
    for each in inputs:
        try:
            each.judge()
            kinds[each.file.key] = kind_of(each) if exactly else _roughly(each)
            sound.append(each)
        except UNFIT as reason:
            refuse_exhaustion(reason)
            apart[each.file.key] = in_one_line(reason)
    often: Counter[Any] = Counter(kinds.values())
    usable: list[SourceFile] = []
    unified = Unified()
    for each in sorted(sound, key=lambda each: -often[kinds[each.file.key]]):
        try:
            if exactly and usable and kinds[usable[0].file.key] != kinds[each.file.key]:
                raise InputUnusable("its columns are not exactly those of the others")
            if usable and usable[0].has_int96 != each.has_int96:
                raise InputUnusable("its timestamps are stored in another way than those of the others (INT96)")
            if usable and _legacy(usable[0]) != _legacy(each):
                raise InputUnusable("Spark has noted another calendar for its old dates than for those of the others")
            unified = unified.with_file(each.schema, each.metadata.metadata or {})
            usable.append(each)
        except UNFIT as reason:
            refuse_exhaustion(reason)
            apart[each.file.key] = in_one_line(reason)
    return sorted(usable, key=lambda each: each.file), unified, apart


def _legacy(each: SourceFile) -> set[bytes]:
    """By these notes Spark tells dates that it wrote by the calendar of old."""
    return {key for key in each.metadata.metadata or {} if key.startswith(SPARK + b"legacy")}


def _roughly(each: SourceFile) -> tuple[str, bool]:
    return each.schema.remove_metadata().to_string(), each.has_int96


def kind_of(each: SourceFile) -> tuple[str, ParquetSchema, frozenset[tuple[bytes, bytes]]]:
    """Files of one kind have the very same columns: to Arrow, and to any other reader. Spark reads old dates and times
    by what it has noted in the footer."""
    notes = {(key, value) for key, value in (each.metadata.metadata or {}).items() if key.startswith(SPARK)}
    return each.schema.remove_metadata().to_string(), parquet_schema(each.metadata), frozenset(notes)


def parquet_schema(metadata: pyarrow.parquet.FileMetaData) -> ParquetSchema:
    """What a reader goes by. Inside lists and maps only the types count: the names there have no meaning, and Arrow
    writes its own."""
    columns = [metadata.schema.column(number) for number in range(len(metadata.schema))]
    return tuple(
        (
            column.path.split(".")[0] if column.max_repetition_level else column.path,
            column.physical_type,
            column.length,
            *_annotation(column),
            column.max_definition_level,
            column.max_repetition_level,
        )
        for column in columns
    )


def _annotation(column: Any) -> tuple[str, str]:
    """Logical and converted type. That 32 bits are an integer of 32 bits need not be said."""
    plain = {"INT32": "INT_32", "INT64": "INT_64"}
    if column.converted_type == plain.get(column.physical_type):
        return "None", "NONE"
    return FROM_CONVERTED.sub("", str(column.logical_type)), column.converted_type


def has_integer_decimals(each: SourceFile) -> bool:
    schema = each.metadata.schema
    columns = [schema.column(number) for number in range(len(schema))]
    return any(column.converted_type == "DECIMAL" and column.physical_type.startswith("INT") for column in columns)


def _is_changed(before: SourceFile, written: pyarrow.Buffer) -> bool:
    return parquet_schema(before.metadata) != parquet_schema(
        pyarrow.parquet.read_metadata(pyarrow.BufferReader(written))
    )


def _unreadable(inputs: Sequence[SourceFile], schema: pyarrow.Schema) -> tuple[dict[str, str], dict[str, str]]:
    """Decode every file by itself: which of them cannot be decoded, or do not fit the others, and which want more
    memory than there is. (A damaged one may claim any amount; a sound one is read when there is more.)"""
    bad: dict[str, str] = {}
    too_large: dict[str, str] = {}
    for each in inputs:
        try:
            for batch in each.decoded():
                fitted(batch, schema)
        except MemoryError as reason:
            too_large[each.file.key] = (
                f"memory ran out while it was read; the next run tries again ({in_one_line(reason)})"
            )
        except UNREADABLE as reason:
            refuse_exhaustion(reason)
            bad[each.file.key] = in_one_line(reason)
    return bad, too_large


def in_one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return (text if isinstance(error, CompactionError) else f"{type(error).__name__}: {text}")[:500]
