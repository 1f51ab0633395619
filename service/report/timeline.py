"""What happened when: the experiment's events and findings in one table."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from gonogo.contract.api import EventView
from gonogo.contract.finding import Severity
from gonogo.contract.lifecycle import PhaseState, RunState
from service.experiments.awaited import GOING_ON, NO_CHECKPOINT
from service.report.view import ReportView, RunReport
from service.text import NONE, duration, inline, table

MAX_ROWS = 150
SILENT = frozenset({"finding", "run.suspect", "experiment.frozen", "run.judged"})
"""Events that another row shows: findings by themselves, judgements by their decisions."""


class Moment(NamedTuple):
    """Something that happened; `text` is Markdown."""

    at: float
    """Unix seconds."""
    phase: str | None
    text: str
    who: str


def moments_of(view: ReportView) -> list[Moment]:
    """Return everything that happened, in its order."""
    runs = {run.view.id: run for run in view.runs}
    found = [moment for run in view.runs for moment in _findings(run)]
    for event in view.events:
        text = "" if event.type in SILENT else _text(event, runs.get(event.run or ""))
        if text:
            at = datetime.fromisoformat(event.at).timestamp()
            who = "its run" if event.actor == f"run {event.run}" else inline(event.actor)
            found.append(Moment(at, event.phase, text, who))
    return sorted(found, key=lambda row: row.at)


def _findings(run: RunReport) -> Iterator[Moment]:
    for row in run.findings:
        where = "" if row.rank is None else f", rank {row.rank}"
        step = "" if row.step is None else f", step {row.step}"
        level = "**halt**" if row.severity is Severity.HALT else row.severity.value
        text = f"{level}: {inline(row.detector)}{where}{step}: {inline(row.text)}"
        yield Moment(row.at, run.view.phase, text, "watchdog")


def _text(event: EventView, run: RunReport | None) -> str:
    """Return what an event says; empty: nothing that a reader needs."""
    data = event.data
    state = str(data.get("state")).replace("_", " ")
    why = data.get("text") or data.get("reason")
    reason = f": {inline(why)}" if why else ""
    match event.type:
        case "experiment.state":
            return "submitted" if data.get("before") is None else f"experiment {inline(state)}"
        case "phase.state":
            return f"phase {'begins' if state == PhaseState.ACTIVE else inline(state)}"
        case "run.state":
            return _run_text(data, run)
        case "decision.made":
            by_hand = " by hand" if data.get("by_hand", data.get("kind") == "human") else ""
            verdict = f"**{data['verdict']}{by_hand}**" if data.get("verdict") else "no verdict"
            return f"{verdict} ({inline(data.get('kind'))}){reason}"
        case "phase.carried":
            return f"runs under {inline(why)}"
        case "experiment.stop":
            return f"**{inline(data.get('kind') or 'stop')}** is requested{reason}"
        case kind:
            return inline(kind.replace(".", " ").replace("_", " ")) + reason


def _run_text(data: dict[str, Any], run: RunReport | None) -> str:
    state, attempt = data.get("state"), f"attempt {data.get('attempt')}"
    if state == RunState.QUEUED:
        reason, point = str(data.get("reason", "first")), data.get("resume_from") or {}
        after = f" after step {point.get('step')}" if point.get("step") else ""
        if not point and reason in GOING_ON:
            after = NO_CHECKPOINT
        return f"{attempt} is queued ({inline(reason)}{after})"
    if state == RunState.RUNNING:
        return f"{attempt} trains"
    if state != RunState.ENDED:
        return ""
    outcome = run.view.outcome if run is not None else None
    return f"{attempt} ended" + (f": {outcome.code}, by {outcome.actor}" if outcome else "")


def timeline_table(view: ReportView) -> str:
    """Return one row per moment; of very many the first and the last."""
    rows = moments_of(view)
    if not rows:
        return "Nothing has happened yet."
    began, half = rows[0].at, MAX_ROWS // 2
    cells = [
        (duration(row.at - began), inline(row.phase or NONE), row.text, row.who) for row in rows
    ]
    if len(cells) > MAX_ROWS:
        gap = (NONE, NONE, f"{len(cells) - MAX_ROWS} more are left out here", NONE)
        cells = [*cells[:half], gap, *cells[-half:]]
    return table(("after", "phase", "what", "who"), cells)
