"""What has an experiment come to? No sentence claims what was not seen."""

from __future__ import annotations

import pytest

from gonogo.contract.api import OverrideView, PhaseView
from gonogo.contract.decision import Verdict
from gonogo.contract.lifecycle import PhaseState
from gonogo.judge.follow_up.summary import phases_never_ran, summarise


def phase(name: str, state: str, verdict: str | None = None, *, ran: bool = True) -> PhaseView:
    runs = [f"run_{name}"] if ran else []
    said = Verdict(verdict) if verdict else None
    return PhaseView(name=name, state=PhaseState(state), steps=1, verdict=said, runs=runs)


PASSED = [phase("smoke", "passed"), phase("extended", "passed")]
HALF = [phase("smoke", "failed"), phase("extended", "skipped", ran=False)]


def by_hand(phase: str = "smoke", evidence: str | None = "NO_GO", **more: str) -> OverrideView:
    return OverrideView.model_validate(
        {"decision": "dec_1", "phase": phase, "verdict": "GO", "evidence": evidence,
         "actor": "ann", "reason": "me says", "at": "-", **more}
    )  # fmt: skip


SUMMARIES = [
    ("every gate passed", "GO", PASSED, [], "Every phase passed."),
    ("a phase failed", "NO_GO", HALF, [], "smoke failed. extended never ran."),
    ("cancelled", None, [phase("smoke", "skipped"), HALF[1]], [],
     "It was cancelled. extended never ran."),
    ("by hand", "GO", HALF, [by_hand()],
     "By hand: ann called smoke GO (me says); the evidence: NO_GO. smoke failed."
     " extended never ran."),
    ("by hand, and all passed", "GO", PASSED, [by_hand()],
     "By hand: ann called smoke GO (me says); the evidence: NO_GO."
     " Passed by evidence: extended."),
    ("a waiver by hand", "CONDITIONAL_GO", [PASSED[0], HALF[1]],
     [by_hand(condition="smoke:fast")],
     "By hand: ann waived the missed condition smoke:fast (me says)."
     " Passed by evidence: smoke. extended never ran."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "phases", "overrides", "text"),
    [row[1:] for row in SUMMARIES],
    ids=[row[0] for row in SUMMARIES],
)
def test_what_a_finished_experiment_has_come_to(
    verdict: str | None,
    phases: list[PhaseView],
    overrides: list[OverrideView],
    text: str,
) -> None:
    said = Verdict(verdict) if verdict else None
    ran = {phase.name for phase in phases if phase.runs}
    unrun = phases_never_ran(phases, ran)
    made = summarise(said, phases, overrides, finished=True, never_ran=unrun)
    assert made == text


def test_nothing_is_summed_up_before_the_end_but_a_person_s_word() -> None:
    assert summarise(None, PASSED, [], finished=False) is None
    said = summarise(None, PASSED, [by_hand()], finished=False)
    assert said == "By hand: ann called smoke GO (me says); the evidence: NO_GO."
