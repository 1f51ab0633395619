"""How does the timeline look? Phases as rows, runs as bars, what happened as signs above them."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gonogo.contract.api import RunView
from service.report.text import duration
from service.report.timeline import Moment, What
from service.report.view import ReportView

SIGNS = (What.HALT, What.FINDING, What.DECISION, What.PERSON, What.REMEDY)
"""What is shown besides the runs."""
_UNITS = (
    (2 * 86_400.0, 86_400.0, "days"),
    (2 * 3_600.0, 3_600.0, "hours"),
    (120.0, 60.0, "minutes"),
)


class Tone(StrEnum):
    """What a bar says."""

    WAITS = "waits"
    GOES_ON = "goes on"
    GO = "GO"
    CONDITIONAL_GO = "CONDITIONAL_GO"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_GO = "NO_GO"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A run, or its waiting, in units of the picture."""

    row: int
    start: float
    end: float
    tone: Tone


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """Something that happened."""

    row: int
    at: float
    what: What


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All of an experiment over time."""

    name: str
    title: str
    x: str
    rows: tuple[str, ...]
    bars: tuple[Bar, ...]
    signs: tuple[Sign, ...]
    words: str


def timeline_picture(view: ReportView, moments: list[Moment]) -> Timeline | None:
    """Return the picture of what happened; None before a run has begun."""
    runs = [run.view for run in view.runs if run.view.started_at is not None]
    if not runs:
        return None
    now = _seconds(view.now)
    began = _seconds(view.experiment.created_at)
    ended = _seconds(view.experiment.ended_at or view.now)
    scale, unit = _unit(ended - began)
    rows = view.phases
    place = {phase: number for number, phase in enumerate(rows)}

    def at(seconds: float) -> float:
        return max(0.0, seconds - began) / scale

    bars = []
    for run in (found.view for found in view.runs):
        start = _seconds(run.started_at) if run.started_at else None
        end = _seconds(run.ended_at) if run.ended_at else now
        waits = Bar(
            row=place[run.phase],
            start=at(_seconds(run.created_at)),
            end=at(end if start is None else start),
            tone=Tone.WAITS,
        )
        bars.append(waits)
        if start is not None:
            bars.append(Bar(row=place[run.phase], start=at(start), end=at(end), tone=_tone(run)))
    signs = tuple(
        Sign(row=place[row.phase], at=at(row.at), what=row.what)
        for row in moments
        if row.what in SIGNS and row.phase in place
    )
    told = ", ".join(f"{run.phase} {_tone(run).value}" for run in runs)
    return Timeline(
        name="timeline",
        title="runs by phase",
        x=f"{unit} since the submission",
        rows=tuple(rows),
        bars=tuple(bars),
        signs=signs,
        words=f"Timeline of {duration(ended - began)}: {told}; {len(signs)} signs",
    )


def _tone(run: RunView) -> Tone:
    if run.ended_at is None:
        return Tone.GOES_ON
    return Tone(run.verdict) if run.verdict is not None else Tone.ENDED


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def _unit(span: float) -> tuple[float, str]:
    return next(((scale, name) for least, scale, name in _UNITS if span >= least), (1.0, "seconds"))
