"""The lowest and the highest of some rows, against plain Python."""

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction_platform.lake.parquet.stitch.statistics import extremes_of

pytestmark = pytest.mark.unit

ALIKE = st.sampled_from([b"", b"\0", b"a", b"a\0", b"abcdefg", b"abcdefgh", b"abcdefgh\0", b"abcdefghi", b"\xff" * 9])
VALUES = {
    "few that begin alike": ALIKE,
    "short": st.binary(max_size=7),
    "of one length": st.binary(min_size=16, max_size=16),
    "of one short length": st.binary(min_size=3, max_size=3),
    "any": st.binary(max_size=20),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize(
    "type_",
    [pyarrow.binary(), pyarrow.large_binary(), pyarrow.dictionary(pyarrow.int32(), pyarrow.binary())],
    ids=str,
)
def test_extremes_of_bytes_are_those_of_python(kind: str, type_: pyarrow.DataType) -> None:
    slices = st.lists(st.lists(VALUES[kind] | st.none(), min_size=1, max_size=12), min_size=1, max_size=6)

    @given(slices, st.booleans())
    def check(parts: list[list[bytes | None]], with_nulls: bool) -> None:
        parts = [[value if value is not None or with_nulls else b"" for value in part] for part in parts]
        rows = [value for part in parts for value in part]
        column = pyarrow.array([b"before", *rows, b"after"], type_).slice(1, len(rows))
        for part, found in zip(parts, extremes_of(column, [len(part) for part in parts]), strict=True):
            there = [value for value in part if value is not None]
            expected = (min(there), max(there)) if there else (None, None)
            assert found == (len(part) - len(there), *expected)

    check()


def test_numbers_that_are_none_do_not_hide_the_others() -> None:
    column = pyarrow.array([float("nan"), 2.0, -1.0, 5.0, float("nan"), 4.0])
    assert list(extremes_of(column, [3, 3])) == [(0, -1.0, 2.0), (0, 4.0, 5.0)]


def test_numbers_that_are_none_do_not_hide_the_others_in_a_dictionary() -> None:
    column = pyarrow.array([float("nan"), 2.0, -1.0, 5.0, float("nan"), 4.0]).dictionary_encode()
    assert list(extremes_of(column, [3, 3])) == [(0, -1.0, 2.0), (0, 4.0, 5.0)]


@pytest.mark.parametrize("index", [pyarrow.uint8(), pyarrow.uint32(), pyarrow.int16()], ids=str)
def test_a_dictionary_may_count_its_entries_by_any_numbers(index: pyarrow.DataType) -> None:
    entries = [f"{200 - number:03}" for number in range(200)]
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array([199, 3, None, 150, 128, 127], index), entries)
    assert list(extremes_of(column, [3, 3])) == [(1, b"001", b"197"), (0, b"050", b"073")]
