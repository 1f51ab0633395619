"""How long leaving may take."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.heartbeat import Heartbeat
from gonogo.supervise.watcher.journal import LAST_STEPS, UNKNOWN_CHECKPOINT_S, UNKNOWN_STEP_S, Pace
from gonogo.timeline.lines import Arrival


def paced(*lines: dict[str, Any]) -> Pace:
    pace = Pace()
    for fields in lines:
        beat = Heartbeat(ts=1.0, mono=1.0, pid=1, rank=0, boot="a", seq=1, step=1, **fields)
        pace.take(0, beat, Arrival.NEW)
    return pace


def step(seconds: float | None) -> dict[str, Any]:
    return {"msg": "step_end", "dt_step_s": seconds}


def test_run_that_has_not_stepped_gets_time_to_start_up() -> None:
    assert Pace().leaving_s() >= 2 * UNKNOWN_STEP_S + UNKNOWN_CHECKPOINT_S


def test_longest_of_the_last_steps_and_a_checkpoint_count() -> None:
    steps = [step(50.0), *[step(1.0)] * (LAST_STEPS - 1)]
    assert paced(*steps).leaving_s() >= 2 * 50.0
    saved = [{"msg": "checkpoint", "dt": dt} for dt in (4.0, 3.0)]
    assert paced(*steps, step(2.0), *saved).leaving_s() == pytest.approx(2 * 2.0 + 2 * 4.0)


@pytest.mark.parametrize("seconds", [float("nan"), None, -1.0, 1e12])
def test_step_without_a_usable_number_changes_nothing(seconds: float | None) -> None:
    pace = paced(step(seconds))
    assert pace.leaving_s() == Pace().leaving_s()
    assert sum(pace.times.counts) == 0


def test_every_step_is_counted_in_the_histogram() -> None:
    times = paced(step(0.2), step(0.2), step(700.0)).times
    assert (sum(times.counts), times.counts[-1]) == (3, 1)
    assert times.sum == pytest.approx(700.4)
