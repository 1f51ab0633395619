"""The algebra of verdicts: one order everywhere, whatever the order of the criteria."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.canonical import digest
from gonogo.contract.criterion import GateSeverity
from gonogo.contract.decision import CriterionOutcome, CriterionResult, Verdict
from gonogo.contract.facts import History
from gonogo.contract.outcome import CLASS_OF, Actor, Outcome, OutcomeCode
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.gate.added_criteria import with_history
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import class_verdict, gate_verdict, judge
from tests.data.make_runs import healthy_ranks, order_of
from tests.judge.runs import (
    PREFLIGHT,
    exit_record,
    facts_of,
    judged,
    lines_of,
    outcomes,
    record_of,
    with_gate,
)

GATE = [
    ("required", "fail", "NO_GO"),
    ("required", "error", "INCONCLUSIVE"),
    ("required", "inconclusive", "INCONCLUSIVE"),
    ("required", "pass", "GO"),
    ("conditional", "fail", "CONDITIONAL_GO"),
    ("conditional", "error", "CONDITIONAL_GO"),
    ("conditional", "inconclusive", "CONDITIONAL_GO"),
    ("conditional", "pass", "GO"),
    ("advisory", "fail", "GO"),
    ("advisory", "error", "GO"),
    ("advisory", "inconclusive", "GO"),
    ("advisory", "pass", "GO"),
]
BADNESS = ["GO", "CONDITIONAL_GO", "INCONCLUSIVE", "NO_GO"]


def result(severity: str, outcome: str) -> CriterionResult:
    return CriterionResult(
        id="c", severity=GateSeverity(severity), outcome=CriterionOutcome(outcome)
    )


@pytest.mark.parametrize(("severity", "outcome", "verdict"), GATE)
def test_one_criterion(severity: str, outcome: str, verdict: str) -> None:
    assert gate_verdict([result(severity, outcome)]) == verdict


def test_three_criteria_are_as_bad_as_the_worst_of_them() -> None:
    for rows in itertools.combinations(GATE, 3):
        found = gate_verdict(result(severity, outcome) for severity, outcome, _ in rows)
        assert found == max((row[2] for row in rows), key=BADNESS.index), rows


@given(rows=st.lists(st.sampled_from(GATE), max_size=8), seed=st.integers())
def test_the_order_of_criteria_does_not_matter(rows: list[tuple[str, str, str]], seed: int) -> None:
    shuffled = random.Random(seed).sample(rows, len(rows))
    verdicts = {
        gate_verdict(result(severity, outcome) for severity, outcome, _ in order)
        for order in (rows, shuffled)
    }
    assert len(verdicts) == 1


@given(rows=st.lists(st.sampled_from(GATE), min_size=1, max_size=8), data=st.data())
def test_worsening_an_outcome_never_betters_the_verdict(
    rows: list[tuple[str, str, str]], data: st.DataObject
) -> None:
    order = ["pass", "inconclusive", "error", "fail"]
    index = data.draw(st.integers(0, len(rows) - 1))
    severity, outcome, _ = rows[index]
    worse = data.draw(st.sampled_from(order[order.index(outcome) :]))
    results = [result(s, o) for s, o, _ in rows]
    changed = [*results[:index], result(severity, worse), *results[index + 1 :]]
    before, after = gate_verdict(results), gate_verdict(changed)
    assert BADNESS.index(after) >= BADNESS.index(before)


BY_CLASS = {"user": "NO_GO", "policy": "NO_GO", "infra": "INCONCLUSIVE"}
BY_CODE = {"completed": "GO", "halted": "INCONCLUSIVE", "cancelled": None, "superseded": None}


@pytest.mark.parametrize("code", OutcomeCode)
@pytest.mark.parametrize("of_gate", [Verdict.GO, Verdict.NO_GO, Verdict.INCONCLUSIVE])
def test_what_did_not_complete_is_judged_by_its_class_alone(
    code: OutcomeCode, of_gate: Verdict
) -> None:
    found = class_verdict(Outcome(code=code, actor=Actor.INFRA), of_gate)
    expected = BY_CODE.get(code, BY_CLASS.get(CLASS_OF[code]))
    assert found == (of_gate if code == "completed" else expected)


def test_the_gate_of_a_run_that_did_not_complete_is_shown() -> None:
    found = judged(record_of(exit=exit_record(OutcomeCode.KEEPER_LOST, by=Actor.INFRA, code=1)))
    assert (found.verdict, outcomes(found)["finite"]) == ("INCONCLUSIVE", "pass")


def test_a_restart_storm_is_no_go() -> None:
    order = order_of()
    lost = exit_record(OutcomeCode.KEEPER_LOST, by=Actor.INFRA, code=1)
    rules = build_rules(order)
    facts = build_facts(record_of(order, exit=lost), rules)
    storm = judge(with_history(facts, History(restart_storm=True)), rules)
    assert (storm.verdict, storm.diagnosis) == ("NO_GO", "restart_storm")
    retried = judge(with_history(facts, History(restart_storm=False)), rules)
    assert (retried.verdict, retried.diagnosis) == ("INCONCLUSIVE", None)


SPEED: dict[str, Any] = {"id": "speed", "metric": "toks_per_s", "pass_above": 900.0}


@pytest.mark.parametrize(
    ("changes", "verdict", "severity"),
    [
        ({"min_samples": 99}, "CONDITIONAL_GO", "conditional"),
        ({"pass_above": 1e9}, "NO_GO", "required"),
        ({}, "GO", "required"),
    ],
    ids=["unseen", "failed", "passed"],
)
def test_a_plans_own_criterion_is_waived_by_name_only_while_it_is_unseen(
    changes: dict[str, float], verdict: str, severity: str
) -> None:
    order = with_gate(order_of(), {**SPEED, **changes}).model_copy(update={"waive": ["speed"]})
    found = judged(record_of(order))
    assert (found.verdict, found.criteria[-1].severity) == (verdict, severity)
    unwaived = judged(record_of(order.model_copy(update={"waive": []})))
    assert unwaived.criteria[-1].severity == "required"


GREY = {"pass_above": 1e9, "fail_below": 1.0}


def test_a_waiver_excuses_no_value_that_was_seen() -> None:
    order = with_gate(order_of(), {**SPEED, **GREY}).model_copy(update={"waive": ["speed"]})
    assert judged(record_of(order)).verdict == "INCONCLUSIVE"
    grey = with_gate(order, {**SPEED, **GREY, "grey": "conditional"})
    (condition,) = judged(record_of(grey)).conditions
    assert condition.state == "open"
    ranks = healthy_ranks(order)
    for line in ranks[0].lines:
        if line["msg"] == "progress" and line["step"] == 5:
            line["grad_norm"] = "NaN"
    row = {"id": "speed", "metric": "grad_norm", "pass_below": 9.0, "on_nan": "error"}
    assert judged(record_of(with_gate(order, row), ranks)).verdict == "INCONCLUSIVE"


CRITERIA: list[dict[str, Any]] = [
    {"id": "finite", "metric": "loss", "aggregate": "all_finite"},
    {"id": "speed", "metric": "toks_per_s", "pass_above": 900.0, "min_samples": 6},
    {"id": "learning", "metric": "loss", "window": 4, "pass_below": 5.5, "severity": "conditional"},
    {"id": "mean", "metric": "grad_norm", "aggregate": "mean", "pass_below": 2.0},
    {"id": "worst", "metric": "grad_norm", "aggregate": "max", "over_ranks": "max",
     "pass_below": 2.0},
]  # fmt: skip
ORDER = with_gate(order_of(), *CRITERIA)
LINES = lines_of(healthy_ranks(ORDER))
PLACES = [(rank, index) for rank in LINES for index in range(len(LINES[rank]))]


@given(lost=st.sets(st.sampled_from(PLACES), min_size=1, max_size=40))
@settings(max_examples=25, deadline=None)
def test_losing_lines_of_a_healthy_run_never_leaves_a_go_and_never_accuses_it(
    lost: set[tuple[int, int]],
) -> None:
    kept = {
        rank: [line for index, line in enumerate(lines) if (rank, index) not in lost]
        for rank, lines in LINES.items()
    }
    found = judged(record_of(ORDER, lines=kept))
    last_only = all(index == len(LINES[rank]) - 1 for rank, index in lost)
    assert found.verdict == "INCONCLUSIVE", (last_only, outcomes(found))


@given(
    lost=st.sets(st.sampled_from(PLACES), max_size=20),
    bad=st.sets(st.integers(1, 12), max_size=3),
    no_exit=st.booleans(),
    no_preflight=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_removing_evidence_never_turns_a_non_go_into_a_go(
    lost: set[tuple[int, int]], bad: set[int], no_exit: bool, no_preflight: bool
) -> None:
    ranks = healthy_ranks(ORDER)
    for rank in ranks:
        for line in rank.lines:
            if line["msg"] == "progress" and line["step"] in bad:
                line["grad_norm"] = 50.0
    whole = lines_of(ranks)
    kept = {
        rank: [line for index, line in enumerate(lines) if (rank, index) not in lost]
        for rank, lines in whole.items()
    }
    before = judged(record_of(ORDER, lines=whole)).verdict
    record = record_of(ORDER, lines=kept, preflight=None if no_preflight else PREFLIGHT)
    after = judged(replace(record, exit=None) if no_exit else record).verdict
    complete = not (lost or no_exit or no_preflight)
    assert after == before if complete else after not in ("GO", "CONDITIONAL_GO")


def test_equal_records_have_equal_digests_and_a_changed_loss_has_another() -> None:
    record = record_of(ORDER, lines=LINES)
    facts = facts_of(record).wire()
    assert digest(facts) == digest(facts_of(record_of(ORDER, lines=LINES)).wire())
    ranks = healthy_ranks(ORDER)
    line = next(line for line in ranks[1].lines if line["msg"] == "progress")
    line["loss"] += 1e-12
    assert digest(facts_of(record_of(ORDER, ranks)).wire()) != digest(facts)
