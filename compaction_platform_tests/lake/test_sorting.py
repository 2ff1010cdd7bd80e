"""The order of rows along a curve, against the definition of the curve."""

import itertools
import random

import pyarrow
import pytest

from compaction_platform.lake.parquet.external_sort import by_columns, by_z_curve

pytestmark = pytest.mark.unit


def morton(x: int, y: int) -> int:
    """The place of a cell, bit by bit."""
    return sum(((x >> bit & 1) << 2 * bit) | ((y >> bit & 1) << 2 * bit + 1) for bit in range(8))


def test_cells_of_a_grid_come_in_the_order_of_the_z_curve() -> None:
    cells = list(itertools.product(range(16), range(16)))
    random.Random(1).shuffle(cells)
    table = pyarrow.table({"x": [x for x, _ in cells], "y": [f"{y:02d}" for _, y in cells]})
    found = [cells[place] for place in by_z_curve(table)]
    assert found == sorted(cells, key=lambda cell: morton(*cell))


def test_nulls_and_few_values_have_a_place_too() -> None:
    table = pyarrow.table({"x": [3, None, 1, None], "y": ["b", "b", None, "a"]})
    assert sorted(by_z_curve(table).tolist()) == [0, 1, 2, 3]
    assert by_z_curve(table.slice(0, 0)).tolist() == []
    assert by_columns(table).tolist() == [3, 1, 2, 0]
