"""Rows of many files sorted into row groups, with memory for the keys and one row group.

First only the sort columns are held: they give every row its place. Then all rows are dealt out to one spill file for
each row group, by their place; each is put in order by itself. Equal keys keep the order in which they were read.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.ipc

from compaction_platform.errors import CompactionError
from compaction_platform.lake.parquet.writer import WriterOptions

PLACE = "__place"


class SortColumnMissing(CompactionError):
    """None of the files has the column they are to be sorted by."""


Places = numpy.ndarray[tuple[int], numpy.dtype[numpy.int64]]


def by_columns(keys: pyarrow.Table) -> Places:
    """Row numbers in the order of the keys; nulls first."""
    columns = [(name, "ascending", "at_start") for name in keys.column_names]
    keys = pyarrow.table({name: _sortable(keys[name]) for name in keys.column_names})
    order = pyarrow.compute.sort_indices(keys, sort_keys=columns)
    return numpy.asarray(order).astype(numpy.int64)


def by_z_curve(keys: pyarrow.Table) -> Places:
    """Row numbers along a curve on which rows that are near in every column are near each other. Columns count by the
    rank of their values, so each has the same weight whatever its type."""
    bits = 63 // max(1, keys.num_columns)
    place = numpy.zeros(keys.num_rows, numpy.uint64)
    for number, name in enumerate(keys.column_names):
        column = _sortable(keys[name]).combine_chunks().dictionary_encode("encode")
        values = pyarrow.table({name: column.dictionary})
        ranks = numpy.empty(len(values), numpy.int64)
        ranks[by_columns(values)] = numpy.arange(len(values))
        scaled = (ranks[column.indices.to_numpy()] / max(1, len(values)) * (1 << bits)).astype(numpy.uint64)
        for bit in range(bits):
            from_column = (scaled >> numpy.uint64(bit)) & numpy.uint64(1)
            place |= from_column << numpy.uint64(bit * keys.num_columns + number)
    return numpy.argsort(place, kind="stable").astype(numpy.int64)


def sorted_row_groups(
    batches: Callable[[], Iterable[pyarrow.RecordBatch]],
    schema: pyarrow.Schema,
    encoding: WriterOptions,
    order_of: Callable[[pyarrow.Table], Places] = by_columns,
) -> Iterator[pyarrow.Table]:
    """`batches` is called twice."""
    for name in encoding.sort_by:
        if name not in schema.names:
            raise SortColumnMissing(f"sort column {name}: there is none; there are {', '.join(schema.names)}.")
    size = 0
    keys: list[pyarrow.RecordBatch] = []
    for batch in batches():
        keys.append(batch.select(encoding.sort_by))
        size += batch.nbytes
    order = order_of(
        pyarrow.Table.from_batches(keys, pyarrow.schema([schema.field(name) for name in encoding.sort_by]))
    )
    if len(order) == 0:
        return
    places = numpy.empty(len(order), numpy.int64)
    places[order] = numpy.arange(len(order))
    groups = max(1, round(size / encoding.row_group_bytes))
    with tempfile.TemporaryDirectory(prefix="compaction-sort-") as directory:
        spilled = _deal_out(batches(), places, -(-len(order) // groups), Path(directory))
        for path in spilled:
            with pyarrow.memory_map(str(path)) as file:
                rows = pyarrow.ipc.open_stream(file).read_all()
            in_order = pyarrow.compute.sort_indices(rows[PLACE])
            yield rows.drop_columns([PLACE]).take(in_order).cast(schema)
            path.unlink()


def is_sorted(keys: Sequence[pyarrow.RecordBatch]) -> bool:
    if not keys:
        return True
    order = by_columns(pyarrow.Table.from_batches(keys))
    return bool(numpy.array_equal(order, numpy.arange(len(order))))


def _sortable(column: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """In a type that Arrow can sort and that has the same order."""
    kind = column.type
    if isinstance(kind, pyarrow.BaseExtensionType):
        return _sortable(column.cast(kind.storage_type))
    if pyarrow.types.is_dictionary(kind):
        return _sortable(column.cast(kind.value_type))
    if pyarrow.types.is_float16(kind):
        return column.cast(pyarrow.float32())
    if pyarrow.types.is_string_view(kind):
        return column.cast(pyarrow.large_string())
    return column.cast(pyarrow.large_binary()) if pyarrow.types.is_binary_view(kind) else column


def _deal_out(
    batches: Iterable[pyarrow.RecordBatch],
    places: Places,
    rows_per_group: int,
    directory: Path,
) -> list[Path]:
    """One spill file for each row group, in their order."""
    paths = [directory / f"{number:06d}.arrow" for number in range(-(-len(places) // rows_per_group))]
    first = 0
    with ExitStack() as open_files:
        writers: dict[int, pyarrow.ipc.RecordBatchStreamWriter] = {}
        for batch in batches:
            mine = places[first : first + batch.num_rows]
            first += batch.num_rows
            rows = batch.append_column(PLACE, pyarrow.array(mine))
            groups = mine // rows_per_group
            for number in numpy.unique(groups):
                part = rows.take(pyarrow.array(numpy.flatnonzero(groups == number)))
                if number not in writers:
                    sink = open_files.enter_context(pyarrow.OSFile(str(paths[number]), "wb"))
                    writers[number] = open_files.enter_context(pyarrow.ipc.new_stream(sink, rows.schema))
                writers[number].write_batch(part)
    return paths
