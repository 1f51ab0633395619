"""What the phases after a run take, as its report tells it: each of them starts up, too."""

from __future__ import annotations

import pytest

from service.conductor.judge import Judging
from service.judging.ended import find_unjudged
from service.report.load import load_report_view
from tests.service.conftest import Plane
from tests.service.fake_run import BOOT_TS

STEP_S = 0.2
"""Of the runs that are made here."""
STEPS, PHASES = 160, 4
"""Of the demo, after its first phase."""


@pytest.mark.parametrize(
    ("claimed_s", "start_s"), [(30.0, 30.0 + STEP_S), (-30.0, 0.0)], ids=["seen", "clocks disagree"]
)
def test_a_phase_to_come_takes_its_start_up_too(
    still: Plane, claimed_s: float, start_s: float
) -> None:
    still.context.now = lambda: BOOT_TS - claimed_s
    experiment, worker, judging = (
        still.submit(set={"phases.0.steps": 10}),
        still.worker(),
        Judging(still.context),
    )
    order = worker.claim()
    assert order is not None
    worker.run_through(order)
    judging.settle()
    judging.close()
    assert still.context.store.read(find_unjudged) == []
    view = still.context.store.read(
        lambda session: load_report_view(session, experiment, still.context)
    )
    after = view.runs[0].forecast_after
    assert after is not None
    assert after.seconds_p50 == pytest.approx(STEPS * STEP_S + PHASES * start_s)
    assert ("to start" in after.basis) is (start_s > 0)
