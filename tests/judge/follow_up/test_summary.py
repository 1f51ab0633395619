"""What an experiment has come to, and which words of a person still stand."""

from __future__ import annotations

import pytest

from gonogo.contract.api import OverrideView, PhaseView
from gonogo.contract.decision import Condition, ConditionState, DecisionKind, Verdict
from gonogo.contract.lifecycle import PhaseState
from gonogo.judge.follow_up.summary import Said, overrides_of, phases_never_ran, summarise
from gonogo.judge.gate.conditions import approval_condition, in_state

# What has an experiment come to? No sentence claims what was not seen.


def phase_view(name: str, state: str, verdict: str | None = None, *, ran: bool = True) -> PhaseView:
    runs = [f"run_{name}"] if ran else []
    said = Verdict(verdict) if verdict else None
    return PhaseView(name=name, state=PhaseState(state), steps=1, verdict=said, runs=runs)


PASSED = [phase_view("smoke", "passed"), phase_view("extended", "passed")]
HALF = [phase_view("smoke", "failed"), phase_view("extended", "skipped", ran=False)]


def override(phase: str = "smoke", evidence: str | None = "NO_GO", **more: str) -> OverrideView:
    return OverrideView.model_validate(
        {"decision": "dec_1", "phase": phase, "verdict": "GO", "evidence": evidence,
         "actor": "ann", "reason": "me says", "at": "-", **more}
    )  # fmt: skip


SUMMARIES = [
    ("every gate passed", "GO", PASSED, [], "Every phase passed."),
    ("a phase failed", "NO_GO", HALF, [], "smoke failed. extended never ran."),
    ("cancelled", None, [phase_view("smoke", "skipped"), HALF[1]], [],
     "It was cancelled. extended never ran."),
    ("by hand", "GO", HALF, [override()],
     "By hand: ann called smoke GO (me says); the evidence: NO_GO. smoke failed."
     " extended never ran."),
    ("by hand, and all passed", "GO", PASSED, [override()],
     "By hand: ann called smoke GO (me says); the evidence: NO_GO."
     " Passed by evidence: extended."),
    ("a waiver by hand", "CONDITIONAL_GO", [PASSED[0], HALF[1]],
     [override(condition="smoke:fast")],
     "By hand: ann waived the missed condition smoke:fast (me says)."
     " Passed by evidence: smoke. extended never ran."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "phases", "overrides", "text"),
    [row[1:] for row in SUMMARIES],
    ids=[row[0] for row in SUMMARIES],
)
def test_what_a_finished_experiment_has_come_to(
    verdict: str | None, phases: list[PhaseView], overrides: list[OverrideView], text: str
) -> None:
    said = Verdict(verdict) if verdict else None
    ran = {row.name for row in phases if row.runs}
    unrun = phases_never_ran(phases, ran)
    made = summarise(said, phases, overrides, finished=True, never_ran=unrun)
    assert made == text


def test_nothing_is_summed_up_before_the_end_but_a_person_s_word() -> None:
    assert summarise(None, PASSED, [], finished=False) is None
    said = summarise(None, PASSED, [override()], finished=False)
    assert said == "By hand: ann called smoke GO (me says); the evidence: NO_GO."


# Which words of a person still stand? A table of decisions in, what outranks evidence out.


def auto(phase: str, verdict: str | None) -> Said:
    said = Verdict(verdict) if verdict else None
    return Said(id=f"dec_{phase}", kind=DecisionKind.AUTO, phase=phase, verdict=said)


def human(phase: str, verdict: str, n: int = 1, actor: str = "ann") -> Said:
    return Said(
        id=f"dec_h{n}", kind=DecisionKind.HUMAN, phase=phase, verdict=Verdict(verdict),
        actor=actor, reason="known", at=f"2026-01-01T00:00:{n:02}Z",
    )  # fmt: skip


def condition(state: ConditionState, name: str = "smoke:fast", on_miss: str = "no_go") -> Condition:
    return Condition(id=name, text="", criterion="fast", on_miss=on_miss, state=state)


def settled(*conditions: Condition, verdict: str = "NO_GO", actor: str = "gonogo") -> Said:
    return Said(
        id=f"dec_c_{conditions[0].state}", kind=DecisionKind.CONDITION, phase="smoke",
        verdict=Verdict(verdict), actor=actor, reason="seen", at="2026-01-01T00:01:00Z",
        conditions=conditions,
    )  # fmt: skip


def test_a_word_stands_beside_what_the_evidence_says_of_its_phase() -> None:
    (row,) = overrides_of([auto("sanity", "GO"), auto("smoke", "NO_GO"), human("smoke", "GO")])
    assert (row.phase, row.verdict, row.evidence) == ("smoke", "GO", "NO_GO")
    assert (row.actor, row.reason, row.decision) == ("ann", "known", "dec_h1")


def test_the_last_word_on_a_phase_stands_and_keeps_what_the_evidence_said() -> None:
    (row,) = overrides_of(
        [auto("smoke", "NO_GO"), human("smoke", "GO"), human("smoke", "NO_GO", 2, "bob")]
    )
    assert (row.actor, row.verdict, row.evidence) == ("bob", "NO_GO", "NO_GO")


def test_a_word_ends_when_its_phase_is_judged_anew() -> None:
    rows = [auto("smoke", "INCONCLUSIVE"), human("smoke", "INCONCLUSIVE"), auto("smoke", "GO")]
    assert overrides_of(rows) == []


def test_waiving_what_was_missed_outranks_evidence_and_waiving_what_is_open_does_not() -> None:
    missed = settled(condition(ConditionState.MISSED))
    waived = settled(
        condition(ConditionState.WAIVED), verdict="CONDITIONAL_GO", actor="ann"
    )  # fmt: skip
    (row,) = overrides_of([auto("smoke", "CONDITIONAL_GO"), missed, waived])
    assert (row.condition, row.verdict, row.evidence) == ("smoke:fast", "CONDITIONAL_GO", "NO_GO")
    assert overrides_of([auto("smoke", "CONDITIONAL_GO"), waived]) == []
    assert overrides_of([auto("smoke", "CONDITIONAL_GO"), missed]) == []


def test_an_approval_is_no_override_however_it_ended() -> None:
    asked = approval_condition("smoke", "extended")
    given = settled(in_state(asked, ConditionState.MET), verdict="GO", actor="ann")
    late = settled(in_state(asked, ConditionState.MISSED), verdict="INCONCLUSIVE")
    waived = settled(in_state(asked, ConditionState.WAIVED), verdict="GO", actor="ann")
    assert overrides_of([auto("smoke", "GO"), given]) == []
    rows = overrides_of([auto("smoke", "GO"), late, human("smoke", "GO"), waived])
    assert [(row.phase, row.condition) for row in rows] == [("smoke", None)], "the word, once"
