"""Does an experiment go from its submission through every phase to its verdict?"""

from __future__ import annotations

from tests.service.conftest import Plane


def test_healthy_runs_of_every_phase_end_in_go(plane: Plane) -> None:
    experiment = plane.submit()
    worker = plane.worker()
    for phase in ("sanity", "synthetic", "smoke", "extended", "production"):
        order = plane.next_order(worker)
        assert order.phase == phase
        worker.run_through(order)
    view = plane.wait_state(experiment, "finished", "awaiting_decision")
    decisions = plane.get(f"/experiments/{experiment}/decisions")["items"]
    bad = [(d["phase"], c) for d in decisions for c in d["criteria"] if c["outcome"] != "pass"]
    assert view["verdict"] == "GO", bad
    assert view["state"] == "finished"
    assert [phase["state"] for phase in view["phases"]] == ["passed"] * 5
    assert [decision["seq"] for decision in decisions] == [1, 2, 3, 4, 5]
