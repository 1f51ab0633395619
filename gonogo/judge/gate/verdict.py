"""One verdict: what the criteria say together, what a run has failed, which conditions it met.

Missing evidence never passes, and ending early never passes. Outcomes of criteria have one order
everywhere: fail > error > inconclusive > pass. A run that did not complete is judged by the class
of its outcome alone. Its gate is evaluated and shown, and does not decide.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gonogo.contract.criterion import GateSeverity
from gonogo.contract.decision import (
    PASSING,
    Condition,
    ConditionState,
    CriterionOutcome,
    CriterionResult,
    Verdict,
)
from gonogo.contract.facts import Facts
from gonogo.contract.finding import IN_WEIGHTS, Doubt, DoubtKind
from gonogo.contract.order import OpenCondition, Rules
from gonogo.contract.outcome import Outcome, OutcomeClass, OutcomeCode
from gonogo.judge.gate.added_criteria import added_criteria, weaknesses
from gonogo.judge.gate.built_in import (
    COVERAGE,
    DRIFT,
    IDENTITY,
    evaluate_built_in,
    evaluate_drift,
)
from gonogo.judge.gate.conditions import build_conditions, in_state
from gonogo.judge.gate.criteria import evaluate, is_unseen, never_passes, was_seen_failing
from gonogo.judge.gate.diagnosis import diagnose

UNJUDGED = "unjudged"
"""What a run has failed that could not be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What judging came to."""

    verdict: Verdict | None
    """None for a run that an operator cancelled or another one superseded."""
    outcome: Outcome | None
    """None while nothing says that the run ended."""
    criteria: list[CriterionResult]
    conditions: list[Condition]
    diagnosis: str | None
    failed: list[str]
    """What the run has failed for good: criteria, open conditions, and what stays in its weights.

    It counts against a later run of the phase, whose gate sees its own steps alone."""
    weakened: list[Doubt]


def judge(facts: Facts, rules: Rules) -> Judgement:
    """Return the judgement of a run; pure, so that recorded facts and rules replay."""
    results = evaluate_gate(facts, rules)
    outcome = None
    if facts.outcome is not None:
        outcome = Outcome(code=facts.outcome.code, actor=facts.outcome.actor)
    storm = facts.history is not None and facts.history.restart_storm
    verdict = class_verdict(outcome, gate_verdict(results), storm=storm)
    conditional = verdict is Verdict.CONDITIONAL_GO
    return Judgement(
        verdict=verdict,
        outcome=outcome,
        criteria=results,
        conditions=build_conditions(results, rules) if conditional else [],
        diagnosis=None if verdict is Verdict.GO else diagnose(facts, rules),
        failed=[] if outcome is None else list(_failed(facts, rules, outcome)),
        weakened=list(weaknesses(rules)),
    )


def _failed(facts: Facts, rules: Rules, outcome: Outcome) -> Iterator[str]:
    """Yield what a run has failed, whatever later runs of the phase measure.

    A completed run failed what was seen not to pass. A run that something else ended failed what no
    further step could have made pass.
    """
    whole = outcome.klass is OutcomeClass.SUCCESS
    for name, row in rules.criteria().items():
        measure = facts.measures.get(name)
        seen = evaluate(row, measure, len(rules.ranks()))
        if was_seen_failing(seen) if whole else never_passes(row, measure, rules):
            yield name
    doubts = {row.kind for row in facts.doubts}
    if not whole:
        other = evaluate_built_in(IDENTITY, facts, rules).outcome is CriterionOutcome.FAIL
        if other or DoubtKind.IDENTITY_CHANGED in doubts:
            yield IDENTITY
        last = max((row.last_step for row in facts.ranks.values()), default=0)
        most = rules.known and 2 * (last - rules.first_step + 1) >= len(rules.owed_steps())
        if most and doubts & IN_WEIGHTS:  # the other half may have shown otherwise
            yield COVERAGE
    if evaluate_drift(facts, rules) is not None:
        yield DRIFT


def gate_verdict(results: Iterable[CriterionResult]) -> Verdict:
    """Return the verdict of a gate; the order of its criteria does not matter."""
    said = [(row.severity, row.outcome) for row in results]
    required = {outcome for severity, outcome in said if severity is GateSeverity.REQUIRED}
    conditional = {outcome for severity, outcome in said if severity is GateSeverity.CONDITIONAL}
    if CriterionOutcome.FAIL in required:
        return Verdict.NO_GO
    if required - {CriterionOutcome.PASS}:
        return Verdict.INCONCLUSIVE
    if conditional - {CriterionOutcome.PASS}:
        return Verdict.CONDITIONAL_GO
    return Verdict.GO


def class_verdict(
    outcome: Outcome | None, of_gate: Verdict, *, storm: bool = False
) -> Verdict | None:
    """Return the verdict by the class of the outcome; only a completed run's gate decides."""
    if outcome is None or outcome.klass is OutcomeClass.SUCCESS:
        return of_gate
    if outcome.klass in (OutcomeClass.USER, OutcomeClass.POLICY):
        return Verdict.NO_GO
    if outcome.klass is OutcomeClass.INFRA:
        return Verdict.NO_GO if storm else Verdict.INCONCLUSIVE
    return Verdict.INCONCLUSIVE if outcome.code is OutcomeCode.HALTED else None


def evaluate_gate(facts: Facts, rules: Rules) -> list[CriterionResult]:
    """Return what every criterion says: built-in, of the order, of the plan, of other runs."""
    drift = evaluate_drift(facts, rules)
    found = [evaluate_built_in(name, facts, rules) for name in rules.built_in]
    found += [] if drift is None else [drift]
    for criterion in rules.gate:
        row = evaluate(criterion, facts.measures.get(criterion.id), len(rules.ranks()))
        if row.id in rules.waive and is_unseen(row):  # a waiver excuses what nobody saw
            text = f"waived by name: {row.evidence}"
            row = row.model_copy(update={"severity": GateSeverity.CONDITIONAL, "evidence": text})
        found.append(row)
    return [*found, *added_criteria(facts, rules)]


def settle(
    rows: Iterable[OpenCondition], facts: Facts, rules: Rules, verdict: Verdict | None
) -> list[tuple[Condition, CriterionResult]]:
    """Return the conditions that this run met, each with the result of its criterion.

    Only a run by which its phase passes meets a condition, and only if every built-in criterion
    passes: otherwise its records prove nothing.
    """
    built_in = [evaluate_built_in(name, facts, rules) for name in rules.built_in]
    against = [
        row
        for row in built_in
        if row.severity is GateSeverity.REQUIRED and row.outcome is not CriterionOutcome.PASS
    ]
    if verdict not in PASSING or against:
        return []
    met = []
    for row in rows:
        measure = facts.measures.get(row.condition.id)
        if row.criterion is None or measure is None or row.condition.state != ConditionState.OPEN:
            continue
        result = evaluate(row.criterion, measure, len(rules.ranks()))
        if result.outcome is CriterionOutcome.PASS:
            met.append((in_state(row.condition, ConditionState.MET), result))
    return met
