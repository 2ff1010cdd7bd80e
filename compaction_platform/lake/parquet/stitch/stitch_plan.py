"""Plan how the pages of many files become large columns of one, and write it.

Row groups are put together, their columns one after the other, with page indexes and a new footer. Columns that must be
decoded are read from many files at once, as if they were in one small file: opening each of them to read some rows
takes longer than decoding.
"""

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

import pyarrow
import pyarrow.parquet

from compaction_platform.lake.parquet.codecs import NAMES, NUMBERS, UNCOMPRESSED
from compaction_platform.lake.parquet.footer import (
    MAGIC,
    Chunk,
    Footer,
    FooterReader,
    RowGroup,
    footer_bytes,
)
from compaction_platform.lake.parquet.page_header import DATA_V2
from compaction_platform.lake.parquet.schema_elements import (
    INT96,
    Leaf,
    columns_of,
    elements_of,
    only,
    schema_bytes,
    with_nulls,
)
from compaction_platform.lake.parquet.stitch.column_chunks import (
    SourceChunk,
    Strategy,
    read_source_chunk,
)
from compaction_platform.lake.parquet.stitch.errors import StitchUnsupported, unsupported_if_unreadable

ARROW = b"ARROW:schema"
PANDAS = b"pandas"  # it tells about rows, and those are others now


def agreed(metadata: Sequence[Mapping[bytes, bytes]]) -> dict[bytes, bytes]:
    """What all of them say."""
    first = metadata[0]
    same = {key: value for key, value in first.items() if all(each.get(key) == value for each in metadata[1:])}
    return {key: value for key, value in same.items() if key not in (ARROW, PANDAS)} | arrow_schema(metadata)


def arrow_schema(metadata: Sequence[Mapping[bytes, bytes]]) -> dict[bytes, bytes]:
    """What Arrow has noted about the columns, without what pandas has noted there about rows."""
    notes = {each.get(ARROW) for each in metadata}
    schemas = {None if note is None else _decoded(note) for note in notes}
    if len(schemas) > 1:
        raise StitchUnsupported("Arrow's own descriptions of the columns differ")
    (schema,) = schemas
    return {} if schema is None else {ARROW: base64.b64encode(schema)}


def _decoded(note: bytes) -> bytes:
    try:
        schema = pyarrow.ipc.read_schema(pyarrow.BufferReader(base64.b64decode(note)))
    except (ValueError, OSError, pyarrow.ArrowException) as invalid:
        raise StitchUnsupported("Arrow's own description of the columns cannot be read") from invalid
    return bytes(schema.remove_metadata().serialize())


@dataclass(frozen=True)
class StitchSource:
    """A file whose columns can be copied."""

    data: memoryview
    footer: Footer
    leaves: tuple[Leaf, ...]

    @cached_property
    def schema(self) -> pyarrow.Schema:
        """As Arrow reads it."""
        return open_sources(self.data).schema_arrow


Part = tuple[StitchSource, int]  # a row group of a file, by its number


def open_sources(data: Any, by_dictionary: Sequence[str] = ()) -> pyarrow.parquet.ParquetFile:
    """`by_dictionary`: columns of text that Arrow gives as its dictionaries."""
    return pyarrow.parquet.ParquetFile(
        pyarrow.BufferReader(pyarrow.py_buffer(data)),
        read_dictionary=list(by_dictionary),
        page_checksum_verification=True,
        coerce_int96_timestamp_unit="us",  # as compact and maintain read them: nanoseconds wrap around
    )


def decoded(
    parts: Sequence[Part], name: str, leaf: str | None = None, *, by_dictionary: bool = False
) -> Iterator[pyarrow.Table]:
    """A column of these row groups, in their order; or only one of the leaves that are nested in it."""
    for _, alike in groupby(parts, key=lambda part: _writer(part[0].footer)):
        some = list(alike)
        leaves = some[0][0].leaves
        places = [place for place, each in enumerate(leaves) if each.path[0] == name]
        file = open_sources(_one_file(some, places, name), [name] if by_dictionary else ())
        # Where a list ends is in its values: read together, one that has too few would go on in the next row group.
        repeats = any(leaves[place].repetition for place in places)
        numbers = range(len(some))
        for together in [[number] for number in numbers] if repeats else [numbers]:
            yield file.read_row_groups(together, columns=None if leaf is None else [leaf], use_threads=False)


def _writer(footer: Footer) -> tuple[bytes, bytes, int]:
    """What a reader may go by to read pages in another way."""
    return footer.schema, footer.created_by, footer.version


def _one_file(parts: Sequence[Part], places: Sequence[int], name: str) -> bytes:
    written: list[Any] = [MAGIC]
    end = len(MAGIC)
    groups = []
    for source, number in parts:
        group = source.footer.row_groups[number]
        chunks = []
        for chunk in (group.chunks[place] for place in places):
            written.append(source.data[chunk.start : chunk.start + chunk.compressed])
            chunks.append(_moved(chunk, end - chunk.start))
            end += chunk.compressed
        groups.append(RowGroup(group.rows, chunks))
    first, _ = parts[0]
    schema = schema_bytes(only(elements_of(first.footer.schema), name))
    footer = Footer(first.footer.version, schema, groups, _note(first, name), first.footer.created_by)
    return b"".join((*written, footer_bytes(footer)))


def _moved(chunk: Chunk, by: int) -> Chunk:
    """Where a column is now, and what is needed to decode it."""
    sizes = (chunk.values, chunk.compressed, chunk.uncompressed)
    dictionary = None if chunk.dictionary_page is None else chunk.dictionary_page + by
    return Chunk(chunk.path, chunk.physical, chunk.codec, *sizes, chunk.data_page + by, dictionary, chunk.encodings)


def _note(source: StitchSource, name: str) -> dict[bytes, bytes]:
    """What Arrow has noted in that file about the column."""
    if ARROW not in source.footer.metadata:
        return {}
    return {ARROW: base64.b64encode(pyarrow.schema([source.schema.field(name)]).serialize())}


FEWEST_ROWS = 512  # of a row group, on average: what is smaller makes pages that are too small for any reader
LARGEST_ROW_GROUP = 512 << 20  # decoded; to be verified it is held in memory
MOST_CHUNKS = 200_000  # what is known about each takes about 2 KB
DENIES_COMPRESSION = b"parquet-cpp version "  # as Arrow called itself then; readers know, and believe it nothing
CREATED_BY = b"compaction_platform version 0.1.0 (build stitch)"


@dataclass(frozen=True)
class StitchPlan:
    """Which row groups (of which source, with which number) become one, and the columns they then have."""

    sources: tuple[StitchSource, ...]
    groups: tuple[tuple[Part, ...], ...]
    schema: bytes
    leaves: tuple[Leaf, ...]
    _pieces: dict[tuple[int, int], list[SourceChunk]] = field(default_factory=dict, repr=False, compare=False)

    def pieces(self, group: int, place: int) -> list[SourceChunk]:
        """The chunks that become one, by the number of the new row group and the place of the column. They are looked
        at once: to be written, and to be held against what was written."""
        if (group, place) not in self._pieces:
            self._pieces[group, place] = [_piece_of(source, number, place) for source, number in self.groups[group]]
        return self._pieces[group, place]

    @cached_property
    def codecs(self) -> tuple[int, ...]:
        """What each column is compressed by: as most of its values are, and the same in all row groups. (Some readers
        take the first row group's codec for the others.)"""
        sizes: list[Counter[int]] = [Counter() for _ in self.leaves]
        for source, number in (part for group in self.groups for part in group):
            for counted, chunk in zip(sizes, source.footer.row_groups[number].chunks, strict=True):
                counted[chunk.codec] += chunk.uncompressed
        return tuple(counted.most_common(1)[0][0] if counted else UNCOMPRESSED for counted in sizes)

    @property
    def created_by(self) -> bytes:
        """Readers look at who has written INT96 timestamps: that stays."""
        writers = {source.footer.created_by for source in self.sources}
        has_int96 = any(leaf.physical == INT96 for leaf in self.leaves)
        alike = len(writers) == 1 or all(each.startswith(b"parquet-mr") for each in writers)
        return min(writers) if has_int96 and alike else CREATED_BY

    @property
    def rows(self) -> int:
        return sum(source.footer.rows for source in self.sources)


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """Why a column of a new row group was made as it was."""

    column: str
    strategy: Strategy
    reason: str

    def __str__(self) -> str:
        return f"{self.column}: {self.strategy} ({self.reason})"


ColumnStrategies = tuple[tuple[str, Strategy], ...]


def column_strategies(columns: Sequence[ColumnChoice]) -> ColumnStrategies:
    """Outputs whose columns were made in the same ways need not all be told about."""
    return tuple((each.column, each.strategy) for each in columns)


def footers_of(files: Sequence[Any]) -> list[Footer]:
    """The footers of these files. Raises StitchUnsupported if one of them has none that can be read."""
    reader = FooterReader()
    with unsupported_if_unreadable():
        return [reader.read(data) for data in files]


@unsupported_if_unreadable()
def plan_stitch(
    files: Sequence[Any],
    footers: Sequence[Footer],
    row_group_bytes: int,
    fewest_rows: int = FEWEST_ROWS,
    codec: str | None = None,
) -> StitchPlan:
    """Plan how these files can be joined. `codec`: the only one by which the output may be compressed; otherwise it is
    as the inputs are. Raises StitchUnsupported with the reason if they cannot."""
    schema = _one_schema(footers)
    leaves = columns_of(schema)
    sources = _sources(files, footers)
    columns = [(leaf.path, leaf.physical) for leaf in leaves]
    codecs: set[int] = set()
    for group in (group for footer in footers for group in footer.row_groups):
        if [(chunk.path, chunk.physical) for chunk in group.chunks] != columns:
            raise StitchUnsupported("a row group has other columns than its schema")
        codecs.update([chunk.codec for chunk in group.chunks])
    if codec is not None and codecs - {NUMBERS[codec]}:
        others = ", ".join(sorted(NAMES.get(number, str(number)) for number in codecs - {NUMBERS[codec]}))
        raise StitchUnsupported(f"files are compressed by {others}, and {codec} is wanted")
    if any(group.uncompressed > LARGEST_ROW_GROUP for footer in footers for group in footer.row_groups):
        raise StitchUnsupported("a row group is too large to be held in memory")
    if sum(len(footer.row_groups) for footer in footers) * len(leaves) > MOST_CHUNKS:
        raise StitchUnsupported("there are too many columns in too many row groups to be held in memory")
    groups = tuple(_grouped(sources, row_group_bytes))
    count = sum(len(group) for group in groups)
    rows = sum(footer.rows for footer in footers)
    if rows < count * fewest_rows:
        raise StitchUnsupported(f"row groups have {rows // max(1, count):,} rows on average: pages would be too small")
    return StitchPlan(sources, groups, schema, leaves)


def _one_schema(footers: Sequence[Footer]) -> bytes:
    schemas = list(dict.fromkeys(footer.schema for footer in footers))
    if len(schemas) == 1:
        return schemas[0]
    merged = elements_of(schemas[0])
    for schema in schemas[1:]:
        both = with_nulls(merged, elements_of(schema))
        if both is None:
            raise StitchUnsupported("schemas differ")
        merged = both
    return schema_bytes(merged)


def _sources(files: Sequence[Any], footers: Sequence[Footer]) -> tuple[StitchSource, ...]:
    return tuple(
        StitchSource(memoryview(data).cast("B"), footer, columns_of(footer.schema))
        for data, footer in zip(files, footers, strict=True)
    )


def _grouped(sources: Sequence[StitchSource], row_group_bytes: int) -> Iterator[tuple[Part, ...]]:
    waiting: list[Part] = []
    size = 0
    for source in sources:
        for number, group in enumerate(source.footer.row_groups):
            if not group.rows:
                continue
            mine = group.uncompressed
            if waiting and size + mine > row_group_bytes:
                yield tuple(waiting)
                waiting, size = [], 0
            waiting.append((source, number))
            size += mine
    if waiting:
        yield tuple(waiting)


def _piece_of(source: StitchSource, number: int, place: int) -> SourceChunk:
    """One column of one row group of a file, with its pages."""
    group = source.footer.row_groups[number]
    found = read_source_chunk(source.data, group.chunks[place], source.leaves[place], group.rows)
    in_doubt = source.footer.created_by.startswith(DENIES_COMPRESSION) and found.chunk.codec != UNCOMPRESSED
    if in_doubt and any(page.kind == DATA_V2 and not page.is_compressed for page in found.pages):
        raise StitchUnsupported("an old writer says of compressed pages that they are not (ARROW-10353)")
    return found
