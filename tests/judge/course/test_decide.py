"""What follows the end of a run: a table for every rule of promotion, retry and confirmation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from gonogo.contract.criterion import Criterion
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
from gonogo.judge.course.retries import IN_VAIN
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.facts.record import build_run_record
from gonogo.judge.gate.built_in import DRIFT
from gonogo.judge.gate.conditions import build_conditions
from gonogo.judge.gate.diagnosis import LOGGING_OFF
from gonogo.judge.gate.history import confirmed_verdict, history_criteria, with_history
from gonogo.judge.gate.rules import OpenCondition, build_rules
from gonogo.judge.gate.verdict import judge
from gonogo.planning.source import bundled_plan, parse_plan, with_overrides
from tests.data.make_runs import healthy_ranks, order_of
from tests.judge.runs import exit_record, finding, judged, record_of, with_gate

VARIANTS = [{"env": {"NSA_SDPA_NO_FLASH": "1"}}, {"env": {"NSA_SDPA_FLASH_ONLY": "1"}}]
NO_FLASH = {"env": {"NSA_SDPA_NO_FLASH": "1"}}
FLASH_ONLY = {"env": {"NSA_SDPA_FLASH_ONLY": "1"}}
CONFIRM = {"on": ["stall", "non_finite"], "variants": VARIANTS}


def plan_with(**sets: Any) -> Plan:
    paths = {name.replace("__", "."): value for name, value in sets.items()}
    return parse_plan(with_overrides(bundled_plan("demo"), paths))


PLAN = plan_with()
CONFIRMING = plan_with(confirm=CONFIRM)
SEES_15 = [{"id": "fast", "metric": "dt_step_s", "aggregate": "median", "min_samples": 15,
            "pass_below": 100.0}]  # fmt: skip
"""A gate that sees enough of 40 steps from step 26 on."""


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


AGAIN = ["rerun", "resume", "takeover"]


@pytest.mark.parametrize("reason", AGAIN)
@pytest.mark.parametrize("between", [[], [attempt("halted", "INCONCLUSIVE")]], ids=["", "halted"])
def test_a_failure_is_not_forgotten_by_a_run_that_somebody_starts_after_it(
    reason: str, between: list[Attempt]
) -> None:
    """Also where nothing is confirmed: it failed once and passed once, as in a confirmation."""
    passed = attempt(reason=RunReason(reason), run="run_2")
    for plan in (PLAN, CONFIRMING):
        action = after(nan(step=30), *between, passed, plan=plan)
        assert (action.kind, action.verdict, action.about) == (
            "start_phase", "CONDITIONAL_GO", "run_1",
        )  # fmt: skip
        assert action.history is not None
        assert [row.run for row in action.history.confirmations] == ["run_2"]


@pytest.mark.parametrize("reason", AGAIN)
def test_a_failure_that_comes_again_in_a_run_that_somebody_starts_is_confirmed(reason: str) -> None:
    again = nan(reason=RunReason(reason), run="run_2")
    assert after(nan(), again).verdict == "NO_GO"
    varied = after(nan(), again, plan=CONFIRMING)
    assert (varied.kind, varied.reason, varied.change) == ("start_run", "confirm", NO_FLASH)


def test_what_was_never_a_failure_is_judged_anew() -> None:
    uncertain = attempt(verdict="INCONCLUSIVE")
    action = after(uncertain, attempt(reason=RunReason.RERUN, run="run_2"))
    assert (action.verdict, action.about, action.history) == ("GO", "run_2", None)


def test_a_value_between_its_thresholds_is_not_run_again_until_it_passes() -> None:
    grey = [attempt(verdict="INCONCLUSIVE", undecided=("speed",), run=f"run_{n}") for n in (1, 2)]
    action = after(*grey, attempt(reason=RunReason.RERUN, run="run_3"))
    assert (action.kind, action.verdict, action.about) == (
        "start_phase", "CONDITIONAL_GO", "run_3",
    )  # fmt: skip
    assert action.history is not None
    told = [(row.run, row.criteria) for row in action.history.undecided]
    assert told == [("run_1", ["speed"]), ("run_2", ["speed"])]
    patched = attempt(
        verdict="INCONCLUSIVE", undecided=("speed",), change=NO_FLASH, reason=RunReason.CONFIRM
    )
    assert after(grey[0], patched, attempt(reason=RunReason.RERUN, run="run_3")).history == (
        History(undecided=action.history.undecided[:1])
    )
    again = after(grey[0], attempt(verdict="NO_GO", reason=RunReason.RERUN, run="run_2"))
    assert again.verdict == "NO_GO"


@pytest.mark.parametrize(
    ("severity", "grey", "told"),
    [
        ("conditional", "inconclusive", True),
        ("required", "conditional", True),
        ("required", "inconclusive", False),
        ("advisory", "inconclusive", False),
    ],
)
def test_nor_is_one_that_leaves_a_condition(severity: str, grey: str, told: bool) -> None:
    """Something else of the run was not seen, so that it was run again: GO, without a word."""
    asked = {"metric": "dt_step_s", "aggregate": "max", "grey": grey, "severity": severity}
    row = {"id": "pace", **asked, "pass_below": 1e-9, "fail_above": 1e9}
    unseen = {"id": "entropy", "metric": "gate_entropy", "aggregate": "mean", "pass_above": 0.0}
    record = record_of(with_gate(order_of(), row, unseen))
    found = judged(record)
    assert (found.verdict, found.failed) == ("INCONCLUSIVE", ["pace"] if told else [])
    before = attempt(verdict="INCONCLUSIVE", failed=tuple(found.failed))
    action = after(before, attempt(reason=RunReason.RERUN, run="run_2"))
    assert action.verdict == ("CONDITIONAL_GO" if told else "GO")

    waits = Condition(id="smoke:pace", text="", criterion="pace", evidence_from="extended")
    criterion = Criterion.model_validate(row)
    rules = build_rules(record.order, [OpenCondition(condition=waits, criterion=criterion)])
    open_still = "smoke:pace" in judge(build_facts(record, rules), rules).failed
    assert open_still == (severity != "advisory")


@pytest.mark.parametrize("code", ["preempted", "halted", "superseded", "isolated"])
@pytest.mark.parametrize("why", [RunReason.RESUME, RunReason.RERUN])
def test_what_a_run_had_failed_when_something_else_ended_it_is_not_forgotten(
    code: str, why: RunReason
) -> None:
    ended = attempt(code, "INCONCLUSIVE", failed=("spikes",), run="run_1")
    action = after(ended, attempt(reason=why, run="run_2"))
    assert (action.kind, action.verdict, action.about) == (
        "start_phase", "CONDITIONAL_GO", "run_2",
    )  # fmt: skip
    assert action.history is not None
    told = [(row.run, row.code, row.criteria) for row in action.history.failed_before]
    assert told == [("run_1", code, ["spikes"])]
    patched = replace(ended, change=NO_FLASH, reason=RunReason.CONFIRM)
    assert after(patched, attempt(reason=why, run="run_2")).history is None


@pytest.mark.parametrize("code", ["superseded", "isolated"])
def test_a_run_that_was_taken_over_is_no_retry_and_begins_no_count_anew(code: str) -> None:
    lost, dead = attempt("keeper_lost", None), attempt(code, None)
    for retries in range(2, 5):
        runs = [lost] * retries
        expected = after(*runs)
        assert after(dead, *runs) == after(*runs[:1], dead, *runs[1:]) == expected
    assert after(dead, attempt()).history is None


@pytest.mark.parametrize("when", ["before the failure", "while the phase went on"])
def test_nor_is_it_where_a_failure_after_it_did_not_come_again(when: str) -> None:
    """What was confirmed is met by the next phase: nobody was asked about what had failed."""
    plan = ours(confirm=CONFIRM)
    ended = lost(failed=("spikes",), undecided=("slow",), run="run_1")
    failed = nan(step=400, reason=RunReason.RESUME, run="run_2")
    again = attempt(reason=RunReason.CONFIRM, until=410, run="run_3")
    whole = attempt(reason=RunReason.RESUME, run="run_5")
    runs = {
        "before the failure": (ended, failed, again, whole),
        "while the phase went on": (failed, again, replace(ended, run="run_4"), whole),
    }[when]
    action = after(*runs, plan=plan)
    assert (action.verdict, action.about) == ("CONDITIONAL_GO", "run_5")
    assert action.history is not None
    told = [row.id for row in history_criteria(action.history)]
    assert told == ["reproduced", "undecided", "failed_before"]
    alone = after(failed, again, whole, plan=plan).history
    assert alone is not None
    assert [row.id for row in history_criteria(alone)] == ["reproduced"]


@pytest.mark.parametrize(
    "detector",
    [
        *(Detector.STALL, Detector.PROCESS_DEATH, Detector.NON_FINITE),
        *(Detector.SLOW, Detector.DIVERGENCE, Detector.RANK_DIVERGENCE),
    ],
)
def test_what_a_run_had_failed_is_not_undone_because_its_end_did_not_come_again(
    detector: Detector,
) -> None:
    """But for what its end makes worse: that is what did not come again."""
    plan = ours(confirm={"on": [detector.value], "variants": []})
    failed = replace(nan(step=400, failed=("pace", "spikes")), detector=detector)
    again = attempt(reason=RunReason.CONFIRM, until=410, run="run_2")
    whole = attempt(reason=RunReason.CONFIRM, run="run_3")
    explained = replace(failed, explained=("pace",))
    told = [("run_1", ["pace", "spikes"])], [("run_1", ["spikes"])]
    assert told_of(after(failed, again, whole, plan=plan)) == told[0]
    assert told_of(after(explained, again, whole, plan=plan)) == told[1]
    alone = replace(failed, failed=("pace",), explained=("pace",))
    history = after(alone, again, whole, plan=plan).history
    assert history is not None
    assert [row.id for row in history_criteria(history)] == ["reproduced"]


@pytest.mark.parametrize(
    ("code", "began_with", "told"),
    [
        *(("diverged", "run_1", True), ("diverged", None, False)),
        *(("non_finite", "run_1", True), ("non_finite", None, False)),
        ("too_slow", "run_1", False),
    ],
)
def test_what_one_that_diverged_had_learned_stays_in_what_is_gone_on_with(
    code: str, began_with: str | None, told: bool
) -> None:
    """A gradient beyond its bound at step 5: the rerun began at step 300, and all was GO."""
    found = {"diverged": Detector.DIVERGENCE, "non_finite": Detector.NON_FINITE}
    detector = found.get(code, Detector.SLOW)
    plan = ours(confirm={"on": [detector.value], "variants": []})
    named = {"failed": ("asked",), "explained": ("asked",), "step": 400, "run": "run_1"}
    failed = attempt(code, "NO_GO", detector=detector, **named)
    confirming = {"reason": RunReason.CONFIRM}
    again = attempt(**confirming, until=410, run="run_2", began_with=began_with)
    whole = attempt(**confirming, run="run_3", began_with="run_2")
    history = after(failed, again, whole, plan=plan).history
    assert history is not None
    expected = [("run_1", code, ["asked"])] if told else []
    assert [(row.run, row.code, row.criteria) for row in history.failed_before] == expected


@pytest.mark.parametrize(
    ("detector", "code", "metric", "explained"),
    [
        (Detector.SLOW, OutcomeCode.TOO_SLOW, "dt_step_s", True),
        (Detector.SLOW, OutcomeCode.TOO_SLOW, "grad_norm", False),
        (Detector.DIVERGENCE, OutcomeCode.DIVERGED, "grad_norm", True),
        (Detector.DIVERGENCE, OutcomeCode.DIVERGED, "dt_step_s", False),
        (Detector.NON_FINITE, OutcomeCode.NON_FINITE, "loss", True),
        (Detector.NON_FINITE, OutcomeCode.NON_FINITE, "dt_step_s", False),
        (Detector.MEMORY_LEAK, OutcomeCode.RESOURCE_LIMIT, "dt_step_s", False),
        (Detector.STALL, OutcomeCode.STALLED, "dt_step_s", False),
    ],
)
def test_a_failure_that_many_steps_show_makes_worse_what_is_measured_of_it_alone(
    detector: Detector, code: OutcomeCode, metric: str, explained: bool
) -> None:
    """A gradient beyond its bound at step 5 was forgotten: what came later was a slow disk."""
    row = {"id": "asked", "metric": metric, "aggregate": "max", "pass_below": 1e-9}
    ended = exit_record(code, by=Actor.WATCHDOG)
    order = with_gate(order_of(), row)
    record = record_of(order, exit=ended, findings=[finding(detector, step=4)])
    found = judged(record)
    assert (found.verdict, found.failed) == ("NO_GO", ["asked"])
    assert found.explained == (["asked"] if explained else [])


@pytest.mark.parametrize("passed", ["GO", "CONDITIONAL_GO"])
def test_what_a_rerun_that_answered_had_failed_counts_for_who_goes_on_from_it(passed: str) -> None:
    """Its steps are the phase's own, and the gate sees those after its checkpoint alone."""
    again = attempt(
        verdict=passed, reason=RunReason.CONFIRM, until=410, failed=("spikes",), run="run_2"
    )
    whole = attempt(reason=RunReason.CONFIRM, run="run_3", began_with="run_2")
    for reason in (RunReason.CONFIRM, RunReason.RERUN, RunReason.RESUME):
        action = after(nan(step=400), again, replace(whole, reason=reason), plan=ours())
        assert (action.verdict, told_of(action)) == ("CONDITIONAL_GO", [("run_2", ["spikes"])])
    further = replace(whole, run="run_4", began_with="run_3")
    cut_off = replace(lost(), run="run_3", reason=RunReason.CONFIRM, began_with="run_2")
    action = after(nan(step=400), again, cut_off, further, plan=ours())
    assert told_of(action) == [("run_2", ["spikes"])]
    anew = replace(whole, began_with=None)
    assert told_of(after(nan(step=400), again, anew, plan=ours())) == []


@pytest.mark.parametrize(
    ("aggregate", "bounds", "lasting"),
    [
        ("max", {"pass_below": 1e-9}, True),
        ("max", {"pass_below": 1e-9, "fail_above": 1e9}, True),
        ("max", {"pass_below": 1e9}, False),
        ("median", {"pass_below": 1e-9}, False),
        ("max", {"pass_above": 1e9}, False),
        ("min", {"pass_above": 1e9}, True),
    ],
)
@pytest.mark.parametrize("code", [OutcomeCode.COMPLETED, OutcomeCode.KEEPER_LOST])
def test_that_is_what_no_step_after_its_own_undoes(
    aggregate: str, bounds: dict[str, float], lasting: bool, code: OutcomeCode
) -> None:
    row = {"id": "pace", "metric": "dt_step_s", "aggregate": aggregate, **bounds}
    record = record_of(with_gate(order_of(), row), exit=exit_record(code, by=Actor.INFRA))
    facts = build_facts(record, build_rules(record.order))
    found = judged(record)
    assert found.lasting == (["pace"] if lasting else [])
    answers = build_attempt("run_1", RunReason.CONFIRM, facts, found, until=40)
    assert answers.failed == tuple(found.lasting)
    whole = build_attempt("run_1", RunReason.CONFIRM, facts, found)
    assert whole.failed == tuple(found.failed)


@pytest.mark.parametrize(
    ("more", "lasting"),
    [({}, True), ({"severity": "advisory"}, False), ({"window": 3}, False)],
    ids=["any step", "advisory", "the last steps of its phase"],
)
def test_of_a_gate_that_is_measured_alone_what_fails_for_good_is_told(
    more: dict[str, Any], lasting: bool
) -> None:
    """It decides nothing of the rerun, which ends before its phase does."""
    row = {"id": "pace", "metric": "dt_step_s", "aggregate": "max", "pass_below": 1e-9, **more}
    asked = with_gate(order_of(), row)
    order = asked.model_copy(update={"gate": [], "measured": asked.gate})
    found = judged(record_of(order))
    assert (found.verdict, found.lasting) == (Verdict.GO, ["pace"] if lasting else [])
    assert "pace" not in [told.id for told in found.criteria]


@pytest.mark.parametrize("bound", [1e-9, 1e9])
def test_a_number_that_is_none_fails_nothing_by_itself_that_is_learned(bound: float) -> None:
    """The failure of the run is that one; what was beyond its bound before is another."""
    row = {"id": "asked", "metric": "loss", "aggregate": "max", "pass_below": bound}
    order = with_gate(order_of(), row)
    ranks = healthy_ranks(order)
    for rank in ranks:
        [line for line in rank.lines if line["msg"] == "progress"][-1]["loss"] = math.nan
    ended = exit_record(OutcomeCode.NON_FINITE, by=Actor.WATCHDOG)
    halt = finding(Detector.NON_FINITE, step=4)
    found = judged(record_of(order, ranks, exit=ended, findings=[halt]))
    assert found.verdict == "NO_GO"
    assert found.failed == found.explained == ([] if bound > 1 else ["asked"])


@pytest.mark.parametrize("change", [None, NO_FLASH], ids=["unchanged", "a variant"])
def test_nor_is_it_where_the_confirmation_went_to_the_last_step_at_once(change: Any) -> None:
    """The decision is about the failure, which the next phase meets."""
    told = {"reason": RunReason.CONFIRM, "change": change}
    failed = [nan()] if change is None else [nan(), confirm("NO_GO")]
    ended = lost(failed=("spikes",), run="run_2", **told)
    whole = attempt(verdict="CONDITIONAL_GO", failed=("slow",), run="run_3", **told)
    plan = plan_with(confirm={**CONFIRM, "variants": VARIANTS[:1]})
    action = after(*failed, ended, whole, plan=plan)
    assert (action.verdict, action.about) == ("CONDITIONAL_GO", "run_1")
    assert action.history is not None
    seen = [(row.run, row.code, row.criteria) for row in action.history.failed_before]
    assert seen == [("run_2", "keeper_lost", ["spikes"]), ("run_3", "completed", ["slow"])]
    alone = after(*failed, replace(whole, verdict=Verdict.GO, failed=()), plan=plan).history
    assert alone is not None
    assert [row.id for row in history_criteria(alone)] == ["reproduced"]
    untold = replace(whole, failed=(), unmet=("coverage", "slow"))
    history = after(*failed, untold, plan=plan).history
    assert history is not None
    assert [row.criteria for row in history.failed_before] == [["coverage"]], "waived by the plan"


def told_of(action: Action) -> list[tuple[str, list[str]]]:
    rows = action.history.failed_before if action.history is not None else []
    return [(row.run, row.criteria) for row in rows]


def test_a_drift_is_one_of_who_goes_on_from_its_checkpoint_and_of_nobody_else() -> None:
    """Preempted, and gone on with by the frozen code, it was GO without a word."""
    drifted = attempt("preempted", "INCONCLUSIVE", failed=(DRIFT,))
    lost_again = attempt("preempted", "INCONCLUSIVE", run="run_2", began_with="run_1")
    whole = attempt(reason=RunReason.RESUME, run="run_3", began_with="run_2")
    action = after(drifted, lost_again, whole)
    assert (action.verdict, action.about) == ("CONDITIONAL_GO", "run_3")
    assert told_of(action) == [("run_1", [DRIFT])]
    anew = replace(whole, began_with=None)
    assert (after(drifted, lost_again, anew).verdict, told_of(after(drifted, anew))) == ("GO", [])
    own = replace(whole, verdict=Verdict.CONDITIONAL_GO, failed=(DRIFT,))
    assert told_of(after(drifted, lost_again, own)) == [], "its own gate says so"


@pytest.mark.parametrize("name", ["identity", "coverage"])
def test_so_is_other_work_than_was_ordered_or_none(name: str) -> None:
    """Half of a phase with half of the batch, and a host that was lost: it was GO."""
    other = attempt("preempted", "INCONCLUSIVE", failed=(name,))
    whole = attempt(reason=RunReason.RESUME, run="run_2", began_with="run_1")
    action = after(other, whole)
    assert (action.verdict, told_of(action)) == ("CONDITIONAL_GO", [("run_1", [name])])
    anew = replace(whole, began_with=None)
    assert (after(other, anew).verdict, told_of(after(other, anew))) == ("GO", [])
    own = replace(whole, verdict=Verdict.CONDITIONAL_GO, failed=(DRIFT,))
    assert told_of(after(other, own)) == [("run_1", [name])], "its gate says nothing of that"


def test_a_drift_of_a_confirmation_is_told_where_the_decision_is_about_the_failure() -> None:
    whole = confirm("CONDITIONAL_GO", failed=(DRIFT,))
    assert told_of(after(nan(), whole, plan=CONFIRMING)) == [("run_c", [DRIFT])]


def test_a_variant_that_a_person_halted_is_still_to_be_run() -> None:
    halted = attempt("halted", "INCONCLUSIVE", reason=RunReason.CONFIRM, change=NO_FLASH)
    rerun = nan(reason=RunReason.RERUN, run="run_2")
    action = after(nan(), confirm("NO_GO"), halted, rerun, plan=CONFIRMING)
    assert (action.reason, action.change) == ("confirm", NO_FLASH)


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


@pytest.mark.parametrize(("code", "why"), [
    ("preempted", "preempted: it goes on from its last checkpoint"),
    ("keeper_lost", "keeper_lost: retry 1 of 2"),
])  # fmt: skip
def test_who_is_cut_off_too_late_for_the_gate_is_told_that_steps_may_be_made_again(
    code: str, why: str
) -> None:
    again = ", or from one before step 26 after which the gate sees enough"
    cut_off = attempt(code, "INCONCLUSIVE", durable_step=26)
    gated = plan_with(phases__smoke__gate=SEES_15)
    assert after(cut_off, plan=gated).text == f"{why}{again}"
    assert after(replace(cut_off, durable_step=25), plan=gated).text == why
    bounded = replace(cut_off, reason=RunReason.CONFIRM, until=30)
    assert after(bounded, plan=gated).text == why, "its gate asks for nothing"
    assert after(cut_off).text == why, "its profile leaves none of what asks for so many"


def test_a_preempted_run_goes_on_however_often_and_counts_as_no_retry() -> None:
    taken = attempt("preempted", "INCONCLUSIVE", durable_step=20, started_at=9_990.0)
    for plan in (plan_with(retry__infra=0), plan_with(retry__infra=2)):
        rows = [replace(taken, durable_step=step) for step in range(26)]
        action = after(*rows, plan=plan)
        assert (action.kind, action.reason, action.resume) == ("start_run", "resume", True)
        assert action.text == "preempted: it goes on from its last checkpoint"
    between = after(lost(20), taken, lost(21), taken, taken, plan=plan_with(retry__infra=2))
    assert between.kind == "start_run"
    again = after(lost(20), taken, lost(21), taken, lost(22), plan=plan_with(retry__infra=3))
    assert again.text == "keeper_lost: retry 3 of 3"
    assert after(lost(20), taken, lost(21), taken, lost(22)).kind == "await_decision"


def test_a_run_that_is_preempted_before_each_next_checkpoint_asks_a_person() -> None:
    taken = attempt("preempted", "INCONCLUSIVE", durable_step=20)
    first, unlaunched = replace(taken, durable_step=19), replace(taken, launched=False)
    assert after(first, *[taken] * IN_VAIN, unlaunched).kind == "start_run"
    action = after(first, *[taken] * (IN_VAIN + 1))
    assert (action.kind, action.verdict) == ("await_decision", "INCONCLUSIVE")
    assert "without a later checkpoint" in action.text
    further = replace(taken, durable_step=21)
    assert after(first, *[taken] * (IN_VAIN + 1), further).kind == "start_run"
    assert after(*[replace(taken, durable_step=0)] * IN_VAIN).kind == "await_decision"


def test_a_run_that_is_preempted_again_and_again_before_its_launch_asks_a_person() -> None:
    taken = attempt("preempted", "INCONCLUSIVE", launched=False)
    assert after(*[taken] * (IN_VAIN - 1)).kind == "start_run"
    assert after(*[taken] * IN_VAIN).kind == "await_decision"
    assert after(lost(20), *[taken] * (IN_VAIN - 1)).kind == "start_run"


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


def test_who_has_gone_back_for_his_gate_gets_further_though_no_step_is_higher() -> None:
    """Four lost hosts of a healthy run were a restart storm, and NO_GO."""
    plan = plan_with(retry__infra=5, phases__smoke__gate=SEES_15)
    back = [lost(20, began_at=10), lost(22, began_at=20), lost(25, began_at=22)]
    assert after(lost(29), *back, plan=plan).kind == "start_run"
    for begun in (10, 20):
        stays = [replace(row, durable_step=begun, began_at=begun) for row in back]
        assert after(lost(29), *stays, plan=plan).verdict == "NO_GO", "it got nowhere from there"
    lost_its_own = [replace(row, began_at=0) for row in back]
    assert after(lost(29), *lost_its_own, plan=plan).verdict == "NO_GO", "that was not on purpose"


def test_who_has_gone_back_for_his_gate_is_not_preempted_in_vain() -> None:
    taken = attempt("preempted", "INCONCLUSIVE", durable_step=29)
    steps = range(10, 10 + IN_VAIN)
    back = [replace(taken, began_at=step, durable_step=step + 1) for step in steps]
    gated = plan_with(phases__smoke__gate=SEES_15)
    assert after(taken, *back, plan=gated).kind == "start_run"
    stays = [replace(taken, began_at=20, durable_step=20)] * IN_VAIN
    assert after(taken, *stays, plan=gated).kind == "await_decision"


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
        False,  # nobody knows at which step it ended
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


def test_a_rerun_by_a_person_answers_what_its_confirmation_left_open() -> None:
    again = nan(reason=RunReason.RERUN, run="run_9")
    action = after(nan(), confirm("INCONCLUSIVE"), again, plan=CONFIRMING)
    assert (action.reason, action.change) == ("confirm", NO_FLASH)
    passed = attempt(reason=RunReason.RERUN, run="run_9")
    action = after(nan(), confirm("INCONCLUSIVE"), passed, plan=CONFIRMING)
    assert (action.kind, action.verdict) == ("start_phase", "CONDITIONAL_GO")


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


@pytest.mark.parametrize("reason", AGAIN)
def test_a_remedy_that_answered_nothing_makes_no_failure_forgotten(reason: str) -> None:
    """A person runs the phase again without the patch: it failed once and passed once."""
    plan = plan_with(remedies=REMEDIES, max_remedies=1)
    sick = nan(diagnosis="fp16_overflow")
    change = after(sick, plan=plan).change
    unclear = attempt(verdict="INCONCLUSIVE", reason=RunReason.REMEDY, change=change)
    assert after(sick, unclear, plan=plan).kind == "await_decision"
    passed = attempt(reason=RunReason(reason), run="run_3")
    action = after(sick, unclear, passed, plan=plan)
    assert (action.verdict, action.about) == ("CONDITIONAL_GO", "run_1")
    assert action.history is not None
    assert [row.run for row in action.history.confirmations] == ["run_3"]


@pytest.mark.parametrize("severity", ["required", "conditional", "advisory"])
def test_what_a_whole_run_had_failed_is_not_met_by_more_steps_of_the_next_phase(
    severity: str,
) -> None:
    """Its remedy was halted, and it passed when it was run again: `reproduced` asks for no more."""
    asked = {"id": "speed", "metric": "toks_per_s", "aggregate": "median", "pass_above": 1e9}
    found = judged(record_of(with_gate(order_of(), {**asked, "severity": severity})))
    assert found.failed == ([] if severity == "advisory" else ["speed"])
    if severity != "required":
        return
    plan = plan_with(remedies={"slow_loader": NO_FLASH}, max_remedies=1)
    slow = attempt(verdict="NO_GO", failed=tuple(found.failed), diagnosis="slow_loader")
    change = after(slow, plan=plan).change
    halted = attempt("halted", "INCONCLUSIVE", reason=RunReason.REMEDY, change=change, run="run_2")
    action = after(slow, halted, attempt(reason=RunReason.RERUN, run="run_3"), plan=plan)
    assert (action.verdict, action.about) == ("CONDITIONAL_GO", "run_1")
    assert told_of(action) == [("run_1", ["speed"])]


LONG = ours(confirm=CONFIRM)


def test_a_stall_of_another_program_is_not_tried_with_our_variables() -> None:
    command = {"entry": None, "command": ["train"], "env": {}, "world_size": 1}
    foreign = plan_with(confirm=CONFIRM, workload=command)
    assert not foreign.ours
    action = after(stall(), confirm("NO_GO"), plan=foreign)
    assert action.change == NO_FLASH, "the first variant of the plan's own"


def early(step: int = 200, **fields: Any) -> Attempt:
    return nan(step=step, **fields)


def test_a_rerun_goes_on_before_the_failure_and_answers_soon_after_it() -> None:
    action = after(early(), plan=LONG)
    assert (action.reason, action.change) == ("confirm", None)
    assert (action.resume, action.resume_of, action.before, action.until) == (
        True, "run_1", 200, 250,
    )  # fmt: skip


def test_what_is_seen_over_many_steps_has_more_of_them_to_show_itself() -> None:
    slow = attempt("too_slow", "NO_GO", detector=Detector.LOADER, step=200)
    plan = ours(confirm={"on": ["loader"], "variants": VARIANTS})
    assert after(slow, plan=plan).until == 700


@pytest.mark.parametrize("step", [950, 1000])
def test_a_rerun_of_the_end_of_a_phase_goes_to_its_last_step(step: int) -> None:
    assert after(early(step), plan=LONG).until is None


def test_a_program_that_is_not_ours_cannot_be_told_to_end_sooner() -> None:
    data = {**with_overrides(bundled_plan("demo"), {"confirm": CONFIRM})}
    data["workload"] = {"command": ["python", "train.py"], "world_size": 2}
    data["train"] = {}
    data["phases"] = [{"name": "smoke", "steps": 1000}]
    action = after(early(), plan=parse_plan(data))
    assert (action.reason, action.resume, action.until) == ("confirm", True, None)


def answered(verdict: str = "GO", change: dict[str, Any] | None = None, **fields: Any) -> Attempt:
    return confirm(verdict, change, **{"until": 250, "step": 250, **fields})


def test_after_a_passing_confirmation_the_phase_goes_on_unchanged_and_only_that_passes_it() -> None:
    action = after(early(), answered(), plan=LONG)
    assert (action.kind, action.reason, action.change, action.record) == (
        "start_run", "confirm", None, False,
    )  # fmt: skip
    assert (action.resume, action.resume_of, action.until) == (True, "run_c", None)
    whole = confirm("GO", step=1000)
    action = after(early(), answered(), whole, plan=LONG)
    assert (action.kind, action.verdict, action.about) == (
        "start_phase", "CONDITIONAL_GO", whole.run,
    )  # fmt: skip
    assert action.history is not None
    assert action.history.failed_step == 200
    (row,) = history_criteria(action.history)
    assert row.evidence == "not reproduced: failed in 1 of 3 unchanged runs"


@pytest.mark.parametrize("verdict", ["INCONCLUSIVE", "NO_GO"])
def test_a_phase_that_went_on_and_did_not_pass_has_not_passed(verdict: str) -> None:
    action = after(early(), answered(), confirm(verdict), plan=ours(confirm={"on": ["non_finite"]}))
    assert action.verdict == verdict


def test_a_failure_that_comes_again_after_going_on_is_reproduced() -> None:
    rows = [early(), answered(), confirm("NO_GO", step=600)]
    action = after(*rows, plan=LONG)
    assert (action.change, action.resume_of, action.before, action.until) == (
        NO_FLASH, "run_1", 200, 250,
    )  # fmt: skip


def test_a_phase_goes_on_under_the_variant_that_passed_and_a_person_lets_the_next_begin() -> None:
    rows = [early(), answered("NO_GO"), answered("NO_GO", NO_FLASH), answered("GO", FLASH_ONLY)]
    action = after(*rows, plan=LONG)
    assert (action.kind, action.change, action.until) == ("start_run", FLASH_ONLY, None)
    action = after(*rows, confirm("GO", FLASH_ONLY), plan=LONG)
    assert (action.kind, action.verdict) == ("await_approval", "CONDITIONAL_GO")
    action = after(*rows, confirm("NO_GO", FLASH_ONLY), plan=LONG)
    assert (action.kind, action.verdict) == ("finish", "NO_GO")


def test_a_slow_loader_is_held_against_synthetic_data_alone_which_passes_no_phase() -> None:
    plan = ours(confirm={"on": ["loader"], "variants": VARIANTS}, phases__smoke__data="local_text")
    slow = attempt("too_slow", "NO_GO", detector=Detector.LOADER, step=200)
    again = answered("NO_GO", until=700)
    action = after(slow, again, plan=plan)
    assert action.change == {"train": {"data": "synthetic"}}
    assert (action.resume, action.until) == (False, 500)  # no checkpoint goes on with other data
    action = after(slow, again, answered("GO", action.change, until=500), plan=plan)
    assert (action.kind, action.verdict) == ("finish", "NO_GO")
    assert action.history is not None
    (row,) = history_criteria(action.history)
    assert row.evidence == "failed in 2 of 2 unchanged runs; passed 1 of 1 with data=synthetic"


TWO = {
    "ddp_marked_ready_twice": {"workload": {"parallel": "fsdp"}},
    "out_of_memory": {"train": {"model": {"gradient_checkpointing": True}}},
}


def died(diagnosis: str, step: int = 3, **fields: Any) -> Attempt:
    return attempt("nonzero_exit", "NO_GO", detector=Detector.PROCESS_DEATH, diagnosis=diagnosis,
                   step=step, **fields)  # fmt: skip


def test_a_remedy_answers_soon_and_then_the_phase_goes_on_patched() -> None:
    plan = ours(remedies=TWO, max_remedies=2)
    first = died("ddp_marked_ready_twice")
    action = after(first, plan=plan)
    assert (action.reason, action.resume, action.before, action.until) == ("remedy", True, 3, 53)
    short = attempt(reason=RunReason.REMEDY, change=action.change, until=53, run="run_r")
    further = after(first, short, plan=plan)
    assert (further.kind, further.reason, further.change) == ("start_run", "remedy", action.change)
    assert (further.resume_of, further.until, further.record) == ("run_r", None, False)
    whole = attempt(reason=RunReason.REMEDY, change=action.change)
    assert after(first, short, whole, plan=plan).verdict == "CONDITIONAL_GO"
    sick = nan(reason=RunReason.REMEDY, change=action.change, diagnosis="non_finite_loss")
    assert after(first, short, sick, plan=plan).verdict == "NO_GO"


def test_a_remedy_that_uncovers_another_known_failure_is_kept_within_the_plan_s_bound() -> None:
    first = died("ddp_marked_ready_twice")
    one = {**TWO["ddp_marked_ready_twice"], "diagnosis": "ddp_marked_ready_twice"}
    failed = died("out_of_memory", reason=RunReason.REMEDY, change=one, until=53, run="run_r")
    action = after(first, failed, plan=ours(remedies=TWO, max_remedies=2))
    assert action.change == {**TWO["ddp_marked_ready_twice"], **TWO["out_of_memory"],
                             "diagnosis": "out_of_memory"}  # fmt: skip
    assert after(first, failed, plan=ours(remedies=TWO, max_remedies=1)).verdict == "NO_GO"
    again = died("ddp_marked_ready_twice", reason=RunReason.REMEDY, change=one)
    assert after(first, again, plan=ours(remedies=TWO, max_remedies=2)).verdict == "NO_GO"


@pytest.mark.parametrize(
    ("patch", "goes_on"),
    [
        ({"train": {"dtype": "bf16"}}, True),
        ({"train": {"model": {"gradient_checkpointing": True}}}, True),
        ({"workload": {"parallel": "fsdp"}}, True),
        ({"train": {"model": {"seq_len": 128}}}, False),
        ({"train": {"batch": {"global_seqs": 2}}}, False),
    ],
)
def test_a_patch_under_which_no_checkpoint_fits_begins_at_step_1(
    patch: dict[str, Any], goes_on: bool
) -> None:
    plan = ours(remedies={"out_of_memory": patch}, max_remedies=1)
    action = after(died("out_of_memory", step=300), plan=plan)
    assert (action.reason, action.resume, action.until) == ("remedy", goes_on, 350)


def test_a_phase_goes_on_from_where_its_gate_still_sees_enough() -> None:
    gate = [{"id": "g", "metric": "toks_per_s", "aggregate": "median", "over_ranks": "min",
             "warmup_steps": 20, "min_samples": 500, "pass_above": 1}]  # fmt: skip
    plan = ours(confirm=CONFIRM, phases__smoke__gate=gate)
    assert after(early(), answered(), plan=plan).before == 481


@pytest.mark.parametrize(("aggregate", "before"), [("slope", 979), ("median", 980)])
def test_who_goes_on_makes_the_steps_that_a_slope_needs(aggregate: str, before: int) -> None:
    gate = [{"id": "g", "metric": "loss", "aggregate": aggregate,
             "warmup_steps": 20, "pass_below": 9.0}]  # fmt: skip
    plan = ours(confirm=CONFIRM, phases__smoke__gate=gate)
    assert after(early(), answered(), plan=plan).before == before


@pytest.mark.parametrize("metric", ["loss_first", "cost"])
def test_what_no_resumed_run_tells_has_a_phase_go_on_from_its_start(metric: str) -> None:
    gate = [{"id": "g", "metric": metric, "aggregate": "last", "pass_below": 9.0}]
    plan = ours(confirm=CONFIRM, phases__smoke__gate=gate)
    assert after(early(), answered(), plan=plan).before == 1


def test_an_imbalanced_run_that_its_gate_refused_is_answered_from_its_start() -> None:
    remedy = {"imbalance": {"env": {"NSA_DDP_STATIC_GRAPH": "1", "NSA_DDP_BUCKET_MB": "100"}}}
    refused = attempt("completed", "NO_GO", diagnosis="imbalance", step=1000)
    action = after(refused, plan=ours(remedies=remedy, max_remedies=1))
    assert (action.reason, action.resume, action.until) == ("remedy", False, None)


def test_a_rerun_that_infrastructure_ended_is_made_again_as_far() -> None:
    interrupted = lost(reason=RunReason.CONFIRM, until=250)
    action = after(early(), interrupted, plan=LONG)
    assert (action.reason, action.resume, action.until) == ("confirm", True, 250)


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


@pytest.mark.parametrize(
    ("by_hand", "text"),
    [
        ([], "every phase passed"),
        (["smoke"], "production was the last phase; a person decided smoke"),
    ],
)
def test_the_end_of_a_plan_names_the_phases_that_a_person_decided(
    by_hand: list[str], text: str
) -> None:
    last = PLAN.phases[-1].name
    found = decide_promotion(PLAN, last, by_hand=by_hand)
    assert found.text == text.replace("production", last)
    word = decide_override(PLAN, last, Verdict.GO, awaiting=True, by_hand=by_hand)
    assert word.text.endswith(", ".join([*by_hand, last]))
