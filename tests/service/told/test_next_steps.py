"""Does every verdict and every waiting state name a command, and can each be typed as it stands?"""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer

from gonogo.cli.app import app
from gonogo.contract.api import NextStep
from gonogo.contract.decision import Cause, Condition, ConditionState, Verdict
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import Actor, Outcome, OutcomeCode
from gonogo.judge.gate.conditions import approval_condition
from gonogo.planning.resolve import resolve_plan
from gonogo.planning.source import bundled_plan
from gonogo.watch.detectors.identity import Mismatch, _text
from service.db.documents import Awaited, AwaitedKind
from service.db.schema import ExperimentRow, PhaseRow, RunRow
from service.views.next_steps import Place, next_steps

DEMO = resolve_plan(bundled_plan("demo")).wire()
EXPERIMENT = "exp_01J00000000000000000000000"
RUN = "run_01J00000000000000000000000"
DECISION = "dec_01J00000000000000000000000"
CAUSE = Cause(text="rank 1 hung", rank=1, log="rank1.log", line="boom")
OPEN = Condition(id="smoke:fast", text="faster", criterion="fast", due="extended")


def steps(
    state: str,
    *,
    verdict: str | None = None,
    awaiting: str | None = None,
    smoke: str = "active",
    run: str | None = "ended",
    conditions: tuple[Condition, ...] = (),
    cause: Cause | None = None,
    stood: str | None = None,
    last: bool = False,
    **flags: Any,
) -> list[NextStep]:
    """What can be typed of an experiment that stands at smoke, which comes before extended.

    Args:
        last: nothing comes after smoke instead.
    """
    asked = None
    if awaiting == "approval":
        kind = AwaitedKind.APPROVAL
        asked = Awaited(kind=kind, phase="smoke", text="", following="extended", asked_at=0.0)
    elif awaiting is not None:
        asked = Awaited(kind=AwaitedKind(awaiting), phase="smoke", text="")
    experiment = ExperimentRow(
        id=EXPERIMENT,
        state=ExperimentState(state),
        verdict=Verdict(verdict) if verdict is not None else None,
        awaiting=asked,
        stop=None,
        resolved=DEMO,
    )
    phases = [
        PhaseRow(name="smoke", state=PhaseState(smoke), steps=1),
        PhaseRow(name="extended", state=PhaseState.PENDING, steps=1),
    ][: 1 if last else 2]
    stalled = Outcome(code=OutcomeCode.STALLED, actor=Actor.WATCHDOG)
    outcome = stalled if run == "ended" else None
    runs = [] if run is None else [
        RunRow(
            id=RUN, phase="smoke", state=RunState(run), lost=False, outcome=outcome, started_at=1.0
        )
    ]  # fmt: skip
    for name, value in flags.items():
        setattr(runs[0], name, value)
    return next_steps(
        Place(
            row=experiment, phases=phases, runs=runs, conditions=conditions, cause=cause,
            last_decision=DECISION, stood=stood,
        )
    )  # fmt: skip


def test_the_log_that_is_named_is_of_the_run_that_is_judged_and_not_of_its_confirmation() -> None:
    """It was that of a finished variant, and did not mention the failure."""
    experiment = ExperimentRow(id=EXPERIMENT, state=ExperimentState.FINISHED, resolved=DEMO)
    ends = [
        (RUN, RunReason.FIRST, OutcomeCode.NON_FINITE),
        ("run_2", RunReason.CONFIRM, OutcomeCode.NON_FINITE),
        ("run_3", RunReason.CONFIRM, OutcomeCode.COMPLETED),
    ]
    runs = [
        RunRow(
            id=run, phase="smoke", reason=reason, state=RunState.ENDED, lost=False, started_at=1.0,
            outcome=Outcome(code=code, actor=Actor.WATCHDOG),
        )
        for run, reason, code in ends
    ]  # fmt: skip
    phases = [PhaseRow(name="smoke", state=PhaseState.FAILED, steps=1)]
    found = next_steps(
        Place(
            row=experiment, phases=phases, runs=runs, conditions=(), cause=CAUSE,
            last_decision=DECISION,
        )
    )  # fmt: skip
    assert found[0].command == f"gonogo logs {RUN} --rank 1"


STATES: dict[str, tuple[dict[str, Any], str]] = {
    "queued": ({"state": "queued", "run": "queued"}, "gonogo worker"),
    "running": ({"state": "running", "run": "running"}, f"gonogo watch {EXPERIMENT}"),
    "lost": (
        {"state": "running", "run": "running", "lost": True, "host": "h1"},
        f"gonogo takeover {EXPERIMENT} --reason WHY",
    ),
    "stopping": ({"state": "stopping", "run": "halting"}, f"gonogo watch {EXPERIMENT}"),
    "an approval": (
        {"state": "awaiting_decision", "awaiting": "approval", "smoke": "passed", "verdict": "GO"},
        f"gonogo promote {EXPERIMENT} --reason WHY",
    ),
    "a decision on an open phase": (
        {"state": "awaiting_decision", "awaiting": "decision", "verdict": "INCONCLUSIVE"},
        f"gonogo resume {EXPERIMENT}",
    ),
    "a decision on a passed phase": (
        {"state": "awaiting_decision", "awaiting": "decision", "smoke": "passed"},
        f"gonogo override {EXPERIMENT} GO --reason WHY",
    ),
    "GO": ({"state": "finished", "verdict": "GO"}, f"gonogo report {EXPERIMENT}"),
    "NO_GO": (
        {"state": "finished", "verdict": "NO_GO", "cause": CAUSE},
        f"gonogo logs {RUN} --rank 1",
    ),
    "NO_GO of the launcher": (
        {"state": "finished", "verdict": "NO_GO",
         "cause": CAUSE.model_copy(update={"rank": None, "log": "torchrun.log"})},
        f"gonogo logs {RUN}",
    ),
    "NO_GO of no rank": (
        {"state": "finished", "verdict": "NO_GO",
         "cause": CAUSE.model_copy(update={"rank": None, "log": "rank0.log"})},
        f"gonogo logs {RUN} --rank 0",
    ),
    "INCONCLUSIVE": (
        {"state": "finished", "verdict": "INCONCLUSIVE"}, f"gonogo report {EXPERIMENT}",
    ),
    "CONDITIONAL_GO": (
        {"state": "finished", "verdict": "CONDITIONAL_GO"}, f"gonogo report {EXPERIMENT}",
    ),
    "cancelled": ({"state": "finished", "run": None}, f"gonogo report {EXPERIMENT}"),
}  # fmt: skip


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
def test_what_goes_on_is_submitted_with_the_plan_that_failed(
    name: str, sets: dict[str, Any], word: str
) -> None:
    """`submit demo --from` of an experiment that had `--set` would be refused, or be another."""
    resolved = resolve_plan(bundled_plan("demo"), sets).wire()
    experiment = ExperimentRow(
        id=EXPERIMENT, plan=name, state=ExperimentState.FINISHED, resolved=resolved
    )
    phases = [PhaseRow(name="smoke", state=PhaseState.FAILED, steps=1)]
    found = next_steps(
        Place(
            row=experiment, phases=phases, runs=[], conditions=(), cause=None, last_decision=None
        )
    )  # fmt: skip
    assert [row.command for row in found if "--from" in row.command] == [
        f"gonogo submit {word} --from {EXPERIMENT}:smoke"
    ]


@pytest.mark.parametrize(
    ("differed", "allowed", "code", "named"),
    [
        ("git_sha", [], OutcomeCode.CONFIG_MISMATCH, "git_sha"),
        ("git_sha", ["torch"], OutcomeCode.CONFIG_MISMATCH, "git_sha,torch"),
        ("params", [], OutcomeCode.CONFIG_MISMATCH, None),  # nothing lets that differ
        ("git_sha", [], OutcomeCode.STALLED, None),
    ],
)
def test_code_that_was_mended_goes_on_by_the_command_that_lets_it_differ(
    differed: str, allowed: list[str], code: OutcomeCode, named: str | None
) -> None:
    """Else every continued submission ends for the same difference, with the same advice."""
    row = Mismatch(rank=0, name=differed, said="b" * 40, expected="a" * 40, by="the order")
    text = f"identity: {_text(row)}"
    experiment = ExperimentRow(
        id=EXPERIMENT, plan="mine", state=ExperimentState.FINISHED,
        resolved={**DEMO, "plan": {**DEMO["plan"], "allow_drift": allowed}},
    )  # fmt: skip
    phases = [PhaseRow(name="smoke", state=PhaseState.FAILED, steps=1)]
    ended = Outcome(code=code, actor=Actor.WATCHDOG)
    run = RunRow(
        id=RUN, phase="smoke", state=RunState.ENDED, lost=False, outcome=ended, started_at=1.0
    )
    found = next_steps(
        Place(
            row=experiment, phases=phases, runs=[run], conditions=(), cause=Cause(text=text),
            last_decision=None,
        )
    )  # fmt: skip
    goes_on = f"gonogo submit PLAN --from {EXPERIMENT}:smoke"
    drifting = [] if named is None else [f"{goes_on} --set 'allow_drift=[{named}]'"]
    commands = [row.command for row in found if "--from" in row.command]
    assert [row.removesuffix("@0") for row in commands[:1]] == [goes_on]
    assert [row.replace("@0", "") for row in commands[1:]] == drifting
    for command in commands:
        parses(command)


def test_every_state_of_an_experiment_is_in_the_table() -> None:
    named = {asked["state"] for asked, _ in STATES.values()}
    assert named == {state.value for state in ExperimentState}


def test_going_on_that_would_miss_a_condition_names_how_it_is_waived() -> None:
    found = steps("awaiting_decision", awaiting="decision", conditions=(OPEN,))
    (waiver,) = (row for row in found if "--condition" in row.command)
    assert waiver.command == (
        f"gonogo override {EXPERIMENT} CONDITIONAL_GO --condition smoke:fast --reason WHY"
    )
    parses(waiver.command)
    for other in (
        OPEN.model_copy(update={"due": "production"}),
        OPEN.model_copy(update={"state": ConditionState.MET}),
        approval_condition("smoke", "extended"),
    ):
        found = steps("awaiting_decision", awaiting="decision", conditions=(other,))
        assert not [row for row in found if "--condition" in row.command]


def test_at_the_end_only_what_a_person_alone_can_settle_is_asked_of_one() -> None:
    left = OPEN.model_copy(update={"due": None})
    found = steps("finished", verdict="CONDITIONAL_GO", conditions=(left,))
    assert "--condition smoke:fast" in found[1].command
    measured = left.model_copy(update={"evidence_from": "extended"})
    found = steps("finished", verdict="CONDITIONAL_GO", conditions=(measured,))
    assert not [row for row in found if "--condition" in row.command]


def test_conditions_that_say_the_same_are_waived_by_one_command() -> None:
    """A remedy that is carried on makes one of each phase after it."""
    carried = [
        OPEN.model_copy(update={"id": f"{phase}:remedy_carried", "text": text, "due": None})
        for phase, text in (("smoke", "fsdp"), ("extended", "fsdp"), ("production", "static"))
    ]
    found = steps("finished", verdict="CONDITIONAL_GO", conditions=tuple(carried))
    first, second = (row for row in found if "--condition" in row.command)
    named = "--condition smoke:remedy_carried --condition extended:remedy_carried"
    assert first.command == f"gonogo override {EXPERIMENT} CONDITIONAL_GO {named} --reason WHY"
    assert "--condition production:remedy_carried --reason" in second.command
    parses(first.command)


def test_what_a_halted_phase_goes_on_from_and_what_a_word_on_the_last_one_does_are_said() -> None:
    of = {"awaiting": "decision", "verdict": "INCONCLUSIVE"}
    texts = {row.command.split()[1]: row.text for row in steps("awaiting_decision", **of)}
    assert (
        texts["resume"]
        == "go on with smoke from its last checkpoint, or its start where it saved none"
    )
    words = [row.text for row in steps("awaiting_decision", **of) if " GO " in row.command]
    assert words == ["go on with extended, by hand"]
    words = [
        row.text for row in steps("awaiting_decision", last=True, **of) if " GO " in row.command
    ]
    assert words == ["end it as GO, by hand"]


def test_a_decision_can_be_checked() -> None:
    assert steps("finished", verdict="GO")[-1].command == f"gonogo replay {DECISION}"


def test_a_run_that_waits_for_a_worker_is_not_halted_but_cancelled() -> None:
    found = steps(ExperimentState.QUEUED.value, run=RunState.QUEUED.value)
    assert [row.command.split()[1] for row in found] == ["worker", "watch", "cancel"]


def test_of_a_hang_the_first_step_is_where_it_stood_and_of_another_failure_a_log() -> None:
    failed: dict[str, Any] = {"state": "finished", "verdict": "NO_GO", "smoke": "failed"}
    stack = "evidence/01_stall/stacks_rank1.txt"
    hung = steps(**failed, cause=CAUSE, stood=stack)
    assert hung[0] == NextStep(command=f"gonogo artifacts {RUN} {stack}", text="where it stood")
    assert not any("gonogo logs" in step.command for step in hung)
    died = steps(**failed, cause=CAUSE)
    assert died[0].command == f"gonogo logs {RUN} --rank 1"
