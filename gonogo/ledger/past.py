"""Is what a decision says about other runs and other decisions true? Its history, its conditions.

The runs that a history names lie beside the judged one and are judged again; the open conditions
are those that the decisions before left open. An end that only the control plane could write down
(a lost host) is left out of the comparison, and that is said.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gonogo.contract.decision import DecisionKind, Verdict
from gonogo.contract.errors import Corrupt, NotFound
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import SHOWN_BY_LINES, OutcomeCode
from gonogo.judge.gate.conditions import conditions_of, open_for
from gonogo.judge.gate.verdict import UNJUDGED
from gonogo.ledger.again import Again, failed_again, is_v1, judge_again, read_again
from gonogo.ledger.chain import shortened
from gonogo.ledger.difference import Difference, first_difference
from gonogo.ledger.recorded import RecordedDecision

Json = Mapping[str, Any]

_REPORTED = frozenset({"infra", "operator"})
"""Classes of ends that the control plane may have had to write down for a host that could not."""

_NEVER_IN_A_DIRECTORY = frozenset({"worker_lost", "superseded"})
"""Ends of an attempt that was given up; its host may have written another one later."""

_NAME_BYTES = 255
"""As many as a file system takes."""

_NAMES_RERUNS = 3
"""Version of the judge since which the history of a rerun that is judged by itself is told."""

_END = ("outcome", "exit", "rank_exits")
_END_FILE = "exit.json"
_END_UNSEEN = "end: "
"""How what was not observed of an end begins."""


def names_a_directory(run: str) -> bool:
    """Say whether a run's id can be the name of its directory: one part of a path, not too long."""
    plain = run not in ("", ".", "..") and "/" not in run and "\0" not in run
    return plain and len(run.encode()) <= _NAME_BYTES


def reported_only(recorded: Json, again: Again) -> tuple[Json, Json, str | None]:
    """Return both facts, without the end where only the control plane could say it; and say so."""
    found = again.facts
    outcome = recorded.get("outcome")
    reported = isinstance(outcome, Mapping) and outcome.get("class") in _REPORTED
    failed = isinstance(outcome, Mapping) and _failed_before(outcome, recorded.get("exit"))
    if not isinstance(outcome, Mapping) or not (reported or failed):
        return recorded, found, None
    code = outcome.get("code")
    if again.ended and not failed and code not in _NEVER_IN_A_DIRECTORY:
        return recorded, found, None
    left, right = (_without_end(row) for row in (recorded, found))
    other = "another end" if again.ended else "no exit.json"
    text = f"its end ({code}) is the control plane's word: the run directory has {other}"
    return left, right, text


def _without_end(facts: Json) -> dict[str, Any]:
    """Return facts without the end, and without which bytes told it and what they sealed."""
    kept = {name: row for name, row in facts.items() if name not in _END}
    files, unseen, watch = kept.get("files"), kept.get("not_observed"), kept.get("watch")
    if isinstance(files, Mapping):
        kept["files"] = {name: row for name, row in files.items() if name != _END_FILE}
    if isinstance(unseen, list):
        kept["not_observed"] = [row for row in unseen if not str(row).startswith(_END_UNSEEN)]
    if isinstance(watch, Mapping):
        kept["watch"] = {name: row for name, row in watch.items() if name != "sealed"}
    return kept


def _failed_before(outcome: Json, ended: Any) -> bool:
    """Say whether the control plane wrote down the end of a run that its watcher had halted.

    It knows no bytes of order.json, by which every end that a keeper writes is bound to its order.
    """
    written = isinstance(ended, Mapping) and ended.get("run") and not ended.get("order_sha256")
    return bool(written) and outcome.get("code") in SHOWN_BY_LINES


def check_open_conditions(
    recorded: RecordedDecision,
    siblings: Sequence[RecordedDecision] | None,
    not_verified: list[str],
) -> Difference | None:
    """Compare the conditions in the rules with those that the decisions before left open.

    A run may have been assessed before the last decisions were made, so what was open after any
    of them will do; but a phase begins after the phases before it were judged. What a person
    decides about these may come at any time.
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
    phase = decision.phase or ""
    judged = (row.decision for row in before if row.decision.kind is DecisionKind.AUTO)
    begun = max((row.seq for row in judged if row.phase != decision.phase), default=0)
    states = []
    for count in range(len(before), begun - 1, -1):
        known = conditions_of(row.decision for row in before[:count])
        found = [_row(row) for row in open_for(known, phase)]
        if first_difference(rows, found) is None:
            return None
        states.append(found)
    return Difference(path="rules.conditions", recorded=rows, found=states[0])


def _row(row: Any) -> dict[str, Any]:
    return {
        "condition": row.condition.model_dump(mode="json"),
        "criterion": row.criterion.model_dump(mode="json"),
    }


_NAMED: dict[str, Json] = {
    "confirmations": {"rerun": True},
    "undecided": {"verdict": Verdict.INCONCLUSIVE.value, "code": OutcomeCode.COMPLETED.value},
}
"""What of a history names runs, and what is true of each of these besides what is told."""


def check_history(
    facts: Json,
    rules: Json,
    again: Again,
    runs: Path,
    checked: list[str],
    not_verified: list[str],
    *,
    passed: bool,
) -> Difference | None:
    """Judge the runs that the history names again, and compare the reason with the order's.

    Args:
        facts, rules: recorded.
        again: the judged run, read again.
        runs: the folder in which the run directories lie.
        checked, not_verified: are told.
        passed: whether the decision passes the phase.
    """
    history = facts.get("history") or {}
    wrong = _made_for(history, rules, again, passed=passed)
    if wrong is not None:
        return wrong
    if history.get("restart_storm"):
        not_verified.append("the restart storm: only the control plane counted the attempts")
    rows = {
        f"facts.history.{name}.{number}": {**row, **more}
        for name, more in _NAMED.items()
        for number, row in enumerate(history.get(name, []))
    }
    if rows or history.get("failed_before"):
        checked.append("history")
    failed = {
        f"facts.history.failed_before.{number}": row
        for number, row in enumerate(history.get("failed_before", []))
    }
    for place, row in {**rows, **failed}.items():
        compare = _had_failed if place in failed else _confirmed
        difference = _look(compare, row, rules, runs, place, again)
        if isinstance(difference, str):
            not_verified.append(difference)
        elif difference is not None:
            return difference
    return None


def _made_for(history: Json, rules: Json, again: Again, *, passed: bool) -> Difference | None:
    """Compare what the run was made for with the order: no rerun passes as if nothing had failed.

    A run that somebody ended, or whose host went away, is decided without its history.
    """
    made = again.reason == "remedy"
    remedied = bool(history.get("remedy"))
    if remedied != made and (remedied or passed or is_v1(rules)):
        where = "with a remedy" if made else "without one"
        return Difference(
            path="facts.history.remedy", recorded=history.get("remedy"),
            found=f"(the order says that the run was made {where})",
        )  # fmt: skip
    if rules.get("judge_version", 1) < _NAMES_RERUNS:
        return None
    rerun = history.get("rerun")
    if rerun is not None and rerun != again.rerun:
        return Difference(path="facts.history.rerun", recorded=rerun, found=again.rerun)
    told = rerun is not None or bool(history.get("confirmations"))
    if again.rerun is None or not passed:
        return None
    if again.rerun.get("until") is not None or (again.reason == "confirm" and not told):
        return Difference(path="facts.history.rerun", recorded=rerun, found=again.rerun)
    return None


def _confirmed(row: Json, rules: Json, path: str, seen: "_Seen") -> Difference | str | None:
    """Compare what a run is told to have come to with what it comes to.

    One whose order ends before its phase does is told with its last step: it passes no gate. What
    was ordered before the judged run, or as a remedy, confirms nothing of it.
    """
    told = {"verdict", "code", "rerun"} & row.keys() | (
        {"until"} if seen.until is not None else set()
    )
    recorded = {name: row.get(name) for name in sorted(told)}
    return first_difference(recorded, {name: getattr(seen, name) for name in recorded}, path)


def _had_failed(row: Json, rules: Json, path: str, seen: "_Seen") -> Difference | str | None:
    """Compare which criteria, and open conditions, a run is told to have failed.

    One that the control plane ended has another end in its directory, or none: of that nobody can
    say what had failed by then. Nor of a condition that a person has waived since.
    """
    if seen.code != row.get("code"):
        return f"the run {row['run']}, which the history names: its directory has another end"
    told = row.get("criteria")
    if isinstance(told, list) and UNJUDGED in told:
        return f"the run {row['run']}, which the history names: it could not be judged then"
    settled = sorted({str(name) for name in told or () if ":" in str(name)} - _open_in(rules))
    if settled:
        names = shortened(", ".join(settled))
        return f"the run {row['run']}, which the history names, by {names}: it is open no more"
    known = [name for name in told if name in seen.failed] if isinstance(told, list) else []
    return first_difference(told, known, f"{path}.criteria")  # more lines may have come since


def _look(
    compare: "_Compare", row: Json, rules: Json, runs: Path, path: str, judged: Again
) -> Difference | str | None:
    """Judge a run again that is told of: one of the same phase, of the same experiment.

    It was judged before the decision, perhaps by the judge of an earlier release: any will do that
    is no older than its order.
    """
    first: Difference | None = None
    tried: set[int] = set()
    for version in range(rules.get("judge_version", 1), 0, -1):
        by = {**rules, "judge_version": version}
        if first is not None and is_v1(by):
            break  # its rules have another form
        seen = _come_to(row, by, runs, path, judged)
        if not isinstance(seen, _Seen):
            return seen if first is None else first
        if seen.version in tried:
            break
        tried.add(seen.version)
        found = compare(row, rules, path, seen)
        if not isinstance(found, Difference):
            return found
        first = first or found
    return first


def _open_in(rules: Json) -> set[str]:
    """Return the ids of the conditions that were open when a run was judged: `PHASE:CRITERION`."""
    return {str(row["condition"]["id"]) for row in rules.get("conditions", [])}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What a run that a history names comes to today."""

    version: int
    """Of the judge."""
    verdict: str
    code: str | None
    failed: list[str]
    until: int | None
    """Its last step by its order, where that is not the phase's own."""
    rerun: bool
    """Whether it was ordered after the judged run, and not as a remedy."""


_Compare = Callable[[Json, Json, str, _Seen], Difference | str | None]


def _come_to(
    row: Json, rules: Json, runs: Path, path: str, judged: Again
) -> _Seen | Difference | str | None:
    """Return what a run comes to; a sentence where nobody can say, a difference if it is another's.

    Args:
        row: what the history tells of it.
        rules: of the decision.
        runs: the folder in which the run directories lie.
        path: of the row.
        judged: the run that the decision is about.
    """
    run = row.get("run")
    folder = runs / str(run)
    if not isinstance(run, str) or not names_a_directory(run) or not folder.is_dir():
        return f"the run {shortened(run)}, which the history names: its directory is not there"
    try:
        again = read_again(folder, rules, None)
        if again.rules is None:
            return f"the run {run}, which the history names: it has no order.json"
        found = judge_again(again.facts, again.rules)
    except (Corrupt, NotFound) as error:
        return f"the run {run}, which the history names: {error.detail}"
    phase = again.rules.get("phase")
    whose = {"experiment": again.experiment, "phase": phase, "run": again.run}
    told = {"experiment": judged.experiment, "phase": rules.get("phase"), "run": run}
    if whose != told:
        return first_difference(told, whose, f"{path}.run")
    if not again.ended:
        return f"the run {run}, which the history names: it has no exit.json"
    outcome = again.facts.get("outcome") or {}
    return _Seen(
        version=again.rules["judge_version"],
        verdict=found["verdict"],
        code=outcome.get("code"),
        failed=failed_again(again.facts, again.rules),
        until=again.until,
        rerun=again.reason != RunReason.REMEDY and (again.attempt or 0) > (judged.attempt or 0),
    )
