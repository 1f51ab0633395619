"""Every verdict and every waiting state names commands that can be typed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import pytest
import typer

from gonogo.cli.app import app
from gonogo.contract.api import NextStep
from gonogo.contract.decision import Cause, Condition, ConditionState
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import Actor, Outcome, OutcomeCode
from gonogo.judge.gate.conditions import approval_condition
from gonogo.planning.resolve import resolve_plan
from gonogo.planning.source import bundled_plan
from gonogo.watch.detectors.hygiene import Mismatch, _text
from service.db.columns import Awaited, AwaitedKind
from service.db.schema import ExperimentRow, PhaseRow, RunRow
from service.views.experiments import Place, next_steps

DEMO = resolve_plan(bundled_plan("demo")).wire()
EXPERIMENT = "exp_01J00000000000000000000000"
RUN = "run_01J00000000000000000000000"
DECISION = "dec_01J00000000000000000000000"
STACK = "evidence/01_stall/stacks_rank1.txt"
CAUSE = Cause(text="rank 1 hung", rank=1, log="rank1.log", line="boom")
OPEN = Condition(id="smoke:fast", text="faster", criterion="fast", due="extended")


def run_row(run: str = RUN, **more: Any) -> RunRow:
    stalled = Outcome(code=OutcomeCode.STALLED, actor=Actor.WATCHDOG)
    row = {
        "id": run, "phase": "smoke", "state": RunState.ENDED, "lost": False, "started_at": 1.0,
        "outcome": stalled,
    }  # fmt: skip
    return RunRow(**{**row, **more})


def steps(
    state: str,
    *,
    awaiting: str | None = None,
    smoke: str = "active",
    runs: Sequence[RunRow] | None = None,
    conditions: tuple[Condition, ...] = (),
    cause: Cause | None = None,
    stack: str | None = None,
    following: bool = True,
    **row: Any,
) -> list[NextStep]:
    """What can be typed of an experiment that is at smoke; `following` is extended."""
    asked = None
    if awaiting is not None:
        kind, after = AwaitedKind(awaiting), "extended" if awaiting == "approval" else None
        asked = Awaited(kind=kind, phase="smoke", text="", following=after, asked_at=0.0)
    fields = {"id": EXPERIMENT, "plan": "demo", "stop": None, "resolved": DEMO, **row}
    experiment = ExperimentRow(state=ExperimentState(state), awaiting=asked, **fields)
    phases = [
        PhaseRow(name="smoke", state=PhaseState(smoke), steps=1),
        PhaseRow(name="extended", state=PhaseState.PENDING, steps=1),
    ][: 2 if following else 1]
    return next_steps(
        Place(
            row=experiment, phases=phases, runs=[run_row()] if runs is None else runs,
            conditions=conditions, cause=cause, last_decision=DECISION, stack=stack,
        )
    )  # fmt: skip


def commands(found: Sequence[NextStep], part: str = "") -> list[str]:
    return [row.command for row in found if part in row.command]


def test_the_log_is_of_the_run_that_is_judged_and_not_of_its_confirmation() -> None:
    confirms = [
        run_row(
            f"run_{code}", reason=RunReason.CONFIRM, outcome=Outcome(code=code, actor=Actor.TRAINER)
        )
        for code in (OutcomeCode.NON_FINITE, OutcomeCode.COMPLETED)
    ]
    runs = [run_row(reason=RunReason.FIRST), *confirms]
    assert steps("finished", runs=runs, cause=CAUSE)[0].command == f"gonogo logs {RUN} --rank 1"


APPROVAL = {"state": "awaiting_decision", "awaiting": "approval"}
DECIDE = {"state": "awaiting_decision", "awaiting": "decision"}
NO_GO = {"state": "finished", "cause": CAUSE}
STATES: dict[str, tuple[dict[str, Any], str]] = {
    "queued": (
        {"state": "queued", "runs": [run_row(state=RunState.QUEUED, outcome=None)]},
        "gonogo worker",
    ),
    "running": (
        {"state": "running", "runs": [run_row(state=RunState.RUNNING, outcome=None)]},
        f"gonogo watch {EXPERIMENT}",
    ),
    "lost": (
        {
            "state": "running",
            "runs": [run_row(state=RunState.RUNNING, outcome=None, lost=True, host="h1")],
        },
        f"gonogo takeover {EXPERIMENT} --reason WHY",
    ),
    "stopping": (
        {"state": "stopping", "runs": [run_row(state=RunState.HALTING, outcome=None)]},
        f"gonogo watch {EXPERIMENT}",
    ),
    "an approval": ({**APPROVAL, "smoke": "passed"}, f"gonogo promote {EXPERIMENT} --reason WHY"),
    "an open phase": (DECIDE, f"gonogo resume {EXPERIMENT}"),
    "a passed phase": (
        {**DECIDE, "smoke": "passed"},
        f"gonogo override {EXPERIMENT} GO --reason WHY",
    ),
    "no cause": ({"state": "finished"}, f"gonogo report {EXPERIMENT}"),
    "cancelled": ({"state": "finished", "runs": []}, f"gonogo report {EXPERIMENT}"),
    "a rank": (NO_GO, f"gonogo logs {RUN} --rank 1"),
    "the launcher": (
        {**NO_GO, "cause": CAUSE.model_copy(update={"rank": None, "log": "torchrun.log"})},
        f"gonogo logs {RUN}",
    ),
    "a hang": ({**NO_GO, "stack": STACK}, f"gonogo artifacts {RUN} {STACK}"),
}


@pytest.mark.parametrize(("asked", "first"), STATES.values(), ids=STATES)
def test_every_state_names_what_to_type_first(asked: dict[str, Any], first: str) -> None:
    found = steps(**asked)
    assert found[0].command == first
    assert all(row.text for row in found)
    for row in found:
        parses(row.command)


def parses(command: str) -> None:
    """Read a command line as `gonogo` does, without doing it."""
    program, name, *words = shlex.split(command)
    assert program == "gonogo"
    group: Any = typer.main.get_command(app)
    context = group.make_context("gonogo", [name, *words], resilient_parsing=True)
    found = group.get_command(context, name)
    assert found is not None, command
    found.make_context(name, words, parent=context)


def test_a_command_that_nobody_has_would_be_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        parses(f"gonogo promote {EXPERIMENT} --because WHY")
    with pytest.raises(AssertionError):
        parses("gonogo approve x")


@pytest.mark.parametrize(
    ("name", "sets", "word"),
    [("demo", {}, "demo"), ("demo", {"train.seed": 7}, "PLAN"), ("mine", {}, "PLAN")],
)
def test_a_new_experiment_continues_with_the_plan_that_failed(
    name: str, sets: dict[str, Any], word: str
) -> None:
    resolved = resolve_plan(bundled_plan("demo"), sets).wire()
    found = steps("finished", smoke="failed", plan=name, resolved=resolved)
    assert commands(found, "--from") == [f"gonogo submit {word} --from {EXPERIMENT}:smoke"]


@pytest.mark.parametrize(
    ("differed", "allowed", "code", "named"),
    [
        ("git_sha", [], OutcomeCode.CONFIG_MISMATCH, "git_sha"),
        ("git_sha", ["torch"], OutcomeCode.CONFIG_MISMATCH, "git_sha,torch"),
        ("params", [], OutcomeCode.CONFIG_MISMATCH, None),  # nothing lets that differ
        ("git_sha", [], OutcomeCode.STALLED, None),
    ],
)
def test_repaired_code_may_differ_by_a_command(
    differed: str, allowed: list[str], code: OutcomeCode, named: str | None
) -> None:
    row = Mismatch(rank=0, name=differed, said="b" * 40, expected="a" * 40, by="the order")
    run = run_row(outcome=Outcome(code=code, actor=Actor.WATCHDOG))
    resolved = {**DEMO, "plan": {**DEMO["plan"], "allow_drift": allowed}}
    cause = Cause(text=f"identity: {_text(row)}")
    found = steps(
        "finished", smoke="failed", plan="mine", resolved=resolved, runs=[run], cause=cause
    )
    again = f"gonogo submit PLAN --from {EXPERIMENT}:smoke"
    drifting = [] if named is None else [f"{again} --set 'allow_drift=[{named}]'"]
    assert commands(found, "--from") == [again, *drifting]
    for command in commands(found):
        parses(command)


def test_every_state_of_an_experiment_is_in_the_table() -> None:
    named = {asked["state"] for asked, _ in STATES.values()}
    assert named == {state.value for state in ExperimentState}


def test_a_condition_that_the_next_phase_would_miss_can_be_waived() -> None:
    (waiver,) = commands(steps(**DECIDE, conditions=(OPEN,)), "--condition")
    assert waiver == (
        f"gonogo override {EXPERIMENT} CONDITIONAL_GO --condition smoke:fast --reason WHY"
    )
    parses(waiver)
    for other in (
        OPEN.model_copy(update={"due": "production"}),
        OPEN.model_copy(update={"state": ConditionState.MET}),
        approval_condition("smoke", "extended"),
    ):
        assert not commands(steps(**DECIDE, conditions=(other,)), "--condition")


def test_at_the_end_one_command_waives_what_only_a_person_can_settle() -> None:
    left = [
        OPEN.model_copy(update={"id": f"{phase}:remedy_carried", "due": None})
        for phase in ("smoke", "extended")
    ]
    measured = OPEN.model_copy(update={"evidence_from": "extended"})
    (waiver,) = commands(steps("finished", conditions=(*left, measured)), "--condition")
    named = "--condition smoke:remedy_carried --condition extended:remedy_carried"
    assert waiver == f"gonogo override {EXPERIMENT} CONDITIONAL_GO {named} --reason WHY"
    parses(waiver)


@pytest.mark.parametrize(
    ("following", "text"),
    [(True, "continue with extended, by hand"), (False, "end it as GO, by hand")],
)
def test_the_text_of_an_override_says_what_follows(following: bool, text: str) -> None:
    found = steps(**DECIDE, following=following)
    assert [row.text for row in found if " GO " in row.command] == [text]


def test_a_decision_can_be_checked() -> None:
    assert steps("finished")[-1].command == f"gonogo replay {DECISION}"


def test_a_queued_run_is_cancelled_and_not_halted() -> None:
    found = steps(**STATES["queued"][0])
    assert [command.split()[1] for command in commands(found)] == ["worker", "watch", "cancel"]
