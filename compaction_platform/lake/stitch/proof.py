"""Proof that a stitched file has the rows of its inputs, read again from the file that was made.

A column of which every page is an input's own, with all that tells how to read it, has the same values: it is decoded
once, in the output. All others are decoded on both sides, and their values compared in their order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow
import pyarrow.parquet

from compaction_platform.lake.fingerprint import Fingerprint, InOrder, InOrderByColumn
from compaction_platform.lake.parquet_format.footer import Chunk, Footer, FooterReader
from compaction_platform.lake.parquet_format.pages import Page, pages_of
from compaction_platform.lake.stitch.bounds import wrong_bounds
from compaction_platform.lake.stitch.errors import UNFIT, CannotStitch, unfit
from compaction_platform.lake.stitch.file import Choice, Plan, Source


@dataclass(frozen=True)
class Copied:
    """Columns (by the name of the whole column, whatever is nested in it) all pages of which are the inputs' own."""

    columns: frozenset[str]
    with_checksums: frozenset[str]  # of those, the ones whose pages had checksums, and they hold


def copied(plan: Plan, choices: Sequence[Choice], output: Any) -> Copied:
    """A column is told to be copied only if nothing else was done to it, and if everything that a reader goes by is the
    same: type, levels, codec, and of each page its header and its bytes."""
    footer = FooterReader().read(output)
    view = memoryview(output).cast("B")
    decoded = {choice.column for choice in choices if choice.strategy != "raw"}
    kept: dict[str, bool] = {}
    checked: dict[str, bool] = {}
    for place, leaf in enumerate(plan.leaves):
        name = leaf.path[0]
        # Where one row ends and the next begins is in the values of a column that repeats: they are always decoded.
        same = not leaf.repetition and ".".join(leaf.path) not in decoded and kept.get(name, True)
        if same:
            same, has_checksums = _is_same(plan, place, footer, view)
            checked[name] = checked.get(name, True) and has_checksums
        kept[name] = same
    columns = frozenset(name for name, same in kept.items() if same)
    return Copied(columns, frozenset(name for name in columns if checked[name]))


def _is_same(plan: Plan, place: int, footer: Footer, view: memoryview) -> tuple[bool, bool]:
    has_checksums = True
    for group, made in zip(plan.groups, footer.row_groups, strict=True):
        chunk = made.chunks[place]
        new = list(pages_of(view, chunk))
        old: list[Page] = []
        for source, number in group:
            mine = source.footer.row_groups[number].chunks[place]
            if source.leaves[place] != plan.leaves[place] or mine.codec != chunk.codec:
                return False, False
            old += _pages(source, mine, lone=len(group) == 1)
        if len(old) != len(new) or not all(map(_is_same_page, old, new)):
            return False, False
        has_checksums = has_checksums and all(page.has_checksum for page in old)
    return True, has_checksums


def _pages(source: Source, chunk: Chunk, *, lone: bool) -> list[Page]:
    """The pages that count: a dictionary that no page uses does not."""
    pages = list(pages_of(source.data, chunk))
    uses_dictionary = any(page.uses_dictionary for page in pages)
    return [page for page in pages if (page.is_data and page.values) or (not page.is_data and lone and uses_dictionary)]


def _is_same_page(one: Page, other: Page) -> bool:
    return one.header == other.header and pyarrow.py_buffer(one.data).equals(pyarrow.py_buffer(other.data))


def proved(
    plan: Plan,
    choices: Sequence[Choice],
    output: Any,
    *,
    by_checksums: bool = False,
    also: InOrderByColumn | None = None,
) -> Fingerprint:
    """What the output holds, once it is certain that this is what the inputs hold. Raises CannotStitch if it is not, or
    if what inputs say about their values is not so. `by_checksums`: copied columns are not decoded if every page has a
    checksum; they are then not part of the fingerprint. `also` is shown what is decoded."""
    try:
        return _proved(plan, choices, output, by_checksums, also)
    except UNFIT as problem:
        raise unfit(problem) from problem


def _proved(
    plan: Plan, choices: Sequence[Choice], output: Any, by_checksums: bool, also: InOrderByColumn | None
) -> Fingerprint:
    same = copied(plan, choices, output)
    opened = _opened(output)
    names = opened.schema_arrow.names
    others = [name for name in names if name not in same.columns]
    decoded = [name for name in names if not by_checksums or name not in same.with_checksums]
    expected = _of_inputs(plan, opened.schema_arrow, others)
    found = _of_output(plan, opened, decoded, also)
    values = dict(found.columns)
    differing = [name for name, digest in expected.columns if values[name] != digest]
    if differing or expected.rows != plan.rows or found.rows != plan.rows:
        raise CannotStitch(f"what was written was not what was read: {', '.join(differing) or 'the number of rows'}")
    return found


def _of_inputs(plan: Plan, schema: pyarrow.Schema, names: Sequence[str]) -> Fingerprint:
    if not names:
        return Fingerprint(plan.rows, ())
    digest = InOrder(pyarrow.schema([schema.field(name) for name in names]))
    for source in plan.sources:
        for rows in _row_groups(_opened(source.data), names):
            digest.update(rows)
    return digest.finish()


def _of_output(
    plan: Plan, opened: pyarrow.parquet.ParquetFile, names: Sequence[str], also: InOrderByColumn | None
) -> Fingerprint:
    if not names:
        return Fingerprint(_rows(opened), ())
    digest = InOrderByColumn(pyarrow.schema([opened.schema_arrow.field(name) for name in names]))
    for number in range(opened.metadata.num_row_groups):
        for name in names:
            rows = opened.read_row_group(number, columns=[name], use_threads=False)
            if wrong := wrong_bounds(plan, number, rows):
                raise CannotStitch(f"what inputs say about their values is wrong: {', '.join(wrong)}")
            digest.update(rows)
            if also is not None:
                also.update(rows)
    return digest.finish()


def _row_groups(opened: pyarrow.parquet.ParquetFile, names: Sequence[str]) -> Iterator[pyarrow.Table]:
    for number in range(opened.metadata.num_row_groups):
        yield opened.read_row_group(number, columns=list(names), use_threads=False)


def _rows(opened: pyarrow.parquet.ParquetFile) -> int:
    return sum(opened.metadata.row_group(number).num_rows for number in range(opened.metadata.num_row_groups))


def _opened(data: Any) -> pyarrow.parquet.ParquetFile:
    return pyarrow.parquet.ParquetFile(
        pyarrow.BufferReader(pyarrow.py_buffer(data)),
        page_checksum_verification=True,
        coerce_int96_timestamp_unit="us",  # as compact and maintain read them: nanoseconds wrap around
    )
