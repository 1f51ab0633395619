"""Charts over the step as SVG, for pages and reports. `charts.css` holds the colours."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markupsafe import Markup

from service.text import number

WIDTH, HEIGHT = 640, 250
RIGHT, TOP, BOTTOM = 12, 30, 26
GAP, LETTER = 6, 11
"""Between a number and its rule; width of a digit where the page is narrow."""
LEGEND = 20
KINDS = "abcdef"
LIMIT = "limit"
"""Class of a line that is a limit, not a measurement."""
_TINY = 1e-300
Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One curve; only finite values are drawn."""

    name: str
    points: Sequence[Point]
    kind: str = KINDS[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A step at which something happened."""

    step: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Curves over the step."""

    title: str
    lines: Sequence[Line]
    marks: Sequence[Mark] = ()
    zero: bool = False

    @property
    def words(self) -> str:
        """What the chart shows, for readers who do not see it."""
        told = [
            f"{line.name} from {number(line.points[0][1])} to {number(line.points[-1][1])}"
            for line in self.lines
            if line.points
        ]
        return f"{self.title}: {'; '.join([*told, *(mark.text for mark in self.marks)])}"


def non_finite_mark(step: float, name: str = "") -> Mark:
    """Return the mark of the first value that is no number."""
    return Mark(step=step, text=f"{name} not finite from step {step:g}".strip())


def tag(name: str, *inside: str, **attributes: object) -> Markup:
    """Return an SVG element; plain text is escaped.

    In the names of attributes `_` stands for `-`, and a trailing `_` is dropped.
    """
    written = Markup("").join(
        Markup(' {}="{}"').format(
            key.rstrip("_").replace("_", "-"),
            f"{value:.1f}" if isinstance(value, float) else value,
        )
        for key, value in attributes.items()
    )
    content = Markup("").join(inside)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), written, content)


def picture(words: str, height: int, *parts: Markup, kind: str = "chart") -> Markup:
    """Return an SVG picture of the common width with its description."""
    size = f"0 0 {WIDTH} {height}"
    return tag("svg", *parts, class_=kind, viewBox=size, role="img", aria_label=words)


def draw(chart: Chart) -> Markup:
    """Return a chart as SVG, or a sentence if it has fewer than two values."""
    finite = [[p for p in line.points if math.isfinite(p[1])] for line in chart.lines]
    values = [value for points in finite for _, value in points]
    if len(values) < 2:
        marks = "".join(f" {mark.text}." for mark in chart.marks)
        return Markup('<p class="quiet">{}: No curve.{}</p>').format(chart.title, marks)
    steps = [step for points in finite for step, _ in points]
    steps += [mark.step for mark in chart.marks]
    low, high, ticks = nice_ticks(0.0 if chart.zero else min(values), max(values))
    first, last = min(steps), max(max(steps), min(steps) + 1)
    texts = {tick: number(tick, 4) for tick in ticks}
    left = GAP + LETTER * max(4, *map(len, texts.values()))

    def x(step: float) -> float:
        return left + (step - first) / (last - first) * (WIDTH - left - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [tag("text", chart.title, class_="title", x=GAP, y=18)]
    parts += _grid(texts, left, y)
    for line, points in zip(chart.lines, finite, strict=True):
        path = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)
        parts.append(tag("polyline", class_=f"line {line.kind}", points=path))
        if points and line.kind != LIMIT:
            cx, cy = x(points[-1][0]), y(points[-1][1])
            parts.append(tag("circle", class_=f"dot {line.kind}", cx=cx, cy=cy, r=3))
    parts += [_mark(row, x(row.step)) for row in chart.marks]
    for step, anchor in ((first, "start"), (last, "end")):
        parts.append(tag("text", f"step {step:g}", x=x(step), y=HEIGHT - 8, text_anchor=anchor))
    names, rows = _legend(chart.lines)
    return picture(chart.words, HEIGHT + LEGEND * rows, *parts, *names)


def _grid(texts: Mapping[float, str], left: int, y: Callable[[float], float]) -> list[Markup]:
    parts = []
    for tick, text in texts.items():
        parts.append(tag("line", class_="rule", x1=left, x2=WIDTH - RIGHT, y1=y(tick), y2=y(tick)))
        parts.append(tag("text", text, x=left - GAP, y=y(tick), text_anchor="end", dy=4))
    return parts


def _mark(mark: Mark, at: float) -> Markup:
    side, shift = ("end", -4.0) if at > WIDTH / 2 else ("start", 4.0)
    line = tag("line", class_="mark", x1=at, x2=at, y1=TOP, y2=HEIGHT - BOTTOM)
    return line + tag("text", mark.text, class_="mark", x=at + shift, y=TOP + 10, text_anchor=side)


def _legend(lines: Sequence[Line]) -> tuple[list[Markup], int]:
    """Return the names of the lines and the number of rows they take; one line has none."""
    shown = [line for line in lines if line.points]
    if len(shown) < 2:
        return [], 0
    parts, at, row = [], float(GAP), 0
    for line in shown:
        wide = 30.0 + 7.5 * len(line.name)
        if at > GAP and at + wide > WIDTH:
            at, row = float(GAP), row + 1
        y = HEIGHT + 12.0 + LEGEND * row
        parts.append(tag("line", class_=f"line {line.kind}", x1=at, x2=at + 14, y1=y - 4, y2=y - 4))
        parts.append(tag("text", line.name, x=at + 20, y=y))
        at += wide
    return parts, row + 1


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


@cache
def style() -> str:
    """Return the style sheet of charts."""
    return (Path(__file__).parent / "charts.css").read_text()


def svg_file(drawn: Markup) -> str:
    """Return a picture as a file of its own, with its colours inside."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}"'
    start, _, rest = str(drawn).replace("<svg", head, 1).partition(">")
    return f"{start}><style>{style()}</style>{rest}\n"
