"""Conditions and approvals: met by evidence, missed when due, and waived by a person."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.criterion import ADDED_CRITERIA
from gonogo.contract.decision import Condition, ConditionState, Decision, DecisionKind, Verdict
from gonogo.contract.facts import Facts
from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.contract.order import OpenCondition, Order, Rules
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.follow_up.decide import decide, decide_expiry
from gonogo.judge.gate.added_criteria import (
    CARRIED,
    FAILED_BEFORE,
    REMEDIED,
    REPRODUCED,
    UNPASSED,
    WARNED,
    WEAKENED,
)
from gonogo.judge.gate.built_in import DRIFT
from gonogo.judge.gate.conditions import (
    approval_condition,
    conditions_of,
    experiment_verdict,
    has_expired,
    in_state,
    is_approval,
    met_beyond,
    missed,
    open_for,
)
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import judge, settle
from gonogo.ledger.recorded import RecordedDecision
from gonogo.ledger.seal import Entry, Place, append, judged
from tests.data.make_runs import order_of
from tests.judge.follow_up.test_decide import attempt, plan_with
from tests.judge.runs import record_of, with_gate

# Conditions are met by evidence, missed when due, and waived by a person.


FAST = {"id": "fast", "metric": "toks_per_s", "pass_above": 2000.0, "severity": "conditional"}


def decision_of(
    phase: str, *rows: dict[str, Any], seq: int = 1, waiting: list[OpenCondition] | None = None
) -> Decision:
    """A decision about a healthy run of `phase` with these criteria."""
    rules, facts = judged_by(phase, *rows, waiting=waiting)
    return sealed(judged(judge(facts, rules), rules, facts), phase, seq)


def sealed(entry: Entry, phase: str, seq: int) -> Decision:
    """An entry at its place in a chain."""
    place = Place(
        id=f"dec_{seq}", seq=seq, experiment="exp_1", phase=phase, run=f"run_{phase}",
        at="2026-01-01T00:00:00Z",
    )  # fmt: skip
    return append(entry, place, None).decision


def judged_by(
    phase: str, *rows: dict[str, Any], waiting: list[OpenCondition] | None = None
) -> tuple[Rules, Facts]:
    order: Order = with_gate(order_of(phase=phase), *rows)
    rules = build_rules(order, waiting or [])
    return rules, build_facts(record_of(order), rules)


PLACES = [
    ("synthetic", {}, "smoke", "extended"),
    ("smoke", {}, "extended", "production"),
    ("extended", {}, "production", "end"),
    ("production", {}, None, None),
    ("synthetic", {"evidence_from": "extended"}, "extended", "production"),
    ("synthetic", {"evidence_from": "production"}, "production", "end"),
    ("synthetic", {"due": "production"}, "smoke", "production"),
]


@pytest.mark.parametrize(("phase", "fields", "evidence_from", "due"), PLACES)
def test_where_a_condition_looks_and_what_it_guards(
    phase: str, fields: dict[str, str], evidence_from: str | None, due: str | None
) -> None:
    decision = decision_of(phase, {**FAST, **fields})
    assert decision.verdict == "CONDITIONAL_GO"
    (condition,) = decision.conditions
    assert (condition.evidence_from, condition.due) == (evidence_from, due)
    assert (condition.id, condition.state) == (f"{phase}:fast", "open")


@pytest.mark.parametrize(("asked", "met"), [(900.0, True), (2000.0, False)])
def test_a_condition_is_met_by_the_next_phase_s_run_or_stays_open(asked: float, met: bool) -> None:
    waiting = open_for(conditions_of([decision_of("smoke", FAST)]), "extended")
    easier = [
        OpenCondition(
            condition=row.condition,
            criterion=row.criterion and row.criterion.model_copy(update={"pass_above": asked}),
        )
        for row in waiting
    ]
    rules, facts = judged_by("extended", waiting=easier)
    found = settle(easier, facts, rules, Verdict.GO)
    assert [condition.state for condition, _ in found] == (["met"] if met else [])


@pytest.mark.parametrize("state", [state for state in ConditionState if state != "open"])
def test_evidence_changes_nothing_of_a_condition_that_is_no_longer_open(
    state: ConditionState,
) -> None:
    rows = passing()
    rules, facts = judged_by("extended", waiting=rows)
    assert len(settle(rows, facts, rules, Verdict.GO)) == 1
    (row,) = rows
    closed = row.model_copy(update={"condition": in_state(row.condition, ConditionState(state))})
    assert settle([closed], facts, rules, Verdict.GO) == []


@pytest.mark.parametrize("lacking", ["watch", "exit"])
def test_a_run_that_is_no_evidence_meets_nothing(lacking: str) -> None:
    rows = passing()
    rules, facts = judged_by("extended", waiting=rows)
    assert len(settle(rows, facts, rules, Verdict.GO)) == 1
    assert settle(rows, facts.model_copy(update={lacking: None}), rules, Verdict.GO) == []
    told = facts.model_copy(update={"doubts": [Doubt(kind=DoubtKind.TWO_WRITERS)]})
    assert settle(rows, told, rules, Verdict.GO) == []


def passing() -> list[OpenCondition]:
    """A condition of smoke that a healthy run of extended meets."""
    waiting = open_for(conditions_of([decision_of("smoke", FAST)]), "extended")
    return [
        row.model_copy(
            update={
                "criterion": row.criterion and row.criterion.model_copy(update={"pass_above": 1})
            }
        )
        for row in waiting
    ]


def test_the_present_state_of_conditions_is_the_fold_of_the_decisions() -> None:
    first = decision_of("smoke", FAST)
    (row,) = conditions_of([first])
    assert row.condition.state == "open"
    waived = in_state(row.condition, ConditionState.WAIVED)
    change = sealed(
        Entry(kind=DecisionKind.CONDITION, verdict=Verdict.GO, conditions=[waived]), "smoke", 2
    )
    (row,) = conditions_of([first, change])
    assert (row.condition.state, row.criterion is not None) == ("waived", True)
    assert open_for([row], "extended") == []


def test_a_rerun_replaces_the_conditions_of_its_phase_and_a_person_s_word_does_not() -> None:
    first = decision_of("smoke", FAST)
    human = sealed(Entry(kind=DecisionKind.HUMAN, verdict=Verdict.GO, reason="seen"), "smoke", 2)
    assert len(conditions_of([first, human])) == 1
    assert conditions_of([first, decision_of("smoke", seq=3)]) == []


def test_an_open_condition_is_missed_when_what_it_guards_is_due() -> None:
    rows = conditions_of([decision_of("smoke", FAST)])
    assert missed(rows, "extended") == []
    (late,) = missed(rows, "production")
    assert late.state == "missed"
    assert missed([OpenCondition(condition=late, criterion=None)], "production") == []


def condition(state: ConditionState, on_miss: str = "no_go") -> Condition:
    return Condition(id="smoke:fast", text="", criterion="fast", on_miss=on_miss, state=state)


EXPERIMENT = [
    ("all go", ["GO", "GO"], [], "GO"),
    ("a condition open", ["CONDITIONAL_GO", "GO"], [("open", "no_go")], "CONDITIONAL_GO"),
    ("all conditions met", ["CONDITIONAL_GO", "GO"], [("met", "no_go")], "GO"),
    ("one of two met", ["CONDITIONAL_GO", "GO"], [("met", "no_go"), ("open", "no_go")],
     "CONDITIONAL_GO"),
    ("waived", ["CONDITIONAL_GO", "GO"], [("waived", "no_go")], "CONDITIONAL_GO"),
    ("missed", ["CONDITIONAL_GO", "GO"], [("missed", "no_go")], "NO_GO"),
    ("missed, mildly", ["CONDITIONAL_GO", "GO"], [("missed", "conditional_go")], "CONDITIONAL_GO"),
    ("missed, open", ["CONDITIONAL_GO", "GO"], [("missed", "inconclusive")], "INCONCLUSIVE"),
    ("met, but a phase failed", ["CONDITIONAL_GO", "NO_GO"], [("met", "no_go")], "NO_GO"),
    ("a phase has none yet", ["GO", None], [], "GO"),
    ("nothing yet", [None, None], [], None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("phases", "states", "verdict"),
    [row[1:] for row in EXPERIMENT],
    ids=[row[0] for row in EXPERIMENT],
)
def test_the_verdict_across_phases(
    phases: list[str | None], states: list[tuple[str, str]], verdict: str | None
) -> None:
    said = {
        name: None if row is None else Verdict(row)
        for name, row in zip(("smoke", "extended"), phases, strict=True)
    }
    rows = [condition(ConditionState(state), on_miss) for state, on_miss in states]
    assert experiment_verdict(said, rows) == verdict


def test_every_criterion_that_the_judge_adds_is_named() -> None:
    added = {DRIFT, WEAKENED, WARNED, REPRODUCED, REMEDIED, CARRIED}
    assert set(ADDED_CRITERIA) == {*added, UNPASSED, FAILED_BEFORE}


@pytest.mark.parametrize("verdict", [Verdict.NO_GO, Verdict.INCONCLUSIVE, None])
def test_a_run_by_which_its_phase_does_not_pass_meets_nothing(verdict: Verdict | None) -> None:
    rows = passing()
    rules, facts = judged_by("extended", waiting=rows)
    assert settle(rows, facts, rules, verdict) == []


@pytest.mark.parametrize(
    ("changes", "beyond"),
    [
        ({}, True), ({"state": ConditionState.OPEN}, False), ({"id": "extended:fast"}, False),
        ({"evidence_from": None}, False), ({"evidence_from": "smoke"}, False),
    ],
)  # fmt: skip
def test_a_phase_that_is_taken_over_leaves_what_later_phases_showed(
    changes: dict[str, Any], beyond: bool
) -> None:
    met = condition(ConditionState.MET).model_copy(update={"evidence_from": "extended"})
    row = met.model_copy(update=changes)
    assert met_beyond([row], {"smoke"}) == [row] * beyond


# An approval is a condition: open while awaited, met by a word in time, missed by the clock.


ASKED = approval_condition("smoke", "extended")


@pytest.mark.parametrize(
    ("expires_s", "waited_s", "expired"),
    [
        (60.0, 59.9, False), (60.0, 60.0, True), (None, 1e9, False),
    ],
)  # fmt: skip
def test_an_approval_expires_by_the_clock_and_never_where_no_time_is_set(
    expires_s: float | None, waited_s: float, expired: bool
) -> None:
    assert has_expired(expires_s, waited_s) is expired


def recorded(state: ConditionState) -> RecordedDecision:
    """A decision that an approval ended so."""
    ended = in_state(ASKED, state)
    entry = Entry(
        kind=DecisionKind.CONDITION,
        conditions=[ended],
        verdict=experiment_verdict({"smoke": Verdict.GO}, [ended]),
        actor="ann",
    )
    place = Place(id="dec_1", experiment="exp_1", phase="smoke", run="run_1", at="-")
    return append(entry, place, None)


def decision(state: ConditionState) -> Decision:
    return recorded(state).decision


@pytest.mark.parametrize(
    ("phase", "state", "verdict"),
    [
        ("GO", ConditionState.MET, "GO"),
        ("GO", ConditionState.MISSED, "INCONCLUSIVE"),
        ("GO", ConditionState.WAIVED, "GO"),
        ("CONDITIONAL_GO", ConditionState.MET, "CONDITIONAL_GO"),
    ],
)
def test_silence_is_inconclusive_and_an_approval_meets_no_other_condition(
    phase: str, state: ConditionState, verdict: str
) -> None:
    assert experiment_verdict({"smoke": Verdict(phase)}, [in_state(ASKED, state)]) == verdict


def test_the_plan_says_how_long_and_a_phase_may_say_otherwise() -> None:
    sets = {"phases__smoke__approve": "always", "approve_expires_s": 3600.0}
    plan = plan_with(**sets)
    action = decide(plan, "smoke", [attempt()], now=0.0)
    assert (action.kind, action.expires_s) == ("await_approval", 3600.0)
    plan = plan_with(**sets, phases__smoke__approve_expires_s=60.0)
    assert decide(plan, "smoke", [attempt()], now=0.0).expires_s == 60.0
    forever = plan_with(phases__smoke__approve="always")
    assert decide(forever, "smoke", [attempt()], now=0.0).expires_s is None


def test_what_follows_an_expiry_starts_nothing() -> None:
    plan = plan_with(phases__smoke__approve="always")
    assert decide_expiry(plan, "smoke", 60.0, 59.0) is None
    action = decide_expiry(plan, "smoke", 60.0, 60.0)
    assert action is not None
    assert (action.kind, action.verdict, action.reason) == ("await_decision", None, None)
    assert action.text == "nobody approved extended within 60 s"


def test_an_approval_guards_its_phase_and_shares_no_id() -> None:
    assert (ASKED.due, ASKED.evidence_from, ASKED.state) == ("extended", None, "open")
    assert is_approval(ASKED)
    assert not is_approval(ASKED.model_copy(update={"id": "smoke:approval"}))


def test_a_condition_without_its_criterion_or_ranks_is_not_met() -> None:
    rows = passing()
    rules, facts = judged_by("extended", waiting=rows)
    (row,) = rows
    assert settle([row.model_copy(update={"criterion": None})], facts, rules, Verdict.GO) == []
    assert settle(rows, facts.model_copy(update={"measures": {}}), rules, Verdict.GO) == []
    unknown = rules.model_copy(update={"world_size": None})
    assert settle(rows, facts, unknown, Verdict.GO) == []
    alone = {"built_in": []}
    assert settle(rows, facts, unknown.model_copy(update=alone), Verdict.GO) == []
    assert len(settle(rows, facts, rules.model_copy(update=alone), Verdict.GO)) == 1
