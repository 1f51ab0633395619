"""Which pictures does a report show, and of which numbers? Pure: a view gives the same ones.

One picture shows one thing, so that it can be read on a telephone. What was not observed has no
picture: a sentence says so. `plots` draws them.
"""

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gonogo.contract.finding import Severity
from service.report.courses import Course, build_courses
from service.report.distribution import build_distribution
from service.report.shapes import Bound, Chart, Curve, Histogram, Mark, Plot, Style
from service.report.text import number
from service.report.view import SECTIONS, ReportView, Series

MAX_RANKS = 6
"""Lines of ranks in one picture; of more ranks these stand for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePictures:
    """What a phase has to show, and what it has not."""

    pictures: tuple[Plot, ...]
    absent: tuple[str, ...]
    """What was not observed, one sentence each."""


def file_stem(text: str) -> str:
    """Return a text as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text) or "-"


def overview_pictures(view: ReportView) -> tuple[Chart, ...]:
    """Return loss and speed of all phases, one after the other; a resumed phase is one line."""
    loss, speed, start = [], [], 0
    for phase in view.phases:
        runs = view.runs_of(phase)
        course = _newest(build_courses(runs), "loss", "tok_s")
        if course is not None:
            loss.append(Curve(label=phase, points=_moved(_mean(course, "loss"), start)))
            slow = min(course.ranks, key=lambda rank: _middle(course.series(rank, "tok_s")))
            points = _moved(course.series(slow, "tok_s"), start)
            speed.append(Curve(label=phase, points=points))
        start += max((run.view.steps for run in runs), default=0)
    x = "steps of all phases"
    charts = (
        Chart(name="overview-loss", title="loss", curves=_drawn(loss), x=x),
        Chart(
            name="overview-speed",
            title="tokens/s, slowest rank",
            curves=_drawn(speed),
            x=x,
            from_zero=True,
        ),
    )
    return tuple(row for row in charts if _has_a_line(row))


def phase_pictures(view: ReportView, phase: str) -> PhasePictures:
    """Return what a phase has to show: its newest line, and of the loss every line."""
    runs = view.runs_of(phase)
    courses = build_courses(runs)
    if max((course.last_step for course in courses), default=0) < 2:
        return PhasePictures(pictures=(), absent=("curves: fewer than two steps have ended",))
    pictures: list[Plot] = []
    absent: list[str] = []
    for build, unseen in _ALL:
        found = build(courses)
        if found is None:
            absent += [unseen] * (build is not _gates or any(run.ours for run in runs))
        else:
            stem = f"{file_stem(phase)}-{found.name}"
            pictures.append(replace(found, name=stem, title=f"{phase}: {found.title}"))
    return PhasePictures(pictures=tuple(pictures), absent=tuple(absent))


def _loss(courses: Sequence[Course]) -> Chart | None:
    curves = []
    for course in courses:
        of = f", {course.title}" if len(courses) > 1 else ""
        curves.append(Curve(label=f"loss{of}", points=_mean(course, "loss")))
        evals = Curve(label=f"validation{of}", points=_mean(course, "val_loss"), style=Style.DASHED)
        curves.append(evals)
    return _chart("loss", "loss, mean over ranks", curves, _marks(courses[-1]))


def _speed(courses: Sequence[Course]) -> Chart | None:
    course = _newest(courses, "tok_s")
    if course is None:
        return None
    order = course.stretches[-1].run.order
    floor = order.watch.slow.floor_tok_s if order is not None else None
    bounds = () if floor is None else (Bound(value=floor, text=f"floor {floor:g}"),)
    found = _by_rank(course, courses, "speed", "tok_s", "tokens/s over all ranks")
    return None if found is None else replace(found, bounds=bounds)


def _step_times(courses: Sequence[Course]) -> Histogram | None:
    course = next((row for row in reversed(courses) if _seconds(row)), None)
    spread = build_distribution(_seconds(course)) if course is not None else None
    if course is None or spread is None:
        return None
    marks = (
        Mark(at=spread.median, text=f"median {number(spread.median)} s"),
        Mark(at=spread.p95, text=f"p95 {number(spread.p95)} s"),
    )
    beyond = f", {spread.beyond} slower are beyond" if spread.beyond else ""
    of = _of(course, courses)
    return Histogram(
        name="steps",
        title=f"step times of all ranks{of}{beyond}",
        x="seconds of a step",
        bins=spread.bins,
        marks=marks,
    )


def _seconds(course: Course) -> list[float]:
    return [value for rank in course.ranks for value in course.step_times(rank)]


def _sections(courses: Sequence[Course]) -> Chart | None:
    course = _newest(courses, "data")
    if course is None:
        return None
    ranks = [rank for rank in course.ranks if course.series(rank, "data")]
    slow = max(ranks, key=lambda rank: statistics.median(course.step_times(rank) or [0.0]))
    rows = {name: dict(course.series(slow, name)) for name in SECTIONS}
    steps = sorted(set.intersection(*(set(row) for row in rows.values())))
    curves = [
        Curve(label=name, points=tuple((step, rows[name][step]) for step in steps))
        for name in SECTIONS
    ]
    title = f"seconds of a step by section, rank {slow}{_of(course, courses)}"
    found = _chart("sections", title, curves, ())
    return None if found is None else replace(found, stacked=True)


def _host_memory(courses: Sequence[Course]) -> Chart | None:
    return _memory(courses, "host", "host_mb", "host memory, GB")


def _device_memory(courses: Sequence[Course]) -> Chart | None:
    return _memory(courses, "device", "device_mb", "device memory, GB")


def _memory(courses: Sequence[Course], name: str, series: str, title: str) -> Chart | None:
    course = _newest(courses, series)
    found = None if course is None else _by_rank(course, courses, name, series, title)
    if found is None:
        return None
    curves = tuple(
        replace(row, points=tuple((step, mb / 1000) for step, mb in row.points))
        for row in found.curves
    )
    return replace(found, curves=curves)


def _utilisation(courses: Sequence[Course]) -> Chart | None:
    course = _newest(courses, "util")
    if course is None:
        return None
    return _by_rank(course, courses, "util", "util", "device utilisation, %")


def _gates(courses: Sequence[Course]) -> Chart | None:
    course = _newest(courses, "gate_entropy")
    if course is None:
        return None
    named = {
        "gate_entropy": "entropy (1: all branches alike, 0: one has all)",
        "gate_max": "largest share of any layer",
        "gate_collapse_frac": "share of collapsed layers",
    }
    curves = [Curve(label=label, points=_mean(course, name)) for name, label in named.items()]
    found = _chart("gates", f"gates of the branches{_of(course, courses)}", curves, ())
    return None if found is None else replace(found, from_zero=True)


_ALL: tuple[tuple[Callable[[Sequence[Course]], Plot | None], str], ...] = (
    (_loss, "loss: fewer than two progress lines tell it"),
    (_speed, "speed: no two steps are timed from their start to their end"),
    (_step_times, "step times: no step is timed from its start to its end"),
    (_sections, "sections of a step: not reported"),
    (_host_memory, "host memory: no rank reports any"),
    (_device_memory, "device memory: no rank reports any, and no device says what is in use"),
    (_utilisation, "device utilisation: no device line falls into a step"),
    (_gates, "gate statistics: no progress line tells them"),
)


def _by_rank(
    course: Course, courses: Sequence[Course], name: str, series: str, title: str
) -> Chart | None:
    found = [
        Curve(label=f"rank {rank}", points=course.series(rank, series)) for rank in course.ranks
    ]
    curves = spread_out([row for row in found if row.points])
    some = f", {len(curves)} of {len(found)} ranks" if len(curves) < len(found) else ""
    of = _of(course, courses)
    chart = _chart(name, f"{title}{of}{some}", curves, _marks(course))
    return None if chart is None else replace(chart, from_zero=True)


def spread_out(curves: Sequence[Curve]) -> list[Curve]:
    """Return at most `MAX_RANKS` of the lines, from the lowest median to the highest."""
    if len(curves) <= MAX_RANKS:
        return list(curves)
    ordered = sorted(curves, key=lambda row: _middle(row.points))
    last = len(ordered) - 1
    return [ordered[round(place * last / (MAX_RANKS - 1))] for place in range(MAX_RANKS)]


def _chart(name: str, title: str, curves: Sequence[Curve], marks: tuple[Mark, ...]) -> Chart | None:
    found = Chart(name=name, title=title, curves=_drawn(curves), marks=marks)
    return found if _has_a_line(found) else None


def _drawn(curves: Sequence[Curve]) -> tuple[Curve, ...]:
    return tuple(row for row in curves if row.points)


def _has_a_line(chart: Chart) -> bool:
    return any(len(row.points) > 1 for row in chart.curves)


def _of(course: Course, courses: Sequence[Course]) -> str:
    """Say which attempts a line is of, where there are other lines."""
    return f", {course.title}" if len(courses) > 1 else ""


def _newest(courses: Sequence[Course], *names: str) -> Course | None:
    """Return the newest line of which any rank tells one of these series."""
    for course in reversed(courses):
        if any(course.series(rank, name) for rank in course.ranks for name in names):
            return course
    return None


def _mean(course: Course, name: str) -> Series:
    """Return a series that all ranks tell alike, of the lowest rank that tells it."""
    found = (course.series(rank, name) for rank in course.ranks)
    return next((points for points in found if points), ())


def _marks(course: Course) -> tuple[Mark, ...]:
    """Return where attempts went on with each other, and where a finding halted one."""
    seams = [
        Mark(at=step, text=f"attempt {run.view.attempt} from step {step}")
        for step, run in course.seams
    ]
    halts = [
        Mark(at=row.step, text=f"{row.detector} at step {row.step}", grave=True)
        for part in course.stretches
        for row in part.run.findings
        if row.severity is Severity.HALT and row.step is not None
    ]
    return tuple(sorted([*seams, *halts], key=lambda row: row.at))


def _moved(points: Series, start: int) -> Series:
    return tuple((step + start, value) for step, value in points)


def _middle(points: Series) -> float:
    return statistics.median(value for _, value in points) if points else 0.0
