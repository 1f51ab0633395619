"""Did the run complete, was it what was ordered, and was all of it seen? The built-in criteria.

They stand before a plan's own in every gate and are required. Missing evidence never passes.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gonogo.contract.criterion import GateSeverity
from gonogo.contract.decision import CriterionOutcome, CriterionResult
from gonogo.contract.outcome import OutcomeCode

Json = Mapping[str, Any]
Said = tuple[CriterionOutcome, Any, str]

PASS, FAIL = CriterionOutcome.PASS, CriterionOutcome.FAIL
INCONCLUSIVE = CriterionOutcome.INCONCLUSIVE

DRIFT = "identity_drift"
"""Id of the condition that an allowed drift of the code identity makes."""


def completed(facts: Json, rules: Json) -> Said:
    """Exit 0, every rank `done`, the last ordered step reached."""
    outcome, ended = facts["outcome"], facts["exit"]
    steps, world_size = rules.get("steps"), rules.get("world_size")
    known = ended is not None or steps is not None
    if known and outcome is not None and outcome["code"] != OutcomeCode.COMPLETED:
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


def identity(facts: Json, rules: Json) -> Said:
    """Every rank's identity equals the others' and the order's; null is not checked."""
    expected = rules.get("identity")
    if not expected:
        return INCONCLUSIVE, None, "nobody recorded what was ordered"
    mismatches = [row for row in differences(facts, rules) if row[0] not in rules["allow_drift"]]
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


Difference = tuple[str, str, Any, Any]
"""Field, rank, expected, found."""


def differences(facts: Json, rules: Json) -> Iterator[Difference]:
    """Yield every field in which a rank is not what was ordered, or not what rank 0 is."""
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


def _told(row: Difference) -> str:
    name, rank, wanted, found = row
    return f"{name} of rank {rank} is {found!r}, {wanted!r} was ordered"


def coverage(facts: Json, rules: Json) -> Said:
    """No gap in `seq`, and step_start, progress, step_end of every rank and step owed."""
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


def preflight(facts: Json, rules: Json) -> Said:
    """Checked before the launch, passed, and recorded."""
    found = facts["preflight"]
    if found is None:
        return INCONCLUSIVE, None, "no preflight is recorded"
    if found["failed"] or not found["passed"]:
        return FAIL, found["failed"], f"failed: {', '.join(found['failed']) or 'not said which'}"
    return PASS, None, f"{found['checks']} checks passed"


def no_halt_finding(facts: Json, rules: Json) -> Said:
    """No detector said halt, and somebody was watching."""
    halts = [row for row in facts["findings"] if row["severity"] == "halt"]
    if halts:
        first = halts[0]
        where = "" if first["rank"] is None else f" on rank {first['rank']}"
        section = "" if first["section"] is None else f" in {first['section']}"
        return FAIL, len(halts), f"{first['detector']}{where}{section}"
    if not facts["watched"]:
        return INCONCLUSIVE, None, "nobody watched this run"
    return PASS, 0, f"no halt among {len(facts['findings'])} findings"


BUILT_IN: dict[str, Callable[[Json, Json], Said]] = {
    "completed": completed,
    "identity": identity,
    "coverage": coverage,
    "preflight": preflight,
    "no_halt_finding": no_halt_finding,
}


def evaluate_built_in(name: str, facts: Json, rules: Json) -> CriterionResult:
    """Return what one built-in criterion says."""
    outcome, observed, evidence = BUILT_IN[name](facts, rules)
    return CriterionResult(
        id=name,
        severity=GateSeverity.REQUIRED,
        outcome=outcome,
        observed=observed,
        evidence=evidence,
    )


def evaluate_drift(facts: Json, rules: Json) -> CriterionResult | None:
    """Return the condition that an allowed drift makes, or None without drift."""
    allowed = rules.get("allow_drift", [])
    drifted = [row for row in differences(facts, rules) if row[0] in allowed]
    if not drifted:
        return None
    return CriterionResult(
        id=DRIFT,
        severity=GateSeverity.CONDITIONAL,
        outcome=FAIL,
        observed={row[0]: row[3] for row in drifted},
        threshold={row[0]: row[2] for row in drifted},
        evidence="; ".join(_told(row) for row in drifted[:3]),
    )
