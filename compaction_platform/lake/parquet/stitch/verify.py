"""Prove that a stitched file holds the rows of its inputs, read again from the file that was made.

A column whose bytes are the inputs' own, with all that tells how to read them, has the same values: it is decoded once,
in the output. All others are decoded on both sides, and their values compared in their order. Where few values repeat
often, Arrow gives them as its dictionaries, and those are compared: each value once, and where it is.

Arrow leaves out an entry that a page has twice and does not renumber the ones behind it, so that they become others;
nor does it check that an index points at an entry. So only dictionaries are used that are as long as their pages say,
and that all indices point into.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from compaction_platform.lake.parquet.codecs import UNCOMPRESSED
from compaction_platform.lake.parquet.footer import Chunk, Footer, FooterReader
from compaction_platform.lake.parquet.page_header import DATA_V2, DICTIONARY, PLAIN, Page, pages_of
from compaction_platform.lake.parquet.stitch.arrow_values import levels
from compaction_platform.lake.parquet.stitch.column_chunks import ColumnChunks, SourceChunk
from compaction_platform.lake.parquet.stitch.copy_pages import decoded_is_identity
from compaction_platform.lake.parquet.stitch.errors import StitchFailed, StitchUnsupported, unsupported_if_unreadable
from compaction_platform.lake.parquet.stitch.statistics import Bounds, count_nulls, leaf_values, page_bounds
from compaction_platform.lake.parquet.stitch.stitch_plan import ColumnChoice, StitchPlan, decoded, open_sources
from compaction_platform.lake.verification.fingerprint import (
    Fingerprint,
    OrderedFingerprintByColumn,
    ordered_fingerprint,
)
from compaction_platform.lake.verification.value_validity import invalid_values

Place = tuple[int, str]  # a row group by its number, and the name of a whole column, whatever is nested in it


@dataclass(frozen=True)
class Copied:
    """Where the bytes of a column are the inputs' own."""

    places: frozenset[Place]
    with_checksums: frozenset[Place]  # of those, the ones whose pages had checksums, and they hold


def copied(plan: StitchPlan, choices: Sequence[ColumnChoice], output: Any, footer: Footer, *, check: bool) -> Copied:
    """A column is told to be copied only if everything that a reader goes by is the same: type, levels, codec, and of
    each page its header and its bytes; or if its values are a dictionary's own bytes, and the pages that used it had
    its entries one after the other. `check`: checksums of the output, if it is not decoded afterwards."""
    if len(footer.row_groups) != len(plan.groups):
        raise StitchFailed("there are other row groups than were to be made")
    pages = partial(pages_of, memoryview(output).cast("B"), check=check)
    chosen = iter(choices)  # for each column of each row group, in their order
    kept: dict[Place, bool] = {}
    checked: dict[Place, bool] = {}
    for number, made in enumerate(footer.row_groups):
        for place, leaf in enumerate(plan.leaves):
            here = number, leaf.path[0]
            # Where a row ends and the next begins is in the values of a column that repeats: they are always decoded.
            is_copy = next(chosen).strategy in ("raw", "identity") and not leaf.repetition
            same, has_checksums = False, False
            if is_copy and kept.get(here, True):
                same, has_checksums = _is_same(plan, number, place, made.chunks[place], pages)
            kept[here] = same
            checked[here] = checked.get(here, True) and has_checksums
    places = frozenset(here for here, same in kept.items() if same)
    return Copied(places, frozenset(here for here in places if checked[here]))


def _is_same(
    plan: StitchPlan, number: int, place: int, chunk: Chunk, pages: Callable[[Chunk], list[Page]]
) -> tuple[bool, bool]:
    """Whether a chunk has the pages of the inputs, and whether all of those had checksums."""
    leaf, pieces = plan.leaves[place], plan.pieces(number, place)
    if any(each.leaf != leaf or each.chunk.codec != chunk.codec for each in pieces):
        return False, False
    if not _is_made_of(ColumnChunks.of(leaf, pieces, chunk.codec), pages(chunk)):
        return False, False
    old = [page for each in pieces for page in (*each.pages, each.dictionary) if page is not None]
    return True, all(page.has_checksum for page in old)


def _is_made_of(column: ColumnChunks, new: list[Page]) -> bool:
    """Whether these pages are those of the chunks, in their order."""
    is_coded = any(each.uses_dictionary for each in column.pieces)
    if len(column.pieces) == 1 and is_coded:
        (only,) = column.pieces
        dictionary, *new = new
        if only.dictionary is None or not _is_same_page(only.dictionary, dictionary):
            return False
        return len(new) == len(only.pages) and all(map(_is_same_page, only.pages, new))
    coded = len(column.coded) if is_coded else 0  # taken apart, that they can be looked at
    place = 0
    for each in column.pieces:
        rest = each.pages
        if coded and each.uses_dictionary:
            if place >= len(new) or not _is_dictionary_of(column, each, new[place]):
                return False
            rest, place = each.pages[len(each.taken) :], place + 1
        mine = new[place : place + len(rest)]
        if len(mine) != len(rest) or not all(map(_is_same_page, rest, mine)):
            return False
        place += len(rest)
    return place == len(new)


def _is_dictionary_of(column: ColumnChunks, each: SourceChunk, page: Page) -> bool:
    """Whether a page has the values of a chunk that had each entry of its dictionary once, in their order."""
    if each.dictionary is None or not decoded_is_identity(column, each):
        return False
    count = sum(taken.page.values for taken in each.taken)
    facts = (page.kind, page.encoding, page.values, page.nulls, page.rows, page.repetitions)
    if facts != (DATA_V2, PLAIN, count, count - each.entries, count, 0):
        return False
    if page.uncompressed - page.definitions != each.dictionary.uncompressed:
        return False
    if page.is_compressed != (column.codec != UNCOMPRESSED):
        return False
    if not _has_levels_of(column, each, page):
        return False
    return bool(pyarrow.py_buffer(page.data[page.definitions :]).equals(pyarrow.py_buffer(each.dictionary.data)))


def _has_levels_of(column: ColumnChunks, each: SourceChunk, page: Page) -> bool:
    largest = column.leaf.definition
    if not largest:
        return page.definitions == 0
    now = bytes(page.data[: page.definitions])
    if len(each.taken) == 1 and now == bytes(each.taken[0].definitions):
        return True
    before = levels([(taken.definitions, taken.page.values) for taken in each.taken], largest)
    return bool(numpy.array_equal(before, levels([(now, page.values)], largest)))


def _is_same_page(one: Page, other: Page) -> bool:
    return bool(one.header == other.header and pyarrow.py_buffer(one.data).equals(pyarrow.py_buffer(other.data)))


types = pyarrow.types

OFTEN = 8  # times that a value is there, on average: then it is quicker to look at each value once


@dataclass(frozen=True)
class StitchedOutput:
    """The file that was made."""

    data: Any
    footer: Footer

    @cached_property
    def plainly(self) -> pyarrow.parquet.ParquetFile:
        return open_sources(self.data)

    @cached_property
    def by_dictionary(self) -> pyarrow.parquet.ParquetFile:
        return open_sources(self.data, by_dictionary=[field.name for field in self.schema if _is_text(field.type)])

    @cached_property
    def schema(self) -> pyarrow.Schema:
        return self.plainly.schema_arrow

    def column(self, number: int, name: str) -> pyarrow.Table:
        """A column of a row group; text that repeats is given as a dictionary."""
        if entries := self._repeating(number, name):
            rows = self.by_dictionary.read_row_group(number, columns=[name], use_threads=False)
            if all(_is_sound(each, entries) for each in rows.column(0).chunks):
                return rows
        return self.plainly.read_row_group(number, columns=[name], use_threads=False)

    def _repeating(self, number: int, name: str) -> int:
        """How many entries the dictionary has that all values are in; 0 if there is none, or they do not repeat."""
        if not _is_text(self.schema.field(name).type):
            return 0
        (chunk,) = (chunk for chunk in self.footer.row_groups[number].chunks if chunk.path[0] == name)
        first, *rest = pages_of(memoryview(self.data).cast("B"), chunk, check=False)
        is_coded = first.kind == DICTIONARY and all(page.uses_dictionary for page in rest)
        return first.values if is_coded and first.values * OFTEN <= chunk.values else 0


@dataclass(frozen=True)
class VerifiedStitch:
    """What a file holds, and what may be published about it."""

    rows: Fingerprint
    bounds: Bounds  # of the columns that were decoded


@unsupported_if_unreadable()
def verify_stitched(
    plan: StitchPlan,
    choices: Sequence[ColumnChoice],
    output: Any,
    *,
    by_checksums: bool = False,
    also: OrderedFingerprintByColumn | None = None,
) -> VerifiedStitch:
    """What the output holds, once it is certain that this is what the inputs hold. Raises StitchFailed if it is not.
    `by_checksums`: copied columns are not decoded if every page has a checksum; they are then part of neither the
    fingerprint nor the bounds. `also` is shown what is decoded."""
    made = StitchedOutput(output, FooterReader().read(output))
    same = copied(plan, choices, output, made.footer, check=by_checksums)
    numbers = range(len(plan.groups))
    names = made.schema.names
    left_out = {
        name for name in names if by_checksums and all((number, name) in same.with_checksums for number in numbers)
    }
    shown = [name for name in names if name not in left_out]
    whole = OrderedFingerprintByColumn(pyarrow.schema([made.schema.field(name) for name in shown]))
    bounds: Bounds = {}
    differing = set()
    for number in numbers:
        for name in shown:
            rows = made.column(number, name)
            if (problem := invalid_values(rows)) is not None:
                raise StitchFailed(problem)
            bounds |= _bounds(plan, made, number, rows)
            values = _by_value(rows, made.schema.field(name).type)
            whole.update(values)
            if also is not None:
                also.update(values)
            if (number, name) not in same.places and not _is_of_inputs(rows, values, plan, number):
                differing.add(name)
    found = whole.finish()
    counts = {_rows(made.plainly), *([found.rows] if shown else [])}
    if differing or counts != {plan.rows}:
        told = ", ".join(sorted(differing)) or "the number of rows"
        raise StitchFailed(f"what was written was not what was read: {told}")
    return VerifiedStitch(Fingerprint(plan.rows, found.columns), bounds)


def _bounds(plan: StitchPlan, made: StitchedOutput, number: int, rows: pyarrow.Table) -> Bounds:
    """The bounds of the pages of a column in a row group, computed from its rows."""
    found: Bounds = {}
    for place, leaf in enumerate(plan.leaves):
        if leaf.repetition or leaf.path[0] not in rows.schema.names:
            continue
        values = leaf_values(leaf, rows)
        pieces = plan.pieces(number, place)
        claims = [each.nulls for each in pieces]
        if any(claims) or values.null_count:  # the order of pages may rely on them
            nulls = count_nulls(values, [each.rows for each in pieces])
            if any(claim not in (None, there) for claim, there in zip(claims, nulls, strict=True)):
                raise StitchUnsupported(f"inputs claim another number of nulls than there are in {'.'.join(leaf.path)}")
        chunk = made.footer.row_groups[number].chunks[place]
        pages = pages_of(memoryview(made.data).cast("B"), chunk, check=False)
        counts = [page.values for page in pages if page.kind != DICTIONARY]
        described = made.plainly.metadata.schema.column(place)
        found[number, place] = page_bounds(leaf, described, values, counts)
    return found


def _is_of_inputs(rows: pyarrow.Table, values: pyarrow.Table, plan: StitchPlan, number: int) -> bool:
    """Whether a column of a row group has the values of the inputs. `values`: the same without a dictionary."""
    (name,) = rows.schema.names
    (place, *nested) = (place for place, leaf in enumerate(plan.leaves) if leaf.path[0] == name)
    if rows is not values and not nested and _repeat(pieces := plan.pieces(number, place)):
        tables = decoded(plan.groups[number], name, by_dictionary=True)
        given = [array for table in tables for array in table.column(0).chunks]
        entries = [each.entries for each in pieces]
        if len(given) == len(entries) and all(map(_is_sound, given, entries)):
            return _are_same_entries(rows.column(0), given)
    given_by_value = _batches(decoded(plan.groups[number], name))
    return ordered_fingerprint(values.to_batches(), values.schema) == ordered_fingerprint(given_by_value, values.schema)


def _repeat(pieces: Sequence[SourceChunk]) -> bool:
    """Whether all values are in dictionaries, and repeat often."""
    entries, values = sum(each.entries for each in pieces), sum(each.chunk.values for each in pieces)
    is_coded = all(page.uses_dictionary for each in pieces for page in each.pages)
    return is_coded and entries * OFTEN <= values


def _is_sound(array: pyarrow.DictionaryArray, entries: int) -> bool:
    """Whether it has all entries of its page, and points at nothing else."""
    if len(array.dictionary) != entries or array.dictionary.null_count:
        return False
    found = pyarrow.compute.min_max(array.indices)
    return found["max"].as_py() is None or 0 <= found["min"].as_py() <= found["max"].as_py() < entries


def _are_same_entries(made: pyarrow.ChunkedArray, given: Sequence[pyarrow.DictionaryArray]) -> bool:
    """Whether these are the same values, by their place in one dictionary that Arrow makes of all of them."""
    alike = pyarrow.chunked_array([*made.chunks, *given], made.type).unify_dictionaries().chunks
    mine, theirs = (
        pyarrow.chunked_array([each.indices for each in some], pyarrow.int32())
        for some in (alike[: made.num_chunks], alike[made.num_chunks :])
    )
    return bool(mine.equals(theirs))


def _by_value(rows: pyarrow.Table, kind: pyarrow.DataType) -> pyarrow.Table:
    """The same as values of that type; the very same if it is so already."""
    column = rows.column(0)
    if column.type.equals(kind):
        return rows
    plain = [each.dictionary_decode() for each in column.chunks]
    return pyarrow.table({rows.schema.names[0]: pyarrow.chunked_array(plain, kind)})


def _batches(tables: Iterable[pyarrow.Table]) -> Iterator[pyarrow.RecordBatch]:
    return (batch for table in tables for batch in table.to_batches())


def _is_text(kind: pyarrow.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_binary(kind))


def _rows(file: pyarrow.parquet.ParquetFile) -> int:
    return sum(file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups))
