"""An approval is a condition: open while awaited, met by a word in time, missed by the clock."""

from __future__ import annotations

import pytest

from gonogo.contract.decision import ConditionState, Decision, DecisionKind, Verdict
from gonogo.judge.follow_up.decide import decide, decide_expiry
from gonogo.judge.gate.conditions import (
    approval_condition,
    experiment_verdict,
    has_expired,
    in_state,
)
from gonogo.ledger.recorded import RecordedDecision
from gonogo.ledger.seal import Entry, Place, append
from tests.judge.follow_up.test_decide import attempt, plan_with

ASKED = approval_condition("smoke", "extended")


@pytest.mark.parametrize(
    ("expires_s", "waited_s", "expired"),
    [
        (60.0, 59.9, False),
        (60.0, 60.0, True),
        (None, 1e9, False),
    ],
)
def test_an_approval_expires_by_the_clock_and_never_where_no_time_is_set(
    expires_s: float | None, waited_s: float, expired: bool
) -> None:
    assert has_expired(expires_s, waited_s) is expired


def recorded(state: ConditionState) -> RecordedDecision:
    """A decision that an approval ended so."""
    ended = in_state(ASKED, state)
    entry = Entry(
        kind=DecisionKind.CONDITION,
        conditions=[ended],
        verdict=experiment_verdict({"smoke": Verdict.GO}, [ended]),
        actor="ann",
    )
    place = Place(id="dec_1", experiment="exp_1", phase="smoke", run="run_1", at="-")
    return append(entry, place, None)


def decision(state: ConditionState) -> Decision:
    return recorded(state).decision


@pytest.mark.parametrize(
    ("phase", "state", "verdict"),
    [
        ("GO", ConditionState.MET, "GO"),
        ("GO", ConditionState.MISSED, "INCONCLUSIVE"),
        ("GO", ConditionState.WAIVED, "GO"),
        ("CONDITIONAL_GO", ConditionState.MET, "CONDITIONAL_GO"),
    ],
)
def test_silence_is_inconclusive_and_an_approval_meets_no_other_condition(
    phase: str, state: ConditionState, verdict: str
) -> None:
    assert experiment_verdict({"smoke": Verdict(phase)}, [in_state(ASKED, state)]) == verdict


def test_the_plan_says_how_long_and_a_phase_may_say_otherwise() -> None:
    sets = {"phases__smoke__approve": "always", "approve_expires_s": 3600.0}
    plan = plan_with(**sets)
    action = decide(plan, "smoke", [attempt()], now=0.0)
    assert (action.kind, action.expires_s) == ("await_approval", 3600.0)
    plan = plan_with(**sets, phases__smoke__approve_expires_s=60.0)
    assert decide(plan, "smoke", [attempt()], now=0.0).expires_s == 60.0
    forever = plan_with(phases__smoke__approve="always")
    assert decide(forever, "smoke", [attempt()], now=0.0).expires_s is None


def test_what_follows_an_expiry_starts_nothing() -> None:
    plan = plan_with(phases__smoke__approve="always")
    assert decide_expiry(plan, "smoke", 60.0, 59.0) is None
    action = decide_expiry(plan, "smoke", 60.0, 60.0)
    assert action is not None
    assert (action.kind, action.verdict, action.reason) == ("await_decision", None, None)
    assert action.text == "nobody approved extended within 60 s"
