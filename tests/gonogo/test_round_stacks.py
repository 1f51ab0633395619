"""Equal stacks are one group, whatever differs by chance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.evidence_round import describe_round

WAITING = ("wait (threading.py:320)", "poll (selectors.py:28)", "main (train.py:9)")
HANGING = ("sleep (faults.py:51)", "enter (sections.py:60)", "main (train.py:9)")


def listing(frames: tuple[str, ...], thread: int = 7, marks: str = "active") -> str:
    rows = [f"MainThread (thread {thread}) {marks}", *(f"    {frame}" for frame in frames)]
    return (
        "\n".join([*rows, f"heartbeat (thread {thread + 1})", "    wait (threading.py:1)"]) + "\n"
    )


def summary(stacks: dict[int, str], culprit: int | None = None) -> list[str]:
    return describe_round(
        {f"stacks_rank{rank}.txt": row for rank, row in stacks.items()}, culprit, whole=False
    ).splitlines()


def test_sixty_four_stacks_become_two_lines() -> None:
    stacks = {rank: listing(WAITING, 100 * rank) for rank in range(64)}
    stacks[17] = listing(HANGING)
    waiting, hanging = (" < ".join(frames) for frames in (WAITING, HANGING))
    expected = [f"rank 17: {hanging}", f"ranks 0-16, 18-63: {waiting}"]
    assert summary(stacks) == expected
    assert summary(stacks, culprit=3) == expected[::-1], "the culprit's group comes first"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0x7f3a12 (libgloo.so)", "0x55dead (libgloo.so)"),
        ("run+0x1f (libtorch.so)", "run+0x2a (libtorch.so)"),
    ],
)
def test_what_differs_by_chance_distinguishes_no_ranks(one: str, other: str) -> None:
    (line,) = summary({0: listing((one,)), 1: listing((other,), 9, "")})
    assert line.startswith("ranks 0-1: ")


def test_a_stack_that_could_not_be_read_is_a_group_with_its_reason() -> None:
    found = summary({0: listing(WAITING), 1: "py-spy is not installed\n", 2: ""})
    assert found == ["rank 0: " + " < ".join(WAITING), "rank 1: py-spy is not installed"]
    assert summary({1: "x" * 300}) == [f"rank 1: {'x' * 200}"]


FRAMES = st.lists(st.sampled_from([*WAITING, *HANGING]), min_size=1, max_size=3).map(tuple)


@given(st.dictionaries(st.integers(0, 63), FRAMES, max_size=20))
def test_there_is_one_line_for_each_different_stack(stacks: dict[int, tuple[str, ...]]) -> None:
    lines = summary({rank: listing(frames, rank) for rank, frames in stacks.items()})
    expected = {" < ".join(frames) for frames in stacks.values()}
    assert {line.partition(": ")[2] for line in lines if line.startswith("rank")} >= expected
    assert len([line for line in lines if " < " in line or line.count(": ") == 1]) >= len(expected)
