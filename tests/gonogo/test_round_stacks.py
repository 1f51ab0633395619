"""Equal stacks are one group, whatever differs by chance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.evidence_round import group_stacks, main_frames

WAITING = ("wait (threading.py:320)", "all_reduce (distributed_c10d.py:2814)", "main (train.py:9)")
HANGING = ("sleep (faults.py:51)", "enter (sections.py:60)", "main (train.py:9)")


def listing(frames: tuple[str, ...], thread: int = 7, marks: str = "active") -> str:
    rows = [f"MainThread (thread {thread}) {marks}", *(f"    {frame}" for frame in frames)]
    return (
        "\n".join([*rows, f"heartbeat (thread {thread + 1})", "    wait (threading.py:1)"]) + "\n"
    )


def test_sixty_four_stacks_become_two_lines() -> None:
    stacks = {rank: listing(WAITING, 100 * rank) for rank in range(64)}
    stacks[17] = listing(HANGING)
    lines = [group.line() for group in group_stacks(stacks, culprit=17)]
    assert lines == [
        "rank 17: sleep (faults.py:51) < enter (sections.py:60) < main (train.py:9)",
        "ranks 0-16, 18-63: wait (threading.py:320) < all_reduce (distributed_c10d.py:2814)"
        " < main (train.py:9)",
    ]


def test_the_culprit_s_group_comes_first_and_then_the_smallest() -> None:
    stacks = {rank: listing(WAITING) for rank in range(4)}
    stacks[2] = listing(HANGING)
    assert [group.ranks for group in group_stacks(stacks)] == [(2,), (0, 1, 3)]
    assert [group.ranks for group in group_stacks(stacks, culprit=3)] == [(0, 1, 3), (2,)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0x7f3a12 (libgloo.so)", "0x55dead (libgloo.so)"),
        ("run+0x1f (libtorch.so)", "run+0x2a (libtorch.so)"),
        ("loop (pid 12)", "loop (pid 4711)"),
        ("work (Thread-12)", "work (Thread-3)"),
        ("wait  (a.py:1)", "wait (a.py:1) "),
    ],
)
def test_what_differs_by_chance_tells_no_ranks_apart(one: str, other: str) -> None:
    assert len(group_stacks({0: listing((one,)), 1: listing((other,), 9, "")})) == 1


def test_a_stack_that_could_not_be_read_is_a_group_with_its_reason() -> None:
    groups = group_stacks({0: listing(WAITING), 1: "py-spy is not installed\n", 2: ""})
    assert [group.line() for group in groups[:2]] == [
        "rank 0: " + " < ".join(WAITING),
        "rank 1: py-spy is not installed",
    ]
    assert groups[2].line() == groups[2].listing() == "rank 2: no stack could be read"
    assert groups[1].listing() == groups[1].line()
    (long,) = group_stacks({1: "x" * 300})
    assert long.line() == f"rank 1: {'x' * 200}"


_FRAMES = st.lists(st.sampled_from([*WAITING, *HANGING]), max_size=4).map(tuple)


@given(st.dictionaries(st.integers(0, 63), _FRAMES, max_size=20), st.integers(0, 63))
def test_every_rank_is_in_the_one_group_of_its_frames(
    stacks: dict[int, tuple[str, ...]], culprit: int
) -> None:
    groups = group_stacks({r: listing(frames, r) for r, frames in stacks.items()}, culprit)
    assert sorted(rank for group in groups for rank in group.ranks) == sorted(stacks)
    assert len({group.frames for group in groups}) == len(groups)
    for group in groups:
        assert {stacks[rank] for rank in group.ranks} == {group.frames}
    if culprit in stacks:
        assert culprit in groups[0].ranks


def test_a_row_of_blanks_holds_up_nobody_who_reads_a_stack() -> None:
    """A run's own code can write to its evidence, which the service reads for a page."""
    assert main_frames(f"MainThread\n    a{' ' * 2**20}b+0x1f\n") == ("a b",)
