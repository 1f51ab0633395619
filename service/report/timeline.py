"""What happened when? The experiment's events and findings in one order, for a table and a picture.

A finding stands at the moment that the watcher gave it; the event that tells of it is left out.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from gonogo.contract.api import EventView
from gonogo.contract.decision import DecisionKind
from gonogo.contract.finding import Severity
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from service.report.text import NONE, duration, inline, table
from service.report.view import ReportView, RunReport
from service.told.beginnings import GOING_ON, NO_CHECKPOINT

MAX_ROWS = 150


class What(StrEnum):
    """What kind of thing happened."""

    EXPERIMENT = "experiment"
    PHASE = "phase"
    RUN = "run"
    FINDING = "finding"
    HALT = "halt"
    DECISION = "decision"
    PERSON = "person"
    REMEDY = "remedy"
    SERVICE = "service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Something that happened; `text` is Markdown."""

    at: float
    """Unix seconds."""
    what: What
    text: str
    who: str
    phase: str | None = None


def moments_of(view: ReportView) -> list[Moment]:
    """Return everything that happened, in its order."""
    attempts = {run.view.id: run for run in view.runs}
    found = [moment for event in view.events for moment in _told(event, attempts)]
    found += [moment for run in view.runs for moment in _findings(run)]
    return sorted(found, key=lambda row: row.at)


def _findings(run: RunReport) -> Iterator[Moment]:
    for row in run.findings:
        where = "" if row.rank is None else f", rank {row.rank}"
        step = "" if row.step is None else f", step {row.step}"
        yield Moment(
            at=row.at,
            what=What.HALT if row.severity is Severity.HALT else What.FINDING,
            text=f"{row.severity.value}: {inline(row.detector)}{where}{step}: {inline(row.text)}",
            who="watchdog",
            phase=run.view.phase,
        )


def _told(event: EventView, attempts: Mapping[str, RunReport]) -> Iterator[Moment]:
    """Yield what an event tells; nothing where another line says it."""
    kind, data = event.type, event.data
    if kind in _SILENT:
        return
    run = attempts.get(event.run or "")
    teller = _TELLERS.get(kind)
    what, text = teller(data, run) if teller is not None else (What.SERVICE, _other(kind, data))
    if text:
        yield Moment(
            at=datetime.fromisoformat(event.at).timestamp(),
            what=what,
            text=text,
            who="its run" if event.actor == f"run {event.run}" else inline(event.actor),
            phase=event.phase,
        )


_SILENT = frozenset({"finding", "run.suspect", "experiment.frozen", "run.judged"})
"""Findings are told by themselves, judgements by their decisions."""


_STATES: Mapping[str, str] = {
    ExperimentState.RUNNING: "goes on",
    ExperimentState.AWAITING_DECISION: "waits for a person",
}


def _experiment(data: Mapping[str, Any], run: RunReport | None) -> tuple[What, str]:
    state = str(data.get("state"))
    if data.get("before") is None:
        return What.EXPERIMENT, "submitted"
    if (data["before"], state) == (ExperimentState.QUEUED, ExperimentState.RUNNING):
        return What.EXPERIMENT, "begins"
    return What.EXPERIMENT, _STATES.get(state, inline(state))


def _phase(data: Mapping[str, Any], run: RunReport | None) -> tuple[What, str]:
    state = str(data.get("state"))
    return What.PHASE, "begins" if state == PhaseState.ACTIVE else inline(state)


def _run(data: Mapping[str, Any], run: RunReport | None) -> tuple[What, str]:
    state, attempt = data.get("state"), f"attempt {data.get('attempt')}"
    if state == RunState.QUEUED:
        reason = str(data.get("reason", "first"))
        point = data.get("resume_from") or {}
        after = f" after step {point.get('step')}" if point.get("step") else ""
        if not point and reason in GOING_ON:
            after = NO_CHECKPOINT
        change = _change(run)
        what = What.REMEDY if reason == "remedy" else What.RUN
        return what, f"{attempt} is queued ({inline(reason)}{after}{change})"
    if state == RunState.RUNNING:
        return What.RUN, f"{attempt} trains"
    if state == RunState.ENDED:
        outcome = run.view.outcome if run is not None else None
        ended = f": {outcome.code}, by {outcome.actor}" if outcome is not None else ""
        return What.RUN, f"{attempt} ended{ended}"
    return What.RUN, ""


def _change(run: RunReport | None) -> str:
    if run is None or not run.change:
        return ""
    return f": {inline(json.dumps(run.change, sort_keys=True))}"


def _decision(data: Mapping[str, Any], run: RunReport | None) -> tuple[What, str]:
    kind, verdict = data.get("kind"), data.get("verdict") or "no verdict"
    by_hand = data.get("by_hand", kind == DecisionKind.HUMAN)
    what = What.PERSON if by_hand else What.DECISION
    reason = f": {inline(data['reason'])}" if data.get("reason") else ""
    by = " by hand" if by_hand and data.get("verdict") else ""
    return what, f"**{verdict}{by}** ({inline(kind)}){reason}"


def _asked(verb: str) -> Callable[[Mapping[str, Any], RunReport | None], tuple[What, str]]:
    def told(data: Mapping[str, Any], run: RunReport | None) -> tuple[What, str]:
        reason = f": {inline(data['reason'])}" if data.get("reason") else ""
        return What.PERSON, f"{inline(data.get('kind') or verb)} is asked for{reason}"

    return told


def _carried(data: Mapping[str, Any], run: RunReport | None) -> tuple[What, str]:
    return What.REMEDY, f"runs under {inline(str(data.get('text')))}"


_TELLERS: dict[str, Callable[[Mapping[str, Any], RunReport | None], tuple[What, str]]] = {
    "experiment.state": _experiment,
    "experiment.stop": _asked("stop"),
    "experiment.resume": _asked("resume"),
    "experiment.rerun": _asked("rerun"),
    "experiment.takeover": _asked("takeover"),
    "phase.state": _phase,
    "phase.carried": _carried,
    "phase.approved": _asked("approval given; the next phase"),
    "run.state": _run,
    "decision.made": _decision,
}


def _other(kind: str, data: Mapping[str, Any]) -> str:
    text = data.get("text") or data.get("reason")
    return inline(kind.replace(".", " ").replace("_", " ") + (f": {text}" if text else ""))


def timeline_table(moments: Iterable[Moment]) -> str:
    """Return one row per moment; of very many the first and the last."""
    rows = list(moments)
    began = rows[0].at if rows else 0.0
    half = MAX_ROWS // 2
    left_out = len(rows) - MAX_ROWS
    cells = [_row(row, began) for row in rows]
    if left_out > 0:
        gap = (NONE, NONE, NONE, f"{left_out} more are left out here", NONE)
        cells = [*cells[:half], gap, *cells[-half:]]
    return table(("after", "phase", "what", "", "who"), cells)


def _row(row: Moment, began: float) -> tuple[str, ...]:
    what = f"**{row.what}**" if row.what in _LOUD else row.what.value
    after = "0 s" if row.at <= began else duration(row.at - began)
    return (after, inline(row.phase or NONE), what, row.text, row.who)


_LOUD = frozenset({What.HALT, What.PERSON, What.REMEDY})
