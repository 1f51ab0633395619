"""What follows the end of a run: a table for every rule of promotion, retry and confirmation."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.decision import Condition, Verdict
from gonogo.contract.facts import History
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import Actor, Detector, Outcome, OutcomeCode
from gonogo.contract.plan import Plan
from gonogo.judge.course.decide import (
    Action,
    Attempt,
    build_attempt,
    decide,
    decide_override,
    decide_promotion,
)
from gonogo.judge.evidence.facts import build_facts
from gonogo.judge.evidence.record import build_run_record
from gonogo.judge.gate.conditions import build_conditions
from gonogo.judge.gate.diagnosis import LOGGING_OFF
from gonogo.judge.gate.history import confirmed_verdict, history_criteria, with_history
from gonogo.judge.gate.rules import OpenCondition, build_rules
from gonogo.judge.gate.verdict import judge
from gonogo.planning.source import bundled_plan, parse_plan, with_overrides
from tests.data.make_runs import order_of
from tests.judge.runs import exit_record, finding, record_of

VARIANTS = [{"env": {"NSA_SDPA_NO_FLASH": "1"}}, {"env": {"NSA_SDPA_FLASH_ONLY": "1"}}]
NO_FLASH = {"env": {"NSA_SDPA_NO_FLASH": "1"}}
FLASH_ONLY = {"env": {"NSA_SDPA_FLASH_ONLY": "1"}}
CONFIRM = {"on": ["stall", "non_finite"], "variants": VARIANTS}


def plan_with(**sets: Any) -> Plan:
    paths = {name.replace("__", "."): value for name, value in sets.items()}
    return parse_plan(with_overrides(bundled_plan("demo"), paths))


PLAN = plan_with()
CONFIRMING = plan_with(confirm=CONFIRM)


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


def test_after_the_allowed_retries_it_is_inconclusive() -> None:
    action = after(lost(10), lost(20), lost(30))
    assert (action.kind, action.verdict, action.record) == (
        "await_decision",
        "INCONCLUSIVE",
        True,
    )


def test_a_plan_without_retries_asks_at_once() -> None:
    assert after(lost(), plan=plan_with(retry__infra=0)).kind == "await_decision"


def test_three_attempts_without_a_higher_durable_step_are_a_restart_storm() -> None:
    action = after(lost(20), lost(20), lost(20), lost(20), plan=plan_with(retry__infra=5))
    assert (action.kind, action.verdict, action.history) == (
        "finish",
        "NO_GO",
        History(restart_storm=True),
    )
    action = after(lost(20), lost(20), lost(20), lost(21), plan=plan_with(retry__infra=5))
    assert action.kind == "start_run"


def test_five_starts_in_half_an_hour_are_a_restart_storm() -> None:
    plan = plan_with(retry__infra=9)
    starts = [10_000.0 - 300 * i for i in range(4, -1, -1)]
    rows = [lost(10 * i, started_at=at) for i, at in enumerate(starts, start=1)]
    assert after(*rows, plan=plan).verdict == "NO_GO"
    slower = [lost(10 * i, started_at=8_190.0 + i) for i in range(1, 6)]
    assert after(*slower, plan=plan).kind == "start_run"


def test_a_restart_storm_is_named_by_its_detector() -> None:
    action = after(lost(), lost(), lost(), plan=plan_with(retry__infra=5))
    assert action.text.startswith("restart_storm: 3 attempts")


def test_the_plan_says_what_a_restart_storm_is() -> None:
    rows = [lost(), lost()]
    patient = plan_with(retry__infra=5, watch__restart_storm__attempts=2)
    assert after(*rows, plan=plan_with(retry__infra=5)).kind == "start_run"
    assert after(*rows, plan=patient).verdict == "NO_GO"
    starts = [lost(10 * i, started_at=9_900.0 + i) for i in range(1, 4)]
    eager = {"retry__infra": 5, "watch__restart_storm__starts": 3}
    assert after(*starts, plan=plan_with(**eager)).verdict == "NO_GO"
    short = plan_with(**eager, watch__restart_storm__within_s=50)
    assert after(*starts, plan=short).kind == "start_run"


def test_a_preflight_that_failed_is_no_start() -> None:
    rows = [attempt("preflight_failed", "INCONCLUSIVE", launched=False) for _ in range(4)]
    action = after(*rows, plan=plan_with(retry__infra=3))
    assert (action.kind, action.verdict) == ("await_decision", "INCONCLUSIVE")


def test_an_end_of_another_class_in_between_ends_the_count_of_failures() -> None:
    action = after(lost(), lost(), attempt("halted", "INCONCLUSIVE"), lost(), lost())
    assert action.kind == "start_run"


def test_a_no_go_without_confirmations_finishes() -> None:
    action = after(nan())
    assert (action.kind, action.verdict, action.about) == ("finish", "NO_GO", "run_1")


def test_a_failure_that_the_plan_does_not_confirm_is_no_go_at_once() -> None:
    row = attempt("too_slow", "NO_GO", detector=Detector.SLOW)
    assert after(row, plan=CONFIRMING).kind == "finish"


def test_the_first_rerun_is_unchanged() -> None:
    action = after(nan(), plan=CONFIRMING)
    assert (action.kind, action.reason, action.change, action.record, action.resume) == (
        "start_run",
        "confirm",
        None,
        False,
        False,
    )


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


@pytest.mark.parametrize(
    ("rows", "verdict", "text"), [row[1:] for row in CONFIRMED], ids=[row[0] for row in CONFIRMED]
)
def test_what_confirmations_come_to(rows: list[Attempt], verdict: str, text: str) -> None:
    action = after(nan(), *rows, plan=CONFIRMING)
    assert (action.verdict, action.record, action.about) == (verdict, True, "run_1")
    assert confirmed_verdict(action.history, Verdict.NO_GO) == verdict
    (row,) = history_criteria(action.history)
    assert text in row.evidence


def test_a_failure_that_was_not_reproduced_names_no_variable() -> None:
    action = after(nan(), confirm("GO"), plan=CONFIRMING)
    (row,) = history_criteria(action.history)
    assert "NSA_" not in row.evidence
    assert action.kind == "start_phase"


def test_a_variant_that_passes_waits_for_a_person() -> None:
    action = after(nan(), confirm("NO_GO"), confirm("GO", NO_FLASH), confirm("NO_GO", FLASH_ONLY),
                   plan=CONFIRMING)  # fmt: skip
    assert action.kind == "await_approval"


def test_variants_run_only_after_the_failure_was_reproduced_one_after_the_other() -> None:
    action = after(nan(), confirm("NO_GO"), plan=CONFIRMING)
    assert (action.kind, action.change) == ("start_run", NO_FLASH)
    action = after(nan(), confirm("NO_GO"), confirm("GO", NO_FLASH), plan=CONFIRMING)
    assert (action.kind, action.change) == ("start_run", FLASH_ONLY)


def test_a_confirmation_that_infrastructure_ended_is_made_again() -> None:
    interrupted = lost(reason=RunReason.CONFIRM, change=NO_FLASH)
    action = after(nan(), confirm("NO_GO"), interrupted, plan=CONFIRMING)
    assert (action.kind, action.reason, action.change) == ("start_run", "confirm", NO_FLASH)
    action = after(nan(), confirm("NO_GO"), interrupted, confirm("NO_GO", NO_FLASH),
                   plan=CONFIRMING)  # fmt: skip
    assert action.change == FLASH_ONLY


def stall(**fields: Any) -> Attempt:
    return attempt("stalled", "NO_GO", detector=Detector.STALL, **fields)


def test_a_stall_with_logging_off_is_no_go_at_once() -> None:
    assert after(stall(logging_off=True), plan=CONFIRMING).verdict == "NO_GO"


def test_a_stall_with_logging_on_is_tried_with_logging_off() -> None:
    assert after(stall(), plan=CONFIRMING).change is None
    action = after(stall(), confirm("NO_GO"), plan=CONFIRMING)
    assert action.change == {"env": LOGGING_OFF}


def test_a_rerun_by_a_person_begins_anew() -> None:
    again = nan(reason=RunReason.RERUN, run="run_9")
    action = after(nan(), confirm("INCONCLUSIVE"), again, plan=CONFIRMING)
    assert (action.kind, action.change) == ("start_run", None)


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
    assert (found.verdict, found.history.remedy.diagnosis) == (
        "CONDITIONAL_GO",
        "fp16_overflow",
    )
    assert after(sick, plan=plan_with(remedies=REMEDIES)).verdict == "NO_GO"


def guarding(on_miss: str, due: str = "extended") -> list[OpenCondition]:
    row = Condition(id="s:c", text="", criterion="c", evidence_from="smoke", due=due,
                    on_miss=on_miss)  # fmt: skip
    return [OpenCondition(condition=row, criterion=None)]


@pytest.mark.parametrize(
    ("on_miss", "kind"),
    [
        ("no_go", "finish"),
        ("inconclusive", "await_decision"),
        ("conditional_go", "start_phase"),
    ],
)
def test_a_missed_condition_acts_before_the_phase_that_it_guards(on_miss: str, kind: str) -> None:
    action = after(attempt(), conditions=guarding(on_miss))
    assert (action.kind, [row.state for row in action.missed]) == (kind, ["missed"])
    assert after(attempt(), conditions=guarding(on_miss, "production")).missed == ()


def test_a_condition_due_at_the_end_is_missed_by_the_last_phase() -> None:
    action = after(attempt(), phase="production", conditions=guarding("no_go", "end"))
    assert (action.kind, len(action.missed)) == ("finish", 1)


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


def test_an_approval_starts_the_next_phase() -> None:
    action = decide_promotion(PLAN, "smoke")
    assert (action.kind, action.phase, action.reason) == ("start_phase", "extended", "first")


def test_the_decision_s_verdict_is_the_one_that_judging_with_history_comes_to() -> None:
    order = order_of()
    rules = build_rules(order)
    record = record_of(
        order,
        exit=exit_record(OutcomeCode.NON_FINITE, by=Actor.WATCHDOG, code=1),
        findings=[finding(Detector.NON_FINITE)],
    )
    facts = build_facts(record, rules)
    own = build_attempt("run_1", RunReason.FIRST, facts, judge(facts, rules))
    assert own.detector == "non_finite"
    for rows in ([], [confirm("GO")], [confirm("INCONCLUSIVE")]):
        action = after(own, *rows, plan=CONFIRMING)
        if not action.record:
            continue
        found = judge(with_history(facts, action.history), rules)
        assert found.verdict == action.verdict
        assert bool(found.conditions) == (action.verdict == "CONDITIONAL_GO")


def test_a_run_that_has_not_ended_is_no_attempt() -> None:
    rules = build_rules(None)
    facts = build_facts(build_run_record(None, {}), rules)
    judgement = judge(facts, rules)
    with pytest.raises(ValueError, match="has not ended"):
        build_attempt("run_1", RunReason.FIRST, facts, judgement)


def test_a_criterion_of_the_history_that_passes_makes_no_condition() -> None:
    assert build_conditions(history_criteria(History()), build_rules(order_of())) == []
