"""A person's word, typed: a verdict, or conditions that are waived."""

from __future__ import annotations

from gonogo.contract.wire import short_id
from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane


def test_conditions_are_waived_by_name(plane: Plane, gonogo: Gonogo) -> None:
    gate = [
        {"id": name, "metric": "dt_step_s", "aggregate": "median", "over_ranks": "max",
         "pass_below": 0.15, "severity": "conditional"}
        for name in ("pace", "gait")
    ]  # fmt: skip
    experiment = plane.submit(set={"phases.sanity.gate": gate, "phases.sanity.steps": 20})
    worker = plane.worker()
    worker.run_through(plane.next_order(worker))
    plane.wait(lambda: plane.experiment(experiment)["conditions"], "the conditions")
    said = []
    for name in ("pace", "gait"):
        named = ("--condition", f"sanity:{name}", "--reason", "known")
        said.append(gonogo("override", experiment, "CONDITIONAL_GO", *named).out)
    rows = plane.get(f"/experiments/{experiment}/decisions")["items"]
    waivers = [row["conditions"] for row in rows if row["kind"] == "condition"]
    assert [[row["id"] for row in waived] for waived in waivers] == [
        ["sanity:pace"],
        ["sanity:gait"],
    ]
    assert all(short_id(row["id"]) in "".join(said) for row in rows if row["kind"] == "condition")
    assert {row["state"] for row in plane.experiment(experiment)["conditions"]} == {"waived"}
    shown = gonogo("show", experiment).out
    assert "  local admin: known\n  waived       sanity:pace\n" in shown
    assert "  local admin: known\n  waived       sanity:gait\n" in shown
    assert shown.count("  waived ") == 2
    (one,) = (row["id"] for row in rows if row["conditions"] == waivers[0])
    assert "sanity:pace" in gonogo("decisions", one).out
    report = plane.call("GET", f"/experiments/{experiment}/report").text
    assert "known (waived: `sanity:pace`)" in report
