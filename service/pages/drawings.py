"""Drawings of a page: a run's curves, where time went, and how variants compare."""

import math
from collections.abc import Callable, Mapping

from markupsafe import Markup

from gonogo.contract.campaign import ComparedVariant, Comparison
from gonogo.contract.criterion import OWN_PREFIX
from gonogo.contract.goodput import WORDS, Goodput, Part, seconds_of
from service.charts import WIDTH, Chart, Line, nice_ticks, non_finite_mark, picture, tag
from service.evidence.lowest_rank import Curve
from service.text import duration, number, percent

BAR = 18
ROW, TOP, BOTTOM = 30, 10, 28
LEFT, RIGHT = 130, 16
LONGEST = 16
MOST_OWN = 12
"""Charts of a program's own metrics."""


def charts_of(curves: Mapping[str, Curve]) -> list[Chart]:
    """Return the charts of a run: loss, speed, then own metrics by name."""
    own = sorted(name for name in curves if name.startswith(OWN_PREFIX))
    return [
        _chart("loss", {name: curves.get(name) for name in ("loss", "validation loss")}),
        _chart("tokens/s, as the trainer reports", {"tokens/s": curves.get("tokens/s")}, 2),
        *(_chart(name, {name: curves[name]}) for name in own[:MOST_OWN]),
    ]


def _chart(title: str, curves: dict[str, Curve | None], first: int = 0) -> Chart:
    """Return a chart; the colours begin with number `first`, a speed from zero."""
    found = {name: curve for name, curve in curves.items() if curve is not None}
    kinds = dict(zip(curves, "abc"[first:], strict=False))
    return Chart(
        title=title,
        lines=[Line(name=name, points=row.points, kind=kinds[name]) for name, row in found.items()],
        marks=[
            non_finite_mark(row.non_finite, name if len(found) > 1 else "")
            for name, row in found.items()
            if row.non_finite is not None
        ],
        zero=bool(first),
    )


def goodput_bar(goodput: Goodput) -> Markup:
    """Return one bar of parts; a sentence where no time has passed."""
    if goodput.wall_s <= 0:
        return Markup('<p class="quiet">No time has passed.</p>')
    parts, x = [], 0.0
    for part, seconds in _spent(goodput):
        wide = WIDTH * seconds / goodput.wall_s
        told = tag("title", f"{WORDS[part]}: {duration(seconds)}")
        kind = f"part-{part.value}"
        parts.append(tag("rect", told, class_=kind, x=x, y=0, width=wide, height=BAR))
        x += wide
    words = ", ".join(f"{WORDS[part]} {duration(s)}" for part, s in _spent(goodput))
    return picture(f"Where the time went: {words}", BAR, *parts)


def goodput_rows(goodput: Goodput) -> list[tuple[str, str, str, str]]:
    """Return (part, its words, its time, its share) of all parts that took any."""
    return [
        (part.value, WORDS[part], duration(seconds), percent(seconds, goodput.wall_s))
        for part, seconds in _spent(goodput)
    ]


def _spent(goodput: Goodput) -> list[tuple[Part, float]]:
    return [(part, seconds) for part, seconds in seconds_of(goodput).items() if seconds > 0]


def interval_chart(found: Comparison) -> Markup:
    """Return the ratios of all variants with their intervals, the margin shaded."""
    ends = [1.0 / (1.0 + found.margin), 1.0 + found.margin, 1.0]
    for row in found.variants:
        ends += filter(None, map(_drawn, (row.ratio, row.low, row.high)))
    low, high, ticks = nice_ticks(min(ends), max(ends))
    height = TOP + ROW * len(found.variants) + BOTTOM
    floor = height - BOTTOM

    def x(value: float) -> float:
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    wide = x(ends[1]) - x(ends[0])
    parts = [tag("rect", class_="margin", x=x(ends[0]), y=TOP, width=wide, height=floor - TOP)]
    for tick in ticks:
        at = x(tick)
        parts.append(tag("line", class_="rule", x1=at, x2=at, y1=TOP, y2=floor))
        parts.append(tag("text", number(tick, 4), x=at, y=height - 10, text_anchor="middle"))
    for place, row in enumerate(found.variants):
        parts += _variant(row, TOP + ROW * place + ROW / 2, x)
    told = [f"{row.name} {row.answer}, {ratio_text(row)}" for row in found.variants if row.answer]
    words = f"{found.metric} relative to {found.baseline}: {'; '.join(told)}"
    return picture(words, height, *parts)


def ratio_text(row: ComparedVariant) -> str:
    """Return a ratio with its interval: `1.052 (1.031 to 1.074)`; the baseline's is 1."""
    if row.answer is None:
        return "1"
    if row.ratio is None:
        return "no run that counts"
    if row.low is None or row.high is None:
        return f"{row.ratio:.3f}"
    return f"{row.ratio:.3f} ({row.low:.3f} to {row.high:.3f})"


def _drawn(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return value if 0.01 <= value <= 100.0 else None


def _variant(row: ComparedVariant, y: float, x: Callable[[float], float]) -> list[Markup]:
    name = row.name if len(row.name) <= LONGEST else f"{row.name[: LONGEST - 1]}…"
    kind = f"interval {row.answer or 'baseline'}"
    parts = [tag("text", name, class_="name", x=LEFT - 10, y=y, text_anchor="end", dy=4)]
    low, high = _drawn(row.low), _drawn(row.high)
    if low is not None and high is not None:
        parts.append(tag("line", class_=kind, x1=x(low), x2=x(high), y1=y, y2=y))
    at = _drawn(1.0 if row.answer is None else row.ratio)
    if at is None:
        return [*parts, tag("text", ratio_text(row), x=LEFT + 4, y=y, dy=4)]
    return [*parts, tag("circle", class_=kind, cx=x(at), cy=y, r=5)]
