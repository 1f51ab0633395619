"""Experiments of up to three phases, played at random: what a run had failed is never plain GO.

`decide` and `judge` are the real ones, what runs measured is made up. What a run had failed is
known here from how it was made up, and asked of nobody. GO is right where it was met by evidence of
that very criterion, or where a failure did not come again (`reproduced`, docs/how-to/continue.md).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from gonogo.contract.criterion import Criterion
from gonogo.contract.decision import ConditionState, Verdict
from gonogo.contract.facts import Facts, FindingFacts, Measure, MeasureRow, OutcomeFacts
from gonogo.contract.finding import Severity
from gonogo.contract.order import OpenCondition, Order, Rules, RunReason
from gonogo.contract.outcome import TAKEN_OVER, Actor, Detector, OutcomeCode
from gonogo.contract.plan import Plan
from gonogo.judge.follow_up.decide import Action, ActionKind, Attempt, build_attempt, decide
from gonogo.judge.gate.added_criteria import with_history
from gonogo.judge.gate.conditions import conditions_of, experiment_verdict, open_for
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import judge, settle
from tests.data.make_runs import order_of
from tests.judge.follow_up.test_decide import NO_FLASH, VARIANTS, plan_with
from tests.judge.runs import facts_of, record_of, with_gate

PHASES = ("smoke", "extended", "production")
STEPS = {f"phases__{name}__steps": 1000 for name in PHASES}
PLANS = {
    "plain": plan_with(**STEPS),
    "confirming": plan_with(
        confirm={"on": ["stall", "non_finite", "divergence"], "variants": VARIANTS[:1]}, **STEPS
    ),
    "answering": plan_with(remedies={"slow_loader": NO_FLASH}, max_remedies=1, **STEPS),
}
ANSWERS = (RunReason.CONFIRM, RunReason.REMEDY)
PASSING = (Verdict.GO, Verdict.CONDITIONAL_GO)
VALUES = {
    "pass": MeasureRow(samples=10, owed=10, value=5.0),
    "grey": MeasureRow(samples=10, owed=10, value=15.0),
    "fail": MeasureRow(samples=10, owed=10, value=30.0),
    "so far": MeasureRow(samples=6, owed=10, value=5.0),
    "failed by then": MeasureRow(samples=6, owed=10, value=30.0),
    "grey by then": MeasureRow(samples=6, owed=10, value=15.0),
    "unseen": MeasureRow(samples=0, owed=10),
}
OPEN = ("grey", "fail", "failed by then", "grey by then")
SHOWN = {
    Detector.STALL: OutcomeCode.STALLED,
    Detector.NON_FINITE: OutcomeCode.NON_FINITE,
    Detector.DIVERGENCE: OutcomeCode.DIVERGED,
}


@cache
def healthy(phase: str) -> tuple[Order, Facts]:
    record = record_of(with_gate(order_of(phase=phase)))
    assert record.order is not None
    return record.order, facts_of(record)


@dataclass
class Run:
    phase: str
    attempt: Attempt
    facts: Facts
    rules: Rules
    failed: set[str]


@dataclass
class World:
    plan: Plan
    rng: random.Random
    phases: tuple[str, ...]
    gates: dict[str, list[Criterion]]
    runs: list[Run] = field(default_factory=list)
    decisions: list[Any] = field(default_factory=list)
    about: dict[str, Run] = field(default_factory=dict)
    verdicts: dict[str, Verdict | None] = field(default_factory=dict)

    def conditions(self) -> list[OpenCondition]:
        return conditions_of(self.decisions)

    def of(self, phase: str) -> list[Run]:
        return [row for row in self.runs if row.phase == phase]

    def run(self, phase: str, reason: RunReason, change: Any) -> Run:
        """Make up how a run ends, and what it had measured by then: later ones are well."""
        well = self.rng.random() > 0.7 ** len(self.runs)
        order, facts = healthy(phase)
        detector = None
        ends = ("completed", "completed", "completed", "accident", "taken", "halt")
        how = "completed" if well else self.rng.choice(ends)
        code = OutcomeCode.COMPLETED
        if how == "accident":
            code = self.rng.choice((OutcomeCode.PREEMPTED, OutcomeCode.HALTED))
        elif how == "taken":
            code = self.rng.choice(sorted(TAKEN_OVER))
        elif how == "halt":
            detector = self.rng.choice(tuple(SHOWN))
            code = SHOWN[detector]
        whole = code is OutcomeCode.COMPLETED
        step = 1000 if whole else self.rng.choice((100, 400, 900))
        waiting = open_for(self.conditions(), phase)
        seen = ("pass",) if well else ("pass", "pass", "grey", "fail", "unseen")
        kinds = seen if whole else ("so far", "so far", "failed by then", "grey by then")
        said = {name: self.rng.choice(kinds) for name in ("pace", "fetch")}
        asked = {row.id: row for row in self.gates[phase]}
        asked |= {row.condition.id: row.criterion for row in waiting if row.criterion is not None}
        measures, failed = {}, set()
        for name, row in asked.items():
            found = VALUES[said[row.id]] if row.id in said else _reached(step)
            measures[name] = Measure(window="1..9", ranks={"0": found, "1": found})
            if row.severity != "advisory" and said.get(row.id) in OPEN:
                failed.add(name if ":" in name else f"{phase}:{name}")
        made: dict[str, Any] = {"measures": measures}
        made["outcome"] = OutcomeFacts(code=code, actor=Actor.TRAINER)
        if detector is not None:
            halt = FindingFacts(detector=detector, severity=Severity.HALT, step=step)
            made["findings"] = [halt]
            failed.add(f"{phase}:{detector}")
        facts = facts.model_copy(update=made)
        later = self.phases[self.phases.index(phase) + 1 :]
        ahead = [row for row in order.phases_after if row.name in later]
        order = order.model_copy(update={"gate": self.gates[phase], "phases_after": ahead})
        rules = build_rules(order, waiting)
        judgement = judge(facts, rules)
        name = f"run_{len(self.runs)}"
        attempt = build_attempt(name, reason, facts, judgement, durable_step=step, change=change)
        if "fail" in said.values():
            attempt = replace(attempt, diagnosis="slow_loader")
        self.runs.append(Run(phase, replace(attempt, step=step), facts, rules, failed))
        return self.runs[-1]

    def play(self) -> Verdict | None:
        """Do what `decide` and a person say, to the end; None: the person lets it be."""
        phase, ordered = self.phases[0], (RunReason.FIRST, None)
        while len(self.runs) < 20:
            run = self.run(phase, *ordered)
            last = run.attempt
            answers = last.reason in ANSWERS
            if last.outcome.code in TAKEN_OVER:
                reason = last.reason if answers else RunReason.TAKEOVER
                ordered = (reason, last.change)
                continue
            action = self.concluded(run)
            if action.kind is ActionKind.FINISH:
                return experiment_verdict(
                    self.verdicts, (row.condition for row in self.conditions())
                )
            if action.kind in (ActionKind.START_PHASE, ActionKind.AWAIT_APPROVAL):
                assert action.phase is not None
                phase, ordered = action.phase, (RunReason.FIRST, None)
            elif action.kind is ActionKind.START_RUN and self.rng.random() < 0.8:
                ordered = (action.reason or RunReason.RERUN, action.change)
            elif action.verdict in PASSING:
                return None
            elif answers and last.outcome.code is OutcomeCode.HALTED and self.rng.random() < 0.5:
                ordered = (last.reason, last.change)
            else:
                ordered = (RunReason.RERUN, None)
        return None

    def concluded(self, run: Run) -> Action:
        """Record what the end of a run decides, as the control plane does."""
        attempts = [row.attempt for row in self.of(run.phase)]
        action = decide(self.plan, run.phase, attempts, now=1e6 * len(self.runs))
        if not action.record:
            return action
        about = next(row for row in self.runs if row.attempt.run == action.about)
        facts = with_history(about.facts, action.history)
        judgement = judge(facts, about.rules)
        self.about[run.phase], self.verdicts[run.phase] = about, judgement.verdict
        self.note("auto", run.phase, judgement.conditions, about.rules, facts)
        waiting = open_for(self.conditions(), run.phase)
        met = settle(waiting, run.facts, run.rules, judgement.verdict)
        self.note("condition", run.phase, [row for row, _ in met], about.rules, facts)
        action = decide(
            self.plan, run.phase, attempts, now=1e6 * len(self.runs), conditions=self.conditions()
        )
        self.note("condition", run.phase, action.missed, about.rules, facts)
        return action

    def note(self, kind: str, phase: str, conditions: Any, rules: Rules, facts: Facts) -> None:
        told = facts.wire() if kind == "auto" else {}
        self.decisions.append(
            SimpleNamespace(
                kind=kind, phase=phase, conditions=conditions, rules=rules.wire(), facts=told
            )
        )

    def forgotten(self) -> list[str]:
        """What was failed, and neither met nor of a run that was made otherwise."""
        states = {row.condition.id: row.condition.state for row in self.conditions()}
        found = []
        for phase in self.phases:
            for run in self.of(phase):
                if run.attempt.change != self.about[phase].attempt.change:
                    continue
                for name in sorted(run.failed):
                    halted = name.partition(":")[2] in tuple(SHOWN)
                    by = f"{phase}:reproduced" if halted else name
                    if states.get(by) is not ConditionState.MET:
                        found.append(f"{run.attempt.run} ({run.attempt.outcome.code}): {name}")
        return found


def _reached(step: int) -> MeasureRow:
    return MeasureRow(samples=1, owed=1, value=float(step))


def world(plan: Plan, seed: int) -> World:
    rng = random.Random(seed)
    phases = PHASES[: rng.randint(1, len(PHASES))]
    gates = {}
    for phase in phases:
        rows = []
        for name, metric in (("pace", "dt_step_s"), ("fetch", "fetch_share")):
            severity = rng.choice(("required", "required", "conditional", "advisory"))
            asked = {"id": name, "metric": metric, "aggregate": "max", "over_ranks": "max"}
            weight = {"severity": severity, "grey": rng.choice(("conditional", "inconclusive"))}
            bounds = {"pass_below": 10.0, "fail_above": 20.0, "on_miss": "conditional_go"}
            rows.append(Criterion.model_validate({**asked, **weight, **bounds}))
        gates[phase] = rows
    kept = [
        row.model_copy(update={"gate": gates[row.name]})
        for row in plan.phases
        if row.name in phases
    ]
    return World(plan.model_copy(update={"phases": kept}), rng, phases, gates)


@pytest.mark.parametrize("name", PLANS)
def test_what_a_run_had_failed_never_ends_as_plain_go(name: str) -> None:
    ends: list[Verdict | None] = []
    for seed in range(40):
        played = world(PLANS[name], seed)
        ends.append(played.play())
        if ends[-1] is Verdict.GO:
            assert played.forgotten() == [], seed
    assert {Verdict.GO, Verdict.CONDITIONAL_GO, Verdict.NO_GO} <= set(ends)
