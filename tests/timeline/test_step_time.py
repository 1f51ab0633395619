"""Step times by the rank's own clock."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.timeline.step import WINDOW_STEPS, StepPace


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
