"""What a watcher reports of a run besides its decisions."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.contract.finding import Finding, Severity
from gonogo.rundir import RunDir
from gonogo.supervise.watcher.journal import Pace
from gonogo.supervise.watcher.metrics_file import SUSPECT_S, Reporter, Shipping
from gonogo.watch.fold import start
from tests.watch.streams import order_of


@pytest.mark.parametrize(
    ("severity", "shown"),
    [(Severity.SUSPECT, True), (Severity.WARN, False), (Severity.INFO, False)],
)
def test_a_suspicion_is_shown_for_a_while(tmp_path: Path, severity: Severity, shown: bool) -> None:
    shipping, state = Shipping(), start(order_of())
    reporter = Reporter(RunDir(tmp_path), shipping, Pace())
    reporter.report(0.0, 0.0, state, [])
    assert not shipping.suspect
    reporter.note(Finding(detector="stall", severity=severity, at=1.0, key="k", text="why"), 100.0)
    reporter.report(100.0 + 0.9 * SUSPECT_S, 0.0, state, [])
    assert shipping.suspect is shown
    reporter.report(100.0 + SUSPECT_S, 0.0, state, [])
    assert not shipping.suspect
