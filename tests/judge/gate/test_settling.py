"""A later run can meet a drift and a failure that did not come again; the rest is a person's."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.decision import Decision
from gonogo.contract.facts import Confirmation, Facts, History
from gonogo.contract.order import Order
from gonogo.contract.outcome import Actor, Detector, OutcomeCode
from gonogo.contract.rules import Rules
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.gate.conditions import (
    conditions_of,
    experiment_verdict,
    missed,
    open_for,
    settle,
)
from gonogo.judge.gate.history import with_history
from gonogo.judge.gate.rules import OpenCondition, build_rules
from gonogo.judge.gate.settling import own_criterion
from gonogo.judge.gate.verdict import judge
from gonogo.ledger.replay import judge_again
from gonogo.ledger.seal import Place, append, judged
from tests.data.make_runs import STEPS, healthy_ranks, order_of
from tests.judge.gate.test_built_in import say
from tests.judge.runs import exit_record, finding, record_of

OLD, NEW = "a" * 40, "f" * 40


def drifting(phase: str = "smoke") -> Order:
    """An order of an experiment whose code is frozen, and may drift."""
    order = order_of(phase=phase, sets={"allow_drift": ["git_sha"]})
    return order.model_copy(
        update={"identity": order.identity.model_copy(update={"git_sha": OLD})}
    )  # fmt: skip


def ran(order: Order, sha: str | None, waiting: list[OpenCondition]) -> tuple[Rules, Facts]:
    """Rules and facts of a healthy run of this code."""
    ranks = healthy_ranks(order)
    for rank in ranks:
        say(rank.rank, "boot", git_sha=sha)(ranks)
    rules = build_rules(order, waiting)
    return rules, build_facts(record_of(order, ranks), rules)


def decided(rules: Rules, facts: Facts) -> Decision:
    place = Place(id="dec_1", experiment="exp_1", phase=rules.phase, run="run_1", at="-")
    return append(judged(judge(facts, rules), rules, facts), place, None).decision


def drifted() -> list[OpenCondition]:
    """What hangs on an experiment whose smoke ran with other code."""
    decision = decided(*ran(drifting(), NEW, []))
    assert decision.verdict == "CONDITIONAL_GO"
    return conditions_of([decision])


def test_a_drift_waits_for_the_next_phase_and_stops_nothing() -> None:
    (row,) = drifted()
    condition = row.condition
    assert (condition.evidence_from, condition.due) == ("extended", "production")
    assert condition.on_miss == "conditional_go"
    assert row.criterion is not None
    assert (row.criterion.metric, row.criterion.pass_below) == ("identity_drift", 0.0)


@pytest.mark.parametrize(
    ("sha", "met"), [(OLD, True), (NEW, False), (None, False)], ids=["back", "still", "unsaid"]
)
def test_a_drift_is_met_by_a_run_of_the_frozen_code_alone(sha: str | None, met: bool) -> None:
    waiting = open_for(drifted(), "extended")
    rules, facts = ran(drifting("extended"), sha, waiting)
    found = settle(waiting, facts, rules)
    assert [condition.state for condition, _ in found] == (["met"] if met else [])


def unreproduced(failed: int = 1, step: int | None = 7) -> Decision:
    """A halt in smoke that came again in `failed` of two unchanged runs, and not with a variant."""
    order = order_of()
    rules = build_rules(order)
    record = record_of(
        order,
        exit=exit_record(OutcomeCode.NON_FINITE, by=Actor.WATCHDOG, code=1),
        findings=[finding(Detector.NON_FINITE, step=step)],
    )
    rows: list[dict[str, Any]] = [{"run": "run_2", "verdict": "GO", "code": "completed"}]
    if failed == 2:
        variant = {"env": {"NSA_SDPA_NO_FLASH": "1"}, "train": {}}
        rows = [
            {"run": "run_2", "verdict": "NO_GO", "code": "non_finite"},
            {"run": "run_3", "verdict": "GO", "code": "completed", "variant": variant},
        ]
    history = History(confirmations=[Confirmation.model_validate(row) for row in rows])
    decision = decided(rules, with_history(build_facts(record, rules), history))
    assert decision.verdict == "CONDITIONAL_GO"
    return decision


@pytest.mark.parametrize(("step", "asked"), [(7, 8.0), (None, STEPS + 1.0)])
def test_a_failure_that_did_not_come_again_asks_for_a_run_that_goes_further(
    step: int | None, asked: float
) -> None:
    (row,) = conditions_of([unreproduced(step=step)])
    assert row.condition.evidence_from == "extended"
    assert row.criterion is not None
    assert (row.criterion.metric, row.criterion.pass_above) == ("steps_completed", asked)


def test_the_failure_is_the_one_that_ended_the_run_and_not_a_halt_that_waited() -> None:
    document = unreproduced(step=30).facts
    waits = {"detector": "memory_leak", "severity": "halt", "act": "at_checkpoint", "step": 3}
    facts = {**document, "findings": [waits, *document["findings"]]}
    criterion = own_criterion("reproduced", facts)
    assert criterion is not None
    assert criterion.pass_above == 31.0


def test_where_nobody_saw_a_step_the_first_one_is_further() -> None:
    criterion = own_criterion("reproduced", {})
    assert criterion is not None
    assert criterion.pass_above == 1.0


@pytest.mark.parametrize(("step", "met"), [(7, True), (STEPS, False)])
def test_it_is_met_by_a_completed_run_that_did(step: int, met: bool) -> None:
    rows = conditions_of([unreproduced(step=step)])
    waiting = open_for(rows, "extended")
    order = order_of(phase="extended")
    rules = build_rules(order, waiting)
    facts = build_facts(record_of(order), rules)
    found = settle(waiting, facts, rules)
    assert [condition.state for condition, _ in found] == (["met"] if met else [])
    after = [condition for condition, _ in found] or [row.condition for row in rows]
    total = experiment_verdict({"smoke": unreproduced().verdict}, after)
    assert total == ("GO" if met else "CONDITIONAL_GO")


def test_missing_it_stops_nothing_and_keeps_the_verdict_conditional() -> None:
    (late,) = missed(conditions_of([unreproduced()]), "production")
    assert experiment_verdict({"smoke": unreproduced().verdict}, [late]) == "CONDITIONAL_GO"


def test_a_failure_that_only_a_variant_avoids_is_a_person_s() -> None:
    (row,) = conditions_of([unreproduced(failed=2)])
    assert (row.condition.evidence_from, row.condition.due, row.criterion) == (None, None, None)


def test_in_the_last_phase_only_a_person_can_settle_it() -> None:
    last = drifting().model_copy(update={"phases_after": []})
    decision = decided(*ran(last, NEW, []))
    (row,) = conditions_of([decision])
    assert (row.condition.evidence_from, row.criterion) == (None, None)


def test_a_run_that_was_ordered_before_keeps_its_rules() -> None:
    rules, facts = ran(drifting(), NEW, [])
    assert "settles" in rules.document()
    before = rules.model_copy(update={"settles": []})
    assert "settles" not in before.document()
    (condition,) = judge(facts, before).conditions
    assert (condition.evidence_from, condition.due, condition.on_miss) == (None, None, "no_go")
    again = judge_again(facts.document(), before.document())
    assert again["conditions"] == [condition.wire()]
