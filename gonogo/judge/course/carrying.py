"""Which remedies does a phase leave to the phases after it?

What helped in one phase lies over the next ones from their first run, so that none of them has to
fail the same way first. It is part of what they are ordered: a failure under it is confirmed and
answered as any other is, and each of them passes conditionally, as the phase that needed it did.
Other data is not carried on: every phase trains on its own.
"""

from collections.abc import Sequence

from gonogo.contract.order import CarriedRemedy
from gonogo.contract.outcome import OutcomeClass
from gonogo.contract.plan import Plan
from gonogo.judge.course.action import Attempt
from gonogo.judge.course.confirmation import confirmed_run
from gonogo.judge.course.remedies import SAY_NOTHING, remedied, set_aside
from gonogo.judge.gate.history import is_isolating


def left_by(plan: Plan, phase: str, attempts: Sequence[Attempt]) -> CarriedRemedy | None:
    """Return the remedy that a phase leaves to those after it; None without one.

    Args:
        plan: the experiment's plan, which may want none.
        phase: which has passed, by its evidence or by a person's word.
        attempts: its ended runs in the order of their start; none of one that was inherited.
    """
    runs = [row for row in set_aside(attempts)[0] if row.outcome.klass not in SAY_NOTHING]
    return left_by_run(plan, phase, confirmed_run(runs)[0]) if runs else None


def left_by_run(plan: Plan, phase: str, run: Attempt) -> CarriedRemedy | None:
    """Return the same, of the run that the phase is about.

    It must have gone to the phase's last step: a remedy under which nothing got there is none.
    """
    remedy = remedied(run)
    whole = run.outcome.klass is OutcomeClass.SUCCESS and run.until is None
    if remedy is None or not whole or not plan.carry_remedies or is_isolating(remedy.patch):
        return None
    return CarriedRemedy(diagnosis=remedy.diagnosis, patch=remedy.patch, since=phase)
