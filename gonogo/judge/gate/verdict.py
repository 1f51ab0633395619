"""One verdict: the algebra of criteria, and what a run has failed.

Missing evidence never passes, and ending early never passes. Outcomes of criteria have one order
everywhere: fail > error > inconclusive > pass. A run that did not complete is judged by the class
of its outcome alone. Its gate is evaluated and shown, and does not decide.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gonogo.contract.criterion import Criterion, GateSeverity
from gonogo.contract.decision import Condition, CriterionOutcome, CriterionResult, Verdict
from gonogo.contract.doubt import IN_WEIGHTS, DoubtKind
from gonogo.contract.facts import Facts
from gonogo.contract.outcome import Outcome, OutcomeClass, OutcomeCode
from gonogo.contract.rules import Rules
from gonogo.judge.gate.added import weakened
from gonogo.judge.gate.conditions import build_conditions
from gonogo.judge.gate.criteria import never_passes, was_seen_failing
from gonogo.judge.gate.diagnosis import diagnose
from gonogo.judge.gate.evaluate import evaluate_built_in, evaluate_gate, unseen_criteria
from gonogo.judge.gate.identity import COVERAGE, DRIFT, IDENTITY, evaluate_drift

EDITED = "records"
"""What a run has failed whose end or lines are not those that its watcher saw."""
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
    weakened: list[str]
    """What weakens the watch or the gate, one sentence each."""


def judge(facts: Facts, rules: Rules) -> Judgement:
    """Return the judgement of a run; pure, so that recorded facts and rules replay."""
    results = evaluate_gate(facts, rules)
    outcome = None
    if facts.outcome is not None:
        outcome = Outcome(code=facts.outcome.code, actor=facts.outcome.actor)
    storm = facts.history is not None and facts.history.restart_storm
    verdict = class_verdict(outcome, gate_verdict(results), storm=storm)
    conditions = []
    failed = [] if outcome is None else list(_failed(facts, rules, outcome))
    if verdict is Verdict.CONDITIONAL_GO:
        conditions = build_conditions(results, rules, unseen_criteria(facts, rules))
    return Judgement(
        verdict=verdict,
        outcome=outcome,
        criteria=results,
        conditions=conditions,
        diagnosis=None if verdict is Verdict.GO else diagnose(facts, rules),
        failed=failed,
        weakened=weakened(rules),
    )


def _failed(facts: Facts, rules: Rules, outcome: Outcome) -> Iterator[str]:
    """Yield what a run has failed, whatever later runs of the phase measure.

    A completed run failed what was seen not to pass. A run that something else ended failed what no
    further step could have made pass.
    """
    whole = outcome.klass is OutcomeClass.SUCCESS
    ranks = rules.world_size or 0
    for name, row in _asked(rules):
        measure = facts.measures.get(name)
        if was_seen_failing(row, measure, ranks) if whole else never_passes(row, measure, rules):
            yield name
    if not whole:
        other = evaluate_built_in(IDENTITY, facts, rules).outcome is CriterionOutcome.FAIL
        if other or _has(facts, DoubtKind.IDENTITY_CHANGED):
            yield IDENTITY
        if _learnt_nothing(facts, rules):
            yield COVERAGE
    if evaluate_drift(facts, rules) is not None:
        yield DRIFT
    if _was_edited(facts):
        yield EDITED


def _asked(rules: Rules) -> list[tuple[str, Criterion]]:
    """Return the criteria of the gate, and those of open conditions, by what they are called."""
    waiting = [(row.condition.id, row.criterion) for row in rules.conditions]
    return [*((row.id, row) for row in rules.gate), *waiting]


def _learnt_nothing(facts: Facts, rules: Rules) -> bool:
    """Say whether most steps of an attempt contradict that they trained, or evaluated, one model.

    The rest of an attempt that ended before half of its steps may have shown otherwise.
    """
    last = max((row.last_step for row in facts.ranks.values()), default=0)
    made = last - rules.first_step + 1
    half = rules.known and 2 * made >= len(rules.owed_steps())
    return half and _has(facts, *IN_WEIGHTS)


def _was_edited(facts: Facts) -> bool:
    """Say whether the end, the ticks or the lines are not those that the watcher saw.

    The last lines of a run that ended before its watcher saw it may rightly be in no tick.
    """
    watch, ended = facts.watch, facts.exit
    if ended is None:
        return False
    if ended.sealed is False or watch is None:
        return ended.sealed is False
    if watch.sealed is False or (ended.sealed and not watch.reaches):
        return True
    return bool(watch.sealed) and _has(facts, DoubtKind.LINES_CHANGED)


def _has(facts: Facts, *kinds: DoubtKind) -> bool:
    return any(row.kind in kinds for row in facts.doubts)


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
