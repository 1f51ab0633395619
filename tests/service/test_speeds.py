"""Is the best speed of the same work known to its next run?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from gonogo.contract.facts import Facts
from gonogo.contract.order import Order
from service.db.schema import RunRow
from service.experiments.speeds import load_best_step_s, note_speed
from tests.service.conftest import Plane

HEALTHY = json.loads(
    (Path(__file__).parents[1] / "data" / "decisions" / "healthy.json").read_text()
)["facts"]


def facts_of(step_s: float | None, *, steps: int = 30, ranks: int = 2, **changes: Any) -> Facts:
    pace = {**HEALTHY["pace"]["0"], "median_step_s": step_s, "steps": steps}
    return Facts.model_validate(
        {**HEALTHY, "pace": {str(rank): pace for rank in range(ranks)}, **changes}
    )


class Speeds:
    """The speeds that one control plane knows."""

    def __init__(self, plane: Plane, plan: str = "m7c-125m") -> None:
        self.plane = plane
        worker = plane.worker(devices=("cuda:0", "cuda:1", "cpu:0"))
        plane.submit(plan)
        self.order: Order = plane.next_order(worker)

    def note(self, *facts: Facts) -> None:
        def write(session: Session) -> None:
            for each in facts:
                note_speed(session, session.get_one(RunRow, self.order.run), each)

        self.plane.context.store.write(write)

    def best(self, **changes: Any) -> float | None:
        order = self.order.model_copy(update=changes)
        return self.plane.context.store.read(lambda session: load_best_step_s(session, order))


def test_the_fastest_is_kept_and_told_in_the_next_order(plane: Plane) -> None:
    speeds = Speeds(plane)
    assert speeds.order.best_step_s is None
    speeds.note(facts_of(0.9), facts_of(0.5), facts_of(0.7))
    assert speeds.best() == 0.5
    again = plane.next_order(plane.worker(devices=("cuda:0", "cuda:1")))
    assert again.run == speeds.order.run
    assert again.best_step_s == 0.5


@pytest.mark.parametrize(
    "changes",
    [
        {"profile": "a100-pcie-gen3"},
        {"env": {"NSA_X": "1"}},
        {"train": {}},
        {"command": ["python", "train.py"]},
        {"nodes": 2},
    ],
)
def test_other_work_has_a_speed_of_its_own(plane: Plane, changes: dict[str, Any]) -> None:
    speeds = Speeds(plane)
    speeds.note(facts_of(0.5))
    assert speeds.best(**changes) is None


def found(detector: str, severity: str) -> dict[str, Any]:
    return {"findings": [{"detector": detector, "severity": severity, "source": "default"}]}


def test_a_finding_of_something_else_hides_no_speed(plane: Plane) -> None:
    speeds = Speeds(plane)
    speeds.note(facts_of(0.5, **found("hygiene", "warn")))
    assert speeds.best() == 0.5
    speeds.note(facts_of(0.2, **found("implausible_speed", "warn")))
    speeds.note(facts_of(0.2, **found("stall", "halt")))
    assert speeds.best() == 0.5


@pytest.mark.parametrize(
    "facts",
    [
        facts_of(None),
        facts_of(0.0),
        facts_of(0.5, steps=19),
        facts_of(0.5, ranks=1),
        facts_of(0.5, doubts=[{"kind": "two_writers"}]),
        facts_of(0.5, outcome={"code": "stalled", "actor": "watchdog", "class": "policy"}),
        facts_of(0.5, outcome=None),
    ],
)
def test_a_run_that_is_not_whole_says_nothing_of_speed(plane: Plane, facts: Facts) -> None:
    speeds = Speeds(plane)
    speeds.note(facts)
    assert speeds.best() is None
