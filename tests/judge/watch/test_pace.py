"""Step times by the rank's own clock."""

import pytest

from gonogo.judge.watch.pace import WINDOW_STEPS, Pace


def test_the_first_step_end_is_no_sample() -> None:
    pace = Pace().ended(1, 100.0)
    assert (pace.times_s, pace.median_s) == ((), None)
    assert pace.ended(2, 102.5).times_s == (2.5,)


def test_time_outside_training_is_taken_out_once() -> None:
    pace = Pace().ended(1, 0.0).without(30.0).without(10.0).ended(2, 42.0).ended(3, 44.0)
    assert pace.times_s == (2.0, 2.0)


def test_a_missing_step_end_is_an_average_of_two_steps() -> None:
    pace = Pace().ended(1, 0.0).ended(3, 6.0)
    assert (pace.times_s, pace.stride) == ((3.0,), 2)


def test_the_window_holds_the_last_steps() -> None:
    pace = Pace()
    for step in range(WINDOW_STEPS + 50):
        pace = pace.ended(step, float(step) if step < 100 else 100 + (step - 100) * 3.0)
    assert len(pace.times_s) == WINDOW_STEPS
    assert pace.median_s == pytest.approx(3.0)


def test_a_clock_that_runs_backwards_is_no_sample() -> None:
    assert Pace().ended(1, 10.0).ended(2, 9.0).times_s == ()
