"""Was the run faster than its devices can multiply? Said beside the verdict, and changes none.

Of a model that is not ours nobody knows whether each token meets every parameter (experts, tables,
a frozen trunk), so D21 warns of such a speed and halts for none. Whether the work was done at all
is then the trainer's word, and whoever reads a GO with such a figure is told so where it stands.
"""

from gonogo.contract.criterion import GateSeverity
from gonogo.contract.decision import CriterionOutcome, CriterionResult
from gonogo.contract.facts import Facts
from gonogo.contract.finding import Severity
from gonogo.contract.outcome import Detector
from gonogo.contract.rules import Rules

BEYOND_PEAK = "beyond_peak"
"""Id of the note about such a speed."""


def evaluate_beyond_peak(facts: Facts, rules: Rules) -> CriterionResult | None:
    """Return the note on the highest such speed; None where there was none.

    What else D21 warns of lies below what it is compared with.
    """
    found = [
        (row.value, row.threshold)
        for row in facts.findings
        if row.detector == Detector.IMPLAUSIBLE_SPEED
        and row.severity is Severity.WARN
        and row.value is not None
        and row.threshold is not None
        and row.value > row.threshold
    ]
    if not found:
        return None
    tok_s, limit = max(found)
    return CriterionResult(
        id=BEYOND_PEAK,
        severity=GateSeverity.ADVISORY,
        outcome=CriterionOutcome.INCONCLUSIVE,
        observed=tok_s,
        threshold=limit,
        evidence=f"{tok_s:.4g} tokens/s are more than the devices can multiply ({limit:.4g}) where"
        " each token meets every parameter; that these are true is the trainer's word",
    )
