"""Which verdict do facts deserve under rules? The algebra, and nothing but the algebra.

Missing evidence never passes; ending early never passes. Outcomes of criteria have one order
everywhere: fail > error > inconclusive > pass. A run that did not complete is judged by the class
of its outcome alone; its gate is evaluated and shown, and does not decide.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gonogo.contract.criterion import LEARNED, Criterion, GateSeverity, Metric
from gonogo.contract.decision import Condition, CriterionOutcome, CriterionResult, Verdict
from gonogo.contract.doubt import IN_WEIGHTS, DoubtKind
from gonogo.contract.facts import Facts, History, Measure
from gonogo.contract.outcome import Outcome, OutcomeClass, OutcomeCode
from gonogo.contract.rules import Rules
from gonogo.judge.gate.built_in import (
    COVERAGE,
    DRIFT,
    IDENTITY,
    evaluate_built_in,
    evaluate_drift,
)
from gonogo.judge.gate.ceilings import evaluate_ceilings, weakened
from gonogo.judge.gate.conditions import build_conditions
from gonogo.judge.gate.criteria import (
    evaluate,
    is_unseen,
    passes_never,
    passes_no_more,
    undecided_weight,
)
from gonogo.judge.gate.diagnosis import diagnose, diagnosis_named
from gonogo.judge.gate.history import (
    carried_criteria,
    confirmed_verdict,
    history_criteria,
    taint_criteria,
)
from gonogo.judge.gate.notes import notes
from gonogo.judge.gate.settling import SETTLED_BY_RUNS

EXCHANGED = "exit.json"
"""What a run has failed, besides criteria, whose end is not the one that its watcher saw."""

OTHER_LINES = "watch.jsonl"
"""What a run has failed whose ticks, or lines, are not those that its watcher told of."""

UNJUDGED = "unjudged"
"""What a run has failed that could not be judged: nobody knows what it had failed."""

_LEARNED = LEARNED | {Metric.LOSS_FIRST}

_WORSE_BY: dict[OutcomeCode, frozenset[Metric]] = {
    OutcomeCode.TOO_SLOW: frozenset(
        {
            *(Metric.DT_STEP_S, Metric.TOKS_PER_S, Metric.STEP_CV, Metric.FETCH_SHARE),
            *(Metric.EVAL_S, Metric.GPU_UTIL, Metric.GPU_UTIL_RATIO),
            *(Metric.FORECAST_S, Metric.COST),
        }
    ),
    OutcomeCode.DIVERGED: LEARNED,
    OutcomeCode.NON_FINITE: _LEARNED,
    OutcomeCode.RESOURCE_LIMIT: frozenset(
        {Metric.HOST_RSS_MB, Metric.GPU_MEM_RESERVED_MB, Metric.GPU_MEM_SLOPE}
    ),
}
"""What is measured worse because of a failure that many steps show, or of what they lead to."""

FAILING = (CriterionOutcome.FAIL,)
UNCERTAIN = (CriterionOutcome.ERROR, CriterionOutcome.INCONCLUSIVE)

_WORST_FIRST = (Verdict.NO_GO, Verdict.INCONCLUSIVE, Verdict.CONDITIONAL_GO, Verdict.GO)


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
    answerable: bool
    """Whether the diagnosis explains why a condition is open, so that its remedy may settle it."""
    undecided: list[str]
    """Required criteria that what was seen neither passes nor fails, of a run that completed."""
    failed: list[str]
    """Criteria, and open conditions, that a run fails which another may come after.

    Of one that something else ended those that do not pass whatever is missing; of what it learns,
    where a number that is none ended it, by the numbers before: that one is its failure. Of one
    that completed those that failed, and those that a value which does not pass makes, or leaves, a
    condition. An allowed drift counts for who goes on from its checkpoint, and so does it that one
    which was ended had told of other work than was ordered, or that most of its steps, half of its
    own at least, left the weights as they were, or apart on its ranks, or that its evaluations
    looked at nothing. An accident of which exit.json alone tells, and not the one that the watcher
    saw, excuses nothing: `EXCHANGED`. Nor do lines that are not those that it saw: what these had
    told nobody knows, `OTHER_LINES`.
    """
    explained: list[str]
    """What of that is measured worse because of what ended it: whether it comes again tells it."""
    lasting: list[str]
    """What it fails whatever steps come after its own: what a rerun that ends before its phase
    does leaves to who goes on from it."""
    weakened: list[str]
    """Watch settings that may blunt a detector, one sentence each; they change no verdict."""


def judge(facts: Facts, rules: Rules) -> Judgement:
    """Return the judgement of a run; pure, so that recorded facts and rules replay."""
    results = evaluate_gate(facts, rules)
    outcome = _outcome_of(facts)
    history = facts.history
    verdict = class_verdict(outcome, history, gate_verdict(results))
    if verdict is Verdict.NO_GO:
        verdict = confirmed_verdict(history, verdict)
    conditional = verdict is Verdict.CONDITIONAL_GO
    conditions = build_conditions(results, rules, _unseen(facts, rules)) if conditional else []
    diagnosis = None if verdict is Verdict.GO else diagnose(facts, rules)
    failed = _failed(facts, rules, outcome)
    return Judgement(
        verdict=verdict,
        outcome=outcome,
        criteria=results,
        conditions=conditions,
        diagnosis=diagnosis,
        answerable=conditional and _explains(diagnosis, results, rules),
        undecided=_undecided(facts, rules, outcome),
        failed=failed,
        explained=_explained(failed, rules, outcome),
        lasting=_lasting(failed, facts, rules, outcome),
        weakened=weakened(rules),
    )


def _undecided(facts: Facts, rules: Rules, outcome: Outcome | None) -> list[str]:
    if outcome is None or outcome.klass is not OutcomeClass.SUCCESS:
        return []
    required = GateSeverity.REQUIRED
    return [row.id for row in rules.gate if _undecided_by(row.id, row, facts, rules) is required]


def _undecided_by(name: str, row: Criterion, facts: Facts, rules: Rules) -> GateSeverity | None:
    measure, ranks = facts.measures.get(name), rules.world_size or 0
    return undecided_weight(row, measure, ranks)


def _failed(facts: Facts, rules: Rules, outcome: Outcome | None) -> list[str]:
    if outcome is None:
        return []
    always = [OTHER_LINES] if _has_other_lines(facts) else []
    if evaluate_drift(facts, rules) is not None:
        always.append(DRIFT)
    asked = _asked(rules)
    if outcome.klass is OutcomeClass.SUCCESS:
        return [name for name, row in asked if _leaves_open(name, row, facts, rules)] + always
    measures = facts.measures
    if outcome.code is OutcomeCode.NON_FINITE:
        learned = {name for name, row in asked if row.metric in _LEARNED}
        measures = {
            name: _numbers_of(row) if name in learned else row for name, row in measures.items()
        }
    found = [name for name, row in asked if passes_no_more(row, measures.get(name), rules)]
    if facts.exit is not None and facts.exit.sealed is False:
        found.append(EXCHANGED)
    other = evaluate_built_in(IDENTITY, facts, rules).outcome is CriterionOutcome.FAIL
    if other or _has(facts, DoubtKind.IDENTITY_CHANGED):
        found.append(IDENTITY)
    if _learnt_nothing(facts, rules):
        found.append(COVERAGE)
    return found + always


def _learnt_nothing(facts: Facts, rules: Rules) -> bool:
    """Say whether most steps of an attempt contradict that they trained one model, or evaluated it.

    An attempt that goes on from its checkpoint may have too few steps, or evaluations, to show it.
    Of one that was ended before half of its own, later ones may have said otherwise, but of what is
    wrong at any step.
    """
    if _has(facts, DoubtKind.NEGATIVE_RATE):
        return True
    last = max((row.last_step for row in facts.ranks.values()), default=0)
    made = last - rules.first_step + 1
    if not rules.known or 2 * made < len(rules.owed_steps()):
        return False
    return _has(facts, *IN_WEIGHTS)


def _has(facts: Facts, *kinds: DoubtKind) -> bool:
    return any(row.kind in kinds for row in facts.doubts)


def _numbers_of(measure: Measure) -> Measure:
    """Return a measure as the samples make it that are numbers."""
    ranks = {name: row.model_copy(update={"non_finite": 0}) for name, row in measure.ranks.items()}
    return measure.model_copy(update={"ranks": ranks})


def _asked(rules: Rules) -> list[tuple[str, Criterion]]:
    """Return the criteria of the gate, and those of open conditions, by what they are called."""
    return [(row.id, row) for row in rules.gate] + [
        (row.condition.id, row.criterion)
        for row in rules.conditions
        if row.criterion.id not in SETTLED_BY_RUNS
    ]


def _lasting(
    failed: Iterable[str], facts: Facts, rules: Rules, outcome: Outcome | None
) -> list[str]:
    if outcome is None:
        return []
    asked = [*_asked(rules), *((row.id, row) for row in rules.measured)]
    names = {name for name, _ in asked}
    lasting = [name for name, row in asked if passes_never(row, facts.measures.get(name), rules)]
    return lasting + [name for name in failed if name not in names]


def _explained(failed: Iterable[str], rules: Rules, outcome: Outcome | None) -> list[str]:
    worse = _WORSE_BY.get(outcome.code, frozenset()) if outcome is not None else frozenset()
    named = {name for name, row in _asked(rules) if row.metric in worse}
    return [name for name in failed if name in named]


def _has_other_lines(facts: Facts) -> bool:
    """Say whether ticks are not those that exit.json seals, or lines not those that ticks tell of.

    Of who was ended before his watcher saw it, the last lines may rightly be in no tick.
    """
    watch, ended = facts.watch, facts.exit
    if watch is None or ended is None or ended.sealed is False:
        return False
    if watch.sealed is False or (ended.sealed and not watch.reaches):
        return True
    return bool(watch.sealed) and _has(facts, DoubtKind.LINES_CHANGED)


def _leaves_open(name: str, row: Criterion, facts: Facts, rules: Rules) -> bool:
    """Say whether a whole run fails a criterion, or leaves a condition by what was seen."""
    measure, ranks = facts.measures.get(name), rules.world_size or 0
    result = evaluate(row, measure, ranks)
    if result.outcome is CriterionOutcome.FAIL:
        return result.severity is not GateSeverity.ADVISORY
    weight = _undecided_by(name, row, facts, rules)
    if weight is GateSeverity.REQUIRED:  # its gate says so of its own: it is undecided
        return all(name != own.id for own in rules.gate)
    return weight is GateSeverity.CONDITIONAL


def _explains(diagnosis: str | None, results: Iterable[CriterionResult], rules: Rules) -> bool:
    """Say whether a known failure explains a criterion that was seen not to pass."""
    known = None if diagnosis is None else diagnosis_named(diagnosis)
    failed = {row.id for row in results if row.outcome is CriterionOutcome.FAIL}
    return known is not None and any(
        row.metric in known.explains for row in rules.gate if row.id in failed
    )


def _outcome_of(facts: Facts) -> Outcome | None:
    said = facts.outcome
    return None if said is None else Outcome(code=said.code, actor=said.actor)


def evaluate_gate(facts: Facts, rules: Rules) -> list[CriterionResult]:
    """Return what every criterion says: the built-in ones first, then the plan's in its order."""
    results = [evaluate_built_in(name, facts, rules) for name in rules.built_in]
    drift = evaluate_drift(facts, rules)
    if drift is not None:
        results.append(drift)
    blunt = evaluate_ceilings(rules)
    if blunt is not None:
        results.append(blunt)
    results.extend(notes(facts, rules))
    unseen = _unseen(facts, rules)
    for criterion in rules.gate:
        measure = facts.measures.get(criterion.id)
        result = evaluate(criterion, measure, rules.world_size or 0)
        results.append(_waived(result) if result.id in unseen else result)
    results.extend(carried_criteria(rules.carried))
    results.extend(taint_criteria(rules.taints))
    results.extend(history_criteria(facts.history))
    return results


def _unseen(facts: Facts, rules: Rules) -> frozenset[str]:
    """Return the plan's criteria that may stay unobserved, and did.

    What was seen, a value between the thresholds or a sample that is not finite, no waiver excuses.
    """
    return frozenset(
        row.id
        for row in rules.gate
        if row.id in rules.waive
        and is_unseen(row, facts.measures.get(row.id), rules.world_size or 0)
    )


def _waived(row: CriterionResult) -> CriterionResult:
    """Return a criterion that may stay unobserved: what nobody saw is a condition, not a wall."""
    if row.outcome not in UNCERTAIN:
        return row
    told = {"severity": GateSeverity.CONDITIONAL, "evidence": f"waived by name: {row.evidence}"}
    return row.model_copy(update=told)


def gate_verdict(results: Iterable[CriterionResult]) -> Verdict:
    """Return the verdict of a gate; the order of its criteria does not matter."""
    said = [(row.severity, row.outcome) for row in results]
    required = {outcome for severity, outcome in said if severity is GateSeverity.REQUIRED}
    conditional = {outcome for severity, outcome in said if severity is GateSeverity.CONDITIONAL}
    if required & {CriterionOutcome.FAIL}:
        return Verdict.NO_GO
    if required & set(UNCERTAIN):
        return Verdict.INCONCLUSIVE
    if conditional & {*FAILING, *UNCERTAIN}:
        return Verdict.CONDITIONAL_GO
    return Verdict.GO


def class_verdict(
    outcome: Outcome | None, history: History | None, of_gate: Verdict
) -> Verdict | None:
    """Return the verdict by the class of the outcome; only a completed run's gate decides."""
    if outcome is None or outcome.klass is OutcomeClass.SUCCESS:
        return of_gate
    if outcome.klass in (OutcomeClass.USER, OutcomeClass.POLICY):
        return Verdict.NO_GO
    if outcome.klass is OutcomeClass.INFRA:
        storm = history is not None and history.restart_storm
        return Verdict.NO_GO if storm else Verdict.INCONCLUSIVE
    return Verdict.INCONCLUSIVE if outcome.code is OutcomeCode.HALTED else None


def worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    """Return the worst of several phases' verdicts, or None of none."""
    found = set(verdicts)
    return next((verdict for verdict in _WORST_FIRST if verdict in found), None)
