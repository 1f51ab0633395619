"""How is a picture drawn? With matplotlib's Agg canvas, without pyplot: threads share no state.

matplotlib is imported when the first picture is drawn: the service starts without it. Letters are
large for the picture's size, so that it can be read at the width of a telephone.
"""

import io
from typing import TYPE_CHECKING

from gonogo.contract.goodput import WORDS, Part
from service.report.goodput import TimeBars
from service.report.shapes import Chart, Curve, Histogram, Style
from service.report.timeline import What
from service.report.timeline_picture import Timeline, Tone

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Picture = Chart | Histogram | Timeline | TimeBars

DRAWING = 1
"""Raised when the same picture is drawn otherwise, so that old files are drawn anew."""
DPI = 130
_SIZE = (5.8, 3.3)
_SMALL, _NORMAL = 9, 10
COLOURS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#dc2626", "#0891b2")
SECTION_COLOURS = {
    "data": "#ca8a04",
    "forward": "#2563eb",
    "backward": "#7c3aed",
    "optimizer": "#16a34a",
    "wait": "#94a3b8",
}
TONES = {
    Tone.WAITS: "#cbd5e1",
    Tone.GOES_ON: "#2563eb",
    Tone.GO: "#16a34a",
    Tone.CONDITIONAL_GO: "#ca8a04",
    Tone.INCONCLUSIVE: "#a16207",
    Tone.NO_GO: "#dc2626",
    Tone.ENDED: "#64748b",
}
PARTS = {
    Part.PRODUCTIVE: "#16a34a",
    Part.PRESERVED: "#86c995",
    Part.QUEUE: "#e2e8f0",
    Part.START: "#2563eb",
    Part.RESTART: "#60a5fa",
    Part.EVALUATION: "#0891b2",
    Part.CHECKPOINT: "#9333ea",
    Part.BETWEEN_STEPS: "#c4b5fd",
    Part.STALL: "#dc2626",
    Part.HALT: "#ea580c",
    Part.REPEATED: "#a16207",
    Part.DECISION: "#cbd5e1",
    Part.UNKNOWN: "#64748b",
}
_SIGNS = {
    What.HALT: ("X", "#dc2626", "halt"),
    What.FINDING: ("^", "#ca8a04", "finding"),
    What.DECISION: ("D", "#0f172a", "decision"),
    What.PERSON: ("*", "#9333ea", "by a person"),
    What.REMEDY: ("P", "#0891b2", "remedy"),
}


def draw(picture: Picture) -> bytes:
    """Return the PNG of a picture."""
    if isinstance(picture, Timeline):
        figure, axes = _figure(height=1.6 + 0.42 * len(picture.rows), fitted=True)
        _draw_timeline(figure, axes, picture)
    elif isinstance(picture, TimeBars):
        figure, axes = _figure(height=1.9 + 0.36 * len(picture.rows), fitted=True)
        _draw_time_bars(figure, axes, picture)
    else:
        figure, axes = _figure(height=_SIZE[1], fitted=False)
        if isinstance(picture, Histogram):
            _draw_histogram(axes, picture)
        else:
            _draw_chart(axes, picture)
    axes.set_title(picture.title, fontsize=_NORMAL, wrap=True)
    axes.set_xlabel(picture.x, fontsize=_SMALL)
    axes.tick_params(labelsize=_SMALL)
    return _png(figure)


def _figure(*, height: float, fitted: bool) -> "tuple[Figure, Axes]":
    """Return a figure with one pair of axes; a layout that is fitted to its texts takes longer."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_SIZE[0], height), dpi=DPI, layout="constrained" if fitted else None)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    if not fitted:
        figure.subplots_adjust(left=0.12, right=0.98, top=0.9, bottom=0.16)
    return figure, axes


def _png(figure: "Figure") -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": "gonogo"})
    return stream.getvalue()


def _draw_chart(axes: "Axes", chart: Chart) -> None:
    if chart.stacked:
        steps = [step for step, _ in chart.curves[0].points]
        rows = [[value for _, value in row.points] for row in chart.curves]
        labels = [row.label for row in chart.curves]
        colours = [SECTION_COLOURS.get(label, COLOURS[0]) for label in labels]
        axes.stackplot(steps, rows, labels=labels, colors=colours, alpha=0.85)
    else:
        many = sum(row.style is Style.SOLID for row in chart.curves) > 1
        number = -1
        for row in chart.curves:
            number += row.style is Style.SOLID or not many  # a dashed line is as the one before
            _draw_curve(axes, row, COLOURS[max(0, number) % len(COLOURS)])
    for bound in chart.bounds:
        axes.axhline(bound.value, color="#dc2626", linewidth=1, linestyle=":", label=bound.text)
    for mark in chart.marks:
        colour = "#dc2626" if mark.grave else "#64748b"
        axes.axvline(mark.at, color=colour, linewidth=1.2, linestyle="--", label=mark.text)
    axes.grid(visible=True, alpha=0.25)
    axes.margins(x=0.02)
    if chart.from_zero:
        axes.set_ylim(0, axes.get_ylim()[1] * 1.08)
    axes.legend(fontsize=_SMALL - 1, framealpha=0.7)


def _draw_curve(axes: "Axes", row: Curve, colour: str) -> None:
    steps, values = zip(*row.points, strict=True)
    dot = "." if len(steps) < 60 else ""
    dashes = "--" if row.style is Style.DASHED else "-"
    axes.plot(
        steps, values, color=colour, label=row.label, linestyle=dashes, marker=dot, linewidth=1.5
    )


def _draw_histogram(axes: "Axes", picture: Histogram) -> None:
    for row in picture.bins:
        width = row.high - row.low or 0.1 * abs(row.low) or 1.0
        left = row.low if row.high > row.low else row.low - width / 2
        axes.bar(left, row.count, width=width, align="edge", color=COLOURS[0], edgecolor="white")
    for number, mark in enumerate(picture.marks):
        colour = COLOURS[1 + number % (len(COLOURS) - 1)]
        axes.axvline(mark.at, color=colour, linewidth=1.6, linestyle="--", label=mark.text)
    axes.set_ylabel("steps", fontsize=_SMALL)
    axes.grid(visible=True, axis="y", alpha=0.25)
    if picture.marks:
        axes.legend(fontsize=_SMALL - 1, framealpha=0.7)


def _draw_timeline(figure: "Figure", axes: "Axes", picture: Timeline) -> None:
    said: set[str] = set()

    def label(text: str) -> str:
        """Return the text the first time, for the legend."""
        first = text not in said
        said.add(text)
        return text if first else "_"

    for bar in picture.bars:
        height = 0.18 if bar.tone is Tone.WAITS else 0.5
        axes.barh(
            bar.row,
            bar.end - bar.start,
            left=bar.start,
            height=height,
            color=TONES[bar.tone],
            edgecolor="white",
            label=label(bar.tone.value),
        )
    for sign in picture.signs:
        shape, colour, text = _SIGNS[sign.what]
        axes.plot(
            [sign.at], [sign.row - 0.36], shape, color=colour, markersize=6, label=label(text)
        )
    axes.set_yticks(range(len(picture.rows)), picture.rows)
    axes.set_ylim(len(picture.rows) - 0.4, -0.75)
    axes.grid(visible=True, axis="x", alpha=0.25)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, fontsize=_SMALL - 1, ncols=4, loc="outside lower center", frameon=False
    )


def _draw_time_bars(figure: "Figure", axes: "Axes", picture: TimeBars) -> None:
    left = [0.0] * len(picture.rows)
    places = range(len(picture.rows))
    for part, lengths in picture.parts:
        colour, label = PARTS[part], WORDS[part]
        axes.barh(places, lengths, left=left, height=0.62, color=colour, label=label)
        left = [at + length for at, length in zip(left, lengths, strict=True)]
    axes.set_yticks(places, picture.rows)
    axes.invert_yaxis()
    axes.grid(visible=True, axis="x", alpha=0.25)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, fontsize=_SMALL - 1, ncols=4, loc="outside lower center", frameon=False
    )
