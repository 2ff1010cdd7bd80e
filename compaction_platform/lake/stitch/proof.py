"""Which columns of a stitched file are, page by page, those of its inputs: read again, from the file that was made."""

from dataclasses import dataclass
from typing import Any

import pyarrow

from compaction_platform.lake.parquet_format.footer import Chunk, Footer, FooterReader
from compaction_platform.lake.parquet_format.pages import Page, pages_of
from compaction_platform.lake.stitch.file import Choice, Plan, Source


@dataclass(frozen=True)
class Copied:
    """Columns (by the name of the whole column, whatever is nested in it) all pages of which are the inputs' own."""

    columns: frozenset[str]
    with_checksums: frozenset[str]  # of those, the ones whose pages had checksums, and they hold


def copied(plan: Plan, choices: list[Choice], output: Any) -> Copied:
    """A column is told to be copied only if nothing else was done to it, and if everything that a reader goes by is the
    same: type, levels, codec, and of each page its header and its bytes."""
    footer = FooterReader().read(output)
    view = memoryview(output).cast("B")
    decoded = {choice.column for choice in choices if choice.strategy != "raw"}
    kept: dict[str, bool] = {}
    checked: dict[str, bool] = {}
    for place, leaf in enumerate(plan.leaves):
        name = leaf.path[0]
        same = ".".join(leaf.path) not in decoded and kept.get(name, True)
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
    return [page for page in pages if page.is_data or (lone and uses_dictionary)]


def _is_same_page(one: Page, other: Page) -> bool:
    return one.header == other.header and pyarrow.py_buffer(one.data).equals(pyarrow.py_buffer(other.data))
