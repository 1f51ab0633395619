"""One verdict: what the criteria say together, what a run has failed, which conditions it met.

Missing evidence never passes, and ending early never passes. Outcomes of criteria have one order
everywhere: fail > error > inconclusive > pass. A run that did not complete is judged by the class
of its outcome alone. Its gate is evaluated and shown, and does not decide.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gonogo.contract.criterion import Criterion, GateSeverity
from gonogo.contract.decision import (
    PASSING,
    Condition,
    ConditionState,
    CriterionOutcome,
    CriterionResult,
    Verdict,
)
from gonogo.contract.doubt import IN_WEIGHTS, DoubtKind
from gonogo.contract.facts import Facts
from gonogo.contract.outcome import Outcome, OutcomeClass, OutcomeCode
from gonogo.contract.plan import NEVER_WAIVED
from gonogo.contract.rules import Rules
from gonogo.judge.gate.added import added_criteria, notes, weakened
from gonogo.judge.gate.built_in import (
    UNREPORTED,
    Check,
    Word,
    completed,
    coverage,
    no_halt_finding,
    preflight,
)
from gonogo.judge.gate.conditions import build_conditions, in_state
from gonogo.judge.gate.criteria import evaluate, is_unseen, never_passes, was_seen_failing
from gonogo.judge.gate.diagnosis import diagnose
from gonogo.judge.gate.identity import COVERAGE, DRIFT, IDENTITY, evaluate_drift, identity
from gonogo.judge.gate.rules import OpenCondition

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


# ---- criteria -----------------------------------------------------------------------------------

BUILT_IN: dict[str, Check] = {
    "completed": completed,
    IDENTITY: identity,
    COVERAGE: coverage,
    "preflight": preflight,
    "no_halt_finding": no_halt_finding,
}
_ORDER = list(Word)


def evaluate_gate(facts: Facts, rules: Rules) -> list[CriterionResult]:
    """Return what every criterion says: built-in, of the order, of the plan, of other runs."""
    drift = evaluate_drift(facts, rules)
    return [
        *(evaluate_built_in(name, facts, rules) for name in rules.built_in),
        *([] if drift is None else [drift]),
        *notes(facts, rules),
        *_of_the_plan(facts, rules),
        *added_criteria(facts, rules),
    ]


def evaluate_built_in(name: str, facts: Facts, rules: Rules) -> CriterionResult:
    """Return the worst word of a built-in criterion, the first of equals.

    A waiver excuses nothing but what a program did not report.
    """
    said = BUILT_IN[name](facts, rules)
    word, observed, evidence = min(said, key=lambda row: _ORDER.index(row[0]))
    waived = word is UNREPORTED and name in rules.waive and name not in NEVER_WAIVED
    return CriterionResult(
        id=name,
        severity=GateSeverity.CONDITIONAL if waived else GateSeverity.REQUIRED,
        outcome=word.outcome,
        observed=observed,
        evidence=f"waived by name: {evidence}" if waived else evidence,
    )


def _of_the_plan(facts: Facts, rules: Rules) -> list[CriterionResult]:
    unseen = unseen_criteria(facts, rules)
    found = []
    for criterion in rules.gate:
        row = evaluate(criterion, facts.measures.get(criterion.id), rules.world_size or 0)
        if row.id in unseen and row.outcome is not CriterionOutcome.FAIL:
            text = f"waived by name: {row.evidence}"
            row = row.model_copy(update={"severity": GateSeverity.CONDITIONAL, "evidence": text})
        found.append(row)
    return found


def unseen_criteria(facts: Facts, rules: Rules) -> frozenset[str]:
    """Return the plan's criteria that may stay unobserved, and did.

    A waiver does not excuse what was seen: a value between the thresholds, or one that is not
    finite.
    """
    size = rules.world_size or 0
    return frozenset(
        row.id
        for row in rules.gate
        if row.id in rules.waive and is_unseen(row, facts.measures.get(row.id), size)
    )


# ---- conditions ---------------------------------------------------------------------------------


def settle(
    rows: Iterable[OpenCondition], facts: Facts, rules: Rules, verdict: Verdict | None
) -> list[tuple[Condition, CriterionResult]]:
    """Return the conditions that this run met, each with what its criterion said.

    Only a run by which its phase passes meets a condition, and only if every built-in criterion
    passes: otherwise its records prove nothing.

    Args:
        rows: open conditions, as they are in the run's rules.
        facts: of a completed run of `evidence_from`.
        rules: the run's rules.
        verdict: of the phase, by this run and the runs before it.
    """
    built_in = [evaluate_built_in(name, facts, rules) for name in rules.built_in]
    if verdict not in PASSING or any(_stands_against(row) for row in built_in):
        return []
    met = []
    for row in rows:
        measure = facts.measures.get(row.condition.id)
        if row.criterion is None or measure is None or row.condition.state != ConditionState.OPEN:
            continue
        result = evaluate(row.criterion, measure, rules.world_size or 0)
        if result.outcome is CriterionOutcome.PASS:
            met.append((in_state(row.condition, ConditionState.MET), result))
    return met


def _stands_against(row: CriterionResult) -> bool:
    return row.severity is GateSeverity.REQUIRED and row.outcome is not CriterionOutcome.PASS
