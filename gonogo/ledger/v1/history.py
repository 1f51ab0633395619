"""What did the phase's other runs add under release 0.1? Confirmations and remedies."""

from typing import Any

from gonogo.ledger.v1.built_in import FAIL, INCONCLUSIVE, result
from gonogo.ledger.v1.rules import Json

_PASSING = ("GO", "CONDITIONAL_GO")


def confirmed_verdict(history: Json, verdict: str) -> str:
    """Return what confirmations make of a NO_GO."""
    rows = history.get("confirmations", [])
    unchanged = [row["verdict"] for row in rows if row["variant"] is None]
    variants = [row["verdict"] for row in rows if row["variant"] is not None]
    if not unchanged:
        return verdict
    said = unchanged[-1]
    if said in _PASSING:
        return "CONDITIONAL_GO"
    if said != "NO_GO":
        return "INCONCLUSIVE"
    if any(row in _PASSING for row in variants):
        return "CONDITIONAL_GO"
    if any(row != "NO_GO" for row in variants):
        return "INCONCLUSIVE"
    return verdict


def history_criteria(history: Json | None) -> list[dict[str, Any]]:
    """Return what the phase's other runs add to the gate table."""
    if not history:
        return []
    results = []
    rows = history.get("confirmations", [])
    if rows:
        unchanged = [row["verdict"] for row in rows if row["variant"] is None]
        failed = 1 + sum(verdict == "NO_GO" for verdict in unchanged)
        passed = [row for row in rows if row["verdict"] in _PASSING]
        outcome = FAIL if passed else INCONCLUSIVE
        observed = {"failed": failed, "runs": 1 + len(unchanged)}
        text = _reproduction(rows, failed, 1 + len(unchanged))
        results.append(result("reproduced", "conditional", outcome, observed, text))
    remedy = history.get("remedy")
    if remedy:
        text = f"this run was made with the remedy of {remedy['diagnosis']}: {remedy['patch']}"
        results.append(result("remedied", "conditional", FAIL, remedy["patch"], text))
    return results


def _reproduction(rows: list[Json], failed: int, runs: int) -> str:
    variants: dict[str, list[bool]] = {}
    for row in rows:
        if row["variant"] is not None:
            variants.setdefault(_named(row["variant"]), []).append(row["verdict"] in _PASSING)
    text = f"failed in {failed} of {runs} unchanged runs"
    if not variants:
        return f"not reproduced: {text}" if failed < runs else text
    told = [f"passed {sum(won)} of {len(won)} with {name}" for name, won in variants.items()]
    return f"{text}; {'; '.join(told)}"


def _named(variant: Json) -> str:
    pairs = [*variant.get("env", {}).items(), *variant.get("train", {}).items()]
    return " ".join(f"{name}={value}" for name, value in pairs) or "no change"
