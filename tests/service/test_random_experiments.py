"""Experiments through the real service, played at random: what comes out clean had nothing to hide.

Plans have three phases with a gate on the gradient norm. Runs exceed it, come to NaN, are halted,
cancelled or lost. There are reruns, variants, approvals, conditions due later, weights of the phase
before, and chains of `--from` with plans that were changed. What a run did is known here from how
it was made up.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.order import Order
from gonogo.planning.source import bundled_plan
from service.db.schema import RunRow
from tests.data.make_runs import WHOLE_GATE
from tests.service.conftest import Plane
from tests.service.fake_run import save_checkpoint
from tests.service.fake_worker import beats

STEPS = 100
MOST_TURNS = 34
MOST_EXPERIMENTS = 5
BOUND, FAILS = 10.0, 20.0
VARIANT = {"env": {"NSA_SDPA_NO_FLASH": "1"}}
ENDS = {
    "completed": ("completed", "trainer", 0),
    "preempted": ("preempted", "infra", 1),
    "keeper_lost": ("keeper_lost", "infra", 1),
    "halted": ("halted", "operator", 3),
    "cancelled": ("cancelled", "operator", 3),
    "nan": ("non_finite", "watchdog", 1),
}
"""How a run ends → what its exit record says: reason, by whom, exit code."""


@dataclass(kw_only=True)
class Made:
    """What a run did."""

    order: Order
    experiment: str
    change: Any
    """The patch of a variant, where it is one's."""
    whole: bool
    """Whether it was ordered to the phase's last step."""
    began: str | None
    """The run whose checkpoint it resumed from."""
    ended: str = ""
    norms: dict[int, float] = field(default_factory=dict)
    """Step → gradient norm beyond the gate's bound."""


@dataclass
class Walk:
    """One experiment, and those that continue from it."""

    plane: Plane
    home: Path
    seed: int

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.worker = self.plane.worker(name="w1", home=self.home)
        self.runs: dict[str, Made] = {}
        self.trail: list[str] = []
        self.plan = self._made_up_plan()
        self.names = [row["name"] for row in self.plan["phases"]]

    def _made_up_plan(self) -> dict[str, Any]:
        chance, demo = self.chance, bundled_plan("demo")
        rows = [{**row, "steps": STEPS, "gate": [self._gate()]} for row in demo["phases"][1:4]]
        for number, row in enumerate(rows):
            row |= {
                "checkpoint": {"every_steps": 20},
                "approve": chance.choice(("never", "never", "on_conditional")),
            }
            row.pop("init_from", None)
            if number and chance.random() < 0.3:
                row["init_from"] = rows[number - 1]["name"]
            if number < 2 and chance.random() < 0.2:
                row["gate"][0]["due"] = "end"
        if chance.random() < 0.4:
            rows[0]["gate"][0]["evidence_from"] = rows[2]["name"]
        workload = {**demo.get("workload", {}), "world_size": 1}
        confirm = {"on": ["non_finite"], "variants": chance.choice(([], [VARIANT]))}
        said = {"confirm": confirm} if chance.random() < 0.8 else {}
        return {**demo, "phases": rows, "workload": workload, **said}

    def _gate(self) -> dict[str, Any]:
        return {
            "id": "norm", "metric": "grad_norm", "aggregate": "max", "over_ranks": "max",
            "pass_below": BOUND, "fail_above": FAILS, "on_miss": "conditional_go",
            "severity": self.chance.choice(("required", "required", "conditional")),
            "grey": self.chance.choice(("conditional", "inconclusive")),
        }  # fmt: skip

    def play(self) -> list[str]:
        """Play to an end, and return what was forgotten."""
        chain = [self.plane.submit(self.plan)]
        faults = self.chance.randint(2, 7)
        for _ in range(MOST_TURNS):
            view = self.plane.wait(lambda: self._at(chain[-1]), "something to do")
            if isinstance(view, Order):
                faults -= self._work(chain[-1], view, faulty=faults > 0)
            elif view["state"] == "awaiting_decision":
                self._decide(chain[-1])
            else:
                more = self._go_on(view) if len(chain) < MOST_EXPERIMENTS else None
                if more is None:
                    break
                chain.append(more)
        return list(self._forgotten(self.plane.experiment(chain[-1]), chain))

    def _at(self, experiment: str) -> Order | dict[str, Any] | None:
        """Return the next order, or the experiment where a person is asked or it is over."""
        view = self.plane.experiment(experiment)
        if view["state"] in ("finished", "awaiting_decision"):
            return view
        return self.worker.claim()

    def _decide(self, experiment: str) -> None:
        verbs = ["resume", "rerun", "promote", "cancel", "resume", "rerun"]
        self.chance.shuffle(verbs)
        for verb in verbs:
            path = f"/experiments/{experiment}/{verb}"
            answer = self.plane.call("POST", path, json={"reason": "so"})
            if answer.status_code < 300:
                self.trail.append(verb)
                return

    def _go_on(self, view: dict[str, Any]) -> str | None:
        """Submit a continuation of an experiment that is not GO; None if there is none."""
        if view["verdict"] in ("GO", "CONDITIONAL_GO"):
            return None
        for _ in range(4):
            phase = self.chance.choice(self.names)
            origin = f"{view['id']}:{phase}{self.chance.choice(('', '', '@20', '@40', '@0'))}"
            plan = self._changed(phase) if self.chance.random() < 0.35 else self.plan
            body = {"plan": plan, "origin": origin}
            answer = self.plane.call("POST", "/experiments", json=body)
            if answer.status_code == 201:
                self.trail.append(f"from {origin}{'' if plan is self.plan else ', changed'}")
                self.plan = plan
                return str(answer.json()["id"])
        return None

    def _changed(self, phase: str) -> dict[str, Any]:
        rows, at = [dict(row) for row in self.plan["phases"]], self.names.index(phase)
        what = self.chance.choice(("longer", "approve", "later"))
        if what == "longer":
            rows[at]["steps"] += 20
        elif what == "approve":
            rows[at]["approve"] = self.chance.choice(("never", "on_conditional"))
        elif at + 1 < len(rows):
            rows[at + 1]["gate"] = WHOLE_GATE
        return {**self.plan, "phases": rows}

    def _work(self, experiment: str, order: Order, *, faulty: bool) -> int:
        """Run an order, and return 1 where it went wrong."""
        chance, point = self.chance, order.resume_from
        steps = next(row["steps"] for row in self.plan["phases"] if row["name"] == order.phase)
        goes_on = point is not None and point.step > 0
        first = point.step + 1 if point is not None and goes_on else 1
        made = self.runs[order.run] = Made(
            order=order,
            experiment=experiment,
            change=self._row(order).change,
            whole=order.steps == steps,
            began=self._writer(order) if goes_on else None,
        )
        if made.began is not None:
            carried = {row.run for row in self.runs[made.began].order.taints}
            assert carried <= {row.run for row in order.taints}, "a taint was dropped"
        made.ended = chance.choice(("completed", *ENDS, "nan")) if faulty else "completed"
        last = order.steps or steps
        if made.ended != "completed":
            most = max(first, last - 1)
            soon = made.ended == "nan" and first < 45 and chance.random() < 0.8
            last = chance.randint(first, min(45, most) if soon else most)
        if faulty and chance.random() < 0.6:
            places = [chance.randint(first, last) for _ in range(chance.randint(1, 2))]
            made.norms = {step: chance.choice((15.0, 15.0, 30.0)) for step in places}
        self._play_run(made, first, last)
        self.trail.append(
            f"{experiment[-4:]} {order.run[-4:]} {order.phase} {order.reason} {first}-{last}/"
            f"{order.steps} {made.ended} {made.norms or ''} {'changed' if made.change else ''}"
        )
        self.plane.wait(lambda: self._row(order).judged, "a judgement")
        return int(bool(made.norms) or made.ended != "completed")

    def _play_run(self, made: Made, first: int, last: int) -> None:
        order, worker = made.order, self.worker
        nan = last if made.ended == "nan" else None
        done = made.ended == "completed"
        worker.start(order)
        lines = {rank: self._lines(made, rank, last, nan, done) for rank in range(order.world_size)}
        for step in range(20, last + (nan is None), 20):
            if step >= first and self.chance.random() < 0.85:
                save_checkpoint(self.home / order.run, step=step)
        worker.ship(order, lines)
        if made.ended in ("halted", "cancelled"):
            verb = "halt" if made.ended == "halted" else "cancel"
            path = f"/experiments/{made.experiment}/{verb}"
            self.plane.call("POST", path, json={"reason": "x"})
        if nan is not None:
            finding = {
                "detector": "non_finite", "severity": "halt", "at": 1.0,
                "key": f"non_finite:{last}", "text": "NaN", "step": last,
            }  # fmt: skip
            worker.report(order, finding)
        reason, by, code = ENDS[made.ended]
        worker.end(order, lines, reason, by, findings=int(nan is not None), code=code)

    def _lines(self, made: Made, rank: int, last: int, nan: int | None, done: bool) -> list[str]:
        rows = [json.loads(line) for line in beats(made.order, rank, upto=last, done=done)]
        for row in rows:
            if row["msg"] == "progress":
                row["grad_norm"] = made.norms.get(row["step"], row.get("grad_norm"))
                row["loss"] = "NaN" if row["step"] == nan else row["loss"]
        return [json.dumps(row) for row in rows]

    def _row(self, order: Order) -> RunRow:
        return self.plane.context.store.read(lambda session: session.get_one(RunRow, order.run))

    def _writer(self, order: Order) -> str:
        path = order.resume_from.path if order.resume_from is not None else ""
        return next(run for run in self.runs if f"/{run}/" in path)

    def _lineage(self, made: Made) -> Iterator[Made]:
        """Yield a run and those whose steps are in its weights."""
        while True:
            yield made
            if made.began is None:
                return
            made = self.runs[made.began]

    def _forgotten(self, view: dict[str, Any], chain: list[str]) -> Iterator[str]:
        """Yield what runs of clean phases had shown: GO, or with each own condition met."""
        states = {row["id"]: row["state"] for row in view["conditions"]}
        for row in view["phases"]:
            name = row["name"]
            own = [states[key] for key in states if key.startswith(f"{name}:")]
            met = row["verdict"] == "CONDITIONAL_GO" and own and set(own) == {"met"}
            runs = [made for made in self.runs.values() if made.order.phase == name]
            if row["state"] in ("passed", "inherited") and runs and (row["verdict"] == "GO" or met):
                yield from self._hidden(name, runs, states)

    def _hidden(self, phase: str, runs: list[Made], states: dict[str, str]) -> Iterator[str]:
        whole = [made for made in runs if made.ended == "completed" and made.whole]
        if not whole:
            yield f"{phase}: no run went to its end"
            return
        judged = whole[-1]
        line = list(self._lineage(judged))
        if judged.change is None and any(made.change for made in line):
            yield f"{phase}: resumes with a variant's weights"
        among = {made.experiment for made in line}
        for made in runs:
            inside = any(made is row for row in line)
            if not inside and not (made.whole and made.experiment in among):
                continue
            if made.ended == "nan" and states.get(f"{phase}:reproduced") != "met":
                yield f"{phase}: {made.order.run} came to NaN, and nobody has shown that to be over"
            answered = made is judged and states.get(f"{phase}:norm") == "met"
            again = made.ended == "nan" and not inside  # all of its steps were repeated
            if made.norms and not answered and not again:
                yield f"{phase}: {made.order.run} was beyond its bound: {made.norms}"


def played(plane: Plane, home: Path, seed: int) -> None:
    """Play one, and say how it went where something was forgotten."""
    walk = Walk(plane, home, seed)
    assert walk.play() == [], "\n".join(walk.trail)


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.long)])
def test_nothing_that_runs_had_failed_is_forgotten_in_what_comes_out_clean(
    plane: Plane, tmp_path: Path, seed: int
) -> None:
    played(plane, tmp_path / "runs", seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 200))
def test_nothing_is_forgotten_in_a_hundred(plane: Plane, tmp_path: Path, seed: int) -> None:
    played(plane, tmp_path / "runs", seed)
