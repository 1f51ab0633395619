"""Replaying what a decision says about conditions: those that it settles, and those left open.

A decision of kind `condition` holds the criterion and the measure of each condition that a run met
or missed; for an approval it holds the time limit and the clock. Both are evaluated again. A
waived condition, and a given approval, is the word of a person.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gonogo.contract.canonical import wire_value
from gonogo.contract.criterion import Criterion
from gonogo.contract.decision import (
    Condition,
    ConditionState,
    CriterionResult,
    DecisionKind,
    Verdict,
)
from gonogo.contract.errors import Corrupt
from gonogo.contract.facts import Facts, Measure
from gonogo.contract.order import MOST_RANKS
from gonogo.contract.rules import Rules
from gonogo.judge.facts.metrics import absent_text, metric_row
from gonogo.judge.gate.approval import (
    ApprovalMeasure,
    ApprovalRule,
    evaluate_approval,
    is_approval,
    table_of,
)
from gonogo.judge.gate.conditions import ON_MISS, conditions_of, open_for
from gonogo.judge.gate.criteria import evaluate
from gonogo.judge.gate.verdict import worst
from gonogo.ledger.recorded import ABSENT, Difference, RecordedDecision, first_difference
from gonogo.ledger.rejudge import parsed

Json = Mapping[str, Any]


def rules_of(conditions: Iterable[Condition], rules: Rules) -> dict[str, Any]:
    """Return the rules that a decision about conditions records: their criteria."""
    rows = {row["condition"]["id"]: row["criterion"] for row in rules.document()["conditions"]}
    return {
        "world_size": rules.world_size,
        "criteria": {row.id: rows[row.id] for row in conditions if row.id in rows},
    }


def facts_of(conditions: Iterable[Condition], facts: Facts) -> dict[str, Any]:
    """Return the facts that a decision about conditions records: their measures."""
    measures = facts.document()["measures"]
    return {"measures": {row.id: measures[row.id] for row in conditions if row.id in measures}}


def check_settled(document: Json, checked: list[str], not_verified: list[str]) -> Difference | None:
    """Return the first condition that the recorded measures do not settle as recorded.

    Raises:
        Corrupt: a criterion or measure is malformed, or needs a package that is missing here.
    """
    conditions = [Condition.model_validate(row) for row in document.get("conditions", [])]
    if not conditions:
        return Difference(path="conditions", recorded=[], found="(what it settles)")
    verdict = document.get("verdict")
    late = [ON_MISS[row.on_miss] for row in conditions if row.state is ConditionState.MISSED]
    found = None if verdict is None else worst([Verdict(verdict), *late])
    if found != verdict:
        return Difference(path="verdict", recorded=verdict, found=found)
    results: list[dict[str, Any]] = []
    words: set[str] = set()
    for condition in conditions:
        again = _evaluate(condition, document.get("rules", {}), document.get("facts", {}))
        if isinstance(again, Difference):
            return again
        if again is None or (is_approval(condition) and condition.state is ConditionState.MET):
            words.add(f"that {condition.id} is {condition.state}: the word of a person")
        if again is None:
            continue
        if (again.outcome == "pass") != (condition.state is ConditionState.MET):
            state = condition.state.value
            return Difference(path="conditions", recorded=state, found=again.evidence)
        results.append(again.model_dump(mode="json"))
    not_verified += sorted(words)
    if not results:
        return None
    checked.append("decision")
    return first_difference(document.get("criteria"), wire_value(results), "criteria")


def _evaluate(
    condition: Condition, rules: Json, facts: Json
) -> CriterionResult | Difference | None:
    """Return what a condition's measure comes to; None if only somebody's word settles it."""
    if condition.state is ConditionState.WAIVED:
        return None
    name = condition.id
    if is_approval(condition):
        asked, seen = table_of(rules).get(name), table_of(facts).get(name)
        if asked is None and seen is None:
            return None
        rule = parsed(ApprovalRule, f"rules.approvals.{name}", asked)
        measure = parsed(ApprovalMeasure, f"facts.approvals.{name}", seen)
        return evaluate_approval(condition, rule, measure)
    criteria, measures = rules.get("criteria", {}), facts.get("measures", {})
    for path, table in (("rules.criteria", criteria), ("facts.measures", measures)):
        if not isinstance(table, Mapping):
            raise Corrupt(f"{path}: expected an object")
    if name in criteria and name in measures:
        return _measured(name, criteria[name], measures[name], rules.get("world_size"))
    if condition.state is ConditionState.MET and (rules or facts):
        return Difference(path=f"facts.measures.{name}", recorded=ABSENT, found="(needed)")
    return None


def _measured(name: str, criterion: Any, measure: Any, world_size: Any) -> CriterionResult:
    if type(world_size) is not int or not 0 < world_size <= MOST_RANKS:
        raise Corrupt(f"rules.world_size: found {world_size!r}")
    asked = parsed(Criterion, f"rules.criteria.{name}", criterion)
    if metric_row(asked.metric) is None:
        raise Corrupt(f"rules.criteria.{name}.metric: {absent_text(asked.metric)}")
    return evaluate(asked, parsed(Measure, f"facts.measures.{name}", measure), world_size)


def check_open(
    recorded: RecordedDecision,
    siblings: Sequence[RecordedDecision] | None,
    not_verified: list[str],
) -> Difference | None:
    """Compare the conditions in the rules with those that earlier decisions left open.

    A run may have been judged before the last decisions were made, so the state after any decision
    since the phase began will do.
    """
    rows = recorded.document.get("rules", {}).get("conditions", [])
    decision = recorded.decision
    before = sorted(
        (row for row in siblings or () if row.decision.seq < decision.seq),
        key=lambda row: row.decision.seq,
    )
    counted = [row.decision.seq for row in before] == list(range(1, len(before) + 1))
    if siblings is None or not counted or len(before) < decision.seq - 1:
        if rows or decision.seq > 1:
            not_verified.append("the open conditions: not every decision before it is there")
        return None
    judged = (row.decision for row in before if row.decision.kind is DecisionKind.AUTO)
    begun = max((row.seq for row in judged if row.phase != decision.phase), default=0)
    states = []
    for count in range(len(before), begun - 1, -1):
        known = conditions_of(row.decision for row in before[:count])
        found = [
            {
                "condition": row.condition.model_dump(mode="json"),
                "criterion": row.criterion.model_dump(mode="json") if row.criterion else None,
            }
            for row in open_for(known, decision.phase or "")
        ]
        if first_difference(rows, found) is None:
            return None
        states.append(found)
    return Difference(path="rules.conditions", recorded=rows, found=states[0])
