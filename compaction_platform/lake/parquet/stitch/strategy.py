"""Choose how a column is made, by the bytes that are there: copied, with one dictionary, without, or encoded anew.

Copied, a column stays as its writer made it: values that repeat then take much more space than they need, in the new
file and in each query. Whether a dictionary pays is judged by some rows.
"""

from collections.abc import Sequence
from contextlib import suppress

import pyarrow
import pyarrow.parquet

from compaction_platform.lake.parquet.codecs import NAMES
from compaction_platform.lake.parquet.page_header import PLAIN
from compaction_platform.lake.parquet.schema_elements import BOOLEAN, INT96
from compaction_platform.lake.parquet.stitch import (
    copy_pages,
    merge_dictionaries,
    reencode_column,
)
from compaction_platform.lake.parquet.stitch.column_chunks import ColumnChunks, StitchedColumn
from compaction_platform.lake.parquet.stitch.errors import StitchUnsupported, unsupported_if_unreadable
from compaction_platform.lake.parquet.stitch.stitch_plan import Part, decoded

LARGE = 0.1  # of a row group: what is smaller is not worth the work
REPEATS = 0.5  # of the values, so many at most are different
SAVES = 0.5  # of its bytes, so many at least, for the work
SAMPLED = 2  # row groups


def why_a_dictionary_pays(column: ColumnChunks, parts: Sequence[Part]) -> str | None:
    """Why a column is better encoded anew; None if it is not."""
    leaf = column.leaf
    whole = sum(source.footer.row_groups[number].compressed for source, number in parts)
    mine = sum(each.chunk.compressed for each in column.pieces)
    encodings = {page.encoding for each in column.pieces for page in each.pages}
    if mine < whole * LARGE or encodings != {PLAIN} or column.codec not in NAMES:
        return None
    if len(leaf.path) > 1 or leaf.repetition or leaf.physical in (BOOLEAN, INT96):
        return None
    values = pyarrow.concat_tables(decoded(parts[:SAMPLED], leaf.path[0]), promote_options="default")
    if len(values.column(0).unique()) > values.num_rows * REPEATS:
        return None
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(values, sink, row_group_size=values.num_rows, compression=NAMES[column.codec])
    trial = pyarrow.parquet.read_metadata(pyarrow.BufferReader(sink.getvalue())).row_group(0).column(0)
    before = sum(each.chunk.compressed for each in column.pieces[:SAMPLED])
    after = trial.total_compressed_size
    if after > before * (1 - SAVES):
        return None
    return f"values repeat: with a dictionary {after / before:.0%} of the bytes"


# A dictionary is worth its while if its entries are at most this part of the values.
WORTH_A_DICTIONARY = 0.6
IN_COMMON = 0.8  # of the entries of some dictionaries, so many at least are different
SAMPLED = 4
MOST_GROWTH = 2
MOST_ENTRIES = 1 << 20
MOST_DICTIONARY_BYTES = 32 << 20


Poor = dict[tuple[str, ...], str | None]  # why a column is better encoded anew, by its path


def column_of(column: ColumnChunks, parts: Sequence[Part], poor: Poor) -> StitchedColumn:
    """The column of a new row group. `parts`: the row groups it comes from, if it must be decoded. `poor`: what was
    found out about columns before."""
    if len(column.pieces) == 1:
        return copy_pages.copied(column, "a row group of its own")
    coded = [each for each in column.pieces if each.uses_dictionary]
    try:
        with unsupported_if_unreadable():
            if not coded:
                return _without_dictionaries(column, parts, poor)
            return _without_dictionaries_of_chunks(column)
    except StitchUnsupported as cannot:
        return reencode_column.encoded(column, parts, str(cannot))


def _without_dictionaries(column: ColumnChunks, parts: Sequence[Part], poor: Poor) -> StitchedColumn:
    with suppress(StitchUnsupported), unsupported_if_unreadable():  # then it is copied
        if column.leaf.path not in poor:
            poor[column.leaf.path] = why_a_dictionary_pays(column, parts)
        if reason := poor[column.leaf.path]:
            return reencode_column.encoded(column, parts, reason)
    return copy_pages.copied(column, "no dictionaries")


def _without_dictionaries_of_chunks(column: ColumnChunks) -> StitchedColumn:
    if column.leaf.physical == BOOLEAN:
        raise StitchUnsupported("truth values have a dictionary")
    present = sum(taken.present for taken in column.coded)
    coded = [each for each in column.pieces if each.taken]
    entries = sum(each.entries for each in coded)
    if all(copy_pages.is_identity(column, each) for each in coded):
        return copy_pages.dictionary_as_values(
            column, "every value is in its dictionary once, in the order of the rows"
        )
    found, positions = merge_dictionaries.entries_of(column), merge_dictionaries.positions_of(column)
    if len(found) != entries:
        raise StitchUnsupported("a dictionary has another number of entries than it says")
    if not present or _is_nearly_unique(column, found, present):
        _require_sane(column, found, present)
        return merge_dictionaries.without_dictionary(
            column, found, positions, f"not worth a dictionary: {entries:,} entries, {present:,} values"
        )
    if _goes_back(column):
        raise StitchUnsupported("a dictionary would come behind plain pages, which Spark's reader takes for part of it")
    encoded = found.dictionary_encode()
    share = f"{len(encoded.dictionary):,} entries for {present:,} values"
    if len(encoded.dictionary) > MOST_ENTRIES or encoded.dictionary.nbytes > MOST_DICTIONARY_BYTES:
        _require_sane(column, found, present)
        return merge_dictionaries.without_dictionary(
            column, found, positions, f"one dictionary would be too large: {share}"
        )
    return merge_dictionaries.one_dictionary(column, found, encoded, positions, share)


def _is_nearly_unique(column: ColumnChunks, entries: pyarrow.Array, present: int) -> bool:
    """Whether dictionaries save little: almost as many entries as there are values, and few of them in common."""
    if len(entries) <= present * WORTH_A_DICTIONARY:
        return False
    sizes = [each.entries for each in column.pieces if each.taken]
    some = entries.slice(0, sum(sizes[:SAMPLED]))
    return len(some.unique()) > len(some) * IN_COMMON


def _goes_back(column: ColumnChunks) -> bool:
    """Whether a page that uses a dictionary comes behind one that does not and has values."""
    has_values = False
    for each in column.pieces:
        none_is_there = each.nulls == each.chunk.values
        for page in each.pages:
            if page.uses_dictionary and has_values:
                return True
            has_values = has_values or not (page.uses_dictionary or none_is_there)
    return False


def _require_sane(column: ColumnChunks, entries: pyarrow.Array, present: int) -> None:
    """Values that were in few bytes must not become many."""
    size = present * entries.nbytes // max(1, len(entries))
    before = sum(each.chunk.uncompressed for each in column.pieces)
    if size > before * MOST_GROWTH + MOST_DICTIONARY_BYTES:
        raise StitchUnsupported("without dictionaries the values would be too many bytes")
