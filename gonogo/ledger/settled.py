"""Was a condition really met, or missed? What it rests on, evaluated again.

A decision that a run met conditions, or that they were due and had not been met, holds per
condition the criterion and the measure that it rests on; one about an approval holds how long it
was waited for and what the clock said. The judge is the one of its version. That a condition was
waived, or an approval given, is the word of a person.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from gonogo.contract.canonical import wire_value
from gonogo.contract.criterion import Criterion
from gonogo.contract.decision import Condition, ConditionState, Verdict
from gonogo.contract.errors import Corrupt
from gonogo.contract.facts import Facts, Measure
from gonogo.contract.rules import Rules
from gonogo.judge.facts.metrics import absent_text, metric_row
from gonogo.judge.gate import approval
from gonogo.judge.gate.approval import ApprovalMeasure, ApprovalRule, is_approval
from gonogo.judge.gate.conditions import ON_MISS
from gonogo.judge.gate.criteria import evaluate
from gonogo.judge.gate.verdict import worst
from gonogo.ledger.again import MAX_RANKS, known_version
from gonogo.ledger.difference import Difference, first_difference

Json = Mapping[str, Any]


def rules_of(conditions: Iterable[Condition], rules: Rules) -> dict[str, Any]:
    """Return what a decision about conditions holds of the rules of the run that measured them."""
    rows = {row["condition"]["id"]: row["criterion"] for row in rules.document()["conditions"]}
    return {
        "world_size": rules.world_size,
        "criteria": {row.id: rows[row.id] for row in conditions if row.id in rows},
    }


def facts_of(conditions: Iterable[Condition], facts: Facts) -> dict[str, Any]:
    """Return what a decision about conditions holds of that run's facts."""
    measures = facts.document()["measures"]
    return {"measures": {row.id: measures[row.id] for row in conditions if row.id in measures}}


def settled_again(document: Json, checked: list[str], not_verified: list[str]) -> Difference | None:
    """Return the first condition that is not settled by what is recorded.

    Raises:
        Corrupt: its criterion or measure is not well formed, or its metric is of a package that is
            not installed.
    """
    rules, facts = document.get("rules", {}), document.get("facts", {})
    by = known_version(document.get("judge_version"), "judge_version")
    conditions = [Condition.model_validate(row) for row in document.get("conditions", [])]
    wrong = _belied(document, conditions) if document.get("v", 1) > 1 else None
    if wrong is not None:
        return wrong
    found: list[dict[str, Any]] = []
    words: set[str] = set()
    for condition in conditions:
        again = _rests_on(condition, rules, facts, by)
        if isinstance(again, Difference):
            return again
        if again is None:
            words.add(_word(condition))
            continue
        if is_approval(condition) and condition.state is ConditionState.MET:
            words.add(f"that {condition.id} was met: the word of who approved")
        if (again["outcome"] == "pass") != (condition.state is ConditionState.MET):
            return Difference(
                path="conditions", recorded=condition.state.value, found=again["evidence"]
            )
        found.append(again)
    not_verified += sorted(words)
    if not found:
        return None
    checked.append("decision")
    return first_difference(document.get("criteria"), wire_value(found), "criteria")


def _belied(document: Json, conditions: Sequence[Condition]) -> Difference | None:
    """Return what makes it no decision about conditions: none of them, or a verdict beyond them.

    The verdict is that of the experiment, which no condition that was missed leaves a GO.
    """
    if not conditions:
        return Difference(path="conditions", recorded=[], found="(what it settles)")
    late = [ON_MISS[row.on_miss] for row in conditions if row.state is ConditionState.MISSED]
    verdict = document.get("verdict")
    found = None if verdict is None else worst([Verdict(verdict), *late])
    return None if found == verdict else Difference(path="verdict", recorded=verdict, found=found)


def _word(condition: Condition) -> str:
    if condition.state is ConditionState.MET:
        return f"that {condition.id} was met: no measure is recorded with it"
    return "conditions that were missed or waived: the word of who settled them"


def _rests_on(
    condition: Condition, rules: Json, facts: Json, by: int
) -> dict[str, Any] | Difference | None:
    """Return what a condition's measure comes to; None where somebody's word is all there is."""
    if condition.state is ConditionState.WAIVED:
        return None
    name = condition.id
    if is_approval(condition):
        asked, seen = approval.table_of(rules).get(name), approval.table_of(facts).get(name)
        return None if asked is None and seen is None else _by_clock(condition, asked, seen)
    criteria, measures = rules.get("criteria", {}), facts.get("measures", {})
    for path, table in (("rules.criteria", criteria), ("facts.measures", measures)):
        if not isinstance(table, Mapping):
            raise Corrupt(f"{path}: expected an object")
    if name in criteria and name in measures:
        return _evaluated(name, criteria[name], measures[name], rules.get("world_size"), by)
    if condition.state is ConditionState.MET and (rules or facts):
        return Difference(path=f"facts.measures.{name}", recorded="(absent)", found="(needed)")
    return None


def _by_clock(condition: Condition, asked: Any, seen: Any) -> dict[str, Any]:
    try:
        rule, measure = ApprovalRule.model_validate(asked), ApprovalMeasure.model_validate(seen)
    except ValidationError as error:
        text = error.errors(include_url=False)[0]["msg"]
        raise Corrupt(f"facts.approvals.{condition.id}: {text}") from error
    return approval.evaluate_approval(condition, rule, measure).model_dump(mode="json")


def _evaluated(name: str, criterion: Any, measure: Any, world_size: Any, by: int) -> dict[str, Any]:
    if type(world_size) is not int or not 0 < world_size <= MAX_RANKS:
        raise Corrupt(f"rules.world_size: found {world_size!r}")
    try:
        asked, seen = Criterion.model_validate(criterion), Measure.model_validate(measure)
    except ValidationError as error:
        text = error.errors(include_url=False)[0]["msg"]
        raise Corrupt(f"rules.criteria.{name}: {text}") from error
    if metric_row(asked.metric) is None:
        raise Corrupt(f"rules.criteria.{name}.metric: {absent_text(asked.metric)}")
    return evaluate(asked, seen, world_size).model_dump(mode="json")
