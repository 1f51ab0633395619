"""Whole steps of all ranks, and step times by the rank's own clock."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.records import Tick
from gonogo.timeline.step import WINDOW_STEPS, RankStep, StepPace, Steps

# Which steps are whole, whatever ranks end them, and in whatever order.


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


# Step times by the rank's own clock.


def paced(*ends: tuple[int, float]) -> StepPace:
    """A pace after steps that ended at the given clocks."""
    pace = StepPace()
    for step, mono in ends:
        pace.end(step, mono)
    return pace


def test_the_first_step_end_is_no_sample() -> None:
    pace = paced((1, 100.0))
    assert (list(pace.times_s), pace.median_s) == ([], None)
    pace.end(2, 102.5)
    assert list(pace.times_s) == [2.5]


def test_time_outside_training_is_taken_out_once() -> None:
    pace = paced((1, 0.0))
    pace.excluded_s += 40.0
    pace.end(2, 42.0)
    pace.end(3, 44.0)
    assert list(pace.times_s) == [2.0, 2.0]


def test_a_missing_step_end_is_an_average_of_two_steps() -> None:
    pace = paced((1, 0.0), (3, 6.0))
    assert (list(pace.times_s), pace.stride) == ([3.0], 2)


@given(st.lists(st.floats(0.01, 1000.0), min_size=1, max_size=WINDOW_STEPS + 60))
def test_the_median_is_that_of_the_last_steps(times: list[float]) -> None:
    pace, mono = paced((0, 0.0)), 0.0
    for step, took in enumerate(times, start=1):
        mono += took
        pace.end(step, mono)
    assert len(pace.times_s) == min(len(times), WINDOW_STEPS)
    assert pace.median_s == pytest.approx(statistics.median(pace.times_s))


def test_a_step_that_ends_again_or_at_once_is_no_sample() -> None:
    again = paced((1, 0.0), (2, 2.0), (2, 5.0), (1, 6.0))
    assert list(again.times_s) == [2.0]
    assert list(paced((1, 3.0), (2, 3.0)).times_s) == []
    assert list(paced((0, 0.0), (1, 0.25)).times_s) == [0.25]


def test_the_oldest_steps_leave_a_full_window() -> None:
    pace, mono = paced((0, 0.0)), 0.0
    took = [float(100 + number * 37 % 101) for number in range(256 + 40)]
    for step, seconds in enumerate(took, start=1):
        mono += seconds
        pace.end(step, mono)
        kept = took[max(0, step - 256) : step]
        assert list(pace.times_s) == kept
        assert pace.median_s == statistics.median(kept)


def test_only_a_single_step_has_its_own_time_and_an_even_window_a_middle() -> None:
    pace = StepPace()
    times = [pace.end(step, mono) for step, mono in ((1, 0.0), (2, 2.0), (4, 8.0), (5, 18.0))]
    assert (times, pace.end(6, 19.0), pace.median_s) == ([None, 2.0, None, 10.0], 1.0, 2.5)
