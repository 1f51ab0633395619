"""The charts of a report: the overview, and those of each phase."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from service.charts import KINDS, LIMIT, Chart, Line, Mark, Point, non_finite_mark
from service.report.view import SECTIONS, RankNumbers, ReportView, RunReport

MAX_RANKS = len(KINDS)
"""Lines of ranks in one chart; of more ranks these stand for all."""


class Picture(NamedTuple):
    """A chart with the name of its file, without the ending."""

    name: str
    chart: Chart


BY_RANK = (
    ("speed", "tok_s", "tokens/s over all ranks", 1.0),
    ("steps", "step_s", "seconds of a step", 1.0),
    ("host", "host_mb", "host memory, GB", 1e-3),
    ("device", "device_mb", "device memory, GB", 1e-3),
    ("util", "util", "device utilisation, %", 1.0),
)
"""File, series, title, scale of the charts with one line for each rank."""


def pictures_of(view: ReportView) -> list[Picture]:
    """Return every chart of a report."""
    found = overview(view)
    phases = [row for phase in view.phases for row in phase_pictures(view, phase)]
    return [*([found] if found else []), *phases]


def overview(view: ReportView) -> Picture | None:
    """Return the loss of all phases, one after the other; without a loss, the speed."""
    for series, title in (("loss", "loss of all phases"), ("tok_s", "tokens/s of all phases")):
        lines, marks, start = [], [], 0
        for phase in view.phases:
            runs = view.runs_of(phase)
            for run in runs:
                points = tuple((start + step, value) for step, value in _points(run, series))
                lines.append(Line(name=run.title, points=points))
                marks += [replace(row, step=row.step + start) for row in _marks(run, series)]
            start += max(run.view.steps for run in runs)
        chart = _chart(title, lines, marks)
        if chart is not None:
            return Picture("overview", chart)
    return None


def phase_pictures(view: ReportView, phase: str) -> list[Picture]:
    """Return the charts of a phase: of the loss every attempt, of the rest the newest."""
    runs = view.runs_of(phase)
    return [
        Picture(f"{_file_stem(phase)}-{name}", chart)
        for name, chart in _charts(phase, runs)
        if chart is not None
    ]


def _charts(phase: str, runs: Sequence[RunReport]) -> Iterator[tuple[str, Chart | None]]:
    lines, marks = [], []
    for run in runs:
        of = f", attempt {run.view.attempt}" if len(runs) > 1 else ""
        for series, name in (("loss", "loss"), ("val_loss", "validation loss")):
            lines.append(Line(name=f"{name}{of}", points=_points(run, series)))
        marks += _marks(run, "loss")
    yield "loss", _chart(f"{phase}: loss", lines, marks)
    for name, series, title, scale in BY_RANK:
        newest = _newest(runs, series)
        if newest is not None:
            yield name, _by_rank(newest, series, f"{newest.title}: {title}", scale)
    newest = _newest(runs, "data")
    if newest is not None:
        slow = max(newest.ranks, key=lambda rank: rank.median("step_s"))
        lines = [Line(name=name, points=slow.points(name)) for name in SECTIONS]
        title = f"{newest.title}: seconds of a step by section, rank {slow.rank}"
        yield "sections", _chart(title, lines, (), zero=True)
    newest = _newest(runs, "gate_entropy")
    if newest is not None:
        named = {"gate_entropy": "entropy (1: even)", "gate_max": "largest share of a branch"}
        lines = [Line(name=text, points=_points(newest, name)) for name, text in named.items()]
        yield "gates", _chart(f"{newest.title}: gates of the branches", lines, (), zero=True)


def _by_rank(run: RunReport, series: str, title: str, scale: float) -> Chart | None:
    ranks = spread_out([rank for rank in run.ranks if rank.points(series)], series)
    some = f", {len(ranks)} of {len(run.ranks)} ranks" if len(ranks) < len(run.ranks) else ""
    lines = [
        Line(
            name=f"rank {rank.rank}",
            points=tuple((step, value * scale) for step, value in rank.points(series)),
        )
        for rank in ranks
    ]
    floor = run.order.watch.slow.floor_tok_s if run.order is not None else None
    if series == "tok_s" and floor and lines:
        ends = lines[0].points[0][0], lines[0].points[-1][0]
        limit = tuple((step, floor) for step in ends)
        lines.append(Line(name=f"floor {floor:g}", points=limit, kind=LIMIT))
    return _chart(f"{title}{some}", lines, _marks(run, series), zero=True)


def spread_out(ranks: Sequence[RankNumbers], series: str) -> list[RankNumbers]:
    """Return at most `MAX_RANKS` ranks, from the lowest median to the highest."""
    if len(ranks) <= MAX_RANKS:
        return list(ranks)
    ordered = sorted(ranks, key=lambda rank: rank.median(series))
    last = len(ordered) - 1
    return [ordered[round(place * last / (MAX_RANKS - 1))] for place in range(MAX_RANKS)]


def _chart(
    title: str, lines: Sequence[Line], marks: Sequence[Mark], *, zero: bool = False
) -> Chart | None:
    """Return a chart whose lines have a colour each; None where no line has two points."""
    shown = [line for line in lines if line.points]
    if not any(len(line.points) > 1 for line in shown):
        return None
    coloured = [
        line if line.kind == LIMIT else Line(name=line.name, points=line.points, kind=kind)
        for line, kind in zip(shown, KINDS * (len(shown) // len(KINDS) + 1), strict=False)
    ]
    return Chart(title=title, lines=coloured, marks=tuple(marks), zero=zero)


def _points(run: RunReport, series: str) -> Sequence[Point]:
    return next((points for rank in run.ranks if (points := rank.points(series))), ())


def _newest(runs: Sequence[RunReport], series: str) -> RunReport | None:
    return next((run for run in reversed(runs) if _points(run, series)), None)


def _marks(run: RunReport, series: str) -> list[Mark]:
    marks = [
        Mark(step=row.step, text=f"{row.detector} at step {row.step}")
        for row in run.halts
        if row.step is not None
    ]
    point = run.view.resume_from
    if point is not None and point.step:
        marks.append(Mark(step=point.step, text=f"{run.title} from step {point.step + 1}"))
    strange = [rank.series[series].non_finite for rank in run.ranks if series in rank.series]
    steps = [step for step in strange if step is not None]
    return [*marks, non_finite_mark(min(steps))] if steps else marks


def _file_stem(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text) or "-"
