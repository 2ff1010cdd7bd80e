"""The plan, held against what it promises: good files, nothing twice, nothing left to do once it was carried out."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compaction_platform.compact.plan.bin_packing import (
    CONTESTED,
    DONE,
    EMPTY,
    LARGE,
    LATER,
    MB,
    OTHER,
    OWN_NAME,
    SET_ASIDE,
    TOO_FEW,
    CompactionPlan,
    DirectoryState,
    FileGroup,
    PackingPolicy,
    make_plan,
)
from compaction_platform.compact.plan.listing import FileVersion
from compaction_platform.compact.plan.reconcile import reconcile

pytestmark = pytest.mark.unit

POLICY = PackingPolicy()


def small(*sizes_mb: float, directory: str = "d", stem: str = "part") -> list[FileVersion]:
    return [
        FileVersion(f"{directory}/{stem}-{number:05d}.parquet", round(size * MB), f"etag-{stem}-{number}")
        for number, size in enumerate(sizes_mb)
    ]


def output_of(each: FileGroup, size: int) -> FileVersion:
    return FileVersion(each.output, size, f"etag-{each.output}")


def carried_out(files: list[FileVersion], plan: CompactionPlan, shrunk_to: float = 1.0) -> list[FileVersion]:
    """The listing after a run without mishaps."""
    gone = {file.key for each in plan.bins for file in each.inputs} | {file.key for file in plan.superseded}
    made = [output_of(each, max(1, round(each.size * shrunk_to))) for each in plan.bins]
    return sorted([file for file in files if file.key not in gone] + made)


def states(plans: list[CompactionPlan]) -> dict[str, DirectoryState]:
    found: dict[str, dict[str, tuple[tuple[str, str], ...]]] = {}
    for plan in plans:
        for each in plan.bins:
            found.setdefault(each.directory, {})[each.output] = tuple(file.version for file in each.inputs)
    return {directory: DirectoryState(outputs) for directory, outputs in found.items()}


def test_small_files_become_files_near_the_target_in_the_order_of_their_names() -> None:
    plan = make_plan(small(*[10] * 40), POLICY)
    assert [len(each.inputs) for each in plan.bins] == [13, 13, 14]
    assert [file.key for each in plan.bins for file in each.inputs] == [file.key for file in small(*[10] * 40)]
    assert [each.output for each in plan.bins] == sorted(each.output for each in plan.bins)
    assert all(OWN_NAME.fullmatch(each.output) for each in plan.bins)


def test_every_file_that_stays_has_a_reason() -> None:
    files = [
        *small(200, 1, directory="a"),
        FileVersion("b/empty.parquet", 0, "e"),
        FileVersion("b/notes.txt", 5, "n"),
        *small(5, 5, 5, directory="c"),
        FileVersion("c/_SUCCESS", 0, "s"),
        FileVersion("_compaction/trash/x.parquet", 9, "t"),
        FileVersion("c/.part.crc", 9, "c"),
    ]
    plan = make_plan(files, POLICY, {"c": DirectoryState(set_aside={("part-00001.parquet", "etag-part-1")})})
    assert {reason: some.files for reason, some in plan.left_alone.items()} == {
        LARGE: 1,
        TOO_FEW: 1,
        EMPTY: 1,
        OTHER: 1,
        SET_ASIDE: 1,
    }
    assert [[file.name for file in each.inputs] for each in plan.bins] == [["part-00000.parquet", "part-00002.parquet"]]
    assert plan.left_alone[LARGE].examples == ("a/part-00000.parquet",)


def test_hive_values_that_begin_with_an_underscore_are_data() -> None:
    assert len(make_plan(small(1, 1, directory="country=_unknown"), POLICY).bins) == 1


def test_directories_do_not_mix() -> None:
    plan = make_plan([*small(1, 1, directory="a"), *small(1, 1, directory="a/b"), *small(1, directory="c")], POLICY)
    assert [each.directory for each in plan.bins] == ["a", "a/b"]


def test_late_files_take_a_small_output_along_and_leave_a_large_one() -> None:
    files = small(*[10] * 16)
    plan = make_plan(files, POLICY)
    first = carried_out(files, plan)
    assert [round(file.size / MB) for file in first] == [160]
    tail = make_plan(small(1, 1, stem="tail"), POLICY)
    late = sorted([*first, *carried_out(small(1, 1, stem="tail"), tail), *small(1, 1, stem="zz-late")])
    known = states([plan, tail])
    (second,) = make_plan(late, POLICY, known).bins
    assert [round(file.size / MB) for file in second.inputs] == [2, 1, 1]


def test_an_output_beside_its_inputs_is_finished_not_merged_again() -> None:
    files = small(*[10] * 13)
    plan = make_plan(files, POLICY)
    both = sorted([*files[3:], *carried_out(files, plan), FileVersion("d/zz.parquet", 5, "z")])
    after_crash = make_plan(both, POLICY, states([plan]))
    assert after_crash.bins == ()
    assert set(after_crash.superseded) == set(files[3:])
    replaced = [FileVersion(file.key, file.size, "new") for file in files[:2]]
    after_replacing = make_plan(sorted([*replaced, *carried_out(files, plan)]), POLICY, states([plan]))
    assert after_replacing.superseded == ()
    assert [each.inputs for each in after_replacing.bins] == [tuple(replaced)], "a new version is new data"


def test_a_run_takes_no_more_files_than_it_may() -> None:
    limited = PackingPolicy(max_files=20)
    plan = make_plan(small(*[10] * 40), limited)
    assert [len(each.inputs) for each in plan.bins] == [13, 7]
    assert plan.left_alone[LATER].files == 20
    assert make_plan(small(1, 1, 1), PackingPolicy(max_files=1)).bins == ()


sizes = st.lists(st.floats(0.01, 300), max_size=60)
policies = st.builds(
    lambda target, room, share, fewest: PackingPolicy(
        target * MB, (target + room) * MB, max(1, round(target * MB * share)), fewest
    ),
    st.integers(1, 256),
    st.integers(0, 256),
    st.floats(0.05, 1.0),
    st.integers(1, 6),
)


@example([6, 3, 7, 1, 2, 4], PackingPolicy(10 * MB, 10 * MB, 10 * MB, 3), 1.0)
@given(sizes, policies, st.floats(0.05, 1.5))
def test_what_was_compacted_plans_to_nothing(found: list[float], policy: PackingPolicy, shrunk_to: float) -> None:
    files = small(*found)
    plan = make_plan(files, policy)
    after = make_plan(carried_out(files, plan, shrunk_to), policy, states([plan]))
    assert after.is_empty, after


@given(sizes, sizes, policies, st.floats(0.05, 1.5))
def test_what_was_compacted_again_after_late_files_plans_to_nothing(
    found: list[float], late: list[float], policy: PackingPolicy, shrunk_to: float
) -> None:
    first = make_plan(small(*found), policy)
    files = sorted([*carried_out(small(*found), first, shrunk_to), *small(*late, stem="late")])
    second = make_plan(files, policy, states([first]))
    after = make_plan(carried_out(files, second, shrunk_to), policy, states([first, second]))
    assert after.is_empty, after


@given(sizes, policies)
def test_every_file_is_in_one_bin_or_left_alone_and_no_bin_is_too_large(
    found: list[float], policy: PackingPolicy
) -> None:
    files = small(*found)
    plan = make_plan(files, policy)
    inputs = [file for each in plan.bins for file in each.inputs]
    assert len(inputs) == len(set(inputs))
    assert len(inputs) + sum(some.files for some in plan.left_alone.values()) == len(files)
    assert all(len(each.inputs) >= max(2, policy.min_files) for each in plan.bins)
    assert all(each.size <= max(policy.max_bytes, policy.target_bytes + policy.small_bytes) for each in plan.bins)
    assert all(file.size < policy.small_bytes for file in inputs)


def two_runs(*groups: tuple[int, ...]) -> tuple[list[FileVersion], list[FileGroup]]:
    files = small(*[1] * 6)
    return files, [FileGroup(tuple(files[number] for number in group), 128) for group in groups]


def outputs(bins: list[FileGroup]) -> dict[str, tuple[tuple[str, str], ...]]:
    return {each.output: tuple(file.version for file in each.inputs) for each in bins}


def test_two_outputs_that_share_files_while_the_files_are_there() -> None:
    files, bins = two_runs((0, 1, 2), (0, 1, 2, 3))
    there = [*files, *(output_of(each, 3 * MB) for each in bins)]
    found = reconcile(there, outputs(bins))
    assert len(found.surplus) == 1
    assert found.conflicts == ()
    (kept,) = [each for each in bins if each.output != found.surplus[0].key]
    assert set(found.superseded) == {file.key for file in kept.inputs}, "what only the other one had is new data again"


def test_of_two_outputs_the_one_whose_files_are_gone_stays() -> None:
    files, bins = two_runs((0, 1), (1, 2))
    there = [*files[2:], *(output_of(each, 2 * MB) for each in bins)]
    found = reconcile(there, outputs(bins))
    assert [file.key for file in found.surplus] == [bins[1].output]
    assert found.superseded == {}
    assert found.conflicts == ()


def test_two_outputs_that_nobody_can_tell_apart_are_reported_and_left() -> None:
    files, bins = two_runs((0, 1), (1, 2))
    there = [*files[3:], *(output_of(each, 2 * MB) for each in bins)]
    found = reconcile(there, outputs(bins))
    assert set(found.conflicts) == {each.output for each in bins}
    assert (found.surplus, found.superseded) == ((), {})


def test_what_conflicting_outputs_are_made_of_is_not_compacted_a_third_time() -> None:
    files, bins = two_runs((0, 1, 2), (1, 2, 3))
    there = sorted([files[1], files[2], *files[4:], *(output_of(each, 2 * MB) for each in bins)])
    plan = make_plan(there, POLICY, {"d": DirectoryState(outputs(bins))})
    assert set(plan.conflicts) == {each.output for each in bins}
    assert set(plan.left_alone[CONTESTED].examples) == {files[1].key, files[2].key, *plan.conflicts}
    assert not {file.key for each in plan.bins for file in each.inputs} - {file.key for file in files[4:]}


def test_an_output_that_was_taken_into_another_is_superseded() -> None:
    files, bins = two_runs((0, 1))
    first = output_of(bins[0], 2 * MB)
    second = FileGroup((first, files[2]), 128)
    there = [first, *files[2:], output_of(second, 3 * MB)]
    found = reconcile(there, outputs([*bins, second]))
    assert set(found.superseded) == {first.key, files[2].key}
    assert DONE in make_plan(sorted(there), POLICY, {"d": DirectoryState(outputs([*bins, second]))}).left_alone
