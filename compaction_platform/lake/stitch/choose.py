"""Which strategy suits a column, by the bytes that are there."""

from typing import Any

from compaction_platform.lake.parquet_format.schema import BOOLEAN
from compaction_platform.lake.stitch import anew, dictionary, identity, plain, raw
from compaction_platform.lake.stitch.column import Column, NewColumn
from compaction_platform.lake.stitch.errors import CannotStitch

# A dictionary is worth its while if its entries are at most this part of the values.
WORTH_A_DICTIONARY = 0.6
MOST_ENTRIES = 1 << 20
MOST_DICTIONARY_BYTES = 32 << 20


def column_of(column: Column, parts: list[tuple[Any, int]]) -> NewColumn:
    """The column of a new row group. `parts`: the files and numbers of row groups, if it must be decoded."""
    if len(column.pieces) == 1:
        return raw.copied(column, "a row group of its own")
    coded = [each for each in column.pieces if each.uses_dictionary]
    try:
        if not coded:
            return raw.copied(column, "no dictionaries")
        return _without_dictionaries_of_chunks(column)
    except CannotStitch as reason:
        return anew.encoded(column, parts, str(reason))


def _without_dictionaries_of_chunks(column: Column) -> NewColumn:
    if column.leaf.physical == BOOLEAN:
        raise CannotStitch("truth values have a dictionary")
    present = sum(taken.present for taken in column.coded)
    coded = [each for each in column.pieces if each.taken]
    entries = sum(each.entries for each in coded)
    if all(identity.is_identity(column, each) for each in coded):
        return identity.dissolved(column, "every value is in its dictionary once, in the order of the rows")
    found, positions = dictionary.entries_of(column), dictionary.positions_of(column)
    if len(found) != entries:
        raise CannotStitch("a dictionary has another number of entries than it says")
    share = f"{entries:,} entries for {present:,} values"
    size = sum(each.dictionary.uncompressed for each in coded if each.dictionary)
    if not present or entries > present * WORTH_A_DICTIONARY:
        return plain.dissolved(column, found, positions, f"dictionaries are not worth it: {share}")
    if entries > MOST_ENTRIES or size > MOST_DICTIONARY_BYTES:
        return plain.dissolved(column, found, positions, f"one dictionary would be too large: {share}")
    return dictionary.unified(column, found, positions, share)
