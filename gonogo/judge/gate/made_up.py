"""Was anything of a run made up on purpose? Said beside every verdict, and changes none.

An order may allow faults to be put in, and devices to be read from a script: so the demo breaks a
run, and a plan for GPUs is tried on a CPU. What such a run shows of devices is a script's word.
"""

from gonogo.contract.criterion import GateSeverity
from gonogo.contract.decision import CriterionOutcome, CriterionResult
from gonogo.contract.facts import Facts
from gonogo.contract.rules import Rules

MADE_UP = "made_up"
"""Id of the note about what was allowed, or put in, on purpose."""


def evaluate_made_up(facts: Facts, rules: Rules) -> CriterionResult | None:
    """Return the note that faults and scripted devices were allowed; None where they were not."""
    if not rules.allow_faults and rules.fault is None:
        return None
    texts = [f"fault {rules.fault} was put in on purpose"] if rules.fault is not None else []
    if not texts:
        texts = ["the order lets faults be put in on purpose; it names none"]
    if facts.devices is not None:
        texts.append("what the devices said may come from a script, not from devices")
    return CriterionResult(
        id=MADE_UP,
        severity=GateSeverity.ADVISORY,
        outcome=CriterionOutcome.INCONCLUSIVE,
        observed=rules.fault,
        evidence="; ".join(texts),
    )
