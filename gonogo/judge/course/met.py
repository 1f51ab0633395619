"""Which open conditions does an ended run meet?

Only a run of the phase itself brings evidence for one: a rerun that ends before its phase does, or
trains on other data, answers whether a failure comes again, and what it says of a gate is nothing.
Nor does one that its phase has not passed by: what is made of the phase instead, here or in another
experiment, may come to another value, and is not asked for it any more. Nor does the frozen code
undo what an allowed drift has left to others.
"""

from collections.abc import Iterable

from gonogo.contract.decision import (
    PASSING,
    Condition,
    ConditionState,
    CriterionResult,
    Decision,
    Verdict,
)
from gonogo.contract.facts import Facts
from gonogo.contract.outcome import OutcomeClass
from gonogo.contract.plan import Plan
from gonogo.contract.rules import Rules
from gonogo.judge.course.action import Attempt
from gonogo.judge.gate.approval import is_approval
from gonogo.judge.gate.built_in import DRIFT
from gonogo.judge.gate.conditions import settle
from gonogo.judge.gate.history import is_isolating
from gonogo.judge.gate.rules import OpenCondition


def met_by(
    run: Attempt,
    waiting: Iterable[OpenCondition],
    facts: Facts,
    rules: Rules,
    *,
    verdict: Verdict | None,
) -> list[tuple[Condition, CriterionResult]]:
    """Return the conditions that a run met, each with what its criterion said.

    Args:
        run: which has ended.
        waiting: open conditions whose evidence comes from its phase.
        facts: of the run.
        rules: the run's rules.
        verdict: what its phase has come to by it, and by the runs before.
    """
    completed = run.outcome.klass is OutcomeClass.SUCCESS
    passed = verdict in PASSING and run.verdict in PASSING
    if not completed or not passed or run.until is not None or is_isolating(run.change):
        return []
    return settle(waiting, facts, rules)


def lasting_drifts(plan: Plan, decisions: Iterable[Decision]) -> set[str]:
    """Return the ids of allowed drifts, of whatever phase, that no later run of it undoes.

    Other code than the frozen one has trained the weights that another phase begins with, or was
    what met the condition of an earlier phase: of the frozen code that is not shown.

    Args:
        plan: of the experiment.
        decisions: all that were made of it.
    """
    began_others = {phase.init_from for phase in plan.phases}
    met_others = {
        row.phase
        for row in decisions
        for condition in row.conditions
        if row.kind == "condition" and condition.state is ConditionState.MET
        if not is_approval(condition) and not condition.id.startswith(f"{row.phase}:")
    }
    return {f"{name}:{DRIFT}" for name in began_others | met_others if name is not None}
