"""How long leaving may take."""

from __future__ import annotations

import json

import pytest

from gonogo.supervise.watcher.pace import LAST_STEPS, UNKNOWN_CHECKPOINT_S, UNKNOWN_STEP_S, Pace


def line(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def step(seconds: object) -> bytes:
    return line(msg="step_end", dt_step_s=seconds)


def test_run_that_has_not_stepped_gets_time_to_start_up() -> None:
    assert Pace().leaving_s() >= 2 * UNKNOWN_STEP_S + UNKNOWN_CHECKPOINT_S


def test_longest_of_the_last_steps_and_a_checkpoint_count() -> None:
    pace = Pace()
    pace.observe([step(50.0), *[step(1.0)] * (LAST_STEPS - 1)])
    assert pace.leaving_s() >= 2 * 50.0
    pace.observe([step(2.0), line(msg="checkpoint", dt=4.0), line(msg="checkpoint", dt=3.0)])
    assert pace.leaving_s() == pytest.approx(2 * 2.0 + 2 * 4.0)


@pytest.mark.parametrize(
    "raw",
    [b"", b'{"msg":"step_end"', step("NaN"), step(None), step(True), step(-1.0), step(1e12)],
)
def test_line_without_a_usable_number_changes_nothing(raw: bytes) -> None:
    pace = Pace()
    pace.observe([raw])
    assert pace.leaving_s() == Pace().leaving_s()
    assert sum(pace.times.counts) == 0


def test_every_step_is_counted_in_the_histogram() -> None:
    pace = Pace()
    pace.observe([step(0.2), step(0.2), step(700.0)])
    assert sum(pace.times.counts) == 3
    assert pace.times.counts[-1] == 1
    assert pace.times.sum == pytest.approx(700.4)
