"""What the judge adds to a gate: what other runs say, and notes that change no verdict."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.decision import CriterionResult
from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.facts import Confirmation, FailedBefore, History, Remedy
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import OutcomeCode
from gonogo.judge.gate.added_criteria import (
    CEILINGS,
    LONGEST_S,
    added_criteria,
)
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import judge
from tests.data.make_runs import order_of
from tests.judge.runs import facts_of, record_of

NO_FLASH = {"env": {"NSA_SDPA_NO_FLASH": "1"}, "train": {}}
FLASH_ONLY = {"env": {"NSA_SDPA_FLASH_ONLY": "1"}, "train": {}}


def confirmations(*rows: tuple[str, dict[str, Any] | None], step: int | None = 7) -> History:
    """A failure at a step, and what its reruns came to."""
    told = [("NO_GO", None), *rows]
    found = [
        Confirmation.model_validate(
            {"run": f"run_{n}", "verdict": verdict, "variant": variant, "code": "completed"}
            | {"step": step}
        )
        for n, (verdict, variant) in enumerate(told)
    ]
    return History(confirmations=found)


def added(history: History | None, reason: RunReason = RunReason.FIRST) -> list[CriterionResult]:
    facts = facts_of(record_of()).model_copy(update={"history": history})
    rules = build_rules(order_of()).model_copy(update={"reason": reason})
    return list(added_criteria(facts, rules))


@pytest.mark.parametrize(
    ("rows", "outcome", "evidence"),
    [
        ([("GO", None)], "fail", "not reproduced: failed in 1 of 2 unchanged runs"),
        ([("NO_GO", None)], "inconclusive", "failed in 2 of 2 unchanged runs"),
        ([("INCONCLUSIVE", None)], "inconclusive", "failed in 1 of 2 unchanged runs"),
        (
            [("NO_GO", None), ("NO_GO", NO_FLASH), ("GO", FLASH_ONLY)],
            "fail",
            "failed in 2 of 2 unchanged runs; passed 0 of 1 with NSA_SDPA_NO_FLASH=1;"
            " passed 1 of 1 with NSA_SDPA_FLASH_ONLY=1",
        ),
    ],
)
def test_confirmations_are_one_condition_with_its_counts(
    rows: list[tuple[str, dict[str, Any] | None]], outcome: str, evidence: str
) -> None:
    (found,) = added(confirmations(*rows))
    assert (found.id, found.severity, found.outcome) == ("reproduced", "conditional", outcome)
    assert found.evidence == evidence


def test_what_other_runs_failed_and_a_remedy_are_conditions() -> None:
    remedy = Remedy(diagnosis="fp16_overflow", patch={"train": {"dtype": "bf16"}})
    rows = [
        FailedBefore(run="run_1", code=OutcomeCode.PREEMPTED, criteria=["spikes", "memory"]),
        FailedBefore(run="run_2", code=OutcomeCode.HALTED, criteria=["spikes"]),
    ]
    found = added(History(remedy=remedy, failed_before=rows))
    assert [(row.id, row.severity, row.outcome) for row in found] == [
        ("remedied", "conditional", "fail"),
        ("failed_before", "conditional", "fail"),
    ]
    assert found[0].observed == remedy.patch
    assert "(run_1 (preempted): spikes, memory; run_2 (halted): spikes)" in found[1].evidence
    assert added(History()) == added(None) == []


@pytest.mark.parametrize(
    ("reason", "name"), [(RunReason.CONFIRM, "reproduced"), (RunReason.REMEDY, "remedied")]
)
def test_a_rerun_that_is_judged_by_itself_is_no_plain_go(reason: RunReason, name: str) -> None:
    (found,) = added(None, reason)
    assert (found.id, found.outcome) == (name, "fail")
    rules = build_rules(order_of()).model_copy(update={"reason": reason})
    assert judge(facts_of(record_of()), rules).verdict == "CONDITIONAL_GO"


# ---- notes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(None, DoubtKind.FAULTS_ALLOWED), ("hang:step=3", DoubtKind.FAULT_INJECTED)],
)
def test_what_an_order_allows_to_be_made_up_is_listed(fault: str | None, kind: DoubtKind) -> None:
    order = order_of().model_copy(update={"allow_faults": True, "fault": fault})
    found = judge(facts_of(record_of()), build_rules(order))
    assert found.verdict == "GO"
    assert Doubt(kind=kind, name=fault) in found.weakened


def test_no_ceiling_is_longer_than_four_hours_nor_tolerates_more_than_a_tenth() -> None:
    assert max(CEILINGS.values()) == LONGEST_S == 14_400.0
    assert CEILINGS["identity.params_tolerance_ratio"] == 0.1
