"""What did the built-in criteria of release 0.1 say? They stood before a plan's own."""

from collections.abc import Callable, Iterator
from typing import Any

from gonogo.ledger.v1.rules import Json

Said = tuple[str, Any, str]
PASS, FAIL, INCONCLUSIVE, ERROR = "pass", "fail", "inconclusive", "error"


def result(
    name: str, severity: str, outcome: str, observed: Any, evidence: str, **more: Any
) -> dict[str, Any]:
    """Return one row of a gate table."""
    row = {"threshold": None, "window": None, "samples": None, **more}
    said = {"id": name, "severity": severity, "outcome": outcome, "observed": observed}
    return {**said, **row, "evidence": evidence}


def _completed(facts: Json, rules: Json) -> Said:
    outcome, ended = facts["outcome"], facts["exit"]
    steps, world_size = rules.get("steps"), rules.get("world_size")
    known = ended is not None or steps is not None
    if known and outcome is not None and outcome["code"] != "completed":
        return FAIL, outcome["code"], f"ended as {outcome['code']}, by {outcome['actor']}"
    if ended is not None and (ended["code"] != 0 or ended["signal"]):
        return FAIL, ended, "the exit code is not 0"
    if steps is None or world_size is None:
        return INCONCLUSIVE, None, "nobody recorded what was ordered"
    rows = [(rank, facts["ranks"].get(str(rank))) for rank in range(world_size)]
    for rank, row in rows:
        if row is not None and row["done_step"] is not None and row["done_step"] < steps:
            return FAIL, row["done_step"], f"rank {rank} was done at step {row['done_step']}"
    for rank, row in rows:
        if row is None or row["done_step"] is None:
            return INCONCLUSIVE, None, f"rank {rank} never said that it was done"
        if row["last_step"] < steps and steps >= rules["first_step"]:
            return INCONCLUSIVE, row["last_step"], f"rank {rank}: step {steps} was never seen"
    if ended is None:
        return INCONCLUSIVE, steps, "every rank was done, but no exit is recorded"
    return PASS, steps, f"all {world_size} ranks reached step {steps} and exited 0"


def _identity(facts: Json, rules: Json) -> Said:
    expected = rules.get("identity")
    if not expected:
        return INCONCLUSIVE, None, "nobody recorded what was ordered"
    mismatches = [row for row in _differences(facts, rules) if row[0] not in rules["allow_drift"]]
    if mismatches:
        text = "; ".join(_told(row) for row in mismatches[:3])
        return FAIL, {row[0]: row[3] for row in mismatches}, text
    for rank in range(rules["world_size"]):
        said = facts["identity"].get(str(rank))
        if said is None:
            return INCONCLUSIVE, None, f"rank {rank} never said what it is"
        unsaid = sorted(expected.keys() - said.keys() - set(rules["allow_drift"]))
        if unsaid:
            return INCONCLUSIVE, None, f"rank {rank} did not say {', '.join(unsaid)}"
    return PASS, None, f"{len(expected)} fields are equal on every rank and to the order"


def _differences(facts: Json, rules: Json) -> Iterator[tuple[str, str, Any, Any]]:
    expected = rules.get("identity", {})
    tolerance = rules.get("params_tolerance_ratio", 0.0)
    first: Json = next(iter(facts["identity"].values()), {})
    for rank, said in facts["identity"].items():
        for name, value in said.items():
            wanted = expected.get(name)
            if wanted is not None and not _equal(name, wanted, value, tolerance):
                yield name, rank, wanted, value
            elif name in first and value != first[name]:
                yield name, rank, first[name], value
    tokens = expected.get("tokens_per_step")
    for rank, row in facts["ranks"].items():
        for found in row["tokens"]:
            if tokens is not None and found != tokens:
                yield "tokens", rank, tokens, found


def _equal(name: str, wanted: Any, found: Any, tolerance: float) -> bool:
    if name == "params":
        return bool(abs(found - wanted) <= tolerance * wanted)
    return bool(found == wanted)


def _told(row: tuple[str, str, Any, Any]) -> str:
    name, rank, wanted, found = row
    return f"{name} of rank {rank} is {found!r}, {wanted!r} was ordered"


def _coverage(facts: Json, rules: Json) -> Said:
    if rules.get("world_size") is None:
        return INCONCLUSIVE, None, "nobody recorded what was ordered"
    if facts["source"] == "predecessor":
        return INCONCLUSIVE, None, "the lines carry no seq, so a lost one leaves no trace"
    for rank in range(rules["world_size"]):
        row = facts["ranks"].get(str(rank))
        if row is None or row["count"] == 0:
            return INCONCLUSIVE, None, f"rank {rank} wrote no line"
        if row["gaps"]:
            return INCONCLUSIVE, row["gaps"], f"rank {rank}: {row['gaps']} lines are missing"
        if row["missing"]["count"]:
            named = ", ".join(row["missing"]["first"])
            return INCONCLUSIVE, row["missing"]["count"], f"rank {rank} never said {named}"
    return PASS, None, "every line of every rank and step is there"


def _preflight(facts: Json, rules: Json) -> Said:
    found = facts["preflight"]
    if found is None:
        return INCONCLUSIVE, None, "no preflight is recorded"
    if found["failed"] or not found["passed"]:
        return FAIL, found["failed"], f"failed: {', '.join(found['failed']) or 'not said which'}"
    return PASS, None, f"{found['checks']} checks passed"


def _no_halt_finding(facts: Json, rules: Json) -> Said:
    halts = [row for row in facts["findings"] if row["severity"] == "halt"]
    if halts:
        first = halts[0]
        where = "" if first["rank"] is None else f" on rank {first['rank']}"
        section = "" if first["section"] is None else f" in {first['section']}"
        return FAIL, len(halts), f"{first['detector']}{where}{section}"
    if not facts["watched"]:
        return INCONCLUSIVE, None, "nobody watched this run"
    return PASS, 0, f"no halt among {len(facts['findings'])} findings"


_CRITERIA: dict[str, Callable[[Json, Json], Said]] = {
    "completed": _completed,
    "identity": _identity,
    "coverage": _coverage,
    "preflight": _preflight,
    "no_halt_finding": _no_halt_finding,
}


def evaluate_built_in(name: str, facts: Json, rules: Json) -> dict[str, Any]:
    """Return what one built-in criterion says."""
    outcome, observed, evidence = _CRITERIA[name](facts, rules)
    return result(name, "required", outcome, observed, evidence)


def evaluate_drift(facts: Json, rules: Json) -> dict[str, Any] | None:
    """Return the condition that an allowed drift makes, or None without drift."""
    allowed = rules.get("allow_drift", [])
    drifted = [row for row in _differences(facts, rules) if row[0] in allowed]
    if not drifted:
        return None
    return result(
        "identity_drift",
        "conditional",
        FAIL,
        {row[0]: row[3] for row in drifted},
        "; ".join(_told(row) for row in drifted[:3]),
        threshold={row[0]: row[2] for row in drifted},
    )
