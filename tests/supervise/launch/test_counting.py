"""What printed numbers count, one after the other."""

from __future__ import annotations

import pytest

from gonogo.supervise.launch.counting import Count


def counted(printed: list[int]) -> list[int | None]:
    """Which steps the printed numbers count; None where the program goes back."""
    count = Count()
    return [row and row[0] for number in printed for row in count.take(number, {})]


@pytest.mark.parametrize(
    ("printed", "steps"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([0, 1, 2], [1, 2, 3]),
        ([10, 20, 30], [10, 20, 30]),
        ([0, 100, 200, 300], [1, 101, 201, 301]),
        ([1, 2, 3, 100, 200], [1, 2, 3, 100, 200]),
        # each number twice, as an evaluation and a step say it
        ([10, 10, 20, 20, 30, 30], [10, 20, 30]),
        # counted anew in each epoch
        ([1, 2, 3, 1, 2, 3, 1, 2, 3], [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ([0, 1, 2, 0, 1, 2], [1, 2, 3, 4, 5, 6]),
        ([50, 100, 50, 100, 50, 100], [50, 100, 150, 200, 250, 300]),
        # a number that is shown again is the same step, however often
        ([7, 9] + [9] * 6, [7, 9]),
        ([1, 2, 3] + [3] * 300, [1, 2, 3]),
        ([1] * 300 + [2, 3], [1, 2, 3]),
        # what is no step: a banner, an end that is near, the best so far
        ([300, 1, 2, 3], [1, 2, 3]),
        ([300], []),
        ([1, 2, 300, 3, 4], [1, 2, 3, 4]),
        ([1, 2, 3, 4, 2, 5, 6], [1, 2, 3, 4, 5, 6]),
        # back to a checkpoint
        ([1, 2, 3, 4, 5, 6, 3, 4, 5], [1, 2, 3, 4, 5, 6, None, 3, 4, 5]),
    ],
)
def test_what_printed_numbers_count(printed: list[int], steps: list[int | None]) -> None:
    assert counted(printed) == steps


def counted_after_failures(told: list[str]) -> tuple[list[int | None], bool]:
    """Which steps lines like `3`, `2:1` (step 1 of epoch 2) and `failed` count; whether unsure."""
    count, failed, steps = Count(), False, []
    for row in told:
        if row == "failed":
            failed = True
            continue
        epoch, _, number = row.rpartition(":")
        named = int(epoch) if epoch else None
        for change in count.take(int(number), {"loss": len(steps)}, epoch=named, failed=failed):
            steps.append(change and change[0])
            failed = False
    return steps, count.unsure


@pytest.mark.parametrize(
    ("told", "steps", "unsure"),
    [
        ("1 2 3 failed 1 2 3 failed 1 2", [1, 2, 3, None, 1, 2, 3, None, 1, 2], False),
        ("0 1 2 failed 0 1 2", [1, 2, 3, None, 1, 2, 3], False),
        ("1 failed 1 failed 1 2", [1, None, 1, None, 1, 2], False),
        ("1 2 3 4 5 failed 3 4 5 6", [1, 2, 3, 4, 5, None, 3, 4, 5, 6], False),
        # of the epoch that it was in, or of a later one, which the one before may have ended
        ("1:1 1:2 2:1 2:2 failed 2:1 2:2 2:3", [1, 2, 3, 4, None, 3, 4, 5], False),
        ("1:1 1:2 failed 2:1 2:2", [1, 2, 3, 4], False),
        # of which one, nobody knows
        ("1 2 1 2 failed 1 2", [1, 2, 3, 4, 5, 6], True),
        ("1:1 1:2 2:1 2:2 failed 1:1 1:2", [1, 2, 3, 4, 5, 6], True),
    ],
)
def test_a_program_that_failed_and_began_again_has_gone_back(
    told: str, steps: list[int | None], unsure: bool
) -> None:
    assert counted_after_failures(told.split()) == (steps, unsure)
