"""Footers taken apart and put together again, and bytes that are no footer."""

import io

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction_platform.lake.parquet.thrift_compact import ThriftInvalid, parse, serialize

pytestmark = pytest.mark.unit


def footer(table: pyarrow.Table) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(table, sink, write_page_index=True)
    data = sink.getvalue()
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


def test_a_footer_comes_out_as_it_went_in() -> None:
    table = pyarrow.table({f"column {n}": pyarrow.array([[{"a": n, "b": [str(n)]}]] * 5) for n in range(40)})
    data = footer(table.replace_schema_metadata({"k": "v" * 1000}))
    found, end = parse(data)
    assert end == len(data)
    assert serialize(found) == data


@given(st.binary(max_size=200))
def test_any_bytes_are_a_structure_or_refused(data: bytes) -> None:
    try:
        found, end = parse(data)
    except ThriftInvalid:
        return
    again, _ = parse(serialize(found))
    assert again == found
    assert end <= len(data)


def test_claims_that_cannot_be_true_cost_nothing() -> None:
    many_items = bytes([0x19, 0xF5, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F])
    with pytest.raises(ThriftInvalid, match="more items than there are bytes"):
        parse(many_items)
    with pytest.raises(ThriftInvalid, match="nested too deeply"):
        parse(bytes([0x1C]) * 10_000)
