"""Step times by the rank's own clock."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.timeline.step_time import WINDOW_STEPS, StepPace


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
    pace.exclude(30.0)
    pace.exclude(10.0)
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


def test_a_clock_that_runs_backwards_is_no_sample() -> None:
    assert list(paced((1, 10.0), (2, 9.0)).times_s) == []


def test_the_last_step_took_what_its_steps_took_together() -> None:
    first = paced((1, 0.0))
    assert (first.last_s, first.stride) == (0.0, 1)
    assert paced((1, 0.0), (2, 2.0)).last_s == 2.0
    assert paced((1, 0.0), (4, 6.0)).last_s == 6.0


def test_a_step_that_ends_again_or_at_once_is_no_sample() -> None:
    again = paced((1, 0.0), (2, 2.0), (2, 5.0), (1, 6.0))
    assert (list(again.times_s), again.sampled_step) == ([2.0], 2)
    assert list(paced((1, 3.0), (2, 3.0)).times_s) == []
    assert list(paced((0, 0.0), (1, 0.25)).times_s) == [0.25]


def test_of_more_steps_than_the_window_holds_the_oldest_go() -> None:
    pace, mono = paced((0, 0.0)), 0.0
    took = [float(100 + number * 37 % 101) for number in range(256 + 40)]
    for step, seconds in enumerate(took, start=1):
        mono += seconds
        pace.end(step, mono)
        kept = took[max(0, step - 256) : step]
        assert list(pace.times_s) == kept
        assert pace.median_s == statistics.median(kept)


def longest_s(pace: StepPace) -> float:
    """What the longest of the last steps computed."""
    return pace.computed_near_s(0, 10**6)


def test_of_the_steps_beside_one_the_longest_counts() -> None:
    pace = paced((0, 0.0))
    for step, computed_s in enumerate([1.0, 9.0, 2.0, 3.0], start=1):
        pace.compute(computed_s)
        pace.end(step, 10.0 * step)
    assert [pace.computed_near_s(step, 1) for step in range(7)] == [1, 9, 9, 9, 3, 3, 0]
    assert [pace.computed_near_s(4, steps) for steps in (0, 1, 2)] == [3, 3, 9]


def test_the_longest_step_is_what_one_computed_and_no_longer_than_it_took() -> None:
    pace = paced((0, 0.0))
    assert longest_s(pace) == 0.0
    for step, (took_s, computed_s) in enumerate([(5.0, 4.0), (90.0, 80.0), (9.0, 200.0)], start=1):
        pace.compute(computed_s / 2)
        pace.compute(computed_s / 2)
        pace.end(step, pace.last_mono + took_s)
    assert list(pace.computed_times_s.values()) == [4.0, 80.0, 9.0]
    assert longest_s(pace) == 80.0


def test_what_was_computed_before_the_first_step_end_or_a_pause_is_of_no_step() -> None:
    pace = StepPace()
    pace.compute(500.0)
    pace.end(1, 500.0)
    pace.compute(50.0)
    pace.exclude(48.0)
    pace.end(2, 550.0)
    assert list(pace.computed_times_s.values()) == [2.0]


def test_of_lines_that_end_many_steps_each_computed_its_part() -> None:
    pace = paced((1, 0.0))
    pace.compute(80.0)
    pace.end(11, 100.0)
    assert (longest_s(pace), pace.stride) == (8.0, 10)


def test_of_more_computed_steps_than_the_window_holds_the_oldest_go() -> None:
    pace = paced((0, 0.0))
    for step in range(1, WINDOW_STEPS + 2):
        pace.compute(70.0 if step == 1 else 0.5)
        pace.end(step, 100.0 * step)
        assert longest_s(pace) == (70.0 if step <= WINDOW_STEPS else 0.5)
