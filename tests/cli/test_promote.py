"""An approval, typed: of what was seen, and not of the phase after it."""

from __future__ import annotations

import pytest

from gonogo.cli import experiments
from gonogo.cli.client import Client
from gonogo.planning.source import bundled_plan
from tests.cli.conftest import Gonogo
from tests.data.make_runs import WHOLE_GATE
from tests.service.conftest import Plane


def test_who_approves_at_once_with_another_approves_no_phase_after_it(
    plane: Plane, gonogo: Gonogo, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = bundled_plan("demo")
    rows = [
        {**row, "steps": 20, "gate": WHOLE_GATE, "approve": "always"} for row in demo["phases"][:3]
    ]
    experiment = plane.submit({**demo, "phases": rows})
    worker = plane.worker()
    worker.run_through(plane.next_order(worker))
    plane.wait_state(experiment, "awaiting_decision")
    etag_of = experiments._etag

    def etag_before_another(client: Client, named: str) -> str:
        etag = etag_of(client, named)
        assert plane.call("POST", f"/experiments/{named}/promote", json={}).status_code == 202
        worker.run_through(plane.next_order(worker))
        plane.wait_state(named, "awaiting_decision")
        return etag

    with monkeypatch.context() as patch:
        patch.setattr(experiments, "_etag", etag_before_another)
        said = gonogo("promote", experiment, "--reason", "seen")
    assert said.code != 0
    assert "has changed since" in said.err
    view = plane.experiment(experiment)
    assert view["waiting_for"].endswith(f"{rows[2]['name']} waits for an approval")
    assert gonogo("promote", experiment, "--reason", "seen").code == 0
    assert plane.next_order(worker).phase == rows[2]["name"]
    assert "was asked before" in gonogo("promote", experiment).out
