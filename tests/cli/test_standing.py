"""What a command says below a verdict: what it came to, why, where to look, and what to type."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.cli import processes
from gonogo.cli.exits import Exit, exit_of_experiment
from gonogo.cli.judging import experiment_lines
from gonogo.cli.output import (
    BY_HAND_STYLE,
    SO_FAR_STYLE,
    VERDICT_STYLE,
    decided_text,
    local_time,
    standing_text,
    verdict_text,
)
from gonogo.contract.api import ExperimentView, NextStep, OverrideView
from gonogo.contract.decision import (
    Cause,
    Condition,
    ConditionState,
    Decision,
    DecisionKind,
    Verdict,
)
from gonogo.contract.outcome import Actor, Outcome, OutcomeCode
from gonogo.watch.registry import made_by

WORD = OverrideView(
    decision="dec_1", phase="smoke", verdict=Verdict.GO, evidence=Verdict.NO_GO, actor="ann",
    reason="me says", at="-",
)  # fmt: skip


def view(verdict: str | None = "GO", *, by_hand: bool = False, **more: Any) -> ExperimentView:
    return ExperimentView.model_validate(
        {"id": "exp_1", "name": "demo", "plan": "demo", "state": "finished", "verdict": verdict,
         "created_at": "-", "overrides": [WORD] if by_hand else [], **more}
    )  # fmt: skip


def decision(verdict: Verdict | None, kind: DecisionKind, *, waived: bool = False) -> Decision:
    state = ConditionState.WAIVED if waived else ConditionState.MET
    return Decision(
        id="dec_1", seq=1, experiment="exp_1", kind=kind, verdict=verdict, rule_digest="-",
        facts_digest="-", made_by=made_by(), actor="ann", at="-",
        conditions=[Condition(id="smoke:fast", text="fast", criterion="fast", state=state)],
    )  # fmt: skip


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_verdict_by_hand_has_an_exit_code_and_a_colour_of_its_own(verdict: Verdict) -> None:
    assert exit_of_experiment(view(verdict, by_hand=True)) is Exit.BY_HAND
    assert exit_of_experiment(view(verdict)) is not Exit.BY_HAND
    text = standing_text(view(verdict, by_hand=True))
    assert text == f"[{BY_HAND_STYLE}]{verdict} by hand[/{BY_HAND_STYLE}]"
    assert BY_HAND_STYLE not in VERDICT_STYLE.values()
    assert decided_text(decision(verdict, DecisionKind.HUMAN)) == text
    assert decided_text(decision(verdict, DecisionKind.CONDITION, waived=True)) == text
    for kind in (DecisionKind.AUTO, DecisionKind.CONDITION):
        assert decided_text(decision(verdict, kind)) == verdict_text(verdict)
    by_plan = decision(verdict, DecisionKind.AUTO, waived=True)
    assert decided_text(by_plan) == verdict_text(verdict)
    assert decided_text(decision(None, DecisionKind.HUMAN)) == verdict_text(None)


@pytest.mark.parametrize("verdict", [Verdict.GO, Verdict.CONDITIONAL_GO])
def test_what_waits_for_a_person_is_no_go_yet(verdict: Verdict) -> None:
    waits = view(verdict, state="awaiting_decision")
    assert exit_of_experiment(waits) is Exit.INCONCLUSIVE
    text = standing_text(waits)
    assert text == f"[{SO_FAR_STYLE}]{verdict} so far[/{SO_FAR_STYLE}]"
    assert SO_FAR_STYLE not in VERDICT_STYLE.values()
    by_hand = view(verdict, by_hand=True, state="awaiting_decision")
    assert exit_of_experiment(by_hand) is Exit.BY_HAND
    assert f"{verdict} by hand so far" in standing_text(by_hand)
    assert "so far" not in standing_text(view(verdict))


@pytest.mark.parametrize(
    ("more", "words"),
    [({}, "GO"), ({"by_hand": True}, "GO by hand"), ({"state": "awaiting_decision"}, "GO so far")],
)
def test_the_demo_too_says_whose_verdict_it_is(
    more: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = {"runs": [], "findings": [], "report": "-", "decisions": [], "verdict": "GO"}
    processes._print_result(result, view(**more))
    assert f"verdict   {words}\n" in capsys.readouterr().out


def test_what_was_cancelled_in_the_end_is_cancelled() -> None:
    cancelled = Outcome(code=OutcomeCode.CANCELLED, actor=Actor.OPERATOR)
    assert exit_of_experiment(view(None, by_hand=True, outcome=cancelled)) is Exit.CANCELLED
    assert standing_text(view(None, by_hand=True)) == standing_text(view(None))


def test_the_lines_below_a_verdict() -> None:
    cause = Cause(
        text="stall (rank 1): [red]stood[/red]", rank=1, log="rank1.log", line="boom",
        unknown=True, look=["evidence/1/stacks_rank1.txt", "rank1.log"],
    )  # fmt: skip
    steps = [NextStep(command="gonogo report exp_1", text="read the whole of it")]
    shown = view(
        "NO_GO",
        summary="smoke failed.",
        cause=cause,
        next=steps,
        waiting_until="2026-03-01T14:05:00Z",
    )
    assert list(experiment_lines(shown)) == [
        "smoke failed.",
        "why    unknown failure: stall (rank 1): [red]stood[/red]",
        "       rank1.log ends: boom",
        "       look at 1. evidence/1/stacks_rank1.txt",
        "               2. rank1.log",
        f"until  {local_time('2026-03-01T14:05:00Z')}",
        "next   gonogo report exp_1  # read the whole of it",
    ]
