"""Forecasts are arithmetic on what was measured (R18, R82)."""

from __future__ import annotations

import pytest

from gonogo.contract.facts import Facts, PaceFacts
from gonogo.judge.course.forecast import build_forecast, build_live_forecast, seconds_at_speed
from tests.judge.runs import facts_of, record_of

DAY_S = 86_400


def test_fifty_thousand_steps_at_38_tokens_per_second_are_62_days() -> None:
    seconds = seconds_at_speed(steps=50_000, tokens_per_step=4096, tok_s=38)
    assert seconds / DAY_S == pytest.approx(62.4, abs=0.05)


@pytest.mark.parametrize(("steps", "hours"), [(300, 9.0), (1000, 29.9), (5000, 149.7)])
def test_the_smoke_takes_nine_hours_not_minutes(steps: int, hours: float) -> None:
    seconds = seconds_at_speed(steps=steps, tokens_per_step=4096, tok_s=38)
    assert seconds / 3600 == pytest.approx(hours, abs=0.1)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan")])
def test_a_speed_that_is_none_has_no_forecast(speed: float) -> None:
    with pytest.raises(ValueError, match="never arrives"):
        seconds_at_speed(steps=1, tokens_per_step=1, tok_s=speed)


def test_the_forecast_of_a_run_is_its_pace_times_the_steps_left() -> None:
    facts = facts_of(record_of())
    found = build_forecast([facts], steps_left=1000, claimed_seconds=60.0)
    assert found.seconds_p50 == pytest.approx(1000 * (facts.pace["0"].block_p50_s or 0.0))
    assert found.seconds_p90 is not None
    assert found.seconds_p90 >= found.seconds_p50
    assert "1000 steps" in found.basis
    assert found.claimed_seconds == 60.0


def test_the_latest_measured_run_counts_and_an_unmeasured_one_does_not() -> None:
    slow = _paced({"0": _pace(2.0)})
    fast = _paced({"0": _pace(1.0), "1": _pace(1.5)})
    assert build_forecast([slow, fast, _paced({})], steps_left=10).seconds_p50 == 15.0
    assert build_forecast([fast, slow], steps_left=10).seconds_p50 == 20.0


def test_nothing_measured_forecasts_nothing() -> None:
    found = build_forecast([], steps_left=10)
    assert (found.seconds_p50, found.basis) == (None, "nothing measured yet")


def test_a_live_forecast_rests_on_the_median_so_far() -> None:
    found = build_live_forecast(step_s=0.5, steps_left=40, measured_steps=8)
    assert found.seconds_p50 == 20.0


def _paced(pace: dict[str, PaceFacts]) -> Facts:
    return facts_of(record_of()).model_copy(update={"pace": pace})


def _pace(step_s: float) -> PaceFacts:
    return PaceFacts(
        steps=9,
        median_step_s=step_s,
        p95_step_s=step_s,
        block_p50_s=step_s,
        block_p90_s=1.2 * step_s,
        sections_s={},
    )
