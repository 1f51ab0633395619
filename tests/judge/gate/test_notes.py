"""Notes stand beside a verdict and change none."""

from __future__ import annotations

import pytest

from gonogo.contract.decision import CriterionResult
from gonogo.contract.facts import FindingFacts
from gonogo.contract.finding import Severity
from gonogo.judge.gate.notes import BEYOND_PEAK, MADE_UP
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import evaluate_gate, judge
from tests.data.make_runs import order_of
from tests.judge.runs import facts_of, record_of


def noted(
    *findings: FindingFacts,
    allow_faults: bool = False,
    fault: str | None = None,
    devices: str | None = None,
) -> list[CriterionResult]:
    """The notes on a healthy run; its verdict is GO whatever they say."""
    facts = facts_of(record_of(order_of()))
    facts = facts.model_copy(update={"findings": list(findings), "devices": devices})
    order = order_of().model_copy(update={"allow_faults": allow_faults, "fault": fault})
    rules = build_rules(order)
    assert judge(facts, rules).verdict == "GO"
    found = [row for row in evaluate_gate(facts, rules) if row.id in (MADE_UP, BEYOND_PEAK)]
    assert {(row.severity, row.outcome) for row in found} <= {("advisory", "inconclusive")}
    return found


@pytest.mark.parametrize(
    ("fault", "devices", "text"),
    [
        (None, None, "the order allows faults"),
        ("hang:step=3", None, "fault hang:step=3 was injected"),
        (None, "5" * 64, "may come from a script"),
    ],
)
def test_what_an_order_allows_to_be_made_up(
    fault: str | None, devices: str | None, text: str
) -> None:
    (note,) = noted(allow_faults=True, fault=fault, devices=devices)
    assert (note.id, note.observed) == (MADE_UP, fault)
    assert text in str(note.evidence)
    assert noted(devices=devices) == []


def warned(value: float, threshold: float, detector: str = "implausible_speed") -> FindingFacts:
    return FindingFacts(detector=detector, severity=Severity.WARN, value=value, threshold=threshold)


def test_the_highest_speed_beyond_the_peak() -> None:
    (note,) = noted(warned(200.0, 80.0), warned(1000.0, 80.0))
    assert (note.id, note.observed, note.threshold) == (BEYOND_PEAK, 1000.0, 80.0)


@pytest.mark.parametrize(
    "finding",
    [
        warned(0.1, 0.5),
        warned(900.0, 900.0),
        warned(2.0, 1.0, detector="straggler"),
        FindingFacts(detector="implausible_speed", severity=Severity.WARN),
    ],
    ids=["a report too low", "just reached", "another detector", "no figure"],
)
def test_no_other_warning_is_noted(finding: FindingFacts) -> None:
    assert noted(finding) == []
