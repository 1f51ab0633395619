"""Does the watch of a run that release 0.1 judged come to the recorded findings again?

watch.jsonl is folded with the detectors that the run's rules name and whose rule is still the one
of then; a detector whose rule has changed since, and one that came later, is left out, and said.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gonogo.contract.errors import Corrupt, NotFound
from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.ledger.difference import Difference, first_difference
from gonogo.ledger.v1.record import load_findings
from gonogo.rundir import RunDir, load_record
from gonogo.watch import replay_watch
from gonogo.watch.registry import REGISTRY

Json = Mapping[str, Any]
_COMPARED = ("detector", "severity", "rank", "section", "step")


def rewatch(
    run_dir: Path, rules: Json, facts: Json, checked: list[str], not_verified: list[str]
) -> Difference | None:
    """Fold watch.jsonl again and compare with findings.jsonl, key by key.

    Where the watcher died with its run, the fold may find more than was written down.
    """
    if not RunDir(run_dir).watch.exists():
        not_verified.append("its watch: there is no watch.jsonl")
        return None
    watch = rules.get("watch", {})
    if not isinstance(watch, Mapping):
        raise Corrupt("rules.watch: expected an object")
    named = {path.partition(".")[0] for path in watch}
    present = {str(row.name): row.version for row in REGISTRY}
    same = {name: 1 for name in named if present.get(name) == 1}
    changed = sorted(named - same.keys())
    if changed:
        not_verified.append(f"findings of {', '.join(changed)}: their rule has changed since")
    try:
        found = _by_key(_folded(run_dir, same), same)
    except (Corrupt, NotFound) as error:
        not_verified.append(f"its watch: {error.detail}")
        return None
    checked.append("watch")
    recorded = _by_key(load_findings(RunDir(run_dir)), same)
    outcome = facts.get("outcome")
    if outcome is not None and outcome["class"] == "infra":
        found = {key: row for key, row in found.items() if key in recorded}
    difference = first_difference(recorded, found)
    return None if difference is None else replace(difference, path=f"findings.{difference.path}")


def _folded(run_dir: Path, detectors: Mapping[str, int]) -> list[Finding]:
    order = load_record(RunDir(run_dir).order, Order)
    if order is None:
        raise NotFound("there is no order.json")
    return replay_watch(run_dir, order=order.model_copy(update={"detectors": dict(detectors)}))


def _by_key(findings: Iterable[Any], names: Container[str]) -> dict[str, Any]:
    return {
        row.key: {name: getattr(row, name) for name in _COMPARED}
        for row in findings
        if str(row.detector) in names
    }
