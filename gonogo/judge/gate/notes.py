"""What stands beside a verdict and changes none? Notes as advisory criteria."""

from collections.abc import Iterator

from gonogo.contract.criterion import GateSeverity
from gonogo.contract.decision import CriterionOutcome, CriterionResult
from gonogo.contract.facts import Facts
from gonogo.contract.finding import Severity
from gonogo.contract.outcome import Detector
from gonogo.contract.rules import Rules

MADE_UP = "made_up"
"""Id of the note about faults and scripted devices that the order allows."""
BEYOND_PEAK = "beyond_peak"
"""Id of the note about a speed above what the devices can multiply."""


def notes(facts: Facts, rules: Rules) -> Iterator[CriterionResult]:
    """Yield the notes beside a verdict."""
    if rules.allow_faults or rules.fault is not None:
        yield _note(MADE_UP, rules.fault, None, _made_up(facts, rules))
    # of a model that is not ours, nobody knows whether each token meets every parameter
    speeds = [
        (row.value, row.threshold)
        for row in facts.findings
        if row.detector == Detector.IMPLAUSIBLE_SPEED
        and row.severity is Severity.WARN
        and row.value is not None
        and row.threshold is not None
        and row.value > row.threshold
    ]
    if speeds:
        tok_s, limit = max(speeds)
        text = (
            f"{tok_s:.4g} tokens/s are more than the devices can multiply ({limit:.4g}) where each"
            " token meets every parameter; that these are true is the trainer's word"
        )
        yield _note(BEYOND_PEAK, tok_s, limit, text)


def _made_up(facts: Facts, rules: Rules) -> str:
    text = "the order allows faults to be injected on purpose; it names none"
    if rules.fault is not None:
        text = f"fault {rules.fault} was injected on purpose"
    devices = "; the device samples may come from a script, not from devices"
    return text if facts.devices is None else text + devices


def _note(
    name: str, observed: str | float | None, threshold: float | None, text: str
) -> CriterionResult:
    return CriterionResult(
        id=name,
        severity=GateSeverity.ADVISORY,
        outcome=CriterionOutcome.INCONCLUSIVE,
        observed=observed,
        threshold=threshold,
        evidence=text,
    )
