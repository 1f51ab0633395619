"""A remedy that helped lies over the phases after it, and is answered for in each of them."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.decision import Verdict
from gonogo.contract.order import CarriedRemedy, Order, RunReason
from gonogo.contract.outcome import Actor, Detector, Outcome, OutcomeCode
from gonogo.contract.plan import Plan
from gonogo.judge.course.action import Action, Attempt
from gonogo.judge.course.carrying import left_by
from gonogo.judge.course.decide import decide
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import judge
from gonogo.planning.source import bundled_plan, parse_plan
from tests.data.make_runs import order_of
from tests.judge.runs import record_of

LESS = {"env": {"NSA_PREFILL_BATCHED": "0"}}
CHANGE = {**LESS, "diagnosis": "out_of_memory"}
CARRIED = CarriedRemedy(diagnosis="out_of_memory", patch=LESS, since="smoke")


def plan_with(**changes: Any) -> Plan:
    remedies = {"out_of_memory": LESS, "loader_stall": {"env": {"NSA_TB_DISABLE": "1"}}}
    return parse_plan({**bundled_plan("demo"), "remedies": remedies, "max_remedies": 1, **changes})


def run(verdict: str | None = "GO", code: str = "completed", **fields: Any) -> Attempt:
    told: dict[str, Any] = {"run": "run_1", "reason": RunReason.FIRST, "step": 3, **fields}
    outcome = Outcome(code=OutcomeCode(code), actor=Actor.TRAINER)
    return Attempt(outcome=outcome, verdict=None if verdict is None else Verdict(verdict), **told)


FAILED = run("NO_GO", "oom", diagnosis="out_of_memory")


def cured(verdict: str = "GO", code: str = "completed", **fields: Any) -> Attempt:
    told = {"run": "run_2", "reason": RunReason.REMEDY, "change": CHANGE, **fields}
    return run(verdict, code, **told)


def after(*runs: Attempt, phase: str = "smoke", **fields: Any) -> Action:
    plan = fields.pop("plan", None) or plan_with()
    return decide(plan, phase, runs, now=10_000.0, **fields)


def test_what_helped_is_left_to_the_phases_after_it_and_the_decision_says_so() -> None:
    assert left_by(plan_with(), "smoke", [FAILED, cured()]) == CARRIED
    assert after(FAILED, cured()).text == ("smoke passed; out_of_memory's remedy is carried on")


def test_an_approval_that_is_awaited_says_what_will_be_carried_on() -> None:
    phases = [
        {**row, "approve": "always"} if row["name"] == "smoke" else row
        for row in bundled_plan("demo")["phases"]
    ]
    action = after(FAILED, cured(), plan=plan_with(phases=phases))
    assert action.kind == "await_approval"
    assert action.text.endswith("waits for an approval; out_of_memory's remedy is carried on")


NOTHING_LEFT = {
    "no remedy": [run()],
    "one that helped nothing": [FAILED, cured("NO_GO", "oom", diagnosis="out_of_memory")],
    "one that only answered so far": [FAILED, cured(until=50)],
    "one that its host ended": [FAILED, cured("INCONCLUSIVE", "keeper_lost")],
    "one that settled no condition": [
        run("CONDITIONAL_GO", diagnosis="out_of_memory", answerable=True, unmet=("fast",)),
        cured("CONDITIONAL_GO", unmet=("fast",)),
    ],
    "other data": [
        FAILED,
        cured(change={"train": {"data": "synthetic"}, "diagnosis": "out_of_memory"}),
    ],
    "a variant": [FAILED, cured(reason=RunReason.CONFIRM, change=LESS)],
    "inherited": [],
}


@pytest.mark.parametrize("runs", NOTHING_LEFT.values(), ids=NOTHING_LEFT)
def test_nothing_else_is_left_to_them(runs: list[Attempt]) -> None:
    assert left_by(plan_with(), "smoke", runs) is None


def test_a_plan_may_want_every_phase_as_it_says() -> None:
    plan = plan_with(carry_remedies=False)
    assert left_by(plan, "smoke", [FAILED, cured()]) is None
    assert after(FAILED, cured(), plan=plan).text == "smoke passed"


def test_nothing_is_carried_on_beyond_the_last_phase() -> None:
    assert after(FAILED, cured(), phase="production").text == "every phase passed"


def test_a_failure_under_a_remedy_that_was_carried_on_is_not_answered_by_it_again() -> None:
    found = after(FAILED, phase="sanity", carried=[CARRIED])
    assert (found.kind, found.verdict) == ("finish", "NO_GO")
    assert after(FAILED, phase="sanity").reason == "remedy"


def test_another_failure_under_it_is_answered_as_ever() -> None:
    slow = run("NO_GO", "too_slow", diagnosis="loader_stall")
    found = after(slow, phase="sanity", carried=[CARRIED])
    assert (found.reason, found.text) == ("remedy", "loader_stall: remedy 1 of 1")


def test_a_failure_under_it_is_confirmed_as_ever() -> None:
    plan = plan_with(confirm={"on": ["non_finite"]})
    nan = run("NO_GO", "non_finite", detector=Detector.NON_FINITE)
    found = after(nan, phase="sanity", plan=plan, carried=[CARRIED])
    assert (found.reason, found.change) == ("confirm", None)


def judged(order: Order) -> tuple[Verdict | None, list[str]]:
    record = record_of(order)
    rules = build_rules(record.order)
    judgement = judge(build_facts(record, rules), rules)
    return judgement.verdict, [row.criterion for row in judgement.conditions]


def test_a_phase_under_a_carried_remedy_passes_conditionally_and_names_it() -> None:
    assert judged(order_of()) == ("GO", [])
    order = order_of().model_copy(update={"carried": [CARRIED]})
    assert judged(order) == ("CONDITIONAL_GO", ["remedy_carried"])
    rules = build_rules(order)
    (row,) = [
        row
        for row in judge(build_facts(record_of(order), rules), rules).criteria
        if row.id == "remedy_carried"
    ]
    assert row.evidence == f"carried on: the remedy of out_of_memory from smoke: {LESS}"


def test_orders_and_rules_without_one_say_nothing_of_it() -> None:
    order = order_of()
    for name in ("carried", "taints"):
        assert name not in order.document()
        assert name not in build_rules(order).document()
    told = order.model_copy(update={"carried": [CARRIED]})
    assert Order.model_validate(told.document()) == told
    rules = build_rules(told).document()
    assert rules["carried"] == [CARRIED.model_dump()]
