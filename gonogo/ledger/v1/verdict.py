"""Which verdict did facts deserve under the rules of release 0.1? Half (a) of its decisions."""

from collections.abc import Iterable, Sequence
from typing import Any

from gonogo.ledger.v1.built_in import evaluate_built_in, evaluate_drift
from gonogo.ledger.v1.criteria import evaluate
from gonogo.ledger.v1.diagnosis import diagnose
from gonogo.ledger.v1.history import confirmed_verdict, history_criteria
from gonogo.ledger.v1.rules import Json, parse_criterion

Results = list[dict[str, Any]]


def judge(facts: Json, rules: Json) -> dict[str, Any]:
    """Return `verdict`, `criteria`, `conditions` and `diagnosis`, as a decision recorded them.

    Args:
        facts, rules: well formed (`shape.check_shapes`).
    """
    results = _evaluate_gate(facts, rules)
    history = facts.get("history")
    verdict = _class_verdict(facts["outcome"], history, _gate_verdict(results))
    if verdict == "NO_GO" and history is not None:
        verdict = confirmed_verdict(history, verdict)
    return {
        "verdict": verdict,
        "criteria": results,
        "conditions": _conditions(results, rules) if verdict == "CONDITIONAL_GO" else [],
        "diagnosis": None if verdict == "GO" else diagnose(facts),
    }


def _evaluate_gate(facts: Json, rules: Json) -> Results:
    results = [evaluate_built_in(name, facts, rules) for name in rules["built_in"]]
    drift = evaluate_drift(facts, rules)
    if drift is not None:
        results.append(drift)
    for row in rules["gate"]:
        criterion = parse_criterion(row)
        measure = facts["measures"].get(criterion.id)
        results.append(evaluate(criterion, measure, rules.get("world_size") or 0))
    return results + history_criteria(facts.get("history"))


def _gate_verdict(results: Iterable[Json]) -> str:
    said = [(row["severity"], row["outcome"]) for row in results]
    required = {outcome for severity, outcome in said if severity == "required"}
    conditional = {outcome for severity, outcome in said if severity == "conditional"}
    if "fail" in required:
        return "NO_GO"
    if required & {"error", "inconclusive"}:
        return "INCONCLUSIVE"
    if conditional & {"fail", "error", "inconclusive"}:
        return "CONDITIONAL_GO"
    return "GO"


def _class_verdict(outcome: Json | None, history: Json | None, of_gate: str) -> str | None:
    if outcome is None or outcome["class"] == "success":
        return of_gate
    if outcome["class"] in ("user", "policy"):
        return "NO_GO"
    if outcome["class"] == "infra":
        storm = history is not None and history.get("restart_storm", False)
        return "NO_GO" if storm else "INCONCLUSIVE"
    return "INCONCLUSIVE" if outcome["code"] == "halted" else None


def _conditions(results: Iterable[Json], rules: Json) -> Results:
    gate = {row["id"]: parse_criterion(row).model_dump() for row in rules["gate"]}
    later = [row["name"] for row in rules.get("phases_after", [])]
    found = []
    for row in results:
        if row["severity"] != "conditional" or row["outcome"] == "pass":
            continue
        criterion = gate.get(row["id"])
        evidence_from, due = _places(criterion, later)
        found.append(
            {
                "id": f"{rules.get('phase')}:{row['id']}",
                "text": row["evidence"],
                "criterion": row["id"],
                "evidence_from": evidence_from,
                "due": due,
                "on_miss": criterion["on_miss"] if criterion else "no_go",
                "state": "open",
            }
        )
    return found


def _places(criterion: Json | None, later: Sequence[str]) -> tuple[str | None, str | None]:
    if criterion is None or not later:
        return None, None
    evidence_from = criterion["evidence_from"] or later[0]
    after = later[later.index(evidence_from) + 1 :] if evidence_from in later else []
    return evidence_from, criterion["due"] or (after[0] if after else "end")
