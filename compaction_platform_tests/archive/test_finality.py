from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction_platform.archive.chain.block_range import BlockRange, RangeInvalid, final_ranges, is_final
from compaction_platform.archive.chain.finality import FinalityRule, Head, judge

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
HEAD = Head(25_000, "0xaa", NOW - timedelta(seconds=3), finalized=24_960, finalized_hash="0xf0")


@pytest.mark.parametrize(
    ("rule", "finalized"),
    [
        (FinalityRule("depth", 100), 24_900),
        (FinalityRule("depth", 0), 25_000),
        (FinalityRule("tag"), 24_960),
        (FinalityRule("both", 100), 24_900),
        (FinalityRule("both", 10), 24_960),
    ],
)
def test_the_last_final_block(rule: FinalityRule, finalized: int) -> None:
    assert judge(HEAD, rule, None, NOW).finalized == finalized
    assert judge(HEAD, rule, HEAD, NOW).finalized == finalized, "the same head again is no news and no harm"


@pytest.mark.parametrize(
    ("head", "rule", "reason"),
    [
        (HEAD, FinalityRule("depth", 100, timedelta(seconds=1)), "older than 0:00:01"),
        (replace(HEAD, number=24_999), FinalityRule("depth", 100), "went back from block 25000 to 24999"),
        (replace(HEAD, hash="0xbb"), FinalityRule("depth", 100), "is being reorganised"),
        (replace(HEAD, finalized=24_000), FinalityRule("tag"), "final block went back from 24960 to 24000"),
        (replace(HEAD, finalized_hash="0xf1"), FinalityRule("tag"), "was final as 0xf0, and is 0xf1 now"),
        (replace(HEAD, finalized=26_000), FinalityRule("tag"), "calls block 26000 final, but its head is 25000"),
        (replace(HEAD, finalized=None), FinalityRule("tag"), "does not say which block is final"),
        (replace(HEAD, finalized=None), FinalityRule("both", 5), "does not say which block is final"),
        (replace(HEAD, number=25_001), FinalityRule("depth", 30_000), "no block is final yet"),
    ],
)
def test_a_head_that_is_not_believed_is_explained(head: Head, rule: FinalityRule, reason: str) -> None:
    found = judge(head, rule, HEAD, NOW)
    assert not found.is_known
    assert reason in found.why


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(500, 50_000))
def test_ranges_are_aligned_adjacent_and_wholly_final(first: int, finalized: int, size: int) -> None:
    found = final_ranges(first, finalized, size)
    assert all(each.start % size == 0 and each.blocks == size and is_final(each, finalized) for each in found)
    assert all(one.end == two.start for one, two in pairwise(found))
    if found:
        assert first <= found[0].start < first + size
        assert not is_final(BlockRange(found[-1].end, found[-1].end + size), finalized)
    assert [BlockRange.from_key(each.key, size) for each in found[:20]] == found[:20]


def test_the_end_of_a_range_is_not_part_of_it() -> None:
    blocks = BlockRange.from_key("1000000-1010000", 10_000)
    assert (blocks.last, blocks.blocks) == (1_009_999, 10_000)
    assert is_final(blocks, 1_009_999)
    assert not is_final(blocks, 1_009_998)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("1000001-1010001", "the one with block 1000001 is 1000000-1010000"),
        ("1000000-1020000", "is not one of the ranges of 10,000 blocks"),
        ("10000-0", "not a range"),
        ("-5-10", "not a range"),
        ("0010000-0020000", "not a range"),
        ("10000-20000\n", "not a range"),
        ("1e4-2e4", "not a range"),
        ("9223372036854770000-9223372036854780000", "is not a range"),
    ],
)
def test_a_key_that_names_no_range_is_refused_with_the_right_one(key: str, reason: str) -> None:
    with pytest.raises(RangeInvalid, match=reason):
        BlockRange.from_key(key, 10_000)
