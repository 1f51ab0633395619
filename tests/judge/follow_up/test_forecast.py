"""Forecasts are arithmetic on what was measured (R18, R82)."""

from __future__ import annotations

import pytest

from gonogo.judge.follow_up.forecast import (
    Ahead,
    Measured,
    build_forecast,
    measure,
    seconds_at_speed,
)

DAY_S = 86_400
BEGUN = Ahead(steps=10, begun_s=None)


def measured(step_s: float, *, steps: int = 100, start_s: float | None = None) -> Measured:
    return Measured(step_s=step_s, late_s=1.5 * step_s, steps=steps, start_s=start_s)


def test_fifty_thousand_steps_at_38_tokens_per_second_are_62_days() -> None:
    seconds = seconds_at_speed(steps=50_000, tokens_per_step=4096, tok_s=38)
    assert seconds / DAY_S == pytest.approx(62.4, abs=0.05)


def test_the_rest_is_pace_times_steps_and_the_start_of_each_phase() -> None:
    ahead = [BEGUN, Ahead(steps=90), Ahead(steps=100)]
    found = build_forecast(ahead, [measured(0.5, start_s=20.0)], claimed_seconds=60.0)
    assert found.seconds_p50 == 200 * 0.5 + 2 * 20.0
    assert found.seconds_p90 == 200 * 0.75 + 2 * 20.0
    assert found.claimed_seconds == 60.0
    assert "200 steps at 0.5 s each" in found.basis
    assert "40 s to start" in found.basis


def test_the_latest_run_counts_and_the_slowest_start_is_the_late_one() -> None:
    runs = [measured(9.0, start_s=100.0), measured(1.0, start_s=10.0), measured(2.0, start_s=20.0)]
    found = build_forecast([Ahead(steps=10)], runs)
    assert (found.seconds_p50, found.seconds_p90) == (10 * 2.0 + 20.0, 10 * 3.0 + 100.0)


def test_a_run_counts_its_rare_pauses_and_its_present_speed() -> None:
    steady = measure([1.0] * 64, 1.2, 1000)
    slower = measure([3.0] * 64, 1.2, 1000)
    assert steady is not None
    assert slower is not None
    assert (steady.step_s, steady.steps) == (1.2, 1000)
    assert slower.step_s == 3.0
    paused = measure([1.0] * 60 + [41.0] + [1.0] * 3, 1.2, 1000)
    assert paused is not None
    assert paused.step_s == 1.2
    assert paused.late_s == 6.0  # the stretch of eight steps with the pause
    assert measure([], 0.0, 0) is None


@pytest.mark.parametrize(("steps", "known"), [(1, False), (4, False), (5, True)])
def test_a_forecast_is_not_known_before_five_steps(steps: int, known: bool) -> None:
    ahead = [Ahead(steps=100, begun_s=None)]
    ended = Measured(step_s=2.0, late_s=3.0, steps=steps - 1)
    for found in (
        build_forecast(ahead, [ended]),
        build_forecast(ahead, [], measure([2.0] * (steps - 1), 2.0, steps - 1)),
    ):
        assert found.seconds_p50 == (200.0 if known else None)
