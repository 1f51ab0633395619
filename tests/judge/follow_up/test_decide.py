"""What follows the end of a run: a table for every rule of promotion, retry and confirmation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gonogo.contract.decision import Condition, Verdict
from gonogo.contract.facts import History
from gonogo.contract.order import OpenCondition, RunReason
from gonogo.contract.outcome import Actor, Detector, Outcome, OutcomeCode
from gonogo.contract.plan import Plan
from gonogo.judge.follow_up.decide import IN_VAIN, Action, Attempt, decide, decide_override
from gonogo.judge.gate.added_criteria import added_criteria
from gonogo.judge.gate.rules import build_rules
from gonogo.planning.source import bundled_plan, parse_plan, with_overrides
from tests.data.make_runs import order_of
from tests.judge.runs import facts_of, record_of

VARIANTS = [{"env": {"NSA_SDPA_NO_FLASH": "1"}}, {"env": {"NSA_SDPA_FLASH_ONLY": "1"}}]
NO_FLASH = {"env": {"NSA_SDPA_NO_FLASH": "1"}}
FLASH_ONLY = {"env": {"NSA_SDPA_FLASH_ONLY": "1"}}
CONFIRM = {"on": ["stall", "non_finite"], "variants": VARIANTS}


def plan_with(**sets: Any) -> Plan:
    paths = {name.replace("__", "."): value for name, value in sets.items()}
    return parse_plan(with_overrides(bundled_plan("demo"), paths))


PLAN = plan_with()
CONFIRMING = plan_with(confirm=CONFIRM)


def ours(**sets: Any) -> Plan:
    """The demo, whose smoke phase is long enough for a rerun to answer before its end."""
    return plan_with(phases__smoke__steps=1000, **sets)


def attempt(code: str = "completed", verdict: str | None = "GO", **fields: Any) -> Attempt:
    base = {"run": "run_1", "reason": RunReason.FIRST, "verdict": verdict and Verdict(verdict)}
    outcome = Outcome(code=OutcomeCode(code), actor=Actor.TRAINER)
    return Attempt(**{**base, "outcome": outcome, **fields})


def lost(durable_step: int = 0, **fields: Any) -> Attempt:
    return attempt("keeper_lost", "INCONCLUSIVE", durable_step=durable_step, **fields)


def nan(**fields: Any) -> Attempt:
    return attempt("non_finite", "NO_GO", detector=Detector.NON_FINITE, **fields)


def confirm(verdict: str, change: dict[str, Any] | None = None, **fields: Any) -> Attempt:
    code = "completed" if verdict in ("GO", "CONDITIONAL_GO", "INCONCLUSIVE") else "non_finite"
    return attempt(code, verdict, reason=RunReason.CONFIRM, change=change, run="run_c", **fields)


def after(*attempts: Attempt, plan: Plan = PLAN, phase: str = "smoke", **fields: Any) -> Action:
    return decide(plan, phase, attempts, now=10_000.0, **fields)


PROMOTION = [
    ("never", "GO", "start_phase"),
    ("never", "CONDITIONAL_GO", "start_phase"),
    ("on_conditional", "GO", "start_phase"),
    ("on_conditional", "CONDITIONAL_GO", "await_approval"),
    ("always", "GO", "await_approval"),
    ("always", "CONDITIONAL_GO", "await_approval"),
    ("always", "NO_GO", "finish"),
    ("always", "INCONCLUSIVE", "await_decision"),
]


@pytest.mark.parametrize(("approve", "verdict", "kind"), PROMOTION)
def test_promotion_and_approval(approve: str, verdict: str, kind: str) -> None:
    plan = plan_with(phases__smoke__approve=approve)
    action = after(attempt(verdict=verdict), plan=plan)
    assert (action.kind, action.verdict, action.record) == (kind, verdict, True)
    if kind in ("start_phase", "await_approval"):
        assert action.phase == "extended"


def test_the_last_phase_finishes_the_experiment() -> None:
    action = after(attempt(), phase="production")
    assert (action.kind, action.verdict) == ("finish", "GO")


OPERATOR = [
    ("halted", "await_decision", "INCONCLUSIVE", True),
    ("cancelled", "finish", None, True),
    ("superseded", "nothing", None, False),
]


@pytest.mark.parametrize(("code", "kind", "verdict", "record"), OPERATOR)
def test_what_an_operator_ended(code: str, kind: str, verdict: str | None, record: bool) -> None:
    action = after(attempt(code, verdict))
    assert (action.kind, action.verdict, action.record) == (kind, verdict, record)


@pytest.mark.parametrize(
    "code", ["hardware", "preflight_failed", "watcher_failed", "keeper_lost", "worker_lost",
             "isolated"],
)  # fmt: skip
def test_infrastructure_is_retried_from_the_last_checkpoint_and_decides_nothing(code: str) -> None:
    action = after(attempt(code, "INCONCLUSIVE"))
    assert (action.kind, action.reason, action.resume) == ("start_run", "resume", True)
    assert (action.phase, action.record, action.verdict) == ("smoke", False, None)


def test_a_preempted_run_goes_on_however_often_and_counts_as_no_retry() -> None:
    taken = attempt("preempted", "INCONCLUSIVE", durable_step=20, started_at=9_990.0)
    for plan in (plan_with(retry__infra=0), plan_with(retry__infra=2)):
        rows = [replace(taken, durable_step=step) for step in range(26)]
        action = after(*rows, plan=plan)
        assert (action.kind, action.reason, action.resume) == ("start_run", "resume", True)
        assert action.text == "preempted: it resumes from its last checkpoint"
    between = after(lost(20), taken, lost(21), taken, taken, plan=plan_with(retry__infra=2))
    assert between.kind == "start_run"
    again = after(lost(20), taken, lost(21), taken, lost(22), plan=plan_with(retry__infra=3))
    assert again.text == "keeper_lost: retry 3 of 3"
    assert after(lost(20), taken, lost(21), taken, lost(22)).kind == "await_decision"


def test_a_run_that_is_preempted_before_each_next_checkpoint_asks_a_person() -> None:
    taken = attempt("preempted", "INCONCLUSIVE", durable_step=20)
    assert after(*[taken] * IN_VAIN).kind == "start_run"
    action = after(*[taken] * (IN_VAIN + 1))
    assert (action.kind, action.verdict) == ("await_decision", "INCONCLUSIVE")
    assert "without a later checkpoint" in action.text
    further = replace(taken, durable_step=21)
    assert after(*[taken] * (IN_VAIN + 1), further).kind == "start_run"
    assert after(*[replace(taken, durable_step=0)] * IN_VAIN).kind == "await_decision"
    unlaunched = replace(taken, durable_step=0, launched=False)
    assert after(*[unlaunched] * (IN_VAIN - 1)).kind == "start_run"
    assert after(*[unlaunched] * IN_VAIN).kind == "await_decision"


def test_after_the_allowed_retries_it_is_inconclusive() -> None:
    action = after(lost(10), lost(20), lost(30))
    assert (action.kind, action.verdict, action.record) == ("await_decision", "INCONCLUSIVE", True)


def test_three_attempts_without_a_higher_durable_step_are_a_restart_storm() -> None:
    action = after(lost(20), lost(20), lost(20), lost(20), plan=plan_with(retry__infra=5))
    assert (action.kind, action.verdict, action.history) == (
        "finish",
        "NO_GO",
        History(restart_storm=True),
    )
    action = after(lost(20), lost(20), lost(20), lost(21), plan=plan_with(retry__infra=5))
    assert action.kind == "start_run"


CONFIRMED = [
    ("passes", [confirm("GO")], "CONDITIONAL_GO", "not reproduced"),
    ("inconclusive", [confirm("INCONCLUSIVE")], "INCONCLUSIVE", "failed in 1 of 2"),
    (
        "reproduced under every variant",
        [confirm("NO_GO"), confirm("NO_GO", NO_FLASH), confirm("NO_GO", FLASH_ONLY)],
        "NO_GO",
        "failed in 2 of 2",
    ),
    (
        "one variant passes",
        [confirm("NO_GO"), confirm("NO_GO", NO_FLASH), confirm("GO", FLASH_ONLY)],
        "CONDITIONAL_GO",
        "passed 1 of 1 with NSA_SDPA_FLASH_ONLY=1",
    ),
    (
        "a variant is inconclusive",
        [confirm("NO_GO"), confirm("INCONCLUSIVE", NO_FLASH), confirm("NO_GO", FLASH_ONLY)],
        "INCONCLUSIVE",
        "failed in 2 of 2",
    ),
]


def evidence_of(action: Action) -> dict[str, str]:
    """What the history of an action adds to the gate: criterion → evidence."""
    facts = facts_of(record_of()).model_copy(update={"history": action.history})
    return {row.id: row.evidence for row in added_criteria(facts, build_rules(order_of()))}


@pytest.mark.parametrize(
    ("rows", "verdict", "text"), [row[1:] for row in CONFIRMED], ids=[row[0] for row in CONFIRMED]
)
def test_what_confirmations_come_to(rows: list[Attempt], verdict: str, text: str) -> None:
    rows = [replace(row, run=f"run_{number}") for number, row in enumerate(rows, 2)]
    action = after(nan(), *rows, plan=CONFIRMING)
    assert (action.verdict, action.record) == (verdict, True)
    own = {row.run: row.verdict for row in (nan(), *rows)}[action.about or ""]
    assert own in (verdict, "GO")
    found = evidence_of(action)
    assert list(found) == ["reproduced"]
    assert text in found["reproduced"]


REMEDIES = {"fp16_overflow": {"train": {"dtype": "bf16"}}}


def test_remedies_are_tried_while_the_plan_allows_and_then_no_more() -> None:
    plan = plan_with(remedies=REMEDIES, max_remedies=1)
    sick = nan(diagnosis="fp16_overflow")
    action = after(sick, plan=plan)
    assert (action.kind, action.reason) == ("start_run", "remedy")
    assert action.change == {"diagnosis": "fp16_overflow", "train": {"dtype": "bf16"}}
    remedied = nan(reason=RunReason.REMEDY, diagnosis="fp16_overflow", change=action.change)
    assert after(sick, remedied, plan=plan).verdict == "NO_GO"
    cured = attempt(reason=RunReason.REMEDY, change=action.change)
    found = after(sick, cured, plan=plan)
    assert found.history is not None
    assert found.history.remedy is not None
    assert (found.verdict, found.history.remedy.diagnosis) == ("CONDITIONAL_GO", "fp16_overflow")
    assert after(sick, plan=plan_with(remedies=REMEDIES)).verdict == "NO_GO"


LONG = ours(confirm=CONFIRM)


def early(step: int = 200, **fields: Any) -> Attempt:
    return nan(step=step, **fields)


def test_a_rerun_resumes_before_the_failure() -> None:
    action = after(early(), plan=LONG)
    assert (action.reason, action.change) == ("confirm", None)
    assert (action.resume, action.resume_of, action.before) == (True, "run_1", 200)


def guarding(on_miss: str, due: str = "extended") -> list[OpenCondition]:
    row = Condition(id="s:c", text="", criterion="c", evidence_from="smoke", due=due,
                    on_miss=on_miss)  # fmt: skip
    return [OpenCondition(condition=row, criterion=None)]


@pytest.mark.parametrize(
    ("on_miss", "kind"),
    [
        ("no_go", "finish"), ("inconclusive", "await_decision"), ("conditional_go", "start_phase"),
    ],
)  # fmt: skip
def test_a_missed_condition_acts_before_the_phase_that_it_guards(on_miss: str, kind: str) -> None:
    action = after(attempt(), conditions=guarding(on_miss))
    assert (action.kind, [row.state for row in action.missed]) == (kind, ["missed"])
    assert after(attempt(), conditions=guarding(on_miss, "production")).missed == ()


OVERRIDES = [
    ("GO", True, "start_phase"),
    ("CONDITIONAL_GO", True, "start_phase"),
    ("NO_GO", True, "finish"),
    ("INCONCLUSIVE", True, "await_decision"),
    ("GO", False, "nothing"),
    ("NO_GO", False, "nothing"),
]


@pytest.mark.parametrize(("verdict", "awaiting", "kind"), OVERRIDES)
def test_an_override_acts_while_awaited_and_only_relabels_afterwards(
    verdict: str, awaiting: bool, kind: str
) -> None:
    action = decide_override(PLAN, "smoke", Verdict(verdict), awaiting=awaiting)
    assert (action.kind, action.verdict) == (kind, verdict)
