"""How does a comparison look? One bar a variant: its ratio to the baseline with its interval."""

import math
from collections.abc import Callable

from markupsafe import Markup

from gonogo.contract.comparison import ComparedVariant, Comparison
from service.pages.charts import nice_ticks
from service.report.text import number

WIDTH, ROW, TOP, BOTTOM = 640, 30, 10, 28
LEFT, RIGHT = 130, 16
LONGEST = 16
"""Letters of a name that fit beside the axis."""


def interval_chart(found: Comparison) -> Markup:
    """Return the ratios of all variants with their intervals, the margin shaded.

    A variant without an interval has a dot alone, one without a run that counts says so.
    """
    ends = [1.0 / (1.0 + found.margin), 1.0 + found.margin, 1.0]
    for row in found.variants:
        ends += filter(None, map(_drawn, (row.ratio, row.low, row.high)))
    low, high, ticks = nice_ticks(min(ends), max(ends))
    height = TOP + ROW * len(found.variants) + BOTTOM
    floor = height - BOTTOM

    def x(value: float) -> float:
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    parts = [
        Markup('<rect class="margin" x="{}" y="{}" width="{}" height="{}"/>').format(
            f"{x(ends[0]):.1f}", TOP, f"{x(ends[1]) - x(ends[0]):.1f}", floor - TOP
        )
    ]
    for tick in ticks:
        parts.append(_rule(x(tick), floor))
        mark = Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>')
        parts.append(mark.format(f"{x(tick):.1f}", height - 10, number(tick, 4)))
    for place, row in enumerate(found.variants):
        parts.append(_row(row, TOP + ROW * place + ROW / 2, x))
    return Markup(
        '<svg class="chart intervals" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(WIDTH, height, in_words(found), Markup("").join(parts))


def in_words(found: Comparison) -> str:
    """Return what the chart shows, for those who do not see it."""
    rows = [f"{row.name} {row.answer}, {ratio_text(row)}" for row in found.variants if row.answer]
    return f"{found.metric} relative to {found.baseline}: {'; '.join(rows)}"


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
    """Return a number that fits on an axis that shows differences of a few per cent."""
    if value is None or not math.isfinite(value):
        return None
    return value if 0.01 <= value <= 100.0 else None


def _rule(at: float, floor: float) -> Markup:
    rule = Markup('<line class="rule" x1="{}" x2="{}" y1="{}" y2="{}"/>')
    return rule.format(f"{at:.1f}", f"{at:.1f}", TOP, floor)


def _row(row: ComparedVariant, y: float, x: Callable[[float], float]) -> Markup:
    name = row.name if len(row.name) <= LONGEST else f"{row.name[: LONGEST - 1]}…"
    text = Markup('<text class="name" x="{}" y="{}" text-anchor="end" dy="4">{}</text>')
    parts = [text.format(LEFT - 10, f"{y:.1f}", name)]
    kind = row.answer or "baseline"
    low, high = _drawn(row.low), _drawn(row.high)
    if low is not None and high is not None:
        bar = Markup('<line class="interval {}" x1="{}" x2="{}" y1="{}" y2="{}"/>')
        parts.append(bar.format(kind, *(f"{v:.1f}" for v in (x(low), x(high), y, y))))
    at = _drawn(1.0 if row.answer is None else row.ratio)
    if at is not None:
        dot = Markup('<circle class="interval {}" cx="{}" cy="{}" r="5"/>')
        parts.append(dot.format(kind, f"{x(at):.1f}", f"{y:.1f}"))
    else:
        note = Markup('<text class="tick" x="{}" y="{}" dy="4">{}</text>')
        parts.append(note.format(LEFT + 4, f"{y:.1f}", ratio_text(row)))
    return Markup("").join(parts)
