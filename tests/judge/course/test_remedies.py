"""A remedy for what completed and left a condition open: tried once, kept only when it helps."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.criterion import Criterion
from gonogo.contract.decision import Verdict
from gonogo.contract.finding import Severity
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import Actor, Detector, Outcome, OutcomeCode
from gonogo.contract.plan import Plan
from gonogo.judge.course.decide import Action, Attempt, build_attempt, decide
from gonogo.judge.course.remedies import lost_answers, set_aside
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import judge
from gonogo.planning.source import bundled_plan, parse_plan
from tests.data.make_runs import order_of
from tests.judge.runs import finding, record_of, with_gate

REMEDY = {"NSA_DDP_STATIC_GRAPH": "1", "NSA_DDP_FIND_UNUSED": "0", "NSA_DDP_BUCKET_MB": "100"}
CHANGE = {"env": REMEDY, "diagnosis": "imbalance"}


def real(**changes: Any) -> Plan:
    return parse_plan({**bundled_plan("m7c-125m"), **changes})


def run(verdict: str = "GO", code: str = "completed", **fields: Any) -> Attempt:
    outcome = Outcome(code=OutcomeCode(code), actor=Actor.TRAINER)
    base = {"run": "run_1", "reason": RunReason.FIRST, "verdict": Verdict(verdict), "step": 300}
    return Attempt(**{**base, "outcome": outcome, **fields})


IDLE = run(
    "CONDITIONAL_GO", diagnosis="imbalance", answerable=True, unmet=("utilisation", "balance")
)


def answer(verdict: str = "GO", code: str = "completed", **fields: Any) -> Attempt:
    told = {"run": "run_2", "reason": RunReason.REMEDY, "change": CHANGE, **fields}
    return run(verdict, code, **told)


def after(*runs: Attempt, plan: Plan | None = None) -> Action:
    return decide(plan or real(), "smoke", runs, now=10_000.0)


def test_a_condition_that_a_known_failure_explains_is_answered_by_the_plan_s_remedy() -> None:
    action = after(IDLE)
    assert (action.kind, action.reason, action.record) == ("start_run", "remedy", False)
    assert (action.change, action.resume, action.until) == (CHANGE, False, None)
    assert action.text == "imbalance: remedy 1 of 2"


@pytest.mark.parametrize(
    "plan",
    [real(max_remedies=0), real(remedies={"out_of_memory": {"env": {"NSA_TB_DISABLE": "1"}}})],
    ids=["none is allowed", "none is named"],
)
def test_without_a_remedy_it_is_the_condition_that_it_was(plan: Plan) -> None:
    action = after(IDLE, plan=plan)
    assert (action.kind, action.verdict, action.about) == (
        "start_phase", "CONDITIONAL_GO", "run_1",
    )  # fmt: skip


def test_what_the_failure_does_not_explain_is_not_answered_by_its_remedy() -> None:
    """A warning of an hour ago is no reason to train for two months once more."""
    slow = run("CONDITIONAL_GO", diagnosis="imbalance", unmet=("throughput",))
    assert after(slow).kind == "start_phase"


def test_a_remedy_that_settles_the_condition_is_what_the_phase_is_about() -> None:
    action = after(IDLE, answer())
    assert (action.kind, action.verdict, action.about) == (
        "start_phase", "CONDITIONAL_GO", "run_2",
    )  # fmt: skip
    assert action.history is not None
    assert action.history.remedy is not None
    assert action.history.remedy.diagnosis == "imbalance"


def test_one_of_two_conditions_settled_is_better() -> None:
    half = answer("CONDITIONAL_GO", unmet=("utilisation",))
    assert after(IDLE, half).about == "run_2"


VAIN = {
    "no better": answer("CONDITIONAL_GO", diagnosis="imbalance", answerable=True, unmet=IDLE.unmet),
    "another condition instead": answer("CONDITIONAL_GO", unmet=("steady_steps",)),
    "a gate that refuses": answer("NO_GO"),
    "a failure that is confirmed elsewhere": answer(
        "NO_GO", "non_finite", detector=Detector.NON_FINITE, diagnosis="non_finite_loss"
    ),
    "a failure with a remedy of its own": answer("NO_GO", "oom", diagnosis="out_of_memory"),
    "unclear": answer("INCONCLUSIVE"),
}


@pytest.mark.parametrize("vain", VAIN.values(), ids=VAIN)
def test_a_remedy_that_helps_nothing_leaves_the_phase_as_it_was(vain: Attempt) -> None:
    """It was tried for a condition: whatever becomes of it makes no failure of the phase."""
    action = after(IDLE, vain)
    assert (action.kind, action.verdict, action.about) == (
        "start_phase", "CONDITIONAL_GO", "run_1",
    )  # fmt: skip
    assert action.history is None
    code = vain.outcome.code
    how = "" if code is OutcomeCode.COMPLETED else f"ended as {code} and "
    assert action.text == f"smoke passed; the remedy of imbalance (run_2) {how}settled no condition"
    assert set_aside([IDLE, vain])[0] == [IDLE]


def test_a_remedy_that_its_host_ended_is_made_again_and_is_no_second_one() -> None:
    lost = answer("INCONCLUSIVE", "keeper_lost")
    again = after(IDLE, lost)
    assert (again.reason, again.resume, again.change) == ("remedy", True, CHANGE)
    assert after(IDLE, lost, answer()).about == "run_2"
    assert after(IDLE, lost, answer("NO_GO")).about == "run_1"


def test_a_remedy_that_its_host_never_lets_end_leaves_the_phase_as_it_was() -> None:
    """Neither a restart storm of it nor its last retry is the end of a phase that had passed."""
    lost = [
        answer("INCONCLUSIVE", "keeper_lost", run=f"run_{n}", started_at=1000.0 * n)
        for n in range(2, 6)
    ]
    runs, starts = [IDLE], 0
    while (action := after(*runs)).kind == "start_run":
        assert (action.reason, action.change) == ("remedy", CHANGE)
        runs.append(lost[starts])
        starts += 1
    assert starts == 3
    assert (action.kind, action.verdict, action.about) == (
        "start_phase", "CONDITIONAL_GO", "run_1",
    )  # fmt: skip
    assert action.text.startswith(
        "smoke passed; the remedy of imbalance (run_4) came to no end: restart_storm"
    )
    assert lost_answers(runs) == {"run_2", "run_3", "run_4"}


def test_a_failure_whose_remedy_its_host_ended_has_not_passed() -> None:
    failed = run("NO_GO", "oom", diagnosis="out_of_memory")
    of_it = {"train": {}, "diagnosis": "out_of_memory"}
    lost = [
        answer("INCONCLUSIVE", "keeper_lost", run=f"run_{n}", started_at=1000.0 * n, change=of_it)
        for n in range(2, 5)
    ]
    action = after(failed, *lost)
    assert (action.kind, action.verdict) == ("finish", "NO_GO")
    assert lost_answers([failed, *lost]) == set()


def test_a_remedy_of_what_was_confirmed_is_tried_once_whatever_a_variant_left_open() -> None:
    """A variant on other data shows where a failure lies; no remedy is held against it."""
    synthetic = {"train": {"data": "synthetic"}}
    plan = real(confirm={"on": ["slow"], "variants": [synthetic]})
    slow = {"detector": Detector.SLOW, "diagnosis": "imbalance"}
    runs = [run("NO_GO", "too_slow", **slow)]
    while (action := after(*runs, plan=plan)).kind == "start_run" and len(runs) < 8:
        told: dict[str, Any] = {
            "run": f"run_{len(runs)}", "reason": action.reason, "change": action.change,
            "until": action.until,
        }  # fmt: skip
        idles = {**told, "diagnosis": "imbalance", "answerable": True, "unmet": ("utilisation",)}
        isolates = action.change == synthetic
        runs.append(
            run("CONDITIONAL_GO", **idles) if isolates else run("NO_GO", "too_slow", **slow, **told)
        )
    assert [row.reason for row in runs] == ["first", "confirm", "confirm", "remedy"]
    assert (action.kind, action.verdict) == ("finish", "NO_GO")


def test_a_person_s_rerun_is_no_remedy_and_is_not_held_against_one() -> None:
    rerun = run(reason=RunReason.RERUN, run="run_3")
    action = after(IDLE, answer("NO_GO"), rerun)
    assert (action.verdict, action.about) == ("GO", "run_3")


def test_a_remedy_of_a_failure_is_not_set_aside_for_what_it_uncovers() -> None:
    failed = run("NO_GO", "oom", diagnosis="out_of_memory")
    of_it = {"train": {}, "diagnosis": "out_of_memory"}
    sick = answer("NO_GO", "oom", change=of_it, diagnosis="out_of_memory")
    assert set_aside([failed, sick]) == ([failed, sick], None)


SLOW = {"id": "asked", "metric": "toks_per_s", "aggregate": "mean", "over_ranks": "min",
        "severity": "conditional", "pass_above": 1e9}  # fmt: skip


@pytest.mark.parametrize("metric", ["gpu_util", "gpu_util_ratio", "toks_per_s"])
def test_a_judged_run_says_whether_its_diagnosis_explains_what_it_misses(metric: str) -> None:
    record = record_of(
        with_gate(order_of(), SLOW), findings=[finding(Detector.IMBALANCE, Severity.WARN)]
    )
    rules = build_rules(record.order)
    facts = build_facts(record, rules)
    asked = Criterion.model_validate({**SLOW, "metric": metric})
    judgement = judge(facts, rules.model_copy(update={"gate": [asked]}))
    own = build_attempt("run_1", RunReason.FIRST, facts, judgement)
    assert (own.verdict, own.diagnosis, own.unmet) == ("CONDITIONAL_GO", "imbalance", ("asked",))
    assert own.answerable is (metric != "toks_per_s")


def test_a_run_that_failed_a_condition_is_not_run_again_until_it_passes() -> None:
    """Its remedy was halted, the phase still open, and the rerun without one was plain GO."""
    warned = [finding(Detector.IMBALANCE, Severity.WARN)]
    record = record_of(with_gate(order_of(), SLOW), findings=warned)
    rules = build_rules(record.order)
    facts = build_facts(record, rules)
    whole = build_attempt("run_1", RunReason.FIRST, facts, judge(facts, rules))
    assert (whole.verdict, whole.failed) == ("CONDITIONAL_GO", ("asked",))
    halted = answer("INCONCLUSIVE", "halted")
    action = after(whole, halted, run(reason=RunReason.RERUN, run="run_3"))
    assert (action.verdict, action.about) == ("CONDITIONAL_GO", "run_3")
    assert action.history is not None
    told = [(row.run, row.code, row.criteria) for row in action.history.failed_before]
    assert told == [("run_1", "completed", ["asked"])]
    waiving = rules.model_copy(update={"waive": ["asked"]})
    unseen = judge(facts.model_copy(update={"measures": {}}), waiving)
    assert (unseen.verdict, unseen.failed) == ("CONDITIONAL_GO", [])


OF_OOM = {"train": {"batch": {"accumulate": 8}}, "diagnosis": "out_of_memory"}


@pytest.mark.parametrize("ended", ["preempted", "halted", "superseded"])
def test_what_a_remedy_had_failed_is_not_undone_by_its_next_attempt(ended: str) -> None:
    """Its gate saw the steps after the checkpoint alone; nothing but the remedy was told."""
    failed = run("NO_GO", "oom", diagnosis="out_of_memory", failed=("memory",))
    cut = answer("INCONCLUSIVE", ended, change=OF_OOM, failed=("spikes",))
    whole = answer(run="run_3", change=OF_OOM, began_with="run_2")
    action = after(failed, cut, whole)
    assert (action.verdict, action.about) == ("CONDITIONAL_GO", "run_3")
    assert action.history is not None
    told = [(row.run, row.criteria) for row in action.history.failed_before]
    assert told == [("run_2", ["spikes"])], "and what it was made for is not its own"
    assert action.history.remedy is not None
    assert action.history.remedy.diagnosis == "out_of_memory"


@pytest.mark.parametrize("began_with", ["run_1", None])
def test_what_is_in_the_weights_that_a_remedy_goes_on_with_is_told_of_it(
    began_with: str | None,
) -> None:
    """But for what the failure makes worse, that the remedy answers."""
    failed = run(
        "NO_GO", "oom", diagnosis="out_of_memory", failed=("spikes", "pace"), explained=("pace",)
    )
    action = after(failed, answer(change=OF_OOM, began_with=began_with))
    assert (action.verdict, action.about) == ("CONDITIONAL_GO", "run_2")
    assert action.history is not None
    told = [(row.run, row.criteria) for row in action.history.failed_before]
    assert told == ([("run_1", ["spikes"])] if began_with else [])
