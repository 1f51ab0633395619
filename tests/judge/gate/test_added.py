"""What the judge adds to a gate: what other runs say, and notes that change no verdict."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.decision import CriterionResult, Decision
from gonogo.contract.facts import Confirmation, FailedBefore, FindingFacts, History, Remedy
from gonogo.contract.finding import Severity
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import OutcomeCode
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.gate.added import (
    BEYOND_PEAK,
    MADE_UP,
    added_criteria,
    can_be_met,
    own_criterion,
    with_history,
)
from gonogo.judge.gate.conditions import (
    conditions_of,
    experiment_verdict,
    missed,
    open_for,
    settle,
)
from gonogo.judge.gate.evaluate import evaluate_gate
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import judge
from gonogo.ledger.seal import Place, append, judged
from tests.data.make_runs import STEPS, order_of
from tests.judge.runs import facts_of, record_of

NO_FLASH = {"env": {"NSA_SDPA_NO_FLASH": "1"}, "train": {}}
FLASH_ONLY = {"env": {"NSA_SDPA_FLASH_ONLY": "1"}, "train": {}}


def confirmations(*rows: tuple[str, dict[str, Any] | None], step: int | None = 7) -> History:
    """A failure at a step, and what its reruns came to."""
    told = [("NO_GO", None), *rows]
    found = [
        Confirmation.model_validate(
            {"run": f"run_{n}", "verdict": verdict, "variant": variant, "code": "completed"}
            | {"step": step}
        )
        for n, (verdict, variant) in enumerate(told)
    ]
    return History(confirmations=found)


def added(history: History | None, reason: RunReason = RunReason.FIRST) -> list[CriterionResult]:
    facts = facts_of(record_of()).model_copy(update={"history": history})
    rules = build_rules(order_of()).model_copy(update={"reason": reason})
    return list(added_criteria(facts, rules))


@pytest.mark.parametrize(
    ("rows", "outcome", "can", "evidence"),
    [
        ([("GO", None)], "fail", True, "not reproduced: failed in 1 of 2 unchanged runs"),
        ([("NO_GO", None)], "inconclusive", False, "failed in 2 of 2 unchanged runs"),
        ([("INCONCLUSIVE", None)], "inconclusive", False, "failed in 1 of 2 unchanged runs"),
        (
            [("NO_GO", None), ("NO_GO", NO_FLASH), ("GO", FLASH_ONLY)],
            "fail",
            False,
            "failed in 2 of 2 unchanged runs; passed 0 of 1 with NSA_SDPA_NO_FLASH=1;"
            " passed 1 of 1 with NSA_SDPA_FLASH_ONLY=1",
        ),
    ],
)
def test_confirmations_are_one_condition_with_its_counts(
    rows: list[tuple[str, dict[str, Any] | None]], outcome: str, can: bool, evidence: str
) -> None:
    (found,) = added(confirmations(*rows))
    assert (found.id, found.severity, found.outcome) == ("reproduced", "conditional", outcome)
    assert (found.evidence, can_be_met(found)) == (evidence, can)


def test_what_other_runs_failed_and_a_remedy_are_conditions() -> None:
    remedy = Remedy(diagnosis="fp16_overflow", patch={"train": {"dtype": "bf16"}})
    rows = [
        FailedBefore(run="run_1", code=OutcomeCode.PREEMPTED, criteria=["spikes", "memory"]),
        FailedBefore(run="run_2", code=OutcomeCode.HALTED, criteria=["spikes"]),
    ]
    found = added(History(remedy=remedy, failed_before=rows))
    assert [(row.id, row.severity, row.outcome) for row in found] == [
        ("remedied", "conditional", "fail"),
        ("failed_before", "conditional", "fail"),
    ]
    assert found[0].observed == remedy.patch
    assert "(run_1 (preempted): spikes, memory; run_2 (halted): spikes)" in found[1].evidence
    assert added(History()) == added(None) == []


@pytest.mark.parametrize(
    ("reason", "name"), [(RunReason.CONFIRM, "reproduced"), (RunReason.REMEDY, "remedied")]
)
def test_a_rerun_that_is_judged_by_itself_is_no_plain_go(reason: RunReason, name: str) -> None:
    (found,) = added(None, reason)
    assert (found.id, found.outcome, can_be_met(found)) == (name, "fail", False)
    rules = build_rules(order_of()).model_copy(update={"reason": reason})
    assert judge(facts_of(record_of()), rules).verdict == "CONDITIONAL_GO"


def test_facts_hold_what_is_known_of_other_runs_and_no_defaults() -> None:
    facts = with_history(facts_of(record_of()), History(restart_storm=True))
    assert facts.document()["history"] == {"restart_storm": True}
    assert "history" not in with_history(facts_of(record_of()), None).document()


# ---- a failure that did not come again ----------------------------------------------------------


def unreproduced(*rows: tuple[str, dict[str, Any] | None], step: int | None = 7) -> Decision:
    """The decision about a run that passed after a failure."""
    rules = build_rules(order_of())
    facts = with_history(facts_of(record_of()), confirmations(*rows, step=step))
    place = Place(id="dec_1", experiment="exp_1", phase="smoke", run="run_1", at="-")
    decision = append(judged(judge(facts, rules), rules, facts), place, None).decision
    assert decision.verdict == "CONDITIONAL_GO"
    return decision


@pytest.mark.parametrize(("step", "asked"), [(7, 8.0), (None, 1.0)])
def test_a_failure_that_did_not_come_again_asks_for_a_run_that_goes_further(
    step: int | None, asked: float
) -> None:
    (row,) = conditions_of([unreproduced(("GO", None), step=step)])
    assert (row.condition.evidence_from, row.condition.due) == ("extended", "production")
    assert row.criterion is not None
    assert (row.criterion.metric, row.criterion.pass_above) == ("steps_completed", asked)
    assert own_criterion("remedied", {}) is None


@pytest.mark.parametrize(("step", "met"), [(7, True), (STEPS, False)])
def test_it_is_met_by_a_completed_run_that_did(step: int, met: bool) -> None:
    decision = unreproduced(("GO", None), step=step)
    rows = conditions_of([decision])
    waiting = open_for(rows, "extended")
    order = order_of(phase="extended")
    rules = build_rules(order, waiting)
    facts = build_facts(record_of(order), rules)
    found = settle(waiting, facts, rules, decision.verdict)
    assert [condition.state for condition, _ in found] == (["met"] if met else [])
    assert settle(waiting, facts, rules, None) == []
    after = [condition for condition, _ in found] or [row.condition for row in rows]
    total = experiment_verdict({"smoke": decision.verdict}, after)
    assert total == ("GO" if met else "CONDITIONAL_GO")
    (late,) = missed(rows, "production")
    assert experiment_verdict({"smoke": decision.verdict}, [late]) == "CONDITIONAL_GO"


def test_a_failure_that_only_a_variant_avoids_is_a_person_s() -> None:
    (row,) = conditions_of([unreproduced(("NO_GO", None), ("GO", NO_FLASH))])
    assert (row.condition.evidence_from, row.condition.due, row.criterion) == (None, None, None)


# ---- notes --------------------------------------------------------------------------------------


def noted(*findings: FindingFacts, **order: Any) -> list[CriterionResult]:
    """The notes on a healthy run; its verdict is GO whatever they say."""
    facts = facts_of(record_of()).model_copy(update={"findings": list(findings)})
    rules = build_rules(order_of().model_copy(update={"allow_faults": False, **order}))
    assert judge(facts, rules).verdict == "GO"
    found = [row for row in evaluate_gate(facts, rules) if row.id in (MADE_UP, BEYOND_PEAK)]
    assert {(row.severity, row.outcome) for row in found} <= {("advisory", "inconclusive")}
    return found


@pytest.mark.parametrize(
    ("fault", "text"), [(None, "the order allows faults"), ("hang:step=3", "fault hang:step=3 was")]
)
def test_what_an_order_allows_to_be_made_up_is_noted(fault: str | None, text: str) -> None:
    (note,) = noted(allow_faults=True, fault=fault)
    assert (note.id, note.observed) == (MADE_UP, fault)
    assert text in str(note.evidence)
    assert noted() == []


def warned(value: float, threshold: float, detector: str = "implausible_speed") -> FindingFacts:
    return FindingFacts(detector=detector, severity=Severity.WARN, value=value, threshold=threshold)


def test_the_highest_speed_beyond_the_peak_is_noted() -> None:
    (note,) = noted(warned(200.0, 80.0), warned(1000.0, 80.0), warned(0.1, 0.5))
    assert (note.id, note.observed, note.threshold) == (BEYOND_PEAK, 1000.0, 80.0)
    assert noted(warned(900.0, 900.0), warned(2.0, 1.0, detector="straggler")) == []
