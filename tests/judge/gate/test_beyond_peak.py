"""A speed that the devices may not reach is said beside the verdict, and changes none."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.facts import FindingFacts
from gonogo.contract.finding import Severity
from gonogo.judge.gate.beyond_peak import BEYOND_PEAK
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import evaluate_gate, judge
from tests.data.make_runs import order_of
from tests.judge.runs import facts_of, record_of


def notes(*findings: FindingFacts) -> list[Any]:
    """The notes on a healthy run; its verdict is GO whatever they say."""
    facts = facts_of(record_of(order_of())).model_copy(update={"findings": list(findings)})
    rules = build_rules(order_of())
    assert judge(facts, rules).verdict == "GO"
    return [row for row in evaluate_gate(facts, rules) if row.id == BEYOND_PEAK]


def warned(value: float, threshold: float, detector: str = "implausible_speed") -> FindingFacts:
    return FindingFacts(detector=detector, severity=Severity.WARN, value=value, threshold=threshold)


def test_the_highest_speed_beyond_the_peak_is_told() -> None:
    (note,) = notes(warned(200.0, 80.0), warned(1000.0, 80.0))
    assert (note.severity, note.outcome) == ("advisory", "inconclusive")
    assert (note.observed, note.threshold) == (1000.0, 80.0)
    assert note.evidence == (
        "1000 tokens/s are more than the devices can multiply (80) where each token meets every"
        " parameter; that these are true is the trainer's word"
    )


@pytest.mark.parametrize(
    "findings",
    [
        [],
        [warned(0.1, 0.5)],
        [warned(500.0, 900.0)],
        [warned(900.0, 900.0)],
        [warned(2.0, 1.0, detector="straggler")],
        [FindingFacts(detector="implausible_speed", severity=Severity.WARN)],
    ],
    ids=[
        "none",
        "steps that beat the best",
        "a report too low",
        "just reached",
        "another detector",
        "no figure",
    ],
)
def test_nothing_else_is_told(findings: list[FindingFacts]) -> None:
    assert notes(*findings) == []
