"""Replaying what a decision says about the other runs of its phase.

A confirmation can turn a NO_GO into a CONDITIONAL_GO. So the runs that confirm are judged again
from their directories, which lie beside that of the judged run. The rest of a history can only make
a verdict worse, and is not checked.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gonogo.contract.errors import Corrupt, NotFound
from gonogo.contract.order import RunReason
from gonogo.ledger.recorded import Difference, first_difference, shortened
from gonogo.ledger.rejudge import Again, judge_again, read_again

Json = Mapping[str, Any]

_NAME_BYTES = 255
"""Longest name that a file system takes."""


def names_a_directory(run: str) -> bool:
    """Say whether a run's id can be the name of its directory: one part of a path, not too long."""
    plain = run not in ("", ".", "..") and "/" not in run and "\0" not in run
    return plain and len(run.encode()) <= _NAME_BYTES


def check_reason(history: Json, again: Again, *, passed: bool) -> Difference | None:
    """Compare what the run was made for with its order: no rerun passes as a first run.

    Args:
        history: recorded.
        again: the judged run, read again.
        passed: whether the decision passes the phase.
    """
    made = again.order is not None and again.order.reason is RunReason.REMEDY
    remedied = bool(history.get("remedy"))
    if remedied != made and (remedied or passed):
        found = f"(the order names {'a' if made else 'no'} remedy)"
        return Difference(path="facts.history.remedy", recorded=history.get("remedy"), found=found)
    rerun, ordered = history.get("rerun"), again.rerun
    difference = Difference(path="facts.history.rerun", recorded=rerun, found=ordered)
    if rerun is not None:
        return difference if rerun != ordered else None
    if ordered is None or not passed:
        return None
    confirms = ordered["reason"] == RunReason.CONFIRM and not history.get("confirmations")
    return difference if confirms or ordered["until"] is not None else None


def check_confirmations(
    facts: Json, again: Again, runs: Path, checked: list[str], not_verified: list[str]
) -> Difference | None:
    """Judge the confirmations again that the history names.

    Args:
        facts: recorded.
        again: the judged run, read again.
        runs: the folder in which the run directories lie.
        checked, not_verified: extended.
    """
    rows = (facts.get("history") or {}).get("confirmations", [])
    if rows:
        checked.append("history")
    for number, row in enumerate(rows):
        try:
            found = _came_to(str(row.get("run")), again, runs)
        except (Corrupt, NotFound) as error:
            text = f"the run {shortened(row.get('run'))}, which the history names: {error.detail}"
            not_verified.append(text)
            continue
        recorded = {name: row.get(name) for name in found}
        path = f"facts.history.confirmations.{number}"
        difference = first_difference(recorded, found, path)
        if difference is not None:
            return difference
    return None


def _came_to(run: str, judged: Again, runs: Path) -> dict[str, Any]:
    """Return a confirmation as it should stand in the history.

    Raises:
        NotFound: its directory is missing or incomplete.
        Corrupt: its directory cannot be read.
    """
    folder = runs / run
    if not names_a_directory(run) or not folder.is_dir():
        raise NotFound("its directory is not there")
    again = read_again(folder, {}, None)
    if again.order is None or again.rules is None or judged.order is None:
        raise NotFound("it has no order.json")
    outcome = again.facts.get("outcome")
    if outcome is None:
        raise NotFound("it has not ended")
    order, ours = again.order, judged.order
    same = (order.experiment, order.phase) == (ours.experiment, ours.phase)
    later = order.attempt > ours.attempt and order.reason is not RunReason.REMEDY
    return {
        "run": order.run if same and later else None,
        "verdict": judge_again(again.facts, again.rules)["verdict"],
        "code": outcome["code"],
        "until": again.until,
    }
