"""What the phase's other runs add to the gate table, with counts."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.facts import Confirmation, FailedBefore, History, Remedy, Rerun, Undecided
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import OutcomeCode
from gonogo.judge.gate.history import history_criteria, rerun_of, with_history
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.settling import can_be_met
from gonogo.judge.gate.verdict import judge
from tests.data.make_runs import STEPS, order_of
from tests.judge.runs import exit_record, facts_of, record_of

NO_FLASH = {"env": {"NSA_SDPA_NO_FLASH": "1"}, "train": {}}
FLASH_ONLY = {"env": {"NSA_SDPA_FLASH_ONLY": "1"}, "train": {}}


def history(*rows: tuple[str, dict[str, Any] | None]) -> History:
    return History(
        confirmations=[
            Confirmation.model_validate(
                {
                    "run": f"run_{number}",
                    "verdict": verdict,
                    "variant": variant,
                    "code": "completed",
                }
            )
            for number, (verdict, variant) in enumerate(rows)
        ]
    )


@pytest.mark.parametrize(
    ("rows", "outcome", "observed", "evidence"),
    [
        ([("GO", None)], "fail", (1, 2), "not reproduced: failed in 1 of 2 unchanged runs"),
        (
            [("CONDITIONAL_GO", None)],
            "fail",
            (1, 2),
            "not reproduced: failed in 1 of 2 unchanged runs",
        ),
        ([("NO_GO", None)], "inconclusive", (2, 2), "failed in 2 of 2 unchanged runs"),
        (
            [("INCONCLUSIVE", None)],
            "inconclusive",
            (1, 2),
            "not reproduced: failed in 1 of 2 unchanged runs",
        ),
        (
            [("NO_GO", None), ("GO", NO_FLASH), ("NO_GO", NO_FLASH), ("NO_GO", FLASH_ONLY)],
            "fail",
            (2, 2),
            "failed in 2 of 2 unchanged runs; passed 1 of 2 with NSA_SDPA_NO_FLASH=1;"
            " passed 0 of 1 with NSA_SDPA_FLASH_ONLY=1",
        ),
        *(
            (
                [(before, None), ("NO_GO", None), ("GO", NO_FLASH)],
                "fail",
                (2, 2),
                "failed in 2 of 2 unchanged runs; passed 1 of 1 with NSA_SDPA_NO_FLASH=1",
            )
            for before in ("GO", "INCONCLUSIVE")  # it had answered, and the phase failed after
        ),
        (
            [("NO_GO", None), ("NO_GO", NO_FLASH)],
            "inconclusive",
            (2, 2),
            "failed in 2 of 2 unchanged runs; passed 0 of 1 with NSA_SDPA_NO_FLASH=1",
        ),
    ],
)
def test_confirmations_are_one_condition_with_its_counts(
    rows: list[tuple[str, dict[str, Any] | None]],
    outcome: str,
    observed: tuple[int, int],
    evidence: str,
) -> None:
    (found,) = history_criteria(history(*rows))
    assert (found.id, found.severity, found.outcome) == ("reproduced", "conditional", outcome)
    assert found.observed == dict(zip(("failed", "runs"), observed, strict=True))
    assert found.evidence == evidence
    by_a_variant = rows[-1][1] is not None
    assert not (by_a_variant and can_be_met(found)), "only a variant avoided it"


def test_of_the_other_runs_facts_hold_what_was_said_and_no_defaults() -> None:
    facts = with_history(facts_of(record_of()), History(restart_storm=True))
    assert facts.document()["history"] == {"restart_storm": True}
    assert "history" not in with_history(facts_of(record_of()), None).document()


def test_runs_that_were_undecided_are_one_condition() -> None:
    rows = [Undecided(run=name, criteria=["speed", "memory"]) for name in ("run_1", "run_2")]
    (found,) = history_criteria(History(undecided=rows))
    assert (found.id, found.severity, found.outcome) == ("undecided", "conditional", "fail")
    assert found.observed == {"undecided": 2, "runs": 3}
    told = "run_1: speed, memory; run_2: speed, memory"
    assert found.evidence == f"2 of 3 whole runs left it undecided ({told})"


def test_runs_that_had_failed_before_they_were_ended_are_one_condition() -> None:
    rows = [
        FailedBefore(run="run_1", code=OutcomeCode.PREEMPTED, criteria=["spikes", "memory"]),
        FailedBefore(run="run_2", code=OutcomeCode.HALTED, criteria=["spikes"]),
    ]
    (found,) = history_criteria(History(failed_before=rows))
    assert (found.id, found.severity, found.outcome) == ("failed_before", "conditional", "fail")
    assert found.observed == ["run_1", "run_2"]
    told = "run_1 (preempted): spikes, memory; run_2 (halted): spikes"
    assert found.evidence == f"what had failed when a run of it was ended is not undone ({told})"


def test_a_remedy_is_one_condition_and_no_history_is_none() -> None:
    remedy = Remedy(diagnosis="fp16_overflow", patch={"train": {"dtype": "bf16"}})
    (found,) = history_criteria(History(remedy=remedy))
    assert (found.id, found.outcome, found.observed) == ("remedied", "fail", remedy.patch)
    assert history_criteria(History()) == history_criteria(None) == []


@pytest.mark.parametrize(
    ("rerun", "found"),
    [
        (Rerun(reason="confirm"), [("reproduced", "conditional", "fail")]),
        (
            Rerun(reason="confirm", until=8),
            [("whole_phase", "required", "inconclusive"), ("reproduced", "conditional", "fail")],
        ),
        (Rerun(reason="remedy", until=8), [("whole_phase", "required", "inconclusive")]),
        (Rerun(reason="remedy"), []),
    ],
)
def test_what_an_order_tells_of_a_rerun_by_itself(
    rerun: Rerun, found: list[tuple[str, str, str]]
) -> None:
    rows = history_criteria(History(rerun=rerun))
    assert [(row.id, row.severity, row.outcome) for row in rows] == found


@pytest.mark.parametrize(
    ("steps", "until"), [(STEPS, None), (STEPS + 1, None), (STEPS - 1, STEPS - 1), (None, None)]
)
@pytest.mark.parametrize("reason", ["confirm", "remedy"])
def test_a_rerun_only_answers_when_it_ends_before_its_phase(
    reason: str, steps: int | None, until: int | None
) -> None:
    order = order_of().model_copy(update={"steps": steps, "reason": RunReason(reason)})
    assert rerun_of(order).model_dump() == {"reason": reason, "until": until}


@pytest.mark.parametrize(
    ("code", "verdict"), [("nonzero_exit", "CONDITIONAL_GO"), ("cancelled", None)]
)
def test_what_did_not_come_again_is_a_condition_of_a_run_that_failed(
    code: str, verdict: str | None
) -> None:
    """Of a run that an operator stopped it says nothing."""
    ended = exit_record(OutcomeCode(code), code=1)
    facts = with_history(facts_of(record_of(exit=ended)), history(("GO", None)))
    assert judge(facts, build_rules(order_of())).verdict == verdict
