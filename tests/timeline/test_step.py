"""Which steps are whole, whatever ranks end them, and in whatever order."""

from collections.abc import Sequence

from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.tick import Tick
from gonogo.timeline.step import RankStep, Steps

TICK = Tick(n=1, mono=1.0, ts=1.0)


def ended(rank: int, *steps: int) -> list[RankStep]:
    return [RankStep(rank=rank, boot="b", step=step, dt_s=None, progress=None) for step in steps]


def made(steps: Steps, rows: list[RankStep], needed: int = 2) -> list[tuple[int, Sequence[int]]]:
    """Number and ranks of the steps that these complete."""
    return [(step.step, list(step.ranks)) for step in steps.add(rows, needed, TICK)]


def test_a_step_is_whole_once_every_rank_has_ended_it() -> None:
    steps = Steps()
    assert made(steps, ended(1, 1, 2)) == []
    assert made(steps, ended(0, 1)) == [(1, [0, 1])]
    assert made(steps, ended(0, 1)) == []
    assert (steps.last, steps.made, list(steps.waiting)) == (1, 1, [2])


def test_a_step_that_a_rank_never_ends_is_passed_over() -> None:
    steps = Steps()
    assert made(steps, [*ended(1, 1, 2), *ended(0, 2)]) == [(2, [0, 1])]
    assert made(steps, ended(0, 1)) == []
    assert steps.waiting == {}


def test_of_more_steps_than_may_wait_the_first_rank_s_oldest_goes_alone() -> None:
    steps = Steps()
    assert made(steps, ended(0, *range(1, 257))) == []
    assert made(steps, ended(0, 257)) == [(1, [0])]
    other = Steps()
    assert made(other, ended(1, *range(1, 258))) == []
    assert (len(other.waiting), min(other.waiting), other.last) == (256, 2, 0)


def test_a_step_that_is_made_again_says_so() -> None:
    steps = Steps()
    (first,) = steps.add(ended(0, 3), 1, TICK)
    boot = Heartbeat(ts=1.0, mono=1.0, pid=1, rank=0, boot="c", seq=1, step=2, msg="boot")
    steps.forget(boot)
    assert (steps.last, steps.made) == (2, 3)
    again, later = steps.add(ended(0, 3, 4), 1, TICK)
    assert (first.again, again.again, later.again) == (False, True, False)
