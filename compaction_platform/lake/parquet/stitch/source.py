"""A file whose columns are joined with those of others, and columns of many of them as Arrow reads them: at once, as if
they were all in one small file. (Opening each file to read some rows of it takes longer than decoding them.)"""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import pyarrow
import pyarrow.parquet

from compaction_platform.lake.parquet.footer import MAGIC, Chunk, Footer, RowGroup, footer_bytes
from compaction_platform.lake.parquet.schema_elements import Leaf, elements_of, only, schema_bytes
from compaction_platform.lake.parquet.stitch.description import ARROW


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
