"""`ColdRanges` as users write it: mistakes are told, and hostile names stay names."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from compaction_platform.archive.chain.block_range import BlockRange, uncovered
from compaction_platform.archive.chain.continuity import BlockLink, problems_of
from compaction_platform.archive.chain.cuts import cut
from compaction_platform.archive.cold.paths import RangePaths
from compaction_platform.archive.component import ColdRanges, DeclaredFinality, HotTable

pytestmark = pytest.mark.unit

BLOCKS: dict[str, Any] = {
    "name": "blocks",
    "key": ["block_number"],
    "hash_column": "hash",
    "parent_hash_column": "parent_hash",
    "time_column": "time",
}
LOGS: dict[str, Any] = {"name": "logs", "key": ["block_number", "log_index"]}


def declared(
    datasets: list[dict[str, Any]] | None = None, finality: dict[str, Any] | None = None, **more: Any
) -> ColdRanges:
    return ColdRanges(
        chain_id=10143,
        datasets=[HotTable(**each) for each in datasets or [BLOCKS, LOGS]],
        finality=DeclaredFinality(**(finality or {"mode": "depth", "finality_depth_blocks": 10})),
        **more,
    )


def test_a_declaration_becomes_an_archive_with_the_blocks_first() -> None:
    archive = declared([LOGS, BLOCKS], retention="2d", gaps="allow").archive()
    assert [dataset.name for dataset in archive.datasets] == ["blocks", "logs"]
    assert archive.datasets[1].table == ("public", "logs")
    assert (archive.gaps_allowed, archive.retention.days, archive.purge) == (True, 2, False)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"datasets": [LOGS]}, "exactly one of them, the one with the blocks"),
        ({"datasets": [BLOCKS, {**BLOCKS, "name": "headers"}]}, "exactly one of them"),
        ({"datasets": [{**BLOCKS, "time_column": None}, LOGS]}, "needs hash_column and time_column"),
        ({"datasets": [BLOCKS, LOGS, LOGS]}, "two have the same name"),
        ({"datasets": [BLOCKS, {**LOGS, "key": ["log_index"]}]}, "must begin with its block, block_number"),
        ({"datasets": [BLOCKS, {**LOGS, "key": ["block_number"]}]}, "needs more than the block"),
        ({"datasets": [{**BLOCKS, "key": ["block_number", "hash"]}]}, "their number alone"),
        ({"finality": {"mode": "depth"}}, "finality_depth_blocks: mode depth needs it"),
        ({"finality": {"mode": "tag"}}, "node_url_variable: mode tag needs it"),
        ({"finality": {"mode": "both", "finality_depth_blocks": 1}}, "node_url_variable: mode both needs it"),
        ({"hot_url_variable": "postgresql://u:p@h/d"}, "the address itself never stands here"),
        ({"hot_url_variable": "COMPACTION_OTHER"}, "the platform's own settings"),
        ({"retention": "a while"}, "is not a duration"),
        ({"range_size": 0}, "greater than or equal to 1"),
        ({"rangesize": 5}, "Extra inputs are not permitted"),
        ({"datasets": [BLOCKS, {**LOGS, "name": "logs; DROP TABLE blocks"}]}, "is not a usable name"),
        ({"datasets": [BLOCKS, {**LOGS, "name": "../../etc"}]}, "is not a usable name"),
        ({"datasets": [BLOCKS, {**LOGS, "hash_column": "x" * 64}]}, "cannot be a column of PostgreSQL"),
        ({"namespace": "cold`; DROP"}, "is not a usable name"),
    ],
)
def test_mistakes_are_told(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        declared(**change)


@given(st.lists(st.tuples(st.integers(0, 499), st.integers(1, 40)), max_size=80), st.integers(1, 200))
def test_cuts_cover_the_range_between_blocks_near_the_wished_size(rows: list[tuple[int, int]], chunk: int) -> None:
    by_block = dict(sorted(rows))
    blocks = BlockRange(0, 500)
    cuts = cut(blocks, list(by_block), list(by_block.values()), chunk)
    assert [each.blocks.start for each in cuts] == [0, *(each.blocks.end for each in cuts[:-1])]
    assert cuts[-1].blocks.end == 500
    for each in cuts:
        inside = [count for number, count in by_block.items() if each.blocks.start <= number < each.blocks.end]
        assert each.rows == sum(inside)
        assert each.rows <= chunk + max(inside, default=0)
    if len(cuts) > 1:
        assert all(each.rows for each in cuts)


@given(st.integers(1, 30), st.data())
def test_any_damage_to_a_chain_is_seen(length: int, data: st.DataObject) -> None:
    chain = [BlockLink(number, f"h{number}", f"h{number - 1}") for number in range(100, 100 + length)]
    blocks = BlockRange(100, 100 + length)
    assert problems_of(blocks, chain, gaps_allowed=False) == []
    place = data.draw(st.integers(0, length - 1))
    link = chain[place]
    damage = data.draw(st.sampled_from(["removed", "doubled", "other parent", "other hash"]))
    damaged = {
        "removed": [*chain[:place], *chain[place + 1 :]],
        "doubled": [*chain[: place + 1], *chain[place:]],
        "other parent": [*chain[:place], BlockLink(link.number, link.hash, "x"), *chain[place + 1 :]],
        "other hash": [*chain[:place], BlockLink(link.number, "x", link.parent), *chain[place + 1 :]],
    }[damage]
    seen = problems_of(blocks, damaged, gaps_allowed=False)
    at_an_edge = (damage == "other parent" and place == 0) or (damage == "other hash" and place == length - 1)
    assert bool(seen) != at_an_edge, "what only a neighbour could tell is for the seams"


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(1, 20)), max_size=6))
def test_what_others_leave_of_a_range(others: list[tuple[int, int]]) -> None:
    ranges = [BlockRange(start, start + size) for start, size in others]
    left = uncovered(BlockRange(20, 80), ranges)
    expected = {number for number in range(20, 80) if not any(each.start <= number < each.end for each in ranges)}
    assert {number for each in left for number in range(each.start, each.end)} == expected
    assert sum(each.blocks for each in left) == len(expected)


def test_only_visible_files_look_like_parquet() -> None:
    place = RangePaths("1", "logs", BlockRange(0, 10))
    assert place.visible("part-0.parquet").endswith(".parquet")
    for hidden in (place.staged(7, "part-0.parquet"), place.superseded(1, "part-0.parquet")):
        assert not hidden.endswith(".parquet")
        assert "/_" in hidden
