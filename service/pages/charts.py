"""How is a curve drawn without a script? As inline SVG, from points that are already thinned.

Colours and strokes come from the style sheet by class, so both themes fit; the numbers are text.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from service.report.text import number

WIDTH, HEIGHT = 640, 220
RIGHT, TOP, BOTTOM = 12, 12, 26
GAP, LETTER = 6, 11
"""Between a number and its rule, and the width of a digit where the page is narrow."""
_TINY = 1e-300
Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One curve; `kind` is its class in the style sheet: `a`, `b`, …"""

    name: str
    points: Sequence[Point]
    kind: str = "a"


def line_chart(
    title: str, lines: Sequence[Line], *, unit: str = "", zero: bool = False, over: bool = False
) -> Markup:
    """Return a chart of curves over the step; without two points it says so.

    Args:
        title: what is shown, also for those who do not see it.
        lines: the curves; non-finite values are left out.
        unit: of the values.
        zero: whether the value axis begins at 0.
        over: whether no more values can come.
    """
    finite = [[p for p in line.points if math.isfinite(p[1])] for line in lines]
    values = [value for points in finite for _, value in points]
    if len(values) < 2:
        told = "No curve: fewer than two values came." if over else "No curve yet."
        return Markup('<p class="quiet">{}</p>').format(told)
    steps = [step for points in finite for step, _ in points]
    low, high, ticks = nice_ticks(0.0 if zero else min(values), max(values))
    first, last = min(steps), max(max(steps), min(steps) + 1)
    marks = {tick: number(tick, 4) for tick in ticks}
    left = left_of(marks.values())

    def x(step: float) -> float:
        return left + (step - first) / (last - first) * (WIDTH - left - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [_grid(marks, left, y)]
    for line, points in zip(lines, finite, strict=True):
        path = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)
        parts.append(Markup('<polyline class="line {}" points="{}"/>').format(line.kind, path))
        if points:
            end = points[-1]
            dot = Markup('<circle class="dot {}" cx="{}" cy="{}" r="3"/>')
            parts.append(dot.format(line.kind, f"{x(end[0]):.1f}", f"{y(end[1]):.1f}"))
    for step, anchor in ((first, "start"), (last, "end")):
        mark = Markup('<text class="tick" x="{}" y="{}" text-anchor="{}">step {}</text>')
        parts.append(mark.format(f"{x(step):.1f}", HEIGHT - 8, anchor, f"{step:g}"))
    told = f"{title}{f' in {unit}' if unit else ''}: {_in_words(lines, finite)}"
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(WIDTH, HEIGHT, told, Markup("").join(parts))


def left_of(marks: Iterable[str]) -> int:
    """Return where the curves begin, so that no number beside them is cut on a narrow page."""
    return GAP + LETTER * max(4, *map(len, marks))


def _grid(marks: Mapping[float, str], left: int, y: Callable[[float], float]) -> Markup:
    rows = []
    for tick, text in marks.items():
        at = f"{y(tick):.1f}"
        rule = Markup('<line class="rule" x1="{}" x2="{}" y1="{}" y2="{}"/>')
        rows.append(rule.format(left, WIDTH - RIGHT, at, at))
        mark = Markup('<text class="tick" x="{}" y="{}" text-anchor="end" dy="4">{}</text>')
        rows.append(mark.format(left - GAP, at, text))
    return Markup("").join(rows)


def _in_words(lines: Sequence[Line], finite: Sequence[Sequence[Point]]) -> str:
    return "; ".join(
        f"{line.name} from {number(points[0][1])} to {number(points[-1][1])}"
        for line, points in zip(lines, finite, strict=True)
        if points
    )


def nice_ticks(low: float, high: float, count: int = 4) -> tuple[float, float, list[float]]:
    """Return round bounds around `low` and `high`, and the round values between them."""
    span = next(size for size in (high - low, abs(high), 1.0) if size > _TINY)
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * times for times in (1, 2, 2.5, 5, 10) if power * times >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if last == first:
        last += 1
    return first * step, last * step, [index * step for index in range(first, last + 1)]


def legend(lines: Sequence[Line]) -> Markup:
    """Return the names of the curves with their colours."""
    items = Markup("").join(
        Markup('<li><span class="swatch {}"></span>{}</li>').format(line.kind, escape(line.name))
        for line in lines
    )
    return Markup('<ul class="legend">{}</ul>').format(items)
